// Text for people: sizes, counts and durations as a banner or a step line prints them; the nearest of several words;
// bytes made safe to print; file names that match a pattern.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// Returns "512 B", "1.50 KiB" or "61.3 GiB": three significant digits, units of 1024.
std::string human_bytes(uint64_t bytes);

// The inverse: parses "512B", "80GiB" or "1.5 TB" (units of 1000 without the i), in either case. A number alone is no
// size: it would be bytes, and is meant otherwise. Throws with `name`, which says what the size is for.
uint64_t parse_bytes(const std::string& name, const std::string& text);

// Returns "950", "79.5k", "850k" or "8.03B": three significant digits, units of 1000 (k, M, B, T). A number below 1000
// keeps its fraction: "0.125".
std::string human_count(double count);

// Returns "0.4s", "42s", "3m05s", "13m", "2h05m" or "3d04h"; "?" if the duration is negative or not finite.
std::string human_duration(double seconds);

// Returns "1 step" or "2 steps".
std::string counted(int64_t count, const std::string& noun, const char* plural = "s");

// Quotes a word for a shell, if it needs that: "runs/it's" becomes 'runs/it'\''s'.
std::string shell_quoted(std::string word);

// Returns a double's shortest text that parses back to the same bits: "0.1", "1e-08", "1".
std::string shortest(double value);

// Returns the number of insertions, deletions, substitutions and swaps of neighbours that turn one word into the other
// (optimal string alignment).
int edit_distance(const std::string& a, const std::string& b);

// Returns the candidate nearest to `word`, the first of equals, or "" if none is near enough to be meant. The limit is
// a third of the word's length, and at least 2 edits.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

// Returns the text with ASCII's capital letters made small.
std::string lower_case(std::string text);

// Returns "hf download OWNER/NAME --local-dir NAME" for a name that has the form of a model's in the Hugging Face hub;
// else "".
std::string download_command(const std::string& name);

// Expands a shell pattern (*, ?, [..], {a,b}, ~). The result is sorted by bytes in every locale, and empty if nothing
// matches. If a file has exactly the pattern as its name, it is the only match.
std::vector<std::string> glob(const std::string& pattern);
// Returns a pattern that glob() matches with this path alone.
std::string literally(const std::string& path);
