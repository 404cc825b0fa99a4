// A draft's tree (kernels/tree/op.h), one block per launch: a level has little work, and the point is that nothing
// waits for the host. Scores are ranked as integer keys (top_keys.cuh), so ties go to the lower number.
#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/tree/bodies.h"
#include "kernels/tree/top_keys.cuh"

namespace headrace::kernels::cuda {

namespace {

constexpr int kChildrenHeld = kMaxFrontier * kMaxBranch / kTopThreads;
static_assert(kMaxDraftNodes <= kMaxTop && 2 * (kMaxDraftNodes - 1) <= kTopThreads);

__device__ int thread() { return static_cast<int>(threadIdx.x); }

// The number of the first `count` ranked keys with a lower id: this one's place in ascending order.
__device__ int place_of(const TopKeys& shared, int count, int32_t id) {
  int place = 0;
#pragma unroll 8
  for (int i = 0; i < count; ++i) place += id_of(shared.ranked[i]) < id ? 1 : 0;
  return place;
}

// ---- tree_grow ------------------------------------------------------------------------------------------------------

__device__ float no_gain(float log_prob) { return log_prob <= 0.0f ? log_prob : log_prob > 0.0f ? 0.0f : -INFINITY; }

struct Level {
  TopKeys keys;
  uint64_t kept[kMaxDraftNodes];       // by rank: score and child
  int32_t candidates[kMaxDraftNodes];  // by rank
  int32_t paths[kMaxFrontier * kMaxDraftNodes];
};

// Ranks the level's best children in `kept`, with their candidate numbers.
__device__ void rank_children(const TreeGrowParams& p, Level& level) {
  uint64_t keys[kChildrenHeld];
  const auto count = static_cast<int>(p.rows * p.branch);
#pragma unroll
  for (int i = 0; i < kChildrenHeld; ++i) {
    const int child = i * kTopThreads + thread();
    keys[i] = 0;
    if (child >= count) continue;
    const float parent = p.level == 0 ? 0.0f : p.frontier.scores[child / static_cast<int>(p.branch)];
    keys[i] = key_of(parent + no_gain(p.log_probs[child]), child);
  }
  const int kept = top_keys(keys, static_cast<int>(p.keep), level.keys);
  if (thread() < kept) {
    const uint64_t mine = level.keys.ranked[thread()];
    level.kept[thread()] = mine;
    level.candidates[thread()] = static_cast<int32_t>(p.first_candidate) + place_of(level.keys, kept, id_of(mine));
  }
  __syncthreads();
}

__device__ void record(const TreeGrowParams& p, const Level& level) {
  if (thread() >= p.keep) return;
  const uint64_t mine = level.kept[thread()];
  const int32_t child = id_of(mine), candidate = level.candidates[thread()];
  p.candidates.tokens[candidate] = p.tokens[child];
  p.candidates.scores[candidate] = score_of(mine);
  p.candidates.parents[candidate] = p.level == 0 ? -1 : p.frontier.candidates[child / static_cast<int>(p.branch)];
  p.candidates.depths[candidate] = static_cast<int32_t>(p.level + 1);
}

// Replaces the frontier by the next one; of the old one only the paths are still read.
__device__ void advance(const TreeGrowParams& p, Level& level) {
  const TreeFrontier& f = p.frontier;
  const int branch = static_cast<int>(p.branch), width = static_cast<int>(p.width);
  const int inherited = static_cast<int>(p.level);
  for (int i = thread(); i < width * inherited; i += kTopThreads) {
    const int row = id_of(level.kept[i / inherited]) / branch;
    level.paths[i] = f.path[row * f.path_stride + i % inherited];
  }
  __syncthreads();
  for (int i = thread(); i < width * inherited; i += kTopThreads) {
    f.path[i / inherited * f.path_stride + i % inherited] = level.paths[i];
  }
  if (thread() >= width) return;
  const int slot = thread();
  const uint64_t mine = level.kept[slot];
  f.candidates[slot] = level.candidates[slot];
  f.scores[slot] = score_of(mine);
  f.tokens[slot] = p.tokens[id_of(mine)];
  f.parent_rows[slot] = id_of(mine) / branch;
  f.positions[slot] = *p.committed + inherited;
  f.path[slot * f.path_stride + inherited] = static_cast<int32_t>(p.first_row + slot);
}

// Results of previous levels: loaded first, because they do not depend on this level.
struct Before {
  uint64_t key;  // of the thread's candidate among the best; 0: none
  int count;
  bool stopped;
  float expected;
};

__device__ Before load_before(const TreeGrowParams& p) {
  if (p.level == 0) return {0, 0, false, 0.0f};
  const TreeProgress& progress = *p.progress;
  Before before = {0, progress.count, progress.stopped != 0, progress.expected};
  if (thread() < before.count) {
    const int32_t candidate = progress.best[thread()];
    before.key = key_of(p.candidates.scores[candidate], candidate);
  }
  return before;
}

// The best of the candidates so far and the level's, and their expected number of accepted tokens.
__device__ void update_best(const TreeGrowParams& p, const Before& before, Level& level) {
  TreeProgress& progress = *p.progress;
  if (before.stopped) return;
  uint64_t pool[1] = {before.key};
  if (thread() >= before.count && thread() < before.count + p.keep) {
    const int rank = thread() - before.count;
    pool[0] = key_of(score_of(level.kept[rank]), level.candidates[rank]);
  }
  const int count = top_keys(pool, static_cast<int>(p.nodes - 1), level.keys);
  float probability = 0.0f;
  if (thread() < count) {
    const uint64_t mine = level.keys.ranked[thread()];
    progress.best[place_of(level.keys, count, id_of(mine))] = id_of(mine);
    probability = exponential_of(score_of(mine));
  }
  static_assert(kMaxTop <= 4 * 32);
  __shared__ float of_warp[4];
  probability = warp_sum(probability);
  if (thread() % 32 == 0 && thread() < kMaxTop) of_warp[thread() / 32] = probability;
  __syncthreads();
  if (thread() != 0) return;
  const float expected = (of_warp[0] + of_warp[1]) + (of_warp[2] + of_warp[3]);
  progress.levels = static_cast<int32_t>(p.level + 1);
  progress.stopped = p.threshold >= 0.0f && expected - before.expected <= p.threshold ? 1 : 0;
  progress.count = count;
  progress.expected = expected;
}

// Grid: one block.
__global__ void __launch_bounds__(kTopThreads) tree_grow_kernel(TreeGrowParams p) {
  __shared__ Level level;
  static_assert(sizeof(Level) <= 40 * 1024);
  const Before before = load_before(p);
  rank_children(p, level);
  record(p, level);
  if (p.width > 0) advance(p, level);
  update_best(p, before, level);
}

// ---- tree_select ----------------------------------------------------------------------------------------------------

struct Selection {
  TopKeys keys;
  int32_t candidates[kMaxDraftNodes];  // ascending
  int32_t parents[kMaxDraftNodes];     // nodes
};

// The node of a candidate. REQUIRES: the candidate is selected.
__device__ int32_t node_of(const Selection& selection, int count, int32_t candidate) {
  if (candidate < 0) return 0;
  int low = 0, high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (selection.candidates[middle] < candidate) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  device_check(low < count && selection.candidates[low] == candidate);
  return low + 1;
}

// Grid: one block.
__global__ void __launch_bounds__(kTopThreads) tree_select_kernel(TreeSelectParams p) {
  __shared__ Selection selection;
  uint64_t keys[1] = {0};
  if (thread() < p.progress->count) {
    const int32_t candidate = p.progress->best[thread()];
    keys[0] = key_of(p.candidates.scores[candidate], candidate);
  }
  const int count = top_keys(keys, static_cast<int>(p.nodes - 1), selection.keys);
  if (thread() < count) {
    const int32_t candidate = id_of(selection.keys.ranked[thread()]);
    selection.candidates[place_of(selection.keys, count, candidate)] = candidate;
  }
  __syncthreads();
  const int node = thread();
  const int32_t candidate = node > 0 && node <= count ? selection.candidates[node - 1] : -1;
  const int32_t parent = candidate < 0 ? -1 : node_of(selection, count, p.candidates.parents[candidate]);
  if (node < kMaxDraftNodes) selection.parents[node] = parent;
  __syncthreads();
  const TreeRows& out = p.out;
  if (node == 0) {
    *out.count = 1 + count;
    if (out.committed != nullptr) *out.committed = *p.root_position;
  }
  if (node >= p.nodes) return;
  const int32_t depth = candidate < 0 ? 0 : p.candidates.depths[candidate];
  const int32_t position = *p.root_position + depth;
  device_check(depth < out.path_stride);
  out.tokens[node] = candidate < 0 ? *p.root_token : p.candidates.tokens[candidate];
  out.parents[node] = parent;
  out.depths[node] = depth;
  if (out.scores != nullptr) out.scores[node] = candidate < 0 ? 0.0f : p.candidates.scores[candidate];
  out.positions[node] = position;
  out.draw_positions[node] = position + 1;
  if (out.slots != nullptr) out.slots[node] = max(position + *p.slot_shift, out.least_slot);
  int32_t at = node;
  for (int32_t d = depth; d >= 0; --d) {
    out.path[node * out.path_stride + d] = at;
    at = selection.parents[at];
  }
}

// ---- tree_accept ----------------------------------------------------------------------------------------------------

constexpr int kNodesALane = kMaxDraftNodes / 32;

// Grid: one warp. Each lane holds every 32nd node; a step finds the first one that is the matching child.
__global__ void __launch_bounds__(32) tree_accept_kernel(TreeAcceptParams p) {
  __shared__ int32_t samples[kMaxDraftNodes];
  int32_t tokens[kNodesALane], parents[kNodesALane];
#pragma unroll
  for (int i = 0; i < kNodesALane; ++i) {
    const int node = i * 32 + thread();
    const bool there = node < p.nodes;
    tokens[i] = there ? p.tokens[node] : 0;
    parents[i] = there ? p.parents[node] : -1;
    samples[node] = there ? p.samples[node] : 0;
  }
  __syncwarp();
  int32_t node = 0, count = 0;
  while (node >= 0) {
    const int32_t sample = samples[node];
    if (thread() == 0) {
      p.out->nodes[count] = node;
      p.out->tokens[count] = sample;
      p.out->next = sample;
    }
    ++count;
    int32_t child = -1;
#pragma unroll
    for (int i = kNodesALane - 1; i >= 0; --i) {
      const unsigned found =
          __ballot_sync(0xffffffff, parents[i] == node && tokens[i] == sample && i * 32 + thread() > node);
      if (found != 0) child = i * 32 + __ffs(static_cast<int>(found)) - 1;
    }
    node = child;
  }
  if (thread() == 0) p.out->count = count;
}

// =====================================================================================================================

}  // namespace

void tree_grow(const TreeGrowParams& params, Stream& stream) {
  launch_on(cuda_stream(stream), "tree_grow", {1, 1, kTopThreads}, tree_grow_kernel, params);
}

void tree_select(const TreeSelectParams& params, Stream& stream) {
  launch_on(cuda_stream(stream), "tree_select", {1, 1, kTopThreads}, tree_select_kernel, params);
}

void tree_accept(const TreeAcceptParams& params, Stream& stream) {
  launch_on(cuda_stream(stream), "tree_accept", {1, 1, 32}, tree_accept_kernel, params);
}

}  // namespace headrace::kernels::cuda
