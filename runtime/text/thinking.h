// The part of an answer in which a model thinks: what opens and closes it, and how a text is split there. Plain values
// and pure functions.
//
// An answer thinks if its prompt ends with the opening mark, or if the answer begins with it. It thinks until the
// closing mark, and not again. The marks are text: a vocabulary may have a token for each, or write them in pieces.
//
// gpt-oss answers in messages of several channels, <|channel|>NAME<|message|>TEXT<|end|><|start|>assistant and so on:
// the channel "final" is the answer, the others are thinking, and the marks lead from one to the other. A message to a
// tool has "to=functions.NAME" in its header, before or behind the channel, and the arguments as its text.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/text/tokenizer.h"

namespace headrace {

struct ThinkingMarks {
  std::string open, close;  // "<think>", "</think>"
  bool channels = false;    // messages of several channels, whose special tokens are part of the text
};
// A token that ends a message of a channel, not the answer.
inline constexpr std::string_view kChannelMessageEnd = "<|end|>";

// The marks that `chat_template` (its source; may be empty) writes or reads, else those that are tokens of the
// vocabulary. None: the model does not think.
std::optional<ThinkingMarks> thinking_marks(const Tokenizer& tokenizer, std::string_view chat_template);

// Whether an answer to this prompt begins within the thinking: the prompt ends with the opening mark and white space.
bool ends_with_open_mark(const Tokenizer& tokenizer, const ThinkingMarks& marks, const std::vector<int32_t>& prompt);

// Where an answer is, by its bytes so far.
class ThinkingPlace {
 public:
  enum class Place { kBefore, kInside, kAfter };  // kBefore: nothing but white space and a begun opening mark

  ThinkingPlace(ThinkingMarks marks, bool inside)
      : marks_(std::move(marks)), place_(inside ? Place::kInside : Place::kBefore) {}

  // Where answers may call tools: a message to one, of channels, is part of the answer, as
  // <tool_call>{"name": NAME, "arguments": TEXT}</tool_call>, which runtime/requests/tool_calls.h reads.
  void show_calls() { calls_ = true; }
  Place place() const { return place_; }
  const std::string& open_mark() const { return marks_.open; }
  bool channels() const { return marks_.channels; }
  // The next bytes. Returns those of them, and of bytes that were held before, that are certain, by their part; marks
  // are in neither. White space around the marks is dropped.
  struct Parts {
    std::string thinking, answer;
  };
  Parts push(std::string_view bytes);
  // What is still held: the text has ended. `cut`: not by the model itself, so that a call without arguments is none.
  Parts finish(bool cut = false);

 private:
  Parts open();
  Parts close();
  Parts read_messages();
  void begin_message(std::string_view header, Parts* parts);
  void end_message(Parts* parts);

  ThinkingMarks marks_;
  Place place_;
  std::string held_;      // may become a mark, or is white space that may precede one
  bool at_start_ = true;  // of the thinking, or of the answer after it: white space is dropped
  // Of channels: within a message's header, which the prompt has begun; whether the message is the answer's; and of
  // which parts there was a message.
  bool in_header_ = true, final_ = false, thought_ = false, answered_ = false;
  // Whether calls are shown; whether the message is one; and whether it has text so far.
  bool calls_ = false, in_call_ = false, call_has_text_ = false;
};

// A whole text in its two parts. `calls`: ThinkingPlace::show_calls(). `cut`: as finish() has it.
ThinkingPlace::Parts split_thinking(const ThinkingMarks& marks, bool inside, std::string_view text, bool calls = false,
                                    bool cut = false);

}  // namespace headrace
