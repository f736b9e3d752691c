// The settings of a forward and a backward pass: those of a Trainer that the Transformer reads.
#pragma once

#include "llmc/config/fp8.h"
#include "llmc/kernels/attention.h"
#include "llmc/memory/activation_policy.h"

struct PassSettings {
  DType dtype = DType::fp32;  // of weights and activations in the products
  int B = 1, T = 1;           // the largest micro-batch: sequences, tokens per sequence
  int head_chunk = 128;       // tokens whose logits exist at once, a multiple of 128
  float z_loss = 0;           // coefficient of the z-loss in training (classifier.h); 0: there is none
  AttentionKernel attention = AttentionKernel::automatic;
  bool training = true;          // false: forward passes only, no memory for gradients and moments
  int prefetch = 1;              // units whose weights are gathered ahead of their use
  Fp8Settings fp8;               // for the blocks' products; with bf16 only
  ActivationPolicy activations;  // what training keeps of a forward pass
  int context_heads = 0;         // key/value heads that context parallelism gathers together; 0: as it chooses
};
