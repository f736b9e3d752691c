// Which ranks are wrong, if ranks that must have the same bits have not. Every rank decides alike from the hashes of
// all ranks, which are listed by world rank.
//
// Copies: ranks that hold the same numbers, such as replicas of the weights. The ones that differ from most are wrong.
//
// Computations: in a round, each group of ranks that compute the same sequences together (tensor and context parallel)
// computes the micro-batch of its own data rank, or that of a data rank before it. The same micro-batch must give the
// same bits on any group, and on one group again and again.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "llmc/comm/mesh.h"

struct Suspects {
  std::vector<int> ranks;  // in ascending order; none: all bits are the same
  // Each of them is wrong. Otherwise one of them is, or some are, and the hashes do not tell which.
  bool certain = false;
  bool any() const { return !ranks.empty(); }
};

// Ranks with the same key must have the same hash. Those that have another one than most are wrong; if no hash is the
// most frequent one, all ranks of the key are suspects.
Suspects odd_copies(std::span<const int64_t> keys, std::span<const uint64_t> hashes);

// Returns the rank that computes the same part of a micro-batch in the group `back` data ranks before that of `rank`,
// going round.
int counterpart(const Mesh& mesh, int rank, int back);

// What each rank computed: `own`, the micro-batch of its data rank, and `other`, that of the data rank before; with one
// data rank both are its own.
struct Computed {
  std::vector<uint64_t> own, other;
};

// Returns whether some rank computed other bits than its counterpart.
bool differ(const Mesh& mesh, const Computed& once);
// After a difference: the ranks that computed other bits the second time than the first. There are such ranks if the
// error passes. With one data rank `once` alone has two computations of each rank.
Suspects unsteady(const Mesh& mesh, const Computed& once, const Computed& again);
// If none is unsteady: `third`, what each rank computed of the micro-batch two data ranks before its own, decides. With
// two data ranks it says nothing new, and both are suspects.
Suspects outvoted(const Mesh& mesh, const Computed& once, std::span<const uint64_t> third);

// The ranks of a group exchange what they compute, so that all of them differ if one is wrong. What they compute before
// they exchange it tells which. `step(i)` returns the hash of what each rank computed in its step number i, from 0, of
// `own` and of `other`; nothing after the last one. Returns the suspects of each group that differ at the first step at
// which any of that group does, or all of the group's if no step tells.
Suspects first_to_differ(const Mesh& mesh, const Suspects& suspects,
                         const std::function<std::optional<Computed>(size_t number)>& step);
