// Covers: a process is bound to the CPUs of its GPU's NUMA node, among those that it may use
#include <sched.h>

#include <thread>

#include "dev/test/test.h"
#include "dev/test/token_files.h"
#include "llmc/device/numa.h"

namespace {

std::vector<int> cpus_of_this_thread() {
  cpu_set_t set;
  sched_getaffinity(0, sizeof set, &set);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

}  // namespace

TEST_CASE("lists of CPUs as Linux writes them") {
  CHECK(parse_cpu_list("0-3,8,10-11\n") == std::vector<int>{0, 1, 2, 3, 8, 10, 11});
  CHECK(parse_cpu_list("5\n") == std::vector<int>{5});
  CHECK(parse_cpu_list("\n").empty());
  CHECK(parse_cpu_list("").empty());
}

TEST_CASE("a thread is bound to the node of a PCI device") {
  const std::vector<int> all = cpus_of_this_thread();
  const int last = all.back();
  TemporaryFolder system;
  system.write("bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
  system.write("bus/pci/devices/0000:86:00.0/numa_node", "-1\n");
  system.write("devices/system/node/node0/cpulist", "4000-4010\n");
  system.write("devices/system/node/node1/cpulist", std::to_string(last) + ",4000\n");
  CHECK(numa_node_of("0000:3B:00.0", system.path()) == 1);
  CHECK(numa_node_of("0000:86:00.0", system.path()) == -1);
  CHECK(numa_node_of("0000:ff:00.0", system.path()) == -1);  // no such device
  std::thread([&] {
    CHECK(bind_to_numa_node(-1, system.path()) == 0);
    CHECK(bind_to_numa_node(0, system.path()) == 0);  // this thread may use none of its CPUs
    CHECK(bind_to_numa_node(7, system.path()) == 0);
    CHECK(cpus_of_this_thread() == all);
    CHECK(bind_to_numa_node(1, system.path()) == 1);
    CHECK(cpus_of_this_thread() == std::vector<int>{last});
    std::thread([&] { CHECK(cpus_of_this_thread() == std::vector<int>{last}); }).join();
  }).join();
  CHECK(cpus_of_this_thread() == all);
}
