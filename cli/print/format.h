// Numbers and names for people. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

struct DraftWindow;
struct Machine;

std::string format_count(int64_t value);       // 7713 -> "7,713"
std::string format_rate(double per_s);         // "162", "29.7", "0.85": three digits
std::string format_percent(double share);      // 0.0314 -> "3.1%"
std::string format_duration(double seconds);   // "47.5 s" below a minute, then "2:05", "1:02:05"
std::string format_age(int64_t seconds);       // "5 minutes", "1 hour", "12 days"
std::string format_time_left(double seconds);  // "0:26", "12:05", "1:02:05"

// Makes text safe for a terminal: control characters and bytes that are not UTF-8 as \xNN. Keeps newlines and tabs;
// visible_name() escapes those too.
std::string visible(std::string_view text);
std::string visible_name(std::string_view name);

std::string padded(const std::string& text, size_t width);  // on the left
std::string filled(const std::string& text, size_t width);  // on the right
// Cells of a table, each padded to its width; a longer one follows a blank.
std::string columns(const std::vector<std::string>& cells, const int* widths);

// "the draft attends to the first 4 and the last 1,972 tokens: …" if its training set that window; else empty.
std::string format_draft_window(const DraftWindow& window);

std::string machine_text(const Machine& machine);  // "EPYC, 2 cores, 24.00 GiB"

// A number of tokens: "131072", "128K" (times 1,024), "1M". False on anything else or on overflow.
bool parse_tokens(std::string_view text, int64_t* out);

}  // namespace headrace
