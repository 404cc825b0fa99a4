#include "runtime/engine/output.h"

#include <algorithm>
#include <utility>

namespace headrace {
namespace {

uint64_t count_characters(std::string_view text) {  // all bytes but UTF-8 continuation bytes
  return static_cast<uint64_t>(std::count_if(
      text.begin(), text.end(), [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; }));
}

}  // namespace

Output::Output(const Tokenizer* tokenizer, const std::vector<int32_t>& end_ids, const GenerateOptions& options,
               int64_t max_tokens, ThinkingBudget thinking)
    : end_ids_(end_ids),
      options_(options),
      max_tokens_(max_tokens),
      tokenizer_(tokenizer),
      thinking_(std::move(thinking)) {
  if (tokenizer != nullptr) decoder_.emplace(*tokenizer);
  ids_.reserve(static_cast<size_t>(max_tokens));
}

bool Output::ends(int32_t token) const {
  return !options_.ignore_eos && std::find(end_ids_.begin(), end_ids_.end(), token) != end_ids_.end();
}

bool Output::take(int32_t token, const RowLogProbs& scored) {
  ++taken_;
  last_ = token;
  if (ends(token)) {
    reason_ = FinishReason::kStop;
    return false;
  }
  if (tokens() == max_tokens_) return false;
  ids_.push_back(token);
  const bool forced = thinking_.due().has_value(), marks = thinking_.push(token);
  if (options_.log_probs == LogProbs::kComputed) score(token, scored, forced);
  if (decoder_ && !append(text_of(token, marks))) {
    decoder_.reset();  // the bytes that it holds back follow the stop text
    reason_ = FinishReason::kStop;
    return false;
  }
  return tokens() < max_tokens_;
}

// What the token adds to the text. The marks around thinking are shown where they are special tokens, too, and so is
// all that messages of several channels are made of.
std::string Output::text_of(int32_t token, bool marks) {
  std::string text = decoder_->push(token);
  return (marks || thinking_.channels()) && tokenizer_->is_special(token) ? text + tokenizer_->token_bytes(token)
                                                                          : text;
}

// Appends text. False: a stop text was found, and text_ ends before it.
bool Output::append(std::string_view piece) {
  text_ += piece;
  characters_ += count_characters(piece);
  size_t found = std::string::npos, held = 0;
  for (const std::string& stop : options_.stop) {
    found = std::min(found, text_.find(stop, emitted_));
    size_t begun = std::min(stop.size() - 1, text_.size() - emitted_);
    while (!text_.ends_with(std::string_view(stop).substr(0, begun))) --begun;
    held = std::max(held, begun);
  }
  cut_ = found != std::string::npos;
  if (cut_) text_.resize(found);
  emit(found == std::string::npos ? text_.size() - held : found);
  return found == std::string::npos;
}

// If the chosen token is among the likeliest, its log-probability is taken from their list: the kernels add in
// different orders. A forced token is the only one that could follow: 0.
void Output::score(int32_t token, const RowLogProbs& scored, bool forced) {
  AnswerToken& one = answer_.emplace_back();
  one.first_byte = text_.size();
  one.first_character = characters_;
  float log_prob = scored.sample;
  for (size_t i = 0; i < scored.tokens.size(); ++i) {
    if (scored.tokens[i] == token) log_prob = scored.log_probs[i];
    if (static_cast<int64_t>(i) < options_.top_tokens) {
      one.top.push_back(scored_token(scored.tokens[i], scored.log_probs[i]));
    }
  }
  one.chosen = scored_token(token, forced ? 0 : log_prob);
}

ScoredToken Output::scored_token(int32_t id, float log_prob) const {
  return {.id = id, .log_prob = log_prob, .bytes = tokenizer_ != nullptr ? tokenizer_->token_bytes(id) : ""};
}

void Output::emit_tokens(size_t end) {
  for (; emitted_tokens_ < answer_.size() && answer_[emitted_tokens_].first_byte < end; ++emitted_tokens_) {
    if (options_.on_token) options_.on_token(answer_[emitted_tokens_]);
  }
}

void Output::emit(size_t end) {
  emit_tokens(end);
  if (options_.on_text && end > emitted_) options_.on_text(std::string_view(text_).substr(emitted_, end - emitted_));
  emitted_ = end;
}

void Output::finish(GenerateResult* result) {
  if (decoder_ && !append(decoder_->finish()) && reason_ == FinishReason::kLength) reason_ = FinishReason::kStop;
  emit(text_.size());
  if (!cut_) emit_tokens(SIZE_MAX);  // including last tokens that add no text
  answer_.resize(emitted_tokens_);
  result->answer = std::move(answer_);
  result->text = std::move(text_);
  result->token_ids = std::move(ids_);
  result->finish_reason = reason_;
  result->thinking.tokens = thinking_.tokens();
  result->thinking.cut = !ends(last_);
}

}  // namespace headrace
