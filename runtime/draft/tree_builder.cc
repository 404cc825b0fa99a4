#include "runtime/draft/tree_builder.h"

#include <algorithm>

namespace headrace {
namespace {

// Copied to the host at once: [nodes] each, and the count.
struct Result {
  int32_t *count, *tokens, *parents, *depths;
  float* scores;
  uint64_t bytes;
};
Result carve_result(int64_t nodes, BumpAllocator& allocator) {
  const uint64_t before = allocator.used_bytes();
  Result result;
  result.count = allocator.take<int32_t>(1);
  result.tokens = allocator.take<int32_t>(nodes);
  result.parents = allocator.take<int32_t>(nodes);
  result.depths = allocator.take<int32_t>(nodes);
  result.scores = allocator.take<float>(nodes);
  result.bytes = allocator.used_bytes() - before;
  return result;
}

}  // namespace

struct TreeBuilder::Work {
  TreeCandidates candidates;
  TreeFrontier frontier;
  TreeProgress* progress;
  float* log_probs;  // [rows, branch]
  int32_t* tokens;
  void* top_workspace;
  Result result;
  int32_t *positions, *draw_positions, *path;  // of the selected tree
};

TreeBuilder::Work TreeBuilder::carve(const TreeSetup& setup, BumpAllocator& allocator) {
  const TreeShape& shape = setup.shape;
  const int64_t kept = shape.candidates();
  int64_t top = 0;
  uint64_t workspace = 0;
  for (const TreeLevel& level : shape.levels) {
    top = std::max(top, level.rows * level.branch);
    workspace = std::max(workspace, top_log_probs_workspace_bytes(level.rows, setup.vocab, level.branch));
  }
  const int64_t stride = shape.deepest() + 1;
  Work work;
  for (int32_t** list : {&work.candidates.tokens, &work.candidates.parents, &work.candidates.depths}) {
    *list = allocator.take<int32_t>(kept);
  }
  work.candidates.scores = allocator.take<float>(kept);
  for (int32_t** list :
       {&work.frontier.candidates, &work.frontier.tokens, &work.frontier.parent_rows, &work.frontier.positions}) {
    *list = allocator.take<int32_t>(kMaxFrontier);
  }
  work.frontier.scores = allocator.take<float>(kMaxFrontier);
  work.frontier.path = allocator.take<int32_t>(kMaxFrontier * stride);
  work.frontier.path_stride = stride;
  work.progress = allocator.take<TreeProgress>(1);
  work.log_probs = allocator.take<float>(top);
  work.tokens = allocator.take<int32_t>(top);
  work.top_workspace = allocator.take_bytes(workspace);
  work.result = carve_result(shape.nodes, allocator);
  work.positions = allocator.take<int32_t>(shape.nodes);
  work.draw_positions = allocator.take<int32_t>(shape.nodes);
  work.path = allocator.take<int32_t>(shape.nodes * stride);
  return work;
}

uint64_t TreeBuilder::device_bytes(const TreeSetup& setup) {
  return whole_pages(carved_bytes([&](BumpAllocator& allocator) { carve(setup, allocator); }));
}

uint64_t TreeBuilder::pinned_bytes(const TreeSetup& setup) {
  return whole_pages(carved_bytes([&](BumpAllocator& allocator) { carve_result(setup.shape.nodes, allocator); }));
}

TreeBuilder::TreeBuilder(Device& device, const TreeSetup& setup) : setup_(setup), round_(setup.shape) {
  memory_ = device.allocate(device_bytes(setup), "the draft's tree");
  host_ = device.allocate_pinned(pinned_bytes(setup), "the draft's tree");
  BumpAllocator allocator(memory_.data());
  work_ = std::make_unique<Work>(carve(setup, allocator));
}

TreeBuilder::~TreeBuilder() = default;

void TreeBuilder::begin(const TreeLimits& limits) {
  if (limits == limits_) return;
  limits_ = limits;
  round_ = setup_.shape.within(limits);
}

int64_t TreeBuilder::levels() const { return static_cast<int64_t>(round_.levels.size()); }
int64_t TreeBuilder::rows(int64_t level) const { return round_.levels[static_cast<size_t>(level)].rows; }
const TreeFrontier& TreeBuilder::frontier() const { return work_->frontier; }

int64_t TreeBuilder::first_pass_row(int64_t level) const {
  int64_t row = setup_.first_row;
  for (int64_t before = 1; before < level; ++before) row += rows(before);
  return row;
}

void TreeBuilder::grow(int64_t level, const float* logits, const int32_t* positions, const TreeRoot& root,
                       Stream& stream) {
  const TreeLevel& here = round_.levels[static_cast<size_t>(level)];
  top_log_probs({.logits = logits,
                 .map = setup_.map,
                 .positions = positions,
                 .log_probs = work_->log_probs,
                 .tokens = work_->tokens,
                 .workspace = work_->top_workspace,
                 .rows = here.rows,
                 .vocab = setup_.vocab,
                 .stride = setup_.stride > 0 ? setup_.stride : setup_.vocab,
                 .k = here.branch,
                 .position_offset = setup_.position_offset,
                 .temperature = setup_.sampling.temperature,
                 .seed = setup_.sampling.seed},
                stream);
  tree_grow({.log_probs = work_->log_probs,
             .tokens = work_->tokens,
             .candidates = work_->candidates,
             .progress = work_->progress,
             .frontier = work_->frontier,
             .committed = root.committed,
             .level = level,
             .rows = here.rows,
             .branch = here.branch,
             .width = here.width,
             .keep = here.keep,
             .first_candidate = here.first_candidate,
             .nodes = round_.nodes,
             .first_row = first_pass_row(level + 1),
             .threshold = round_.threshold},
            stream);
}

bool TreeBuilder::stopped(Stream& stream) {
  if (!stops_early()) return false;
  int32_t* const flag = host_.as<int32_t>();
  stream.copy(flag, &work_->progress->stopped, sizeof(int32_t), Link::kDeviceToHost);
  stream.synchronize();
  return *flag != 0;
}

TreeRows TreeBuilder::own_rows() const {
  const Result& result = work_->result;
  return {.count = result.count,
          .tokens = result.tokens,
          .parents = result.parents,
          .depths = result.depths,
          .scores = result.scores,
          .positions = work_->positions,
          .draw_positions = work_->draw_positions,
          .path = work_->path,
          .path_stride = work_->frontier.path_stride};
}

int64_t TreeBuilder::key_of(const TreeRows& to) const {
  const int64_t shape = nodes() * kMaxTreeNodes + levels();
  return 2 * shape + (to.tokens == work_->result.tokens ? 0 : 1);
}

void TreeBuilder::select(const TreeRoot& root, const TreeRows& to, Stream& stream) {
  tree_select({.candidates = work_->candidates,
               .progress = work_->progress,
               .root_token = root.token,
               .root_position = root.position,
               .slot_shift = root.slot_shift,
               .out = to,
               .nodes = round_.nodes},
              stream);
}

void TreeBuilder::to_host(Stream& stream, Tree* tree) {
  const Result& result = work_->result;
  stream.copy(host_.data(), result.count, result.bytes, Link::kDeviceToHost);
  stream.synchronize();
  BumpAllocator allocator(host_.data());
  const Result here = carve_result(setup_.shape.nodes, allocator);
  const int64_t count = *here.count;
  CHECK(count > 0 && count <= round_.nodes, "count=", count);
  tree->tokens.assign(here.tokens, here.tokens + count);
  tree->parents.assign(here.parents, here.parents + count);
  tree->depths.assign(here.depths, here.depths + count);
  tree->scores.assign(here.scores, here.scores + count);
}

}  // namespace headrace
