// Which token of an answer is not the target's choice: after a number of tokens of thinking, those of the closing mark
// (--reasoning-budget). A pure function of the tokens so far, so all ways to decode end the thinking at the same place.
// A value; small enough to be copied in each step.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "runtime/text/thinking.h"

namespace headrace {

class ThinkingBudget {
 public:
  ThinkingBudget() = default;  // the model does not think
  // `inside`: the prompt has opened the thinking. `budget`: tokens, marks not counted; -1: any number. The tokenizer
  // must outlive this.
  ThinkingBudget(const Tokenizer& tokenizer, const ThinkingMarks& marks, bool inside, int64_t budget);

  bool limited() const { return budget_ >= 0 && place_ && place_->place() != ThinkingPlace::Place::kAfter; }
  bool push(int32_t token);  // the next token of the answer; true: it completes a mark
  // The next token, if it is not the target's choice.
  std::optional<int32_t> due() const {
    return limited() && inside() && tokens_ >= budget_ ? std::optional(close_[forced_]) : std::nullopt;
  }
  // At least as many of the next tokens are the target's choice.
  int64_t room() const {
    if (!limited()) return std::numeric_limits<int64_t>::max();
    return inside() ? budget_ - tokens_ : budget_ + 1;  // the opening mark is a token or more
  }
  int64_t tokens() const { return tokens_; }  // of thinking so far
  bool channels() const { return place_ && place_->channels(); }

 private:
  bool inside() const { return place_->place() == ThinkingPlace::Place::kInside; }

  const Tokenizer* tokenizer_ = nullptr;
  std::optional<ThinkingPlace> place_;
  std::vector<int32_t> close_;  // the tokens of the closing mark
  int64_t budget_ = -1, tokens_ = 0;
  size_t forced_ = 0;  // of close_
};

}  // namespace headrace
