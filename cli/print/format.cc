#include "cli/print/format.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "cache/base.h"
#include "offload/host/machine.h"
#include "runtime/base/utf8.h"
#include "runtime/draft/cache.h"
#include "runtime/draft/window.h"

namespace headrace {
namespace {

std::string escape_controls(std::string_view text, std::string_view kept) {
  std::string out;
  while (!text.empty()) {
    const Utf8Unit unit = next_utf8(text);
    const std::string_view bytes = text.substr(0, unit.length);
    text.remove_prefix(unit.length);
    const char32_t c = unit.code_point;
    const bool printable = unit.kind == Utf8Unit::kCharacter && c >= 0x20 && (c < 0x7f || c > 0x9f);
    if (printable || kept.find(bytes) != std::string_view::npos) {
      out += bytes;
      continue;
    }
    for (const char byte : bytes) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned>(static_cast<uint8_t>(byte)));
      out += escaped;
    }
  }
  return out;
}

}  // namespace

std::string visible(std::string_view text) { return escape_controls(text, "\n\t"); }
std::string visible_name(std::string_view name) { return escape_controls(name, ""); }

std::string format_count(int64_t value) {
  std::string text = std::to_string(value);
  const size_t first = value < 0 ? 1 : 0;
  for (size_t at = text.size(); at > first + 3;) text.insert(at -= 3, ",");
  return text;
}

std::string format_rate(double per_s) {
  if (!std::isfinite(per_s) || per_s < 0) return "?";
  if (per_s >= 99.95) return format_count(std::llround(std::min(per_s, 1e15)));
  char text[32];
  std::snprintf(text, sizeof text, per_s >= 9.995 ? "%.1f" : "%.2f", per_s);
  return text;
}

std::string format_time_left(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e7) return "?";
  const auto whole = static_cast<long>(std::lround(seconds));
  char text[32];
  if (whole >= 3600) {
    std::snprintf(text, sizeof text, "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
  } else {
    std::snprintf(text, sizeof text, "%ld:%02ld", whole / 60, whole % 60);
  }
  return text;
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds >= 59.95) return format_time_left(seconds);
  char text[32];
  std::snprintf(text, sizeof text, seconds < 0.9995 ? "%.0f ms" : "%.1f s", seconds < 0.9995 ? seconds * 1e3 : seconds);
  return text;
}

std::string format_percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f%%", 100 * share);
  return text;
}

std::string format_age(int64_t seconds) {
  const auto of = [](int64_t count, const char* unit) { return format_count(count) + unit + (count == 1 ? "" : "s"); };
  if (seconds < 3600) return of(std::max<int64_t>(0, seconds) / 60, " minute");
  return seconds < 86400 ? of(seconds / 3600, " hour") : of(seconds / 86400, " day");
}

std::string format_draft_window(const DraftWindow& window) {
  const std::string recent = str("the last ", format_count(window.rows), " tokens");
  if (const RetrievalShape& chosen = window.retrieval; chosen.chunks > 0) {
    return str("the draft attends to the first ", chosen.rows, " and ", recent, " and to ", chosen.chunks,
               " chunks of ", chosen.rows, " tokens, chosen every ", chosen.every, " steps");
  }
  if (window.trained_positions == 0) return "";
  return str("the draft attends to the first ", kDraftSinkRows, " and ", recent, ": it was trained with ",
             format_count(window.trained_positions), " positions (--draft-window 0: all tokens)");
}

std::string padded(const std::string& text, size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}
std::string filled(const std::string& text, size_t width) {
  return text.size() < width ? text + std::string(width - text.size(), ' ') : text;
}

std::string columns(const std::vector<std::string>& cells, const int* widths) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    const auto width = static_cast<size_t>(widths[i]);
    line += cells[i].size() < width ? padded(cells[i], width) : " " + cells[i];
  }
  return line;
}

std::string machine_text(const Machine& machine) {
  return str(machine.cpu, ", ", machine.cores, machine.cores == 1 ? " core, " : " cores, ",
             format_bytes(machine.memory_bytes));
}

bool parse_tokens(std::string_view text, int64_t* out) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return false;
  const std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  uint64_t scale = 0;
  if (unit.empty()) scale = 1;
  if (unit == "k" || unit == "K") scale = kKiB;
  if (unit == "m" || unit == "M") scale = kMiB;
  if (scale == 0 || !checked_mul(value, scale, &value) || value > uint64_t{INT64_MAX}) return false;
  *out = static_cast<int64_t>(value);
  return true;
}

}  // namespace headrace
