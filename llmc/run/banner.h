// The first lines of a run: what it computes with, what it trains, and how much memory it takes.
#pragma once

#include "llmc/memory/plan.h"
#include "llmc/run/setup.h"

constexpr const char* kVersion = "0.1.0";

// Prints them, with the plan of the trainer's memory.
void print_banner(Setup& setup, const MemoryPlan& plan);
