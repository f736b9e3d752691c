#include "llmc/device/numa.h"

#include <sched.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <sstream>

#include "llmc/base/error.h"

namespace {

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    int first = 0, last = 0;
    const int found = sscanf(part.c_str(), "%d-%d", &first, &last);
    if (found < 1) continue;
    if (found == 1) last = first;
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

int numa_node_of(const std::string& pci_device, const std::string& system) {
  std::string name = pci_device;  // sysfs writes its digits in lower case
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return char(std::tolower(c)); });
  int node = -1;
  sscanf(content_of(system + "/bus/pci/devices/" + name + "/numa_node").c_str(), "%d", &node);
  return node;
}

int bind_to_numa_node(int node, const std::string& system) {
  cpu_set_t allowed, wanted;
  if (node < 0 || sched_getaffinity(0, sizeof allowed, &allowed)) return 0;
  CPU_ZERO(&wanted);
  for (const int cpu :
       parse_cpu_list(content_of(format("%s/devices/system/node/node%d/cpulist", system.c_str(), node))))
    if (cpu >= 0 && cpu < CPU_SETSIZE && CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &wanted);
  const int count = CPU_COUNT(&wanted);
  return count && !sched_setaffinity(0, sizeof wanted, &wanted) ? count : 0;
}
