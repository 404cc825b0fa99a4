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
