// The settings of a Trainer.
#pragma once

#include "llmc/config/fp8.h"
#include "llmc/kernels/attention.h"
#include "llmc/memory/activation_policy.h"
#include "llmc/memory/optimizer_state.h"

struct TrainerSettings {
  DType dtype = DType::fp32;  // of weights and activations in the products
  int B = 1, T = 1;           // micro-batch: sequences, tokens per sequence
  int head_chunk = 128;
  bool tf32 = false;
  AttentionKernel attention = AttentionKernel::automatic;
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.1f;
  float grad_clip = 1.0f;            // 0: no clipping
  bool training = true;              // false: forward passes only, no memory for gradients and moments
  int zero_stage = 0;                // which state is sharded: see placement.h
  DType reduce_dtype = DType::fp32;  // of gradients on their way between the ranks that shard
  int prefetch = 1;                  // units whose weights are gathered ahead of their use
  bool snapshot = false;             // plans host memory for take_snapshot()
  Fp8Settings fp8;                   // for the blocks' products; with bf16 only
  int64_t fp8_stats = 0;             // statistics every so many steps, from 0 on; 0: never
  ActivationPolicy activations;      // what training keeps of a forward pass
  StateSettings state;               // types and memory of master weights and moments
  uint64_t seed = 0;                 // for stochastic rounding
  int micro_steps = 1;               // most micro-batches per step
  int context_heads = 0;             // key/value heads that context parallelism gathers together; 0: as it chooses
  int tensor_chunks = 1;             // pieces in which tensor parallelism sends rows, beside the products
  DType tensor_sums = DType::fp32;   // of partial sums between tensor-parallel ranks
  bool graphs = false;               // captures a step once as a CUDA graph, and then launches the graph
};

enum class Init { normal, depth_scaled };
