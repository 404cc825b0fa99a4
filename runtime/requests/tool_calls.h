// Calls of tools in an answer: two published forms, JSON as Hermes and Qwen write it and tags as Qwen3-Coder does.
// Pure; any thread.
//
//   <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>
//   <tool_call><function=f><parameter=x>1</parameter></function></tool_call>
//
// White space may be between the parts. Whatever is no such call of a tool that the request has stays text.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/requests/tools.h"

namespace headrace {

struct ToolCall {
  std::string name, arguments;  // the arguments: a JSON object
};

// The call between the marks, whose inside is `text`; none: it is malformed.
std::optional<ToolCall> parse_tool_call(const std::vector<Tool>& tools, std::string_view text);

// An answer whose text comes in pieces, without its thinking. Borrows the tools. Thread: one.
class ToolCallReader {
 public:
  ToolCallReader(const std::vector<Tool>& tools, CallCount count) : tools_(tools), count_(count) {}

  struct Parts {
    std::string content;  // white space beside calls is left out
    std::vector<ToolCall> calls;
  };
  // What is certain of the text so far and has not been returned: a call as a whole. Without tools, the text.
  Parts push(std::string_view text);
  Parts finish();  // what is still held: the text has ended

 private:
  bool step(bool ended, Parts* parts);
  void take_call(ToolCall call, size_t end, Parts* parts);
  void release(size_t end, Parts* parts);
  void forget();
  size_t next_end() const;
  std::optional<ToolCall> parse(std::string_view text);
  std::string_view rest() const { return std::string_view(held_).substr(begin_); }

  const std::vector<Tool>& tools_;
  const CallCount count_;
  std::string held_;  // from begin_ on: white space, and what may be or become a call
  size_t begin_ = 0;
  std::vector<size_t> ends_;  // the closing marks in held_
  size_t tried_ = 0;          // bytes of rest() in which no call ends
  int ends_tried_ = 0;        // of the call that rest() may begin with
  size_t calls_ = 0;
  size_t parsed_ = 0;  // bytes
};

// A whole answer.
ToolCallReader::Parts split_tool_calls(const std::vector<Tool>& tools, CallCount count, std::string_view text);

}  // namespace headrace
