#include "kernels/sample/op.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/dispatch.h"
#include "kernels/sample/bodies.h"
#include "kernels/sample/philox.h"

namespace headrace {

float sampling_uniform(uint64_t seed, int64_t position, int32_t token) {
  const auto place = static_cast<uint64_t>(position);
  const auto words = kernels::philox(
      {static_cast<uint32_t>(token) / 4, 0, static_cast<uint32_t>(place), static_cast<uint32_t>(place >> 32)},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  // The word's bits plus one half: never 0. Near 1 a float is coarser than the word: never 1.
  const float uniform = (static_cast<float>(words[static_cast<uint32_t>(token) % 4]) + 0.5f) * 0x1p-32f;
  return std::min(uniform, 1.0f - 0x1p-24f);
}

uint64_t sample_workspace_bytes(int64_t rows, int64_t vocab) {
  CHECK(rows >= 0 && vocab > 0, "rows=", rows, " vocab=", vocab);
  return kernels::cuda::sample_workspace_bytes(rows, vocab);  // the CPU body needs none
}

void sample(const SampleParams& params, Stream& stream) {
  const SamplingSettings& s = params.settings;
  CHECK(params.rows >= 0 && params.vocab > 0 && params.vocab <= INT32_MAX, "rows=", params.rows,
        " vocab=", params.vocab);
  CHECK(std::isfinite(s.temperature) && s.temperature >= 0, "temperature=", s.temperature);
  CHECK(s.top_k >= 0, "top_k=", s.top_k);
  CHECK(s.top_p > 0 && s.top_p <= 1, "top_p=", s.top_p);
  CHECK(s.min_p >= 0 && s.min_p <= 1, "min_p=", s.min_p);
  if (params.rows == 0) return;
  CHECK(params.logits != nullptr && params.positions != nullptr && params.tokens != nullptr);
  kernels::dispatch(kernels::cpu::sample, kernels::cuda::sample, params, stream);
}

void penalize_logits(const PenalizeLogitsParams& params, Stream& stream) {
  const PenaltySettings& s = params.settings;
  CHECK(params.rows >= 0 && params.vocab > 0 && params.vocab <= INT32_MAX, "rows=", params.rows,
        " vocab=", params.vocab);
  CHECK(std::isfinite(s.presence) && std::isfinite(s.frequency), "presence=", s.presence, " frequency=", s.frequency);
  CHECK(std::isfinite(s.repetition) && s.repetition > 0, "repetition=", s.repetition);
  if (params.rows == 0 || !s.any()) return;
  CHECK(params.logits != nullptr && params.counts != nullptr && params.leaves != nullptr);
  kernels::dispatch(kernels::cpu::penalize_logits, kernels::cuda::penalize_logits, params, stream);
}

void mask_logits(const MaskLogitsParams& params, Stream& stream) {
  CHECK(params.rows >= 0 && params.vocab > 0 && params.vocab <= INT32_MAX, "rows=", params.rows,
        " vocab=", params.vocab);
  if (params.rows == 0) return;
  CHECK(params.logits != nullptr && params.masks != nullptr && params.mask_rows != nullptr);
  kernels::dispatch(kernels::cpu::mask_logits, kernels::cuda::mask_logits, params, stream);
}

void token_log_probs(const TokenLogProbsParams& params, Stream& stream) {
  CHECK(params.rows >= 0 && params.vocab > 0 && params.vocab <= INT32_MAX, "rows=", params.rows,
        " vocab=", params.vocab);
  if (params.rows == 0) return;
  CHECK(params.logits != nullptr && params.tokens != nullptr && params.log_probs != nullptr);
  kernels::dispatch(kernels::cpu::token_log_probs, kernels::cuda::token_log_probs, params, stream);
}

}  // namespace headrace
