// The output of a run so far: token ids, the text as it becomes final, and the reason of its end. Internal to the
// engine. Thread: one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/engine/options.h"
#include "runtime/engine/result.h"
#include "runtime/engine/thinking_budget.h"
#include "runtime/text/tokenizer.h"

namespace headrace {

class Output {
 public:
  // `tokenizer` may be null: ids only. `end_ids` end the run unless options.ignore_eos.
  Output(const Tokenizer* tokenizer, const std::vector<int32_t>& end_ids, const GenerateOptions& options,
         int64_t max_tokens, ThinkingBudget thinking = {});

  // Takes the next token; false if the run has ended with it or before it, by an end token, a stop text or max_tokens.
  // `scored`: the log-probabilities of the row that the token was drawn from.
  bool take(int32_t token, const RowLogProbs& scored = {});
  const ThinkingBudget& thinking() const { return thinking_; }
  bool ends(int32_t token) const;  // take() would end the run with it
  // The tokens that end the run.
  std::vector<int32_t> ends() const { return options_.ignore_eos ? std::vector<int32_t>{} : end_ids_; }
  void interrupted() { reason_ = FinishReason::kInterrupted; }
  void finish(GenerateResult* result);  // moves text and ids out

  int64_t max_tokens() const { return max_tokens_; }
  int64_t room() const { return max_tokens_ - tokens(); }
  int64_t tokens() const { return static_cast<int64_t>(ids_.size()); }
  const std::vector<int32_t>& ids() const { return ids_; }  // until finish()
  int64_t taken() const { return taken_; }                  // calls of take()
  int32_t last() const { return last_; }                    // the last token that take() got

 private:
  bool append(std::string_view piece);
  void emit(size_t end);
  void emit_tokens(size_t end);
  std::string text_of(int32_t token, bool marks);
  void score(int32_t token, const RowLogProbs& scored, bool forced);
  ScoredToken scored_token(int32_t id, float log_prob) const;

  const std::vector<int32_t>& end_ids_;
  const GenerateOptions& options_;
  const int64_t max_tokens_;
  const Tokenizer* const tokenizer_;
  ThinkingBudget thinking_;
  std::optional<StreamingDecoder> decoder_;
  std::vector<int32_t> ids_;
  int64_t taken_ = 0;
  int32_t last_ = -1;
  std::string text_;
  std::vector<AnswerToken> answer_;
  size_t emitted_tokens_ = 0;  // of answer_
  uint64_t characters_ = 0;    // of text_
  bool cut_ = false;           // by a stop text
  size_t emitted_ = 0;         // bytes of text_ passed to on_text: the rest may begin a stop text
  FinishReason reason_ = FinishReason::kLength;
};

}  // namespace headrace
