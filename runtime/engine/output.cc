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
  last_ = token;
  if (ends(token)) {
    reason_ = FinishReason::kStop;
    return false;
  }
  if (tokens() == max_tokens_) return false;
  ids_.push_back(token);
  if (decoder_ && !say(decoder_->push(token))) {
    decoder_.reset();  // what it holds back is behind the stop text
    reason_ = FinishReason::kStop;
    return false;
  }
  return tokens() < max_tokens_;
}

// False: a stop text was found, and text_ ends before it.
bool Output::say(std::string_view piece) {
  text_ += piece;
  size_t found = std::string::npos, held = 0;
  for (const std::string& stop : options_.stop) {
    found = std::min(found, text_.find(stop, told_));
    size_t begun = std::min(stop.size() - 1, text_.size() - told_);
    while (!text_.ends_with(std::string_view(stop).substr(0, begun))) --begun;
    held = std::max(held, begun);
  }
  if (found != std::string::npos) text_.resize(found);
  tell(found == std::string::npos ? text_.size() - held : found);
  return found == std::string::npos;
}

void Output::tell(size_t end) {
  if (options_.on_text && end > told_) options_.on_text(std::string_view(text_).substr(told_, end - told_));
  told_ = end;
}

void Output::finish(GenerateResult* result) {
  if (decoder_ && !say(decoder_->finish()) && reason_ == FinishReason::kLength) reason_ = FinishReason::kStop;
  tell(text_.size());
  result->text = std::move(text_);
  result->token_ids = std::move(ids_);
  result->finish_reason = reason_;
}

}  // namespace headrace
