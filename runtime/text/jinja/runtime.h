// What a rendering may use, and where it is: steps, bytes, the line for errors. Thread: one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/jinja/value.h"

namespace headrace::jinja {

struct Limits {
  uint64_t steps = 20'000'000;  // a node evaluated, a value made, or kBytesPerWeight bytes of text made
  uint64_t output_bytes = uint64_t{1} << 28;
  int depth = 500;  // of expressions, statements and macro calls within each other
};

class Runtime {
 public:
  // strftime_now(format) -> text
  using Clock = std::function<std::string(const std::string& format)>;

  Runtime(std::string source, const Limits& limits, Clock clock)
      : source_(std::move(source)), limits_(limits), clock_(std::move(clock)) {}

  // Throws Error(kBadInput) at "source:line".
  [[noreturn]] void fail(const std::string& what) const;
  void at(int line) { line_ = line; }
  int line() const { return line_; }
  const Limits& limits() const { return limits_; }
  const Clock& clock() const { return clock_; }

  // Counts a piece of work before it is done; fails beyond the limit.
  void charge(uint64_t steps);
  void charge_bytes(uint64_t bytes) { charge(bytes / kBytesPerWeight); }

  // Whether two values are equal; charges for reading the smaller one.
  bool equal(const Value& a, const Value& b);
  // Counts a search for `part` in `text` as if each place were compared by vectors: what nobody means is refused,
  // though find_part() would end.
  void charge_search(const Text& text, const Text& part);
  // Where each character begins, and text.size() at the end.
  std::vector<size_t> character_starts(std::string_view text);

  // Make a value that contains others: fail on functions, namespaces and loops in it, and on too deep ones.
  Value list(std::vector<Value> items);
  Value tuple(std::vector<Value> items);
  Value dict(Dict dict);
  Value text(Text text);
  // The text of a text value; else fails: "trim needs a str, not an int".
  const Text& need_text(const Value& value, std::string_view what) const;
  int64_t need_whole(const Value& value, std::string_view what) const;

 private:
  Value checked_list(std::vector<Value> items, bool is_tuple);
  void check_member(const Value& value) const;

  std::string source_;
  Limits limits_;
  Clock clock_;
  int line_ = 1;
  uint64_t steps_ = 0;
};

}  // namespace headrace::jinja
