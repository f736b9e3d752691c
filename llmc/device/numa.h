// The NUMA node of a GPU. Copies between a GPU and the memory of another node cross the link between the processors.
#pragma once

#include <string>
#include <vector>

// Reads a list of CPUs as Linux writes it: "0-3,8,10-11".
std::vector<int> parse_cpu_list(const std::string& text);

// Returns the NUMA node of a PCI device ("0000:3b:00.0"), or -1 if the system does not say, as where there is one node.
// `system` is where sysfs is.
int numa_node_of(const std::string& pci_device, const std::string& system = "/sys");

// Restricts the calling thread, and those that it starts from now on, to the node's CPUs among those that it may use.
// Memory that it touches first or pins then comes from that node. Returns the number of these CPUs; 0: there is none,
// and nothing has changed.
int bind_to_numa_node(int node, const std::string& system = "/sys");
