// What memory of both worlds needs inside: addresses without memory behind them, for a device that is modelled, or with
// memory only where somebody touches it; and the error where memory cannot be pinned.
#pragma once

#include <cstddef>
#include <string>

std::byte* reserve_addresses(size_t bytes, bool touchable);
void release_addresses(std::byte* data, size_t bytes);

[[noreturn]] void fail_to_pin(size_t bytes, const std::string& why);
