// A draft's tree, grown, pruned and walked in device memory without a round trip to the host (EAGLE-2 section 4,
// OPT-Tree section 3, LongSpec appendix E). One description covers their trees: level l forwards a frontier of `rows`
// nodes (level 0: only the root), ranks `branch` children of each, keeps the `keep` best as candidates and makes the
// `width` best the next frontier; the tree is the best of all candidates. runtime/speculation/policy/tree_policy.h has
// the numbers. A round:
//   level 0: top_log_probs of the root's logits, tree_grow
//   level l: embedding() of frontier.tokens; the parents' hidden states by embedding() again, with frontier.parent_rows
//            for ids; the draft's forward at frontier.positions and frontier.path; top_log_probs; tree_grow
//   tree_select; the target's pass; tree_accept
//
// A candidate's score is the sum of the log-probabilities from the root on. Candidates are numbered level by level,
// within a level by the parent's place in its frontier and then by rank; a frontier is sorted by score. Ties go to the
// lower number, and so to the smaller depth. A child's score is at most its parent's and its number is higher, so the
// parents of the best candidates are always among them, even on ties.
#pragma once

#include <cstdint>

#include "cache/base.h"
#include "offload/device/stream.h"

namespace headrace {

constexpr int64_t kMaxDraftNodes = 128;  // of a tree, the root included
constexpr int64_t kMaxBranch = 64;       // children ranked per node
constexpr int64_t kMaxFrontier = 64;     // nodes forwarded at once
constexpr int64_t kMaxTopVocab = 288 * 1024;

// The k likeliest tokens of each row by (logit, lower id), with the logarithm of the softmax over the vocabulary. NaN
// counts as -inf, +inf as the largest float; a row of only those gives ids 0 to k - 1 and -inf.
//
// temperature > 0 adds the sampler's noise (docs/design.md, section 6, rule 3): it ranks and scores z = logit /
// temperature + g(seed, position, target token). The target takes the argmax of its own z, which differs from this z
// where draft and target disagree. If the disagreement is distributed like the noise, softmax(z) is the probability of
// being that argmax, so scores stay log-probabilities.
struct TopLogProbsParams {
  const float* logits;           // [rows, stride], of which the first `vocab` count
  const int32_t* map = nullptr;  // [vocab]: the target's token for each of the draft's; null if they share a vocabulary
  const int32_t* positions = nullptr;  // [rows]; for the noise: the token is drawn at position + position_offset
  float* log_probs;                    // [rows, k], out, best first; never above 0
  int32_t* tokens;                     // [rows, k], out, the target's
  void* workspace;                     // top_log_probs_workspace_bytes(rows, vocab, k)
  int64_t rows, vocab, stride, k;
  int64_t position_offset = 0;
  float temperature = 0;  // 0: the plain logits without noise
  uint64_t seed = 0;
};
uint64_t top_log_probs_workspace_bytes(int64_t rows, int64_t vocab, int64_t k);
void top_log_probs(const TopLogProbsParams& params, Stream& stream);

struct TreeCandidates {  // [the sum of the levels' keep]
  int32_t* tokens;
  float* scores;
  int32_t* parents;  // a candidate; -1: the root
  int32_t* depths;   // from 1
};

// At most kMaxFrontier nodes, updated in place. Inputs of the next forward, one row per node.
struct TreeFrontier {
  int32_t* candidates;
  float* scores;
  int32_t* tokens;
  int32_t* parent_rows;  // the parent's row in the previous forward
  int32_t* positions;
  int32_t* path;  // [kMaxFrontier, path_stride], as for tail_attention, the node's own row last
  int64_t path_stride;
};

// One block of device memory, initialised by level 0.
struct TreeProgress {
  int32_t levels;                    // levels that count
  int32_t stopped;                   // 1: later levels do not count
  int32_t count;                     // of best
  float expected;                    // the sum of the probabilities of best: the expected number of accepted ones
  int32_t best[kMaxDraftNodes - 1];  // candidates, ascending: the tree so far, without its root
};

// One level. The children of a frontier's nodes, sorted by log-probability, from top_log_probs; a positive value counts
// as 0, NaN as -inf.
struct TreeGrowParams {
  const float* log_probs;  // [rows, branch]
  const int32_t* tokens;   // [rows, branch]
  TreeCandidates candidates;
  TreeProgress* progress;
  TreeFrontier frontier;     // in, from level 1 on: `rows` nodes; out: `width`
  const int32_t* committed;  // [1]: rows in the draft's KV cache before this round's tree, the root's included
  int64_t level;
  int64_t rows, branch;     // rows <= kMaxFrontier, 1 at level 0; branch <= kMaxBranch
  int64_t width;            // <= rows * branch; 0 at the last level, which leaves the frontier unchanged
  int64_t keep;             // width <= keep <= rows * branch, below kMaxDraftNodes; a tree of n nodes needs n - 1
  int64_t first_candidate;  // the sum of `keep` over the previous levels
  int64_t nodes;            // of the tree, the root included
  int64_t first_row;        // the pass row of the next frontier's first node
  // OPT-Tree's rule: a level that adds at most this to `expected` is the last one; later levels change nothing. Below
  // 0: every level counts.
  float threshold;
};
void tree_grow(const TreeGrowParams& params, Stream& stream);

// A tree, in the layout of the target's pass.
struct TreeRows {
  int32_t* count;            // [1]: nodes in the tree
  int32_t* tokens;           // [nodes], like all below
  int32_t* parents;          // -1 for the root
  int32_t* depths;           // 0 for the root
  float* scores;             // 0 for the root; may be null
  int32_t* positions;        // the root's + depth
  int32_t* draw_positions;   // position + 1
  int32_t* path;             // [nodes, path_stride]: the node's ancestors from the root on, then itself
  int64_t path_stride;       // > the deepest node's depth
  int32_t* slots = nullptr;  // position + slot_shift, but at least least_slot; may be null
  int32_t least_slot = 0;
  int32_t* committed = nullptr;  // [1]: the root's position; may be null
};

// The root, then the best candidates in ascending order, so that parents precede children. Rows beyond `count` repeat
// the root, with parent -1: they can be computed and are never accepted.
struct TreeSelectParams {
  TreeCandidates candidates;
  const TreeProgress* progress;
  const int32_t* root_token;     // [1]
  const int32_t* root_position;  // [1]: the target's rows before it
  const int32_t* slot_shift;     // [1]; null without slots
  TreeRows out;
  int64_t nodes;  // at most tree_grow's: fewer select the best of the tree
};
void tree_select(const TreeSelectParams& params, Stream& stream);

// The result of a verified tree, in one block for one copy: runtime/speculation/accept.h on the device.
struct TreeAcceptance {
  int32_t count;                   // of the accepted path, root included: never 0
  int32_t next;                    // the target's sample after its last node: tokens[count - 1]
  int32_t nodes[kMaxDraftNodes];   // the path, root first: the pass rows to commit
  int32_t tokens[kMaxDraftNodes];  // the sample after each: the step's output
};

struct TreeAcceptParams {
  const int32_t* tokens;   // [nodes]
  const int32_t* parents;  // [nodes]
  const int32_t* samples;  // [nodes]: the target's token after each
  TreeAcceptance* out;     // [1]; entries beyond `count` are unchanged
  int64_t nodes;
};
void tree_accept(const TreeAcceptParams& params, Stream& stream);

}  // namespace headrace
