#include "dev/softgpu/nccl/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace softgpu {
namespace {

[[noreturn]] void stop(const std::string& what) {
  perror(("software GPU: NCCL: " + what).c_str());
  abort();
}

int open_shared(const std::string& name, size_t bytes) {
  const int file = shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);
  if (file < 0 || (bytes && ftruncate(file, off_t(bytes)))) stop(name);
  return file;
}
void* map_shared(int file, size_t bytes) {
  void* const p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (p == MAP_FAILED) stop("mmap");
  return p;
}

template <class Member>
bool all_at_least(const Member& member, int size, uint64_t number) {
  for (int r = 0; r < size; ++r)
    if (member(r).load(std::memory_order_acquire) < number) return false;
  return true;
}

}  // namespace

// A new file is all zeros, so whoever comes first need not initialise anything.
Segment::Segment(const std::string& name, int rank, int size)
    : name_(name), rank_(rank), size_(size), areas_(size_t(size)) {
  const int file = open_shared(name_, sizeof(Shared));
  shared_ = static_cast<Shared*>(map_shared(file, sizeof(Shared)));
  close(file);
  areas_[size_t(rank)].file = open_shared(area_name(rank), 0);
  shared_->joined.fetch_add(1);
}

Segment::~Segment() {
  for (Area& area : areas_) {
    if (area.data) munmap(area.data, area.bytes);
    if (area.file >= 0) close(area.file);
  }
  if (!opened_) shm_unlink(area_name(rank_).c_str()), shm_unlink(name_.c_str());
  munmap(shared_, sizeof(Shared));
}

// When all have opened all files, their names are taken away, so that nothing stays behind however the ranks end.
bool Segment::all_joined() {
  if (shared_->joined.load() < size_) return false;
  if (!opened_) {
    for (int r = 0; r < size_; ++r)
      if (r != rank_) areas_[size_t(r)].file = open_shared(area_name(r), 0);
    opened_ = true;
    if (shared_->opened.fetch_add(1) + 1 == size_) {
      for (int r = 0; r < size_; ++r) shm_unlink(area_name(r).c_str());
      shm_unlink(name_.c_str());
    }
  }
  return shared_->opened.load() >= size_;
}

bool Segment::all_posted(uint64_t n) const {
  return all_at_least(
      [&](int r) -> auto& { return shared_->ranks[r].posted; }, size_, n);
}
bool Segment::all_finished(uint64_t n) const {
  return all_at_least(
      [&](int r) -> auto& { return shared_->ranks[r].finished; }, size_, n);
}
bool Segment::all_met(uint64_t n) const {
  return all_at_least(
      [&](int r) -> auto& { return shared_->ranks[r].met; }, size_, n);
}

void Segment::map(Area& area, size_t bytes) {
  if (area.bytes >= bytes) return;
  if (area.data) munmap(area.data, area.bytes);
  area.data = static_cast<std::byte*>(map_shared(area.file, bytes));
  area.bytes = bytes;
}
std::byte* Segment::own_area(size_t bytes) {
  Area& area = areas_[size_t(rank_)];
  if (area.bytes < bytes && ftruncate(area.file, off_t(bytes))) stop("no shared memory");
  map(area, bytes);
  return area.data;
}
const std::byte* Segment::area_of(int rank, size_t bytes) {
  map(areas_[size_t(rank)], bytes);
  return areas_[size_t(rank)].data;
}
void Segment::post(uint64_t number, const Request& request) {
  shared_->ranks[rank_].request = request;
  shared_->ranks[rank_].posted.store(number, std::memory_order_release);
}
const Request& Segment::request_of(int rank) const { return shared_->ranks[rank].request; }
void Segment::finish(uint64_t number) { shared_->ranks[rank_].finished.store(number, std::memory_order_release); }
void Segment::send(int to, const Message& message) {
  Mail& mail = shared_->mail[rank_][to];
  mail.message = message;
  mail.sent.fetch_add(1, std::memory_order_release);
}
bool Segment::was_taken(int to) const {
  const Mail& mail = shared_->mail[rank_][to];
  return mail.taken.load(std::memory_order_acquire) == mail.sent.load();
}
const Message* Segment::message_from(int rank) const {
  const Mail& mail = shared_->mail[rank][rank_];
  return mail.sent.load(std::memory_order_acquire) > mail.taken.load() ? &mail.message : nullptr;
}
void Segment::take(int from) { shared_->mail[from][rank_].taken.fetch_add(1, std::memory_order_release); }
void Segment::meet(uint64_t number, int64_t word, int64_t other_word) {
  shared_->ranks[rank_].words[0] = word, shared_->ranks[rank_].words[1] = other_word;
  shared_->ranks[rank_].met.store(number, std::memory_order_release);
}
std::pair<int64_t, int64_t> Segment::words_of(int rank) const {
  return {shared_->ranks[rank].words[0], shared_->ranks[rank].words[1]};
}

}  // namespace softgpu
