#include "runtime/text/thinking.h"

#include <algorithm>
#include <array>

namespace headrace {
namespace {

constexpr std::string_view kThinkingSpace = " \t\r\n";
constexpr size_t kMostSpace = 64;  // bytes between the opening mark and the prompt's end

struct KnownMarks {
  std::string_view open, close;
};
constexpr auto kKnown = std::to_array<KnownMarks>({{"<think>", "</think>"},
                                                   {"<seed:think>", "</seed:think>"},
                                                   {"[THINK]", "[/THINK]"},
                                                   {"<|channel>thought", "<channel|>"}});

ThinkingMarks channel_marks() {
  return {"<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>", true};
}
constexpr std::string_view kChannel = "<|channel|>", kMessage = "<|message|>", kFinal = "final";
constexpr std::string_view kMessageEnds[] = {kChannelMessageEnd, "<|start|>", "<|return|>", "<|call|>"};

// The channel that a message's header names: a word.
std::string_view channel_of(std::string_view header) {
  const size_t at = header.find(kChannel);
  if (at == std::string_view::npos) return {};
  header.remove_prefix(at + kChannel.size());
  return header.substr(0, header.find_first_of(" <"));
}

// The function that a message's header names as who it is to; empty: none.
std::string_view called_by(std::string_view header) {
  constexpr std::string_view kTo = "to=functions.";
  const size_t at = header.find(kTo);
  if (at == std::string_view::npos || (at > 0 && header[at - 1] != ' ')) return {};
  header.remove_prefix(at + kTo.size());
  return header.substr(0, header.find_first_of(" <"));
}

// Whether `text` is a header that the prompt has begun, or may become one.
bool begins_header(std::string_view text) {
  constexpr std::string_view kTo = " to=";
  for (const std::string_view begin : {kChannel, kTo}) {
    if (text.starts_with(begin) || begin.starts_with(text)) return true;
  }
  return false;
}

// The bytes at the end of `text` that may become one of the marks.
size_t begun_bytes(std::string_view text) {
  size_t most = 0;
  for (const std::string_view mark : kMessageEnds) {
    size_t begun = std::min(mark.size() - 1, text.size());
    while (!text.ends_with(mark.substr(0, begun))) --begun;
    most = std::max(most, begun);
  }
  return most;
}

size_t first_text(std::string_view text) { return std::min(text.find_first_not_of(kThinkingSpace), text.size()); }

// The bytes at the end of `text` that a longer text may show to be the beginning of the mark, or white space before it.
size_t held_bytes(std::string_view text, std::string_view mark) {
  size_t begun = std::min(mark.size() - 1, text.size());
  while (!text.ends_with(mark.substr(0, begun))) --begun;
  const std::string_view before = text.substr(0, text.size() - begun);
  const size_t last = before.find_last_not_of(kThinkingSpace);
  return text.size() - (last == std::string_view::npos ? 0 : last + 1);
}

}  // namespace

std::optional<ThinkingMarks> thinking_marks(const Tokenizer& tokenizer, std::string_view chat_template) {
  const auto has = [&](std::string_view token) { return tokenizer.find(token) >= 0; };
  const bool writes = chat_template.empty() || chat_template.find(kChannel) != std::string_view::npos;
  if (writes && has(kChannel) && has(kMessage) && has(kChannelMessageEnd)) return channel_marks();
  const KnownMarks* found = nullptr;
  for (const KnownMarks& known : kKnown) {
    const bool written = chat_template.find(known.close) != std::string_view::npos;
    const bool tokens = tokenizer.find(known.open) >= 0 && tokenizer.find(known.close) >= 0;
    if (written) return ThinkingMarks{.open = std::string(known.open), .close = std::string(known.close)};
    if (tokens && found == nullptr) found = &known;
  }
  if (found == nullptr) return std::nullopt;
  return ThinkingMarks{.open = std::string(found->open), .close = std::string(found->close)};
}

bool ends_with_open_mark(const Tokenizer& tokenizer, const ThinkingMarks& marks, const std::vector<int32_t>& prompt) {
  std::string text;  // the end of the prompt, as far as it is needed
  for (size_t i = prompt.size(); i > 0; --i) {
    text.insert(0, tokenizer.token_bytes(prompt[i - 1]));
    const size_t last = text.find_last_not_of(kThinkingSpace);
    if (last == std::string::npos && text.size() > kMostSpace) return false;
    if (last != std::string::npos && last + 1 >= marks.open.size()) {
      return std::string_view(text).substr(0, last + 1).ends_with(marks.open);
    }
  }
  return false;
}

ThinkingPlace::Parts ThinkingPlace::push(std::string_view bytes) {
  held_ += bytes;
  if (marks_.channels) return read_messages();
  if (place_ == Place::kBefore) return open();
  if (place_ == Place::kInside) return close();
  if (at_start_) held_.erase(0, first_text(held_));
  at_start_ = at_start_ && held_.empty();
  return {.thinking = {}, .answer = std::exchange(held_, {})};
}

ThinkingPlace::Parts ThinkingPlace::open() {
  const std::string_view text = std::string_view(held_).substr(first_text(held_));
  if (text.starts_with(marks_.open)) {
    held_ = text.substr(marks_.open.size());
    place_ = Place::kInside;
    return close();
  }
  if (std::string_view(marks_.open).starts_with(text)) return {};
  place_ = Place::kAfter;
  at_start_ = false;
  return {.thinking = {}, .answer = std::exchange(held_, {})};
}

ThinkingPlace::Parts ThinkingPlace::close() {
  if (at_start_) held_.erase(0, first_text(held_));
  const size_t found = held_.find(marks_.close);
  Parts parts;
  if (found == std::string::npos) {
    const size_t certain = held_.size() - held_bytes(held_, marks_.close);
    parts.thinking = held_.substr(0, certain);
    held_.erase(0, certain);
    at_start_ = at_start_ && parts.thinking.empty();
    return parts;
  }
  const std::string_view before = std::string_view(held_).substr(0, found);
  parts.thinking = before.substr(0, before.find_last_not_of(kThinkingSpace) + 1);  // npos + 1: nothing
  held_.erase(0, found + marks_.close.size());
  place_ = Place::kAfter;
  at_start_ = true;
  parts.answer = push({}).answer;
  return parts;
}

void ThinkingPlace::begin_message(std::string_view header, Parts* parts) {
  const std::string_view name = called_by(header);
  final_ = channel_of(header) == kFinal;
  if (final_ || !name.empty() || place_ == Place::kAfter) {
    place_ = Place::kAfter;
  } else {
    place_ = Place::kInside;
  }
  in_call_ = calls_ && !name.empty();
  call_has_text_ = false;
  final_ = final_ || in_call_;
  if (std::exchange(final_ ? answered_ : thought_, true)) (final_ ? parts->answer : parts->thinking) += '\n';
  if (in_call_) parts->answer += std::string(R"(<tool_call>{"name": ")").append(name).append(R"(", "arguments": )");
}

void ThinkingPlace::end_message(Parts* parts) {
  if (!std::exchange(in_call_, false)) return;
  parts->answer += call_has_text_ ? "}</tool_call>" : "{}}</tool_call>";
}

// A text that begins without a header is an answer.
ThinkingPlace::Parts ThinkingPlace::read_messages() {
  Parts parts;
  for (;;) {
    std::string& to = final_ ? parts.answer : parts.thinking;
    if (in_header_ && place_ == Place::kBefore && !begins_header(held_)) {
      in_header_ = false;
      final_ = answered_ = true;
      place_ = Place::kAfter;
    } else if (in_header_) {
      const size_t end = held_.find(kMessage);
      if (end == std::string::npos) return parts;
      begin_message(std::string_view(held_).substr(0, end), &parts);
      held_.erase(0, end + kMessage.size());
      in_header_ = false;
    } else {
      size_t end = std::string::npos, length = 0;
      for (const std::string_view mark : kMessageEnds) {
        const size_t at = held_.find(mark);
        if (at < end) end = at, length = mark.size();
      }
      const size_t certain = end == std::string::npos ? held_.size() - begun_bytes(held_) : end;
      call_has_text_ = call_has_text_ || first_text(std::string_view(held_).substr(0, certain)) < certain;
      to += held_.substr(0, certain);
      held_.erase(0, certain + length);
      if (end == std::string::npos) return parts;
      end_message(&parts);
      in_header_ = true;
    }
  }
}

ThinkingPlace::Parts ThinkingPlace::finish(bool cut) {
  if (marks_.channels) {  // a header that has not ended says nothing
    std::string held = std::exchange(held_, {});
    if (in_header_ && place_ != Place::kBefore) return {};
    call_has_text_ = call_has_text_ || first_text(held) < held.size();
    Parts parts;
    (final_ || place_ == Place::kBefore ? parts.answer : parts.thinking) = std::move(held);
    if (!cut || call_has_text_) end_message(&parts);
    return parts;
  }
  std::string rest = std::exchange(held_, {});
  if (place_ != Place::kInside) return {.thinking = {}, .answer = std::move(rest)};
  rest.resize(rest.find_last_not_of(kThinkingSpace) + 1);
  return {.thinking = std::move(rest), .answer = {}};
}

ThinkingPlace::Parts split_thinking(const ThinkingMarks& marks, bool inside, std::string_view text, bool calls,
                                    bool cut) {
  ThinkingPlace place(marks, inside);
  if (calls) place.show_calls();
  ThinkingPlace::Parts parts = place.push(text);
  const ThinkingPlace::Parts rest = place.finish(cut);
  parts.thinking += rest.thinking;
  parts.answer += rest.answer;
  return parts;
}

}  // namespace headrace
