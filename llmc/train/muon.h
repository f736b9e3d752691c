// Muon's update of the blocks' matrices, each of which one rank makes orthogonal as a whole (matrix_owners.h). State
// and gradients stay where they are. In rounds, with one matrix for each owner:
//
//   compute                                      reduce stream
//   momentum of this rank's slices     →         slices to the owners
//   Newton-Schulz of the own matrix    ←
//                                      →         parts of the result back to the slices
//   update of this rank's slices       ←
//
// While a matrix is computed, the slices of the next round and the results of the former one are sent. Slices and
// results are sent in the type of the products.
#pragma once

#include <span>
#include <vector>

#include "llmc/config/fp8.h"
#include "llmc/kernels/matmul.h"
#include "llmc/kernels/muon.h"
#include "llmc/memory/gradient_store.h"
#include "llmc/memory/optimizer_state.h"
#include "llmc/memory/parameter_store.h"
#include "llmc/memory/plan.h"
#include "llmc/train/matrix_owners.h"
#include "llmc/train/trainer_settings.h"

class Muon {
 public:
  // `matrices` are those of share_matrices(), and `ranks` the ranks that it numbers.
  Muon(MemoryPlan& plan, std::vector<OwnedMatrix> matrices, OptimizerState& state, const TrainerSettings& settings,
       Communicator& ranks, Stream& compute, Stream& transfer);
  // Updates the matrices, unless the step is held. Must be called after decide_update(), between Sweep::begin() and
  // ParameterStore::updated().
  void update(Matmul& matmul, const GradientStore& gradients, ParameterStore& parameters, const StepState* state);

 private:
  // This rank's slice of a matrix.
  struct KeptSlice {
    const OwnedMatrix* matrix;
    const MatrixPart* part;
    size_t at;  // among the slices of the round
  };
  // The byte ranges are by rank. Slices are sent to `own_parts` of their owner, and results from there back to the
  // slices.
  struct Round {
    std::vector<KeptSlice> slices;
    std::vector<int64_t> elements;                        // of the slices of each rank
    int64_t largest = 0;                                  // elements of the largest matrix
    const OwnedMatrix* own = nullptr;                     // the matrix that this rank computes; null: none
    std::vector<ByteRange> slices_sent, own_parts;        // to the owners
    std::vector<ByteRange> own_results, slices_received;  // back
  };
  void list_slices(Round& round, std::span<const OwnedMatrix> matrices);
  void plan_memory(MemoryPlan& plan);
  void begin(int round, const GradientStore& gradients, const StepState* state);
  void orthogonalize(int round, Matmul& matmul);
  void finish(int round, ParameterStore& parameters, const StepState* state);
  MuonSlice slice_of(const KeptSlice& kept) const;

  const std::vector<OwnedMatrix> matrices_;
  OptimizerState& state_;
  const TrainerSettings& settings_;
  const DType type_;  // of the products
  Communicator& ranks_;
  Stream &compute_, &transfer_;
  std::vector<Round> rounds_;
  const int lead_;  // rounds that are sent ahead: 1, or 0 on one rank
  // Used in turn by the rounds: the slices of a round; the parts of the own matrix, and the matrix.
  std::vector<PlannedTensor> slices_, parts_, matrix_buffers_;
  PlannedTensor gram_, polynomial_, partials_, square_sum_;
  std::vector<Event> arrived_, returned_;  // one for each of parts_, of slices_
  Event ready_;
};
