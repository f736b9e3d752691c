// How ranks that nothing connects yet find each other: through one file that all of them can reach.
#pragma once

#include <string>
#include <vector>

// Returns the words of each rank on every rank, once all ranks of this run have come. Throws after the timeout, naming
// the ranks that did not come.
//
// Files that an earlier run left at `path` are never taken for this one's. Rank 0 calls in `path` with a random number,
// each rank leaves its words for that number in `path`.rank<r>, rank 0 answers in `path` with those of all, and each
// rank says that it has read them. Every file appears whole, by renaming. Rank 0 removes them all at the end.
std::vector<std::string> rendezvous(const std::string& path, int rank, int size, const std::string& words,
                                    double timeout_seconds);
