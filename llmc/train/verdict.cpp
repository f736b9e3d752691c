#include "llmc/train/verdict.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

namespace {

int group_size(const Mesh& mesh) { return mesh.context_degree * mesh.tensor_degree; }

// How many data ranks before its own the micro-batch `other` belongs to.
int distance(const Mesh& mesh) { return mesh.data_degree() > 1; }

Suspects suspects_of(const std::set<int>& ranks, bool certain) {
  return {{ranks.begin(), ranks.end()}, certain && !ranks.empty()};
}

// True if `rank` computed other bits of the micro-batch of its counterpart than that one did.
bool other_differs(const Mesh& mesh, const Computed& once, int rank) {
  return once.other[size_t(rank)] != once.own[size_t(counterpart(mesh, rank, distance(mesh)))];
}

}  // namespace

Suspects odd_copies(std::span<const int64_t> keys, std::span<const uint64_t> hashes) {
  std::map<int64_t, std::map<uint64_t, std::vector<int>>> ranks_by_hash;
  for (size_t rank = 0; rank < keys.size(); ++rank) ranks_by_hash[keys[rank]][hashes[rank]].push_back(int(rank));
  std::set<int> odd;
  bool certain = true;
  for (const auto& [key, by_hash] : ranks_by_hash) {
    if (by_hash.size() == 1) continue;
    size_t most = 0;
    for (const auto& [hash, ranks] : by_hash) most = std::max(most, ranks.size());
    const auto has_most = [&](const auto& entry) { return entry.second.size() == most; };
    const bool decided = std::count_if(by_hash.begin(), by_hash.end(), has_most) == 1;
    certain = certain && decided;
    for (const auto& entry : by_hash)
      if (!decided || !has_most(entry)) odd.insert(entry.second.begin(), entry.second.end());
  }
  return suspects_of(odd, certain);
}

int counterpart(const Mesh& mesh, int rank, int back) {
  const int group = group_size(mesh), data_ranks = mesh.data_degree();
  return ((rank / group - back) % data_ranks + data_ranks) % data_ranks * group + rank % group;
}

bool differ(const Mesh& mesh, const Computed& once) {
  for (int rank = 0; rank < mesh.world_size; ++rank)
    if (other_differs(mesh, once, rank)) return true;
  return false;
}

Suspects unsteady(const Mesh& mesh, const Computed& once, const Computed& again) {
  std::set<int> ranks;
  for (size_t rank = 0; rank < once.own.size(); ++rank)
    if (once.own[rank] != again.own[rank] || once.other[rank] != again.other[rank] ||
        (distance(mesh) == 0 && once.own[rank] != once.other[rank]))
      ranks.insert(int(rank));
  return suspects_of(ranks, true);
}

Suspects outvoted(const Mesh& mesh, const Computed& once, std::span<const uint64_t> third) {
  std::set<int> ranks;
  bool certain = true;
  for (int rank = 0; rank < mesh.world_size; ++rank) {
    const int next = counterpart(mesh, rank, -1), after = counterpart(mesh, rank, -2);
    if (!other_differs(mesh, once, next)) continue;  // a third computation that alone differs is seen elsewhere
    const uint64_t by_next = once.other[size_t(next)], by_after = third[size_t(after)];
    const bool decides = mesh.data_degree() > 2, own_right = by_after == once.own[size_t(rank)],
               next_right = by_after == by_next;
    if (!(decides && own_right)) ranks.insert(rank);
    if (!(decides && next_right)) ranks.insert(next);
    certain = certain && decides && (own_right || next_right);
  }
  return suspects_of(ranks, certain);
}

Suspects first_to_differ(const Mesh& mesh, const Suspects& suspects,
                         const std::function<std::optional<Computed>(size_t)>& step) {
  const auto differs = [&](const Computed& computed, int rank) {
    return other_differs(mesh, computed, rank) ||
           other_differs(mesh, computed, counterpart(mesh, rank, -distance(mesh)));
  };
  std::map<int, std::vector<int>> undecided;  // by group
  for (const int rank : suspects.ranks) undecided[rank / group_size(mesh)].push_back(rank);
  std::set<int> first;
  bool certain = suspects.certain;
  const auto decide = [&](const std::vector<int>& ranks) {
    first.insert(ranks.begin(), ranks.end());
    certain = certain && ranks.size() == 1;
  };
  for (size_t number = 0; !undecided.empty(); ++number) {
    const std::optional<Computed> computed = step(number);
    if (!computed) break;
    std::erase_if(undecided, [&](const auto& group) {
      std::vector<int> seen;
      std::ranges::copy_if(group.second, std::back_inserter(seen), [&](int rank) { return differs(*computed, rank); });
      if (!seen.empty()) decide(seen);
      return !seen.empty();
    });
  }
  for (const auto& [group, ranks] : undecided) decide(ranks);
  return suspects_of(first, certain);
}
