// The weights, unit by unit (the embedding, a block, the head). gather(unit) makes a unit's weights whole on the
// gather stream. get(unit) lets the compute stream wait for them. release(unit) says that compute is done with
// them. gather() enqueues nothing if the unit is already whole on the device: always in stage 0, between updates in
// stages 1 and 2, and in stage 3, or with weights on the host, while the unit is still in its slot. The order of the
// three calls is checked all the same: it is an error to use a unit that was not gathered, or to gather it again before
// its release.
//
// Weights on the host are copied to the device by gather(), in each stage: this rank's part, to its place in the unit's
// slot, where the ranks gather the rest.
//
// Stage 3, and weights on the host, have `blocks_at_once` slots for blocks, which they use in turn, and one slot for
// the embedding and the head. If the head is tied, both are needed at once and have a slot each.
//
// The weights of FP8 products are quantized by the first get() after they were changed or gathered, or they are
// gathered as FP8 bytes (fp8_weights.h). Where blocks share the place of their operands, those of a block are there
// until the next get() of another block.
#pragma once

#include <optional>
#include <vector>

#include "llmc/config/parameters.h"
#include "llmc/memory/fp8_weights.h"
#include "llmc/memory/placement.h"
#include "llmc/memory/plan.h"
#include "llmc/memory/slots.h"

struct WeightSettings {
  DType type;          // of the weights that products take, fp32 or bf16
  int blocks_at_once;  // slots for blocks
  size_t chunk;        // see Fp8Weights
};

class ParameterStore {
 public:
  // `scales`: for FP8 products; null: there are none.
  ParameterStore(MemoryPlan& plan, const WeightSettings& settings, const ParameterLayout& layout,
                 const Placement& placement, Fp8Scales* scales, Stream& compute, Stream& gather_stream);
  // Call this once the plan has memory: it makes the tables of FP8 products.
  void prepare();

  DType type() const { return weights_->type; }
  bool on_host() const { return placement_.front().weights_on_host; }

  void gather(int unit);
  // Returns the unit's weights, which are valid until release(unit). If a block was gathered as bytes, only its norms
  // and biases are there.
  UnitTensors get(int unit);
  // get() must have been called before for the block.
  QuantizedWeight quantized(const LayerProjection& p) const { return fp8_ ? fp8_->get(p) : QuantizedWeight{}; }
  void release(int unit);

  // Returns a shard of a unit, which this rank must keep.
  Tensor kept(int unit, const Shard& shard) const { return shards_.view(weights_, unit, shard); }
  // Returns elements that this rank keeps from the unit on, in consecutive units.
  Tensor kept_from(int unit, const Shard& elements) const { return shards_.view_from(weights_, unit, elements); }
  // Returns the memory (products of all blocks) for the amaxes of the weights that this rank updates:
  // global_norm_finish() clears it and adamw() raises it. Absent if the amaxes are not needed.
  Tensor weight_amax() const { return fp8_ ? fp8_->weight_amax() : Tensor(); }
  // Call this after all weights were updated on the compute stream, which must have waited for those that lie on the
  // host. `amax_ready`: weight_amax() holds their amaxes.
  void updated(bool amax_ready = false);
  // Call this after a CUDA graph has updated the weights. It marks all gathered and quantized copies as out of date,
  // and enqueues nothing.
  void changed();

 private:
  struct UnitWeights {
    Communicator* ranks;            // among which the unit is divided
    int layer;                      // -1: the unit is no block
    int slot;                       // where the unit becomes whole; -1: it takes no slot in turn with others
    bool in_bytes;                  // it is gathered as FP8 bytes
    bool update_ends;               // after an update the unit must be gathered again
    bool current;                   // it is whole, or will be once `gathered` is reached
    bool waited;                    // compute has waited for that
    bool in_use = false;            // it was gathered, and not released yet
    bool operands_current = false;  // its FP8 operands were made from what was gathered last
    Event gathered;
    // From prepare() on. `own` is what this rank updates. In bytes: `unquantized` holds its norms and biases, and
    // `whole` is absent.
    Tensor own = {}, whole = {}, unquantized = {};
  };
  void load(const UnitWeights& u, const UnitPlacement& p);
  void take_slot(const UnitWeights& u, int unit);
  void wait_for_update();

  const ParameterLayout& layout_;
  const Placement& placement_;
  const FlatShards shards_;  // in weights_
  Stream &compute_, &gather_stream_;
  PlannedTensor weights_;
  Slots slots_;  // of units whose whole weights are not kept on the device
  std::vector<UnitWeights> units_;
  Event updated_;
  bool awaited_update_ = true;  // the gather stream has waited for the last update
  std::optional<Fp8Weights> fp8_;
};
