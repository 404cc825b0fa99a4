#include "runtime/engine/output.h"

#include <algorithm>
#include <utility>

namespace headrace {

Output::Output(const Tokenizer* tokenizer, const std::vector<int32_t>& end_ids, const GenerateOptions& options,
               int64_t max_tokens)
    : end_ids_(end_ids), options_(options), max_tokens_(max_tokens) {
  if (tokenizer != nullptr) decoder_.emplace(*tokenizer);
  ids_.reserve(static_cast<size_t>(max_tokens));
}

bool Output::ends(int32_t token) const {
  return !options_.ignore_eos && std::find(end_ids_.begin(), end_ids_.end(), token) != end_ids_.end();
}

bool Output::take(int32_t token) {
  ++taken_;
  if (ends(token)) {
    reason_ = FinishReason::kStop;
    return false;
  }
  if (tokens() == max_tokens_) return false;
  ids_.push_back(token);
  if (decoder_) say(decoder_->push(token));
  return tokens() < max_tokens_;
}

void Output::say(std::string_view piece) {
  if (piece.empty()) return;
  text_ += piece;
  if (options_.on_text) options_.on_text(piece);
}

void Output::finish(GenerateResult* result) {
  if (decoder_) say(decoder_->finish());
  result->text = std::move(text_);
  result->token_ids = std::move(ids_);
  result->finish_reason = reason_;
}

}  // namespace headrace
