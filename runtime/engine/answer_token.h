// A token of an answer with log-probabilities (runtime/session/log_probs.h). Plain values; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

struct ScoredToken {
  int32_t id = -1;
  float log_prob = 0;   // -infinity: the logit is
  std::string bytes{};  // what it adds to a text; empty without a tokenizer
};

struct AnswerToken {
  ScoredToken chosen;
  std::vector<ScoredToken> top{};  // the likeliest ones, best first
  // Where in the answer's text that begins which the token adds: bytes, and Unicode characters. A token that continues
  // a character begins where the character does.
  uint64_t first_byte = 0, first_character = 0;
};

}  // namespace headrace
