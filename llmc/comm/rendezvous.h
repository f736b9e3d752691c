// How ranks that nothing connects yet find each other: through one file that all of them can reach.
#pragma once

#include <string>

// Returns rank 0's `words` on every rank, once all ranks of this run have come. Throws after the timeout, naming the
// ranks that did not come.
//
// What an earlier run left at `path` is never taken for this one's: each rank leaves a random number of its own in
// `path`.rank<r>, rank 0 answers in `path` with all of them, each takes only an answer to its own number and says so.
// Every file appears whole, by renaming. Rank 0 removes them all at the end.
std::string rendezvous(const std::string& path, int rank, int size, const std::string& words, double timeout_seconds);
