// The vectorised parts of sampling, one table per instruction set (isa.h). Serial; any thread.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace headrace::kernels {

// A row as the filters see it: no NaN, no +inf, and at least one finite logit. A token's gap is its distance below the
// likeliest one, over T: its probability is e^-gap times the likeliest one's. Gaps are >= 0, so their bits sort like
// their values; a gap of inf is never chosen.
struct SampleRow {
  const float* logits;
  int64_t vocab;
  float top;                  // the largest logit
  float inverse_temperature;  // finite
};

// The result of a filter: the tokens up to this one in the order of (gap, id). gap is finite.
struct SampleBorder {
  float gap;
  int64_t id;
};

struct SampleKernels {
  float (*largest)(const float* logits, int64_t count);                  // NaN if there is one
  int64_t (*first_of)(const float* logits, int64_t count, float value);  // count if there is none
  // For tokens [first, first + count): gaps, and e^-gap.
  void (*gaps)(const SampleRow& row, int64_t first, int64_t count, float* gaps, float* weights);
  // The token of the largest g(seed, position, id) - gap within the border.
  int64_t (*draw)(const SampleRow& row, const SampleBorder& border, uint64_t seed, int64_t position);
  // The same g for `count` tokens: tokens[0] on or, if null, first, first + 1, …, where first is a multiple of 4.
  void (*noise)(uint64_t seed, int64_t position, const int32_t* tokens, int64_t first, int64_t count, float* out);
};
HEADRACE_DECLARE_ISA(SampleKernels, sample_kernels)

}  // namespace headrace::kernels
