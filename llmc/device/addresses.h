// Helpers for the memory of both backends.
// reserve_addresses returns `bytes` bytes of address space without memory behind them, as a modelled device needs. If
// `touchable`, a page gets memory on its first access; otherwise any access faults. It throws if the system has no such
// range. fail_to_pin throws the error for memory that could not be pinned; `why` is the cause.
#pragma once

#include <cstddef>
#include <string>

#include "llmc/base/exit_code.h"

std::byte* reserve_addresses(size_t bytes, bool touchable);
void release_addresses(std::byte* data, size_t bytes);

[[noreturn]] void fail_to_pin(size_t bytes, const std::string& why, ExitCode code = ExitCode::does_not_fit);
