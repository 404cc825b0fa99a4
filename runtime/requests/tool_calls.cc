#include "runtime/requests/tool_calls.h"

#include <algorithm>
#include <utility>

#include "cache/base.h"
#include "runtime/base/json_file.h"
#include "runtime/requests/answer_json.h"

namespace headrace {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>", kSpace = " \t\r\n";
constexpr std::string_view kFunction = "<function=", kFunctionEnd = "</function>",
                           kParameter = "<parameter=", kParameterEnd = "</parameter>";
constexpr size_t kMaxHeld = 1024;                // bytes of white space that may precede a call
constexpr size_t kMaxParsed = size_t{64} << 20;  // bytes, of all that may be a call
constexpr int kMaxEnds = 8;                      // closing marks within a text of a call's arguments

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
}

// Removes the prefix; false: the text begins otherwise.
bool take(std::string_view* text, std::string_view prefix) {
  if (!text->starts_with(prefix)) return false;
  text->remove_prefix(prefix.size());
  return true;
}

// Null: it is no JSON.
std::optional<ordered_json> parsed(std::string_view text) {
  try {
    return parse_ordered_json(text, "call", JsonOrigin::kClient);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<ToolCall> json_call(std::string_view text) {
  const std::optional<ordered_json> call = parsed(text);
  if (!call || !call->is_object() || !call->contains("name") || !(*call)["name"].is_string()) return std::nullopt;
  ordered_json arguments = call->value("arguments", ordered_json::object());
  if (arguments.is_string()) {  // JSON within JSON, as some models write it
    const std::optional<ordered_json> inner = parsed(arguments.get<std::string>());
    if (!inner) return std::nullopt;
    arguments = *inner;
  }
  if (!arguments.is_object()) return std::nullopt;
  return ToolCall{.name = (*call)["name"], .arguments = one_line(arguments)};
}

// A parameter's text as the value that its types allow.
ordered_json value_of(std::string_view text, unsigned types) {
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  const std::optional<ordered_json> value = (types & kOtherTypes) != 0 || text == "null" ? parsed(text) : std::nullopt;
  const bool fits = value && (value->is_null() ? (types & kNullType) != 0 : (types & kTextType) == 0);
  return fits ? *value : ordered_json(std::string(text));
}

// The end of a parameter's value: the mark behind which another parameter or the function's end follows.
size_t value_end(std::string_view text) {
  for (size_t at = text.find(kParameterEnd); at != std::string_view::npos; at = text.find(kParameterEnd, at + 1)) {
    const std::string_view rest = trimmed(text.substr(at + kParameterEnd.size()));
    if (rest.starts_with(kParameter) || rest.starts_with(kFunctionEnd)) return at;
  }
  return std::string_view::npos;
}

std::optional<ToolCall> tagged_call(const std::vector<Tool>& tools, std::string_view text) {
  text = trimmed(text);
  size_t end = text.find('>');
  if (!take(&text, kFunction) || end == std::string_view::npos) return std::nullopt;
  end -= kFunction.size();
  const std::string name(text.substr(0, end));
  text = trimmed(text.substr(end + 1));
  const auto tool = std::find_if(tools.begin(), tools.end(), [&](const Tool& one) { return one.name == name; });
  ordered_json arguments = ordered_json::object();
  while (take(&text, kParameter)) {
    const size_t close = text.find('>');
    if (close == std::string_view::npos) return std::nullopt;
    const std::string parameter(text.substr(0, close));
    text.remove_prefix(close + 1);
    const size_t value = value_end(text);
    if (value == std::string_view::npos || arguments.contains(parameter)) return std::nullopt;
    const ToolParameter* const declared = tool == tools.end() ? nullptr : tool->find(parameter);
    arguments[parameter] = value_of(text.substr(0, value), declared == nullptr ? kTextType : declared->types);
    text = trimmed(text.substr(value + kParameterEnd.size()));
  }
  if (text != kFunctionEnd) return std::nullopt;
  return ToolCall{.name = name, .arguments = one_line(arguments)};
}

// Where a mark that the text ends with may begin, with the white space before it.
size_t held_from(std::string_view text) {
  size_t begun = std::min(kOpen.size() - 1, text.size());
  while (!text.ends_with(kOpen.substr(0, begun))) --begun;
  return text.substr(0, text.size() - begun).find_last_not_of(kSpace) + 1;  // npos + 1: 0
}

}  // namespace

std::optional<ToolCall> parse_tool_call(const std::vector<Tool>& tools, std::string_view text) {
  text = trimmed(text);
  std::optional<ToolCall> call = text.starts_with('{') ? json_call(text) : tagged_call(tools, text);
  const auto is_called = [&](const Tool& tool) { return tool.name == call->name; };
  return call && std::any_of(tools.begin(), tools.end(), is_called) ? call : std::nullopt;
}

ToolCallReader::Parts ToolCallReader::push(std::string_view text) {
  if (tools_.empty()) return {.content = std::string(text), .calls = {}};
  const size_t known = held_.size() - std::min(held_.size(), kClose.size() - 1);
  held_ += text;
  for (size_t at = held_.find(kClose, known); at != std::string::npos; at = held_.find(kClose, at + 1)) {
    ends_.push_back(at);
  }
  Parts parts;
  while (step(false, &parts)) continue;
  forget();
  return parts;
}

ToolCallReader::Parts ToolCallReader::finish() {
  Parts parts;
  while (step(true, &parts)) continue;
  if (calls_ == 0 || rest().find_first_not_of(kSpace) != std::string_view::npos) release(rest().size(), &parts);
  begin_ = held_.size();
  forget();
  return parts;
}

// Decides about the beginning of the rest. False: nothing can be decided yet.
bool ToolCallReader::step(bool ended, Parts* parts) {
  const std::string_view text = rest();
  const size_t open = text.find(kOpen);
  if (open == std::string_view::npos) {
    size_t certain = ended ? 0 : held_from(text);
    if (certain == 0 && text.size() > kMaxHeld) certain = text.size() - kOpen.size();
    if (certain > 0) release(certain, parts);
    return false;
  }
  const size_t before = text.substr(0, open).find_last_not_of(kSpace) + 1;
  if (before > 0) {
    release(before, parts);
    return true;
  }
  const size_t inside = open + kOpen.size();
  tried_ = std::max(tried_, inside);
  for (size_t at = next_end(); at != std::string_view::npos && ends_tried_ < kMaxEnds; at = next_end()) {
    tried_ = at + kClose.size();
    ++ends_tried_;
    if (std::optional<ToolCall> call = parse(text.substr(inside, at - inside))) {
      take_call(std::move(*call), tried_, parts);
      return true;
    }
  }
  if (!ended && ends_tried_ < kMaxEnds) return false;
  // A call at the very end may lack its mark. Any other is none.
  std::optional<ToolCall> last = ends_tried_ == 0 ? parse(text.substr(inside)) : std::nullopt;
  if (last) {
    take_call(std::move(*last), text.size(), parts);
  } else {
    release(inside, parts);
  }
  return true;
}

// None, too, where an answer is mostly marks: it must not hold the thread.
std::optional<ToolCall> ToolCallReader::parse(std::string_view text) {
  if (text.size() > kMaxParsed - parsed_) return std::nullopt;
  parsed_ += text.size();
  return parse_tool_call(tools_, text);
}

void ToolCallReader::take_call(ToolCall call, size_t end, Parts* parts) {
  if (count_ == CallCount::kAny || calls_ == 0) parts->calls.push_back(std::move(call));
  ++calls_;
  begin_ += end;
  tried_ = 0;
  ends_tried_ = 0;
}

void ToolCallReader::release(size_t end, Parts* parts) {
  parts->content += rest().substr(0, end);
  begin_ += end;
  tried_ = 0;
  ends_tried_ = 0;
}

// The first closing mark of the rest that has not been tried.
size_t ToolCallReader::next_end() const {
  const auto found = std::lower_bound(ends_.begin(), ends_.end(), begin_ + tried_);
  return found == ends_.end() ? std::string_view::npos : *found - begin_;
}

void ToolCallReader::forget() {
  held_.erase(0, begin_);
  std::erase_if(ends_, [this](size_t end) { return end < begin_; });
  for (size_t& end : ends_) end -= begin_;
  begin_ = 0;
}

ToolCallReader::Parts split_tool_calls(const std::vector<Tool>& tools, CallCount count, std::string_view text) {
  ToolCallReader reader(tools, count);
  ToolCallReader::Parts parts = reader.push(text);
  ToolCallReader::Parts rest = reader.finish();
  parts.content += rest.content;
  parts.calls.insert(parts.calls.end(), std::make_move_iterator(rest.calls.begin()),
                     std::make_move_iterator(rest.calls.end()));
  return parts;
}

}  // namespace headrace
