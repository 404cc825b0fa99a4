#include "kernels/tree/op.h"

#include <cmath>

#include "kernels/cpu/dispatch.h"
#include "kernels/tree/bodies.h"

namespace headrace {

using kernels::dispatch;

namespace {

void check_candidates(const TreeCandidates& c) {
  CHECK(c.tokens != nullptr && c.scores != nullptr && c.parents != nullptr && c.depths != nullptr);
}

void check_level(const TreeGrowParams& p) {
  CHECK(p.level >= 0 && p.level < kMaxDraftNodes, "level=", p.level);
  CHECK(p.rows > 0 && p.rows <= kMaxFrontier && (p.level > 0 || p.rows == 1), "rows=", p.rows, " level=", p.level);
  CHECK(p.branch > 0 && p.branch <= kMaxBranch, "branch=", p.branch);
  CHECK(p.nodes > 0 && p.nodes <= kMaxDraftNodes, "nodes=", p.nodes);
  CHECK(p.width >= 0 && p.width <= kMaxFrontier && p.width <= p.keep, "width=", p.width, " keep=", p.keep);
  CHECK(p.keep > 0 && p.keep <= p.rows * p.branch && p.keep < kMaxDraftNodes, "keep=", p.keep, " rows=", p.rows,
        " branch=", p.branch);
  CHECK(p.first_candidate >= 0 && (p.level == 0) == (p.first_candidate == 0), "first_candidate=", p.first_candidate,
        " level=", p.level);
  CHECK(p.first_row >= 0, "first_row=", p.first_row);
  CHECK(!std::isnan(p.threshold));
}

}  // namespace

uint64_t top_log_probs_workspace_bytes(int64_t rows, int64_t vocab, int64_t k) {
  CHECK(rows >= 0 && vocab > 0 && k > 0, "rows=", rows, " vocab=", vocab, " k=", k);
  return kernels::cuda::top_log_probs_workspace_bytes(rows, vocab, k);  // the CPU body needs none
}

void top_log_probs(const TopLogProbsParams& params, Stream& stream) {
  CHECK(params.rows >= 0 && params.vocab > 0 && params.vocab <= kMaxTopVocab, "rows=", params.rows,
        " vocab=", params.vocab);
  CHECK(params.stride >= params.vocab, "stride=", params.stride, " vocab=", params.vocab);
  CHECK(params.k > 0 && params.k <= kMaxBranch && params.k <= params.vocab, "k=", params.k, " vocab=", params.vocab);
  CHECK(std::isfinite(params.temperature) && params.temperature >= 0, "temperature=", params.temperature);
  if (params.rows == 0) return;
  CHECK(params.logits != nullptr && params.log_probs != nullptr && params.tokens != nullptr);
  CHECK(params.temperature == 0 || params.positions != nullptr);
  dispatch(kernels::cpu::top_log_probs, kernels::cuda::top_log_probs, params, stream);
}

void tree_grow(const TreeGrowParams& params, Stream& stream) {
  check_level(params);
  check_candidates(params.candidates);
  CHECK(params.log_probs != nullptr && params.tokens != nullptr && params.progress != nullptr);
  const TreeFrontier& f = params.frontier;
  if (params.width > 0) {
    CHECK(f.tokens != nullptr && f.parent_rows != nullptr && f.positions != nullptr && f.path != nullptr);
    CHECK(params.committed != nullptr);
    CHECK(f.path_stride > params.level, "path_stride=", f.path_stride, " level=", params.level);
  }
  CHECK((params.width == 0 && params.level == 0) || (f.candidates != nullptr && f.scores != nullptr));
  dispatch(kernels::cpu::tree_grow, kernels::cuda::tree_grow, params, stream);
}

void tree_select(const TreeSelectParams& params, Stream& stream) {
  check_candidates(params.candidates);
  CHECK(params.nodes > 0 && params.nodes <= kMaxDraftNodes, "nodes=", params.nodes);
  const TreeRows& out = params.out;
  CHECK(out.path_stride > 0, "path_stride=", out.path_stride);
  CHECK(params.progress != nullptr && params.root_token != nullptr && params.root_position != nullptr);
  CHECK(out.count != nullptr && out.tokens != nullptr && out.parents != nullptr && out.depths != nullptr);
  CHECK(out.positions != nullptr && out.draw_positions != nullptr && out.path != nullptr);
  CHECK(out.slots == nullptr || params.slot_shift != nullptr);
  dispatch(kernels::cpu::tree_select, kernels::cuda::tree_select, params, stream);
}

void tree_accept(const TreeAcceptParams& params, Stream& stream) {
  CHECK(params.nodes > 0 && params.nodes <= kMaxDraftNodes, "nodes=", params.nodes);
  CHECK(params.tokens != nullptr && params.parents != nullptr && params.samples != nullptr && params.out != nullptr);
  dispatch(kernels::cpu::tree_accept, kernels::cuda::tree_accept, params, stream);
}

}  // namespace headrace
