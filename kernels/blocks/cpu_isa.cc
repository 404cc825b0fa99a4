#include "kernels/blocks/cpu_isa.h"

#include "kernels/cpu/simd.h"
#include "kernels/cpu/with_type.h"

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

namespace {

constexpr int64_t kTogether = 4;  // concurrent sums

HEADRACE_SIMD int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
HEADRACE_SIMD int64_t padded(int64_t columns) { return (columns + kLanes - 1) / kLanes * kLanes; }

// ---- Summaries ------------------------------------------------------------------------------------------------------

template <typename T>
void summarise_of(const void* const* rows, int64_t head_dim, void* out_bytes) {
  T* out = static_cast<T*>(out_bytes);
  for (int64_t i = 0; i < head_dim; i += kLanes) {
    const int64_t wide = smaller(kLanes, head_dim - i);
    vf most = load_some(static_cast<const T*>(rows[0]) + i, wide), least = most;
    for (int64_t row = 1; row < kBlockRows; ++row) {
      const vf key = load_some(static_cast<const T*>(rows[row]) + i, wide);
      most = max(most, key);
      least = min(least, key);
    }
    store_some(out + i, most, wide);
    store_some(out + head_dim + i, least, wide);
  }
}

void summarise(DType type, const void* const* rows, int64_t head_dim, void* out) {
  with_type(type, [&](auto t) { summarise_of<decltype(t)>(rows, head_dim, out); });
}

// An element of a query; 0 if it is not finite.
HEADRACE_SIMD vf finite(vf value) { return select(value - value == zero(), value, zero()); }

// ---- Scores by mean parts -------------------------------------------------------------------------------------------

template <typename T>
void mean_parts_of(const ScoreBlocksParams& p, int64_t kv_head) {
  const int64_t group = p.heads / p.kv_heads;
  const T* q = static_cast<const T*>(p.q) + kv_head * group * p.head_dim;
  float* out = p.workspace + kv_head * 2 * p.head_dim;
  const float share = 1.0f / static_cast<float>(p.queries * group);
  for (int64_t i = 0; i < p.head_dim; i += kLanes) {
    const int64_t wide = smaller(kLanes, p.head_dim - i);
    vf positive = zero(), negative = zero();
    for (int64_t query = 0; query < p.queries; ++query) {
      for (int64_t head = 0; head < group; ++head) {
        const vf value = finite(load_some(q + query * p.q_stride + head * p.head_dim + i, wide));
        positive += max(value, zero());
        negative += min(value, zero());
      }
    }
    store_some(out + i, positive * share, wide);
    store_some(out + p.head_dim + i, negative * share, wide);
  }
}

void mean_parts(const ScoreBlocksParams& p, int64_t kv_head) {
  with_type(p.type, [&](auto t) { mean_parts_of<decltype(t)>(p, kv_head); });
}

template <typename T>
void score_means_of(const ScoreBlocksParams& p, const BlockRun& run) {
  const int64_t size = 2 * p.head_dim;  // of one summary
  const float* parts = p.workspace + run.kv_head * size;
  const T* summaries = static_cast<const T*>(p.summaries) + (run.kv_head * p.blocks + p.first_block + run.first) * size;
  float* scores = p.scores + run.kv_head * p.count + run.first;
  for (int64_t block = 0; block < run.count; block += kTogether) {
    const T* at[kTogether];  // beyond the last one: the last again
    for (int64_t j = 0; j < kTogether; ++j) at[j] = summaries + smaller(block + j, run.count - 1) * size;
    vf sums[kTogether] = {};
    for (int64_t i = 0; i < size; i += kLanes) {
      const int64_t wide = smaller(kLanes, size - i);
      const vf part = load_some(parts + i, wide);
      for (int64_t j = 0; j < kTogether; ++j) sums[j] = fma(part, load_some(at[j] + i, wide), sums[j]);
    }
    const v4 four = sum_each(sums[0], sums[1], sums[2], sums[3]);
    for (int64_t j = 0; j < kTogether && block + j < run.count; ++j) scores[block + j] = four[j];
  }
}

void score_means(const ScoreBlocksParams& p, const BlockRun& run) {
  with_type(p.k_type, [&](auto t) { score_means_of<decltype(t)>(p, run); });
}

// ---- Scores query by query ------------------------------------------------------------------------------------------

// A row of padded(head_dim) floats, zeros at its end.
void widen(DType type, const void* base, int64_t element, int64_t head_dim, float* out) {
  with_type(type, [&](auto t) {
    const auto* from = static_cast<const decltype(t)*>(base) + element;
    for (int64_t i = 0; i < head_dim; i += kLanes) {
      store(out + i, load_some(from + i, smaller(kLanes, head_dim - i)));
    }
  });
}

// The factors of a query for maximum and minimum: its positive and its negative part, or the query itself.
void widen_query(const ScoreBlocksParams& p, int64_t element, int64_t width, float* out) {
  widen(p.type, p.q, element, p.head_dim, out);
  for (int64_t i = 0; i < width; i += kLanes) {
    const vf value = finite(load(out + i));
    const bool parts = p.score == BlockScore::kQuest;
    store(out + i, parts ? max(value, zero()) : value);
    store(out + width + i, parts ? min(value, zero()) : value);
  }
}

// The scores of one block with kTogether queries; all are [2, width].
HEADRACE_SIMD v4 score_four(BlockScore score, const float* queries, const float* summary, int64_t width) {
  vf most[kTogether] = {}, least[kTogether] = {};
  for (int64_t i = 0; i < width; i += kLanes) {
    const vf largest_keys = load(summary + i), least_keys = load(summary + width + i);
    for (int64_t j = 0; j < kTogether; ++j) {
      most[j] = fma(load(queries + 2 * j * width + i), largest_keys, most[j]);
      least[j] = fma(load(queries + (2 * j + 1) * width + i), least_keys, least[j]);
    }
  }
  const v4 a = sum_each(most[0], most[1], most[2], most[3]), b = sum_each(least[0], least[1], least[2], least[3]);
  return score == BlockScore::kQuest ? a + b : a < b ? b : a;
}

// Scores one head's queries with each of the run's blocks, and reduces the scores.
void score_head(const ScoreBlocksParams& p, int64_t head, const float* summaries, int64_t blocks, float* reduced) {
  const int64_t width = padded(p.head_dim);
  const bool mean = p.reduce == BlockReduce::kMean;
  for (int64_t block = 0; block < blocks; ++block) reduced[block] = mean ? 0.0f : -__builtin_inff();
  float queries[kTogether * 2 * kMaxBlockHeadDim];
  for (int64_t first = 0; first < p.queries; first += kTogether) {
    const int64_t some = smaller(kTogether, p.queries - first);
    for (int64_t j = 0; j < kTogether; ++j) {  // beyond the last one: the last again
      const int64_t query = first + smaller(j, some - 1);
      widen_query(p, query * p.q_stride + head * p.head_dim, width, queries + 2 * j * width);
    }
    for (int64_t block = 0; block < blocks; ++block) {
      const v4 four = score_four(p.score, queries, summaries + block * 2 * width, width);
      for (int64_t j = 0; j < some; ++j) {
        if (mean) {
          reduced[block] += four[j];
        } else if (four[j] > reduced[block]) {
          reduced[block] = four[j];
        }
      }
    }
  }
  if (mean) {
    for (int64_t block = 0; block < blocks; ++block) reduced[block] /= static_cast<float>(p.queries);
  }
}

void score_rows(const ScoreBlocksParams& p, const BlockRun& run) {
  const int64_t width = padded(p.head_dim), group = p.heads / p.kv_heads;
  float summaries[kBlockRunOfRows * 2 * kMaxBlockHeadDim];
  const int64_t from = (run.kv_head * p.blocks + p.first_block + run.first) * 2;
  for (int64_t row = 0; row < 2 * run.count; ++row) {
    widen(p.k_type, p.summaries, (from + row) * p.head_dim, p.head_dim, summaries + row * width);
  }
  float total[kBlockRunOfRows] = {}, reduced[kBlockRunOfRows];
  for (int64_t head = 0; head < group; ++head) {
    score_head(p, run.kv_head * group + head, summaries, run.count, reduced);
    for (int64_t block = 0; block < run.count; ++block) total[block] += reduced[block];
  }
  float* scores = p.scores + run.kv_head * p.count + run.first;
  for (int64_t block = 0; block < run.count; ++block) scores[block] = total[block] / static_cast<float>(group);
}

}  // namespace

const BlockKernels block_kernels = {summarise, mean_parts, score_means, score_rows};

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
