#pragma once

#include <cstdint>
#include <vector>

// order (n): the indices 0 .. n-1 sorted by their token; indices of equal tokens ascend. The embedding's backward adds
// each token's rows in that order, without atomics. Radix sort, O(n); `scratch` grows to n once. Throws on a negative
// token.
void sort_indices_by_token(const int32_t* tokens, int n, int32_t* order, std::vector<int32_t>& scratch);
