// Lets ranks that have no connection yet find each other through one file that all of them can reach.
#pragma once

#include <string>
#include <vector>

// Returns the `words` of every rank, in rank order, on every rank, once all ranks of this run have joined. Throws after
// the timeout; rank 0's error names the ranks that did not join.
//
// Files that an earlier run left at `path` are never taken for this run's. The protocol has four steps. Rank 0 writes a
// call with a random number to `path`. Each other rank r writes its words for that number to `path`.rank<r>. Rank 0
// writes the words of all ranks to `path`. Each rank confirms that it has read them. Every file is written under
// another name and renamed, so it appears whole. Rank 0 removes all files at the end.
//
// All ranks together open rank 0's file some hundreds of times a second, and rank 0 theirs: few ranks meet within
// milliseconds, and thousands within a minute.
std::vector<std::string> rendezvous(const std::string& path, int rank, int size, const std::string& words,
                                    double timeout_seconds);
