// Which ranks are named when hashes differ: of copies, of computations by two and three groups, within a group.
//
// Covers: which rank is wrong: by the most frequent copy, by repetition, by a third group, by the first step in a group
#include <doctest/doctest.h>

#include "llmc/train/verdict.h"

namespace {

using Ranks = std::vector<int>;
using Hashes = std::vector<uint64_t>;

// A model of what ranks compute: the part `cell` of a micro-batch has a hash of its own, and a wrong group another one.
struct Cluster {
  Mesh mesh;
  Ranks wrong = {};  // ranks whose group always computes wrong bits

  int group() const { return mesh.context_degree * mesh.tensor_degree; }
  uint64_t of(int rank, int back) const {
    uint64_t hash = 1000 + uint64_t(counterpart(mesh, rank, back));
    for (const int bad : wrong)
      if (bad / group() == rank / group()) hash += 100000 * uint64_t(1 + bad);
    return hash;
  }
  Hashes round(int back) const {
    Hashes hashes;
    for (int rank = 0; rank < mesh.world_size; ++rank) hashes.push_back(of(rank, back));
    return hashes;
  }
  Computed both() const { return {round(0), round(mesh.data_degree() > 1)}; }
  Suspects voted() const { return outvoted(mesh, both(), round(2)); }
};

Cluster cluster(int ranks, int tensor, const Ranks& wrong, int context = 1) {
  return {Mesh::create(ranks, 0, tensor, context), wrong};
}

Suspects odd(const std::vector<int64_t>& keys, const Hashes& hashes) { return odd_copies(keys, hashes); }

}  // namespace

TEST_CASE("copies that agree are nobody's fault") {
  CHECK(!odd({0, 0, 1, 1}, {5, 5, 6, 6}).any());
  CHECK(!odd({0, 1, 2}, {5, 6, 7}).any());  // no copies
}

TEST_CASE("the copy that differs from most is wrong") {
  const Suspects one = odd({0, 0, 0}, {5, 9, 5});
  CHECK(one.ranks == Ranks{1});
  CHECK(one.certain);
  CHECK(odd({0, 0, 0, 0}, {5, 7, 9, 5}).ranks == Ranks{1, 2});
  CHECK(odd({0, 1, 0, 1, 0, 1}, {5, 6, 5, 6, 4, 6}).ranks == Ranks{4});
}

TEST_CASE("where no copy is the most frequent one, all are suspects") {
  for (const Hashes& hashes : {Hashes{5, 6}, Hashes{5, 6, 7}, Hashes{5, 5, 6, 6}}) {
    const Suspects all = odd(std::vector<int64_t>(hashes.size(), 0), hashes);
    CHECK(all.ranks.size() == hashes.size());
    CHECK(!all.certain);
  }
}

TEST_CASE("counterparts go round the data ranks and keep their place in the group") {
  const Mesh mesh = Mesh::create(8, 0, 2);
  CHECK(counterpart(mesh, 3, 1) == 1);
  CHECK(counterpart(mesh, 0, 1) == 6);
  CHECK(counterpart(mesh, 1, 2) == 5);
  CHECK(counterpart(mesh, 7, -1) == 1);
  CHECK(counterpart(mesh, 7, 0) == 7);
}

TEST_CASE("sound ranks do not differ") {
  for (const int ranks : {1, 2, 3, 4}) CHECK(!differ(Mesh::create(ranks, 0), cluster(ranks, 1, {}).both()));
  CHECK(!differ(Mesh::create(4, 0, 2), cluster(4, 2, {}).both()));
}

TEST_CASE("a rank that computes other bits the second time is named alone") {
  for (const int ranks : {2, 3, 4})
    for (int bad = 0; bad < ranks; ++bad)
      for (const bool own : {true, false}) {
        const Cluster c = cluster(ranks, 1, {});
        Computed once = c.both();
        (own ? once.own : once.other)[size_t(bad)] = 7;
        CHECK(differ(c.mesh, once));
        const Suspects found = unsteady(c.mesh, once, c.both());
        CHECK(found.ranks == Ranks{bad});
        CHECK(found.certain);
      }
}

TEST_CASE("alone, a rank is compared with itself") {
  const Cluster c = cluster(1, 1, {});
  Computed once = c.both();
  once.other[0] = 7;
  CHECK(differ(c.mesh, once));
  CHECK(unsteady(c.mesh, once, once).ranks == Ranks{0});
}

TEST_CASE("a third group decides; without one both are suspects") {
  for (const int ranks : {3, 4, 5})
    for (int bad = 0; bad < ranks; ++bad) {
      const Cluster c = cluster(ranks, 1, {bad});
      CHECK(differ(c.mesh, c.both()));
      CHECK(!unsteady(c.mesh, c.both(), c.both()).any());
      CHECK(c.voted().ranks == Ranks{bad});
      CHECK(c.voted().certain);
    }
  const Cluster two = cluster(2, 1, {1});
  CHECK(two.voted().ranks == Ranks{0, 1});
  CHECK(!two.voted().certain);
}

TEST_CASE("three groups that all differ are all suspects") {
  const Cluster c = cluster(4, 1, {1, 2, 3});
  CHECK(c.voted().ranks.size() == 4);
  CHECK(!c.voted().certain);
}

TEST_CASE("in a group the first step that differs tells the rank") {
  for (const int data : {2, 3})
    for (const auto& [tensor, context] : {std::pair(2, 1), {1, 2}, {2, 2}}) {
      const int group = tensor * context, ranks = data * group, bad = group + group - 1;
      const Cluster c = cluster(ranks, tensor, {bad}, context);
      const Suspects all = c.voted();
      CHECK(all.ranks.size() == size_t(data == 2 ? ranks : group));
      const Computed sound = cluster(ranks, tensor, {}, context).both();
      Computed local = sound;  // before the group exchanges it
      local.own[size_t(bad)] = 7, local.other[size_t(bad)] = 8;
      const auto step = [&](size_t number) -> std::optional<Computed> {
        return number == 2 ? local : number < 2 ? sound : c.both();
      };
      const Suspects one = first_to_differ(c.mesh, all, step);
      CHECK(one.ranks == (data == 2 ? Ranks{bad - group, bad} : Ranks{bad}));
      CHECK(one.certain == (data > 2));
      const auto nothing = [](size_t) { return std::optional<Computed>(); };
      const Suspects whole = first_to_differ(c.mesh, all, nothing);
      CHECK(whole.ranks == all.ranks);
      CHECK(!whole.certain);  // one of the group
    }
}
