// Sampling as a pure function of (logits, settings, seed, absolute position) by Gumbel-max (docs/design.md, section 6,
// rule 3). Filters in this order: temperature, top-k, top-p, min-p; the token is the argmax over the kept tokens of
// logit / T + g(seed, position, token id), g = -log(-log(1 - u)) with u from Philox 4x32-10, never 0 or 1. Small u
// gives large g, and floats are dense near 0, so a token of probability 1e-9 keeps that probability. T = 0 is the same
// without g and filters. Ties go to the lower id, also at the border of top-k and top-p. -inf is never chosen. A row
// with a NaN or +inf, or with only -inf, has no token; its result is a NoToken.
#pragma once

#include <cstdint>

#include "cache/base.h"
#include "offload/device/stream.h"

namespace headrace {

struct SamplingSettings {
  float temperature = 0.0f;  // >= 0
  int32_t top_k = 0;         // 0: all
  float top_p = 1.0f;  // (0, 1]: the smallest set of the likeliest tokens whose probabilities sum to top_p or more
  float min_p = 0.0f;  // [0, 1]: tokens with at least min_p times the likeliest one's probability
  uint64_t seed = 0;
  bool operator==(const SamplingSettings&) const = default;
};

// u, uniform in (0, 1): Philox 4x32-10 with key = seed, counter = (token / 4, position). The reference of the bodies'
// own code, for tests.
float sampling_uniform(uint64_t seed, int64_t position, int32_t token);

// Why a row of logits has no token, in order of precedence.
enum NoToken : int32_t { kNanLogit = -1, kInfiniteLogit = -2, kNoFiniteLogit = -3 };

struct SampleParams {
  const float* logits;       // [rows, vocab]
  const int32_t* positions;  // [rows]: of the token being drawn
  int32_t* tokens;           // [rows], out: a token or a NoToken
  void* workspace;           // sample_workspace_bytes(rows, vocab)
  int64_t rows, vocab;
  SamplingSettings settings;
};
uint64_t sample_workspace_bytes(int64_t rows, int64_t vocab);
void sample(const SampleParams& params, Stream& stream);

// What a request asks of its text, applied to logits before they are sampled, in place. NaN and +inf stay as they are,
// so that a row that has no token still has none.

// Presence, frequency (OpenAI's) and repetition (CTRL's) penalties, for each token of the text before: first
// x = x > 0 ? x / repetition : x * repetition, for tokens of the prompt, too; then x -= frequency * count; then, if
// count > 0, x -= presence. Counts are of the answer's tokens. In this order, each rounded to f32.
struct PenaltySettings {
  float presence = 0, frequency = 0;
  float repetition = 1;  // > 0
  bool any() const { return presence != 0 || frequency != 0 || repetition != 1; }
  bool operator==(const PenaltySettings&) const = default;
};
// The text before a row's token: that of all rows, then the tokens of a tree on the way to the row's node.
constexpr int32_t kInPrompt = int32_t{1} << 30;
struct PenalizeLogitsParams {
  float* logits;           // [rows, vocab]
  const int32_t* counts;   // [vocab]: how often the common text has the token; kInPrompt is added if the prompt has it
  const int32_t* tokens;   // [nodes]: the tree's; a token outside the vocabulary counts as none
  const int32_t* parents;  // [nodes]: a smaller index, or -1
  const int32_t* leaves;   // [rows]: the node that the row's token follows; -1: it follows the common text
  int64_t rows, vocab;
  PenaltySettings settings;
};
constexpr int64_t kMaxPenaltyDepth = 512;  // nodes on a way
void penalize_logits(const PenalizeLogitsParams& params, Stream& stream);

// A logit becomes -inf where the mask's bit is 0.
struct MaskLogitsParams {
  float* logits;             // [rows, vocab]
  const uint32_t* masks;     // [any number, ceil(vocab / 32)]: bit i of word w is of token 32 w + i
  const int32_t* mask_rows;  // [rows]: which mask; -1: the row stays as it is
  int64_t rows, vocab;
};
void mask_logits(const MaskLogitsParams& params, Stream& stream);

// The log-probability of one token per row, by the softmax over the row. It is NaN for a row that has no token, and for
// a NoToken.
struct TokenLogProbsParams {
  const float* logits;    // [rows, vocab]
  const int32_t* tokens;  // [rows], each in [0, vocab) or a NoToken
  float* log_probs;       // [rows], out: at most 0
  int64_t rows, vocab;
};
void token_log_probs(const TokenLogProbsParams& params, Stream& stream);

}  // namespace headrace
