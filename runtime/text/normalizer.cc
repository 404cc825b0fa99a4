#include "runtime/text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>

#include "cache/base.h"
#include "runtime/base/utf8.h"

namespace headrace {

namespace {

constexpr auto kCompose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

int combining_class(int32_t code_point) { return utf8proc_get_property(code_point)->combining_class; }

// utf8proc sorts marks by insertion, quadratic in the length of a run; so we decompose here, with a stable sort.
std::vector<int32_t> decompose(std::string_view text) {
  std::vector<int32_t> out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Unit unit = next_utf8(text);
    text.remove_prefix(unit.length);
    int32_t parts[16];
    int boundary = 0;
    const auto count = utf8proc_decompose_char(static_cast<int32_t>(unit.code_point), parts, 16, kCompose, &boundary);
    CHECK(count >= 0 && count <= 16, "U+", static_cast<uint32_t>(unit.code_point), " decomposes to ", count);
    out.insert(out.end(), parts, parts + count);
  }
  return out;
}

void order_marks(std::vector<int32_t>* code_points) {
  const auto end = code_points->end();
  for (auto begin = code_points->begin(); begin != end;) {
    if (combining_class(*begin) == 0) {
      ++begin;
      continue;
    }
    auto stop = begin;
    while (stop != end && combining_class(*stop) != 0) ++stop;
    std::stable_sort(begin, stop, [](int32_t a, int32_t b) { return combining_class(a) < combining_class(b); });
    begin = stop;
  }
}

std::string replace_all(std::string_view text, const std::string& pattern, const std::string& content) {
  std::string out;
  for (size_t at = 0;;) {
    const size_t found = text.find(pattern, at);
    out += text.substr(at, found - at);
    if (found == std::string_view::npos) return out;
    out += content;
    at = found + pattern.size();
  }
}

template <typename Function>
MarkedText map_runs(const MarkedText& piece, Function function) {
  MarkedText out;
  for (size_t begin = 0, end = 0; begin < piece.text.size(); begin = end) {
    const char mark = piece.verbatim[begin];
    end = piece.verbatim.find(static_cast<char>(mark ^ 1), begin);
    if (end == std::string::npos) end = piece.text.size();
    out.text += function(std::string_view(piece.text).substr(begin, end - begin));
    out.verbatim.resize(out.text.size(), mark);
  }
  return out;
}

}  // namespace

std::string to_nfc(std::string_view text) {
  // Characters below U+0300 never compose with each other; the bytes of such text, and of no other, are all below 0xCC.
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0xCC; }))
    return std::string(text);
  std::vector<int32_t> code_points = decompose(text);
  order_marks(&code_points);
  const auto count =
      utf8proc_normalize_utf32(code_points.data(), static_cast<utf8proc_ssize_t>(code_points.size()), kCompose);
  CHECK(count >= 0, "utf8proc_normalize_utf32: ", count);
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < count; ++i)
    append_code_point(static_cast<char32_t>(code_points[static_cast<size_t>(i)]), &out);
  return out;
}

MarkedText Normalizer::apply(MarkedText piece) const {
  for (const NormalizerStep& step : steps_) {
    if (piece.text.empty()) return piece;
    if (step.kind == NormalizerStep::kPrepend) {
      piece.text.insert(0, step.content);
      piece.verbatim.insert(0, step.content.size(), piece.verbatim[0]);
    } else if (step.kind == NormalizerStep::kReplace) {
      piece = map_runs(piece, [&](std::string_view run) { return replace_all(run, step.pattern, step.content); });
    } else {
      piece = map_runs(piece, [](std::string_view run) { return to_nfc(run); });
    }
  }
  return piece;
}

}  // namespace headrace
