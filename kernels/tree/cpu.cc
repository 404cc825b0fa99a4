#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/sample/cpu_isa.h"
#include "kernels/tree/bodies.h"
#include "offload/host/thread_pool.h"

namespace headrace::kernels::cpu {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

// ---- The likeliest tokens -------------------------------------------------------------------------------------------

// The k best of the values added in order of id, so that ties keep the lower one.
struct Ranking {
  int64_t k, count = 0;
  std::array<float, kMaxBranch> values;
  std::array<int32_t, kMaxBranch> ids;

  bool takes(float value) const { return count < k || value > values[static_cast<size_t>(k - 1)]; }
  void show(float value, int64_t id) {
    if (!takes(value)) return;
    int64_t at = count < k ? count++ : k - 1;
    for (; at > 0 && value > values[static_cast<size_t>(at - 1)]; --at) {
      values[static_cast<size_t>(at)] = values[static_cast<size_t>(at - 1)];
      ids[static_cast<size_t>(at)] = ids[static_cast<size_t>(at - 1)];
    }
    values[static_cast<size_t>(at)] = value;
    ids[static_cast<size_t>(at)] = static_cast<int32_t>(id);
  }
};

float clean(float logit) { return std::min(std::isnan(logit) ? -kInfinity : logit, kLargest); }

constexpr int64_t kChunk = 512;

// The ranked values of tokens [first, first + count) of a row.
void values_of(const TopLogProbsParams& p, int64_t row, int64_t first, int64_t count, float* values) {
  const float* logits = p.logits + row * p.stride + first;
  for (int64_t i = 0; i < count; ++i) values[i] = clean(logits[i]);
  if (p.temperature == 0) return;
  float noise[kChunk];
  HEADRACE_PICK_ISA(sample_kernels)
      .noise(p.seed, p.positions[row] + p.position_offset, p.map != nullptr ? p.map + first : nullptr, first, count,
             noise);
  const float inverse = std::min(1.0f / p.temperature, kLargest);
  for (int64_t i = 0; i < count; ++i) values[i] = std::min(values[i] * inverse, kLargest) + noise[i];
}

// Four sums, to hide the latency of an addition.
double sum_of(const float* values, int64_t count) {
  double sums[4] = {};
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int64_t j = 0; j < 4; ++j) sums[j] += static_cast<double>(values[i + j]);
  }
  for (; i < count; ++i) sums[0] += static_cast<double>(values[i]);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

void rank_row(const TopLogProbsParams& p, int64_t row) {
  const SampleKernels& kernels = HEADRACE_PICK_ISA(sample_kernels);
  float values[kChunk], gaps[kChunk], weights[kChunk];
  Ranking ranking{.k = p.k, .values = {}, .ids = {}};
  float top = -kInfinity;
  double sum = 0;  // of e^(value - top)
  for (int64_t first = 0; first < p.vocab; first += kChunk) {
    const int64_t count = std::min(kChunk, p.vocab - first);
    values_of(p, row, first, count, values);
    const float largest = kernels.largest(values, count), higher = std::max(top, largest);
    if (ranking.takes(largest)) {
      for (int64_t i = 0; i < count; ++i) ranking.show(values[i], first + i);
    }
    if (higher == -kInfinity) continue;
    sum *= std::exp(static_cast<double>(top) - static_cast<double>(higher));
    top = higher;
    kernels.gaps({values, count, top, 1.0f}, 0, count, gaps, weights);
    sum += sum_of(weights, count);
  }
  for (int64_t i = 0; i < p.k; ++i) {
    const float value = ranking.values[static_cast<size_t>(i)];
    const int32_t id = ranking.ids[static_cast<size_t>(i)];
    const double log_prob = static_cast<double>(value) - static_cast<double>(top) - std::log(sum);
    p.log_probs[row * p.k + i] = value == -kInfinity ? -kInfinity : static_cast<float>(std::min(log_prob, 0.0));
    p.tokens[row * p.k + i] = p.map != nullptr ? p.map[id] : id;
  }
}

// ---- Growing --------------------------------------------------------------------------------------------------------

// The kept children of a level by number, in order of score, and the score of each child.
struct Children {
  int64_t count;
  std::array<float, kMaxFrontier * kMaxBranch> scores;
  std::array<int32_t, kMaxFrontier * kMaxBranch> ranked;
};

float no_gain(float log_prob) { return std::isnan(log_prob) ? -kInfinity : std::min(log_prob, 0.0f); }

void rank_children(const TreeGrowParams& p, Children* out) {
  out->count = p.rows * p.branch;
  for (int64_t i = 0; i < out->count; ++i) {
    const float parent = p.level == 0 ? 0.0f : p.frontier.scores[i / p.branch];
    out->scores[static_cast<size_t>(i)] = parent + no_gain(p.log_probs[i]);
    out->ranked[static_cast<size_t>(i)] = static_cast<int32_t>(i);
  }
  std::partial_sort(out->ranked.begin(), out->ranked.begin() + p.keep, out->ranked.begin() + out->count,
                    [&](int32_t a, int32_t b) {
                      const float x = out->scores[static_cast<size_t>(a)], y = out->scores[static_cast<size_t>(b)];
                      return x > y || (x == y && a < b);
                    });
}

// The candidate number of a kept child: its index among the kept ones, sorted by number.
int64_t candidate_of(const TreeGrowParams& p, const Children& children, int32_t child) {
  return p.first_candidate + std::count_if(children.ranked.begin(), children.ranked.begin() + p.keep,
                                           [&](int32_t other) { return other < child; });
}

void record(const TreeGrowParams& p, const Children& children) {
  for (int64_t rank = 0; rank < p.keep; ++rank) {
    const int32_t child = children.ranked[static_cast<size_t>(rank)];
    const int64_t candidate = candidate_of(p, children, child);
    p.candidates.tokens[candidate] = p.tokens[child];
    p.candidates.scores[candidate] = children.scores[static_cast<size_t>(child)];
    p.candidates.parents[candidate] = p.level == 0 ? -1 : p.frontier.candidates[child / p.branch];
    p.candidates.depths[candidate] = static_cast<int32_t>(p.level + 1);
  }
}

void advance(const TreeGrowParams& p, const Children& children) {
  const TreeFrontier& f = p.frontier;
  const int64_t inherited = p.level;
  std::array<int32_t, kMaxFrontier*(kMaxDraftNodes + 1)> before;
  for (int64_t row = 0; row < p.rows && inherited > 0; ++row) {
    std::copy_n(f.path + row * f.path_stride, inherited, before.begin() + row * inherited);
  }
  for (int64_t slot = 0; slot < p.width; ++slot) {
    const int32_t child = children.ranked[static_cast<size_t>(slot)];
    const int64_t row = child / p.branch;
    f.candidates[slot] = static_cast<int32_t>(candidate_of(p, children, child));
    f.scores[slot] = children.scores[static_cast<size_t>(child)];
    f.tokens[slot] = p.tokens[child];
    f.parent_rows[slot] = static_cast<int32_t>(row);
    f.positions[slot] = static_cast<int32_t>(*p.committed + p.level);
    int32_t* const path = f.path + slot * f.path_stride;
    std::copy_n(before.begin() + row * inherited, inherited, path);
    path[p.level] = static_cast<int32_t>(p.first_row + slot);
  }
}

// Keeps the `most` best candidates, in ascending order, in place.
int64_t keep_best(const float* scores, int32_t* candidates, int64_t count, int64_t most) {
  if (count <= most) return count;
  std::nth_element(candidates, candidates + most, candidates + count,
                   [&](int32_t a, int32_t b) { return scores[a] > scores[b] || (scores[a] == scores[b] && a < b); });
  std::sort(candidates, candidates + most);
  return most;
}

void update_best(const TreeGrowParams& p) {
  TreeProgress& progress = *p.progress;
  if (p.level == 0) progress = {};
  if (progress.stopped != 0) return;
  std::array<int32_t, 2 * kMaxDraftNodes> pool;
  std::copy_n(progress.best, progress.count, pool.begin());
  int64_t count = progress.count;
  for (int64_t i = 0; i < p.keep; ++i) pool[static_cast<size_t>(count++)] = static_cast<int32_t>(p.first_candidate + i);
  count = keep_best(p.candidates.scores, pool.data(), count, p.nodes - 1);
  double expected = 0;
  for (int64_t i = 0; i < count; ++i) {
    progress.best[i] = pool[static_cast<size_t>(i)];
    expected += std::exp(static_cast<double>(p.candidates.scores[progress.best[i]]));
  }
  progress.count = static_cast<int32_t>(count);
  progress.levels = static_cast<int32_t>(p.level + 1);
  const float gain = static_cast<float>(expected) - progress.expected;
  progress.expected = static_cast<float>(expected);
  progress.stopped = p.threshold >= 0 && gain <= p.threshold ? 1 : 0;
}

}  // namespace

void top_log_probs(const TopLogProbsParams& params, ThreadPool& pool) {
  pool.parallel_for(params.rows, [&](int64_t row, int) { rank_row(params, row); });
}

void tree_grow(const TreeGrowParams& params, ThreadPool&) {
  Children children;
  rank_children(params, &children);
  record(params, children);
  update_best(params);
  if (params.width > 0) advance(params, children);
}

void tree_select(const TreeSelectParams& params, ThreadPool&) {
  const TreeCandidates& from = params.candidates;
  const TreeRows& out = params.out;
  std::array<int32_t, kMaxDraftNodes> best;
  std::copy_n(params.progress->best, params.progress->count, best.begin());
  const int64_t count = 1 + keep_best(from.scores, best.data(), params.progress->count, params.nodes - 1);
  *out.count = static_cast<int32_t>(count);
  for (int64_t node = 0; node < params.nodes; ++node) {
    const int32_t candidate = node == 0 || node >= count ? -1 : best[static_cast<size_t>(node - 1)];
    int32_t parent = -1, depth = 0;
    if (candidate >= 0) {
      depth = from.depths[candidate];
      CHECK(depth < out.path_stride, "depth=", depth, " path_stride=", out.path_stride);
      const auto end = best.begin() + node - 1;
      const auto found = std::lower_bound(best.begin(), end, from.parents[candidate]);
      CHECK(from.parents[candidate] < 0 || (found != end && *found == from.parents[candidate]),
            "candidate=", candidate);
      parent = from.parents[candidate] < 0 ? 0 : static_cast<int32_t>(found - best.begin() + 1);
      std::copy_n(out.path + parent * out.path_stride, depth, out.path + node * out.path_stride);
    }
    out.path[node * out.path_stride + depth] = static_cast<int32_t>(node);
    out.tokens[node] = candidate >= 0 ? from.tokens[candidate] : *params.root_token;
    out.parents[node] = parent;
    out.depths[node] = depth;
    if (out.scores != nullptr) out.scores[node] = candidate >= 0 ? from.scores[candidate] : 0.0f;
    out.positions[node] = *params.root_position + depth;
    out.draw_positions[node] = out.positions[node] + 1;
    if (out.slots != nullptr) out.slots[node] = std::max(out.positions[node] + *params.slot_shift, out.least_slot);
  }
  if (out.committed != nullptr) *out.committed = *params.root_position;
}

void tree_accept(const TreeAcceptParams& params, ThreadPool&) {
  TreeAcceptance& out = *params.out;
  out.count = 1;
  out.nodes[0] = 0;
  out.tokens[0] = params.samples[0];
  for (int32_t node = 1; node < params.nodes; ++node) {  // parents precede children: one pass finds the whole path
    if (params.parents[node] != out.nodes[out.count - 1] || params.tokens[node] != out.tokens[out.count - 1]) continue;
    out.nodes[out.count] = node;
    out.tokens[out.count++] = params.samples[node];
  }
  out.next = out.tokens[out.count - 1];
}

}  // namespace headrace::kernels::cpu
