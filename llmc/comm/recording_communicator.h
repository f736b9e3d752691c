// One of any number of ranks, without the others: collectives are only declared, for a device that records.
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
