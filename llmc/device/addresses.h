// Addresses without memory behind them, for a device that is modelled, or with memory only where somebody touches it.
#pragma once

#include <cstddef>

std::byte* reserve_addresses(size_t bytes, bool touchable);
void release_addresses(std::byte* data, size_t bytes);
