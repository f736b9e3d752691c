#include "llmc/run/rank_place.h"

#include <unistd.h>

#include <sstream>

#include "llmc/base/error.h"
#include "llmc/base/printable.h"
#include "llmc/run/start_record.h"

std::string RankPlace::text(int rank) const {
  return format("rank %d (host %s, ", rank, host.c_str()) + (uuid.empty() ? "process " + process : "GPU " + uuid) + ")";
}

std::vector<RankPlace> gather_places(Communicator& communicator, Device& device) {
  Stream stream(device, "places");
  const std::string own = host_name() + "\n" + device.info().uuid + "\n" + std::to_string(getpid());
  std::vector<RankPlace> all;
  for (const std::string& text : gather_texts(communicator, stream, own)) {
    std::istringstream lines(text);
    RankPlace& place = all.emplace_back();
    std::getline(lines, place.host), std::getline(lines, place.uuid), std::getline(lines, place.process);
    place.host = PrintableText().take(place.host);
  }
  return all;
}
