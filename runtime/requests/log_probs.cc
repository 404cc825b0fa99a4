#include "runtime/requests/log_probs.h"

#include <cmath>

#include "runtime/base/rounding.h"
#include "runtime/base/utf8.h"

namespace headrace {
namespace {

using nlohmann::ordered_json;

constexpr double kImpossible = -9999.0;  // OpenAI's number for what is not among the likely ones

double number(float log_prob) {
  return std::isfinite(log_prob) ? to_decimals(static_cast<double>(log_prob), 6) : kImpossible;
}

ordered_json chat_token(const ScoredToken& token) {
  ordered_json bytes = ordered_json::array();
  for (const char byte : token.bytes) bytes.push_back(static_cast<unsigned char>(byte));
  return {{"token", token.bytes}, {"logprob", number(token.log_prob)}, {"bytes", std::move(bytes)}};
}

ordered_json of_chat(const std::vector<AnswerToken>& tokens) {
  ordered_json content = ordered_json::array();
  for (const AnswerToken& token : tokens) {
    ordered_json one = chat_token(token.chosen);
    one["top_logprobs"] = ordered_json::array();
    for (const ScoredToken& other : token.top) one["top_logprobs"].push_back(chat_token(other));
    content.push_back(std::move(one));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

// A completion has tokens by their text alone: a part of a character as OpenAI writes it, "bytes:\\xe2\\x80".
std::string text_of(const ScoredToken& token) {
  if (is_utf8(token.bytes)) return token.bytes;
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text = "bytes:";
  for (const char byte : token.bytes) {
    const auto value = static_cast<unsigned char>(byte);
    text += {'\\', 'x', kDigits[value >> 4], kDigits[value & 15]};
  }
  return text;
}

ordered_json of_completion(const std::vector<AnswerToken>& tokens, bool with_top) {
  ordered_json texts = ordered_json::array(), log_probs = texts, top = texts, offsets = texts;
  for (const AnswerToken& token : tokens) {
    texts.push_back(text_of(token.chosen));
    log_probs.push_back(number(token.chosen.log_prob));
    offsets.push_back(token.first_character);
    ordered_json likely = ordered_json::object();
    for (const ScoredToken& other : token.top) likely.emplace(text_of(other), number(other.log_prob));
    likely.emplace(text_of(token.chosen), number(token.chosen.log_prob));
    top.push_back(std::move(likely));
  }
  return {{"tokens", std::move(texts)},
          {"token_logprobs", std::move(log_probs)},
          {"top_logprobs", with_top ? std::move(top) : ordered_json()},
          {"text_offset", std::move(offsets)}};
}

}  // namespace

ordered_json log_probs_json(const Request& request, const std::vector<AnswerToken>& tokens) {
  if (!request.top_log_probs) return nullptr;
  return request.kind == RequestKind::kChat ? of_chat(tokens) : of_completion(tokens, *request.top_log_probs > 0);
}

}  // namespace headrace
