// A token of an answer with log-probabilities (runtime/session/log_probs.h). Plain values; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

struct ScoredToken {
  int32_t id = -1;
  float log_prob = 0;   // -infinity if the logit is
  std::string bytes{};  // what it adds to a text; empty without a tokenizer
};

struct AnswerToken {
  ScoredToken chosen;
  std::vector<ScoredToken> top{};  // the likeliest ones, best first
  // The offset of the token's text in the answer's text, in bytes and in Unicode characters. A token that continues a
  // character has the character's offset.
  uint64_t first_byte = 0, first_character = 0;
};

}  // namespace headrace
