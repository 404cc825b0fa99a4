#include "runtime/engine/thinking_budget.h"

#include "cache/base.h"

namespace headrace {

ThinkingBudget::ThinkingBudget(const Tokenizer& tokenizer, const ThinkingMarks& marks, bool inside, int64_t budget)
    : tokenizer_(&tokenizer),
      place_(std::in_place, marks, inside),
      close_(tokenizer.encode(marks.close, AddBos::kNo, SpecialTokens::kParse)),
      budget_(budget) {
  CHECK(!close_.empty());
}

bool ThinkingBudget::push(int32_t token) {
  if (!place_ || place_->place() == ThinkingPlace::Place::kAfter) return false;
  const bool forced = due().has_value(), was_inside = inside();
  place_->push(tokenizer_->token_bytes(token));
  if (forced) {
    if (++forced_ == close_.size()) budget_ = -1;  // the mark is complete
  } else if (was_inside && inside()) {
    ++tokens_;
  }
  return was_inside ? !inside() : inside();
}

}  // namespace headrace
