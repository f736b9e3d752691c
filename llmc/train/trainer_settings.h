// What a Trainer plans and enqueues. trainer_settings() in settings.cpp says which option sets which field.
#pragma once

#include "llmc/kernels/muon.h"
#include "llmc/memory/optimizer_state.h"
#include "llmc/model/pass_settings.h"

// What an update of the weights depends on.
struct OptimizerSettings {
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  float weight_decay = 0.1f;  // of matrices
  // Muon updates the blocks' matrices (is_block_matrix); AdamW all other weights.
  bool muon = false;
  float muon_momentum = 0.95f, muon_weight_decay = 0.1f;
  float muon_rate_factor = 1;  // Muon's learning rate / AdamW's
  MuonScale muon_scale = MuonScale::match_rms;
  uint64_t seed = 0;  // for stochastic rounding
};

struct TrainerSettings : PassSettings, OptimizerSettings {
  bool tf32 = false;
  float grad_clip = 1.0f;            // 0: no clipping
  double skip_spikes = 0;            // deviations beyond which a step is a spike (spike_window.h); 0: none is
  int64_t bad_steps_limit = 10;      // so many spikes in a row halt the training
  int zero_stage = 0;                // what the ranks shard: see placement.h
  DType reduce_dtype = DType::fp32;  // of gradients that are sent between the ranks that shard
  bool verifies = false;             // plans memory for verify()
  bool looks = false;                // plans memory for exchange()
  bool snapshot = false;             // plans host memory for take_snapshot()
  int64_t fp8_stats = 0;             // statistics every so many steps, from 0 on; 0: never
  StateSettings state;               // types and memory of master weights and moments
  int micro_batches = 1;             // most micro-batches per step
  int sources = 1;                   // of the training data, whose losses are summed one by one
  int tensor_chunks = 1;             // in which tensor parallelism sends rows, at the same time as the products
  DType tensor_sums = DType::fp32;   // of partial sums between tensor-parallel ranks
  bool graphs = false;               // captures a step once as a CUDA graph, and then launches the graph
};

enum class Init { normal, depth_scaled };
