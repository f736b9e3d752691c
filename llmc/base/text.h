// Text for people: sizes, counts and durations as a banner or a step line prints them; the nearest of several words;
// bytes that are safe to print; file names by pattern.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// "512 B", "1.50 KiB", "61.3 GiB": three digits, units of 1024.
std::string human_bytes(uint64_t bytes);

// The other way round: "512", "80GiB", "1.5 TB" (units of 1000 without the i). Throws with the name of what it is for.
uint64_t parse_bytes(const std::string& name, const std::string& text);

// "950", "79.5k", "850k", "8.03B": three digits, units of 1000 (k, M, B, T). A fraction below 1000 is kept: "0.125".
std::string human_count(double count);

// "0.4s", "42s", "3m05s", "13m", "2h05m", "3d04h"; "?" for what is negative or not finite.
std::string human_duration(double seconds);

// Bytes that come in pieces, made safe for a terminal: UTF-8 characters, newlines and tabs pass; each byte that belongs
// to no character, and each character that controls the terminal, becomes U+FFFD.
class PrintableText {
 public:
  std::string take(std::string_view bytes);  // all that is complete; the start of a character waits for its rest

 private:
  std::string waiting_;
};

// "1 step", "2 steps".
std::string counted(int64_t count, const std::string& noun, const char* plural = "s");

// A double's shortest text that reads back as the same bits: "0.1", "1e-08", "1".
std::string shortest(double value);

// Insertions, deletions, substitutions and swaps of neighbours between two words (optimal string alignment).
int edit_distance(const std::string& a, const std::string& b);

// The candidate nearest to `word`, the first of equals; "" if none is near enough (a third of the word's length and
// at least 2 edits) to be what somebody meant.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

// The ordinary shell pattern (*, ?, [..], {a,b}, ~), sorted by bytes whatever the locale; empty if nothing matches. A
// file whose name is literally the pattern is the only match.
std::vector<std::string> glob(const std::string& pattern);
