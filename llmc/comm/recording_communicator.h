// The communicator of one rank out of any number, without the other ranks. Its collectives are only declared, for a
// device that records work.
#pragma once

#include "llmc/comm/communicator.h"

class RecordingCommunicator : public Communicator {
 public:
  RecordingCommunicator(int rank, std::vector<int> world_ranks) : Communicator(rank, std::move(world_ranks)) {}
  std::string description() const override;

 private:
  std::unique_ptr<Communicator> make_group(const std::vector<int>& world_ranks, int rank) override;
  void enqueue(const Work& work, const Collective& collective) override;
};
