// A string that knows which of its bytes came from messages. Such bytes stay marked through every operation of a
// template, so that a prompt's encoder never makes special tokens of them. A plain value; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace::jinja {

enum class Origin : uint8_t { kTemplate, kMessage };

class Text {
 public:
  struct Run {
    std::string_view bytes;
    Origin origin;
  };

  Text() = default;
  explicit Text(std::string bytes, Origin origin = Origin::kTemplate);

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  void append(std::string_view bytes, Origin origin);
  void append(const Text& text);
  // The bytes [begin, end). REQUIRES: begin <= end <= size()
  Text slice(size_t begin, size_t end) const;
  // The text as runs of one origin each, none empty. They point into this text.
  std::vector<Run> runs() const&;
  std::vector<Run> runs() && = delete;
  Origin origin_at(size_t at) const;  // REQUIRES: at < size()
  bool has_messages() const { return !foreign_.empty(); }

  // Every run through a function from bytes to bytes. The function must not depend on a run's neighbours.
  template <typename Function>
  Text mapped(Function&& function) const {
    Text out;
    for (const Run& run : runs()) out.append(function(run.bytes), run.origin);
    return out;
  }

 private:
  std::string bytes_;
  std::vector<std::pair<size_t, size_t>> foreign_;  // [begin, end) of messages; ascending, apart from each other
};

}  // namespace headrace::jinja
