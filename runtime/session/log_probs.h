// Log-probabilities of the tokens of a run: by the softmax over a row's logits, before temperature, noise and filters.
// Like the sample of a row they do not depend on the other rows of a pass. Plain values; any thread.
#pragma once

#include <cstdint>
#include <span>

namespace headrace {

enum class LogProbs : uint8_t {
  kNone,
  kReserved,  // their memory is planned, so that another run on the same plan may compute them
  kComputed   // in every pass that judges tokens
};

constexpr int64_t kMaxTopTokens = 20;  // ranked per row; fewer if the vocabulary is smaller

// The log-probabilities of one row of a pass; views, valid until the next pass. Empty: they are not computed.
struct RowLogProbs {
  float sample = 0;                   // of the row's sample; NaN if the row has no token
  std::span<const int32_t> tokens{};  // the likeliest ones, best first
  std::span<const float> log_probs{};
};

}  // namespace headrace
