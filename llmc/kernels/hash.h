// A hash of the bits of tensors, by which ranks find out whether they have the same.
#pragma once

#include <cstdint>

#include "llmc/device/tensor.h"

// *sum += the sum of mix(first_word + i, word i) over the words of 4 bytes of each row of x, modulo 2^64. The rows of a
// contiguous tensor are one row; a last word of fewer bytes is filled up with zeros. The numbers may have any type, for
// only their bits count; rows may lie apart. The sum does not depend on the order in which it is added, so every GPU,
// launch shape and schedule gives the same one. mix() is a bijection of the word for each place (the end of splitmix64:
// Steele, Lea and Flood 2014), so a changed bit always changes the sum, and other changes go unseen once in 2^64.
//
// Throws on a tensor without elements. Parts of a tensor, each with the place of its first word, have the sum of the
// whole, if all parts but the last are whole words.
void hash_bits(Stream& stream, uint64_t* sum, const Tensor& x, uint64_t first_word = 0);
