// One target pass over a tree, and what is committed of it (DESIGN section 8). Its attention is in attend.cc.
#include <algorithm>
#include <utility>

#include "kernels/draft_tree.h"
#include "kernels/elementwise.h"
#include "offload/trace.h"
#include "runtime/session.h"

namespace headrace {

std::span<const int32_t> Session::verify(const Tree& tree, StepMode mode) {
  const int64_t nodes = tree.size();
  CHECK(nodes > 0 && nodes <= layout_.pass_rows(), "nodes=", nodes);
  const TraceSpan span(compute_, "verify");
  start_pass(mode, nodes);
  upload_step(tree);
  play_pass();
  bring_samples(nodes);
  return {host_result_.samples, static_cast<size_t>(nodes)};
}

TreeInputs Session::tree_inputs(StepMode mode) const {
  const StepResult& result = step_.result;
  const StepInputs& in = step_.inputs;
  return {.rows = {.count = result.count,
                   .tokens = in.tokens,
                   .parents = result.parents,
                   .depths = result.depths,
                   .scores = result.scores,
                   .positions = in.positions,
                   .draw_positions = in.draw_positions,
                   .path = in.path,
                   .path_stride = layout_.path_stride(),
                   .slots = in.slots,
                   .committed = in.committed},
          .slot_shift = mode == StepMode::kPartial ? static_cast<int32_t>(partial_->slot_of(0)) : 0};
}

// How deep the tree is, the host does not know; that it may be as deep as it has levels costs nothing but a few tiles
// that no node sees.
std::span<const int32_t> Session::verify(const ProposedTree& proposed, StepMode mode, Tree* tree,
                                         Acceptance* acceptance) {
  const int64_t nodes = proposed.nodes, pending = pending_rows();
  CHECK(nodes > 0 && nodes <= std::min(layout_.pass_rows(), kMaxTreeNodes), "nodes=", nodes);
  CHECK(pending == 0 || mode == StepMode::kPartial, "pending ", pending);
  const TraceSpan span(compute_, "verify");
  start_pass(mode, nodes);
  on_device_ = true;
  deepest_position_ = rows() + pending + proposed.levels;
  CHECK(deepest_position_ < options_.context_tokens && pending + proposed.levels < kTailWindow, "position ",
        deepest_position_);
  play_pass();
  bring_result(nodes, tree, acceptance);
  ++steps_on_device_;
  return {host_result_.samples, static_cast<size_t>(nodes)};
}

void Session::start_pass(StepMode mode, int64_t nodes) {
  CHECK(mode == StepMode::kFull || partial_, "a partial KV that there is no room for");
  mode_ = mode;
  grows_ = false;
  step_rows_ = nodes;
  judged_again_ = mode == StepMode::kPartial ? 0 : pending_rows();
  on_device_ = false;
}

void Session::play_pass() {
  const Pass pass = make_pass(step_.layer, step_.inputs.positions, step_rows_, ProductPath::kDecode);
  const auto enqueue = [&] {
    run_pass(pass);
    if (on_device_) accept_proposed();
  };
  const bool streams = streamer_ && mode_ != StepMode::kPartial;
  if (streams) streamer_->begin_step(cache_->closed_segments());
  if (streams || mode_ == StepMode::kRefresh || !options_.graphs) {  // each refresh chooses among more blocks
    enqueue();
  } else {
    const int64_t segments = mode_ == StepMode::kPartial ? -1 : prefix_segments();
    replay_.run(compute_, {step_rows_, segments, on_device_ ? 1 : 0}, enqueue);
  }
}

Ranked Session::grow(const Tree& tree, int64_t first) {
  const int64_t rows = tree.size() - first;
  CHECK(rows > 0 && rows <= options_.grow_rows && tree.size() <= layout_.pass_rows(), "rows=", rows, " of ",
        tree.size());
  CHECK(partial_ready() && pending_rows() == 0, "pending ", pending_rows());
  const TraceSpan span(compute_, "grow");
  start_pass(StepMode::kPartial, growth_rows(rows, first));
  grows_ = true;
  upload_growth(tree, first);
  const Pass pass = make_pass(step_.layer, step_.inputs.positions, step_rows_, ProductPath::kDecode);
  const auto enqueue = [&] {
    run_pass(pass);
    rank(pass.rows);
  };
  if (options_.graphs) {
    growth_replay_.run(compute_, {pass.rows, 0, 0, 0}, enqueue);
  } else {
    enqueue();
  }
  compute_.copy_small(host_ranked_.data(), step_.ranked, layout_.ranked_bytes(), Link::kDeviceToHost, "ranked");
  bring_samples(rows);
  const size_t count = static_cast<size_t>(rows), ranked = count * kRankedTokens;
  const float* const log_probs = host_ranked_.as<float>();
  const auto* const tokens = reinterpret_cast<const int32_t*>(log_probs + options_.grow_rows * kRankedTokens);
  return {.samples = {host_result_.samples, count}, .tokens = {tokens, ranked}, .log_probs = {log_probs, ranked}};
}

void Session::rank(int64_t rows) {
  auto* const log_probs = reinterpret_cast<float*>(step_.ranked);
  top_log_probs({.logits = step_.logits,
                 .map = nullptr,
                 .positions = step_.inputs.positions,
                 .log_probs = log_probs,
                 .tokens = reinterpret_cast<int32_t*>(log_probs + options_.grow_rows * kRankedTokens),
                 .workspace = step_.rank_workspace,
                 .rows = rows,
                 .vocab = config_.vocab,
                 .stride = config_.vocab,
                 .k = kRankedTokens,
                 .position_offset = 1,
                 .temperature = options_.sampling.temperature,
                 .seed = options_.sampling.seed},
                compute_);
}

// As many on a GPU, where 64 rows cost what one does, that steps of a few sizes are the same few graphs: the last node
// is repeated, in pass rows that nobody sees before their own nodes have them.
int64_t Session::growth_rows(int64_t rows, int64_t first) const {
  constexpr int64_t kAtATime = 16;
  if (device_.backend() == Backend::kCpu) return rows;
  const int64_t whole = ceil_div(rows, kAtATime) * kAtATime;
  return std::max(rows, std::min({whole, options_.grow_rows, layout_.pass_rows() - first}));
}

// Where nothing is streamed, what it enqueues depends on the number of nodes and of prefix segments alone; of a
// partial step, on the number of nodes.
void Session::run_pass(const Pass& pass) {
  embedding({.ids = step_.inputs.tokens,
             .table = weights_.embedding(),
             .out = step_.hidden,
             .type = weights_.dtype(),
             .rows = pass.rows,
             .vocab = config_.vocab,
             .hidden = config_.hidden},
            compute_);
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    const TraceSpan inside(compute_, {"layer", layer});
    if (options_.draft != nullptr) options_.draft->pass_layer({layer, step_.hidden, pass.rows});
    qkv_product(pass, layer, step_.hidden);
    rotate_rows(pass, 0, pass.rows, cache_->pass_destination(layer, grows_ ? step_.inputs.first_row : nullptr));
    attend(pass, layer);
    layer_output(pass, layer, step_.hidden);
  }
  draw(pass);
}

// Those with rows that some node of the step sees.
int64_t Session::prefix_segments() const { return segments_for(tail_begin(deepest_position_)); }

void Session::upload_step(const Tree& tree) {
  const int64_t first = rows() + (mode_ == StepMode::kPartial ? pending_rows() : 0), stride = layout_.path_stride();
  deepest_position_ = first;
  for (int64_t i = 0; i < tree.size(); ++i) {
    const size_t node = static_cast<size_t>(i);
    const int64_t position = first + tree.depths[node];
    CHECK(position < options_.context_tokens && position - rows() < kTailWindow && tree.depths[node] < stride,
          "position ", position);
    deepest_position_ = std::max(deepest_position_, position);
    set_input(i, tree.tokens[node], position);
    if (i > 0) {  // the parent's path, then the node itself
      std::copy_n(host_.path + tree.parents[node] * stride, tree.depths[node], host_.path + i * stride);
    }
    host_.path[i * stride + tree.depths[node]] = static_cast<int32_t>(i);
  }
  *host_.committed = static_cast<int32_t>(first);
  compute_.copy_small(step_.inputs.tokens, host_inputs_.data(), upload_bytes(tree.size()), Link::kHostToDevice,
                      "inputs");
}

// A node's path leads over rows of earlier calls to its own.
void Session::upload_growth(const Tree& tree, int64_t first) {
  const int64_t stride = layout_.path_stride();
  deepest_position_ = rows();
  for (int64_t i = 0; i < step_rows_; ++i) {
    const size_t node = static_cast<size_t>(std::min(first + i, tree.size() - 1));
    const int64_t depth = tree.depths[node], position = rows() + depth;
    CHECK(position < options_.context_tokens && depth < stride, "position ", position);
    deepest_position_ = std::max(deepest_position_, position);
    set_input(i, tree.tokens[node], position);
    int32_t ancestor = static_cast<int32_t>(node);
    for (int64_t d = depth; d >= 0; --d) {
      host_.path[i * stride + d] = ancestor;
      ancestor = tree.parents[static_cast<size_t>(ancestor)];
    }
  }
  *host_.committed = static_cast<int32_t>(rows());
  *host_.first_row = static_cast<int32_t>(first);
  compute_.copy_small(step_.inputs.tokens, host_inputs_.data(), upload_bytes(step_rows_), Link::kHostToDevice,
                      "inputs");
}

void Session::set_input(int64_t row, int32_t token, int64_t position) {
  host_.tokens[row] = token;
  host_.positions[row] = static_cast<int32_t>(position);
  host_.draw_positions[row] = static_cast<int32_t>(position + 1);
  if (mode_ == StepMode::kPartial) host_.slots[row] = static_cast<int32_t>(partial_->slot_of(position));
}

// Of a step's inputs, paths last.
uint64_t Session::upload_bytes(int64_t rows) const {
  return step_.path_offset + static_cast<uint64_t>(rows * layout_.path_stride()) * sizeof(int32_t);
}

void Session::draw(const Pass& pass) {
  const uint64_t row_bytes = static_cast<uint64_t>(config_.hidden) * dtype_bytes(weights_.dtype());
  for (int64_t first = 0; first < pass.rows; first += layout_.drawn_rows()) {
    Pass some = pass;
    some.rows = std::min(layout_.drawn_rows(), pass.rows - first);
    output_logits(some, static_cast<std::byte*>(step_.hidden) + static_cast<uint64_t>(first) * row_bytes, step_.logits);
    const TraceSpan span(compute_, "sample");
    sample({.logits = step_.logits,
            .positions = step_.inputs.draw_positions + first,
            .tokens = step_.result.samples + first,
            .workspace = step_.sample_workspace,
            .rows = some.rows,
            .vocab = config_.vocab,
            .settings = options_.sampling},
           compute_);
  }
}

void Session::accept_proposed() {
  tree_accept({.tokens = step_.inputs.tokens,
               .parents = step_.result.parents,
               .samples = step_.result.samples,
               .out = step_.result.acceptance,
               .nodes = step_rows_},
              compute_);
}

void Session::bring_samples(int64_t rows) {
  compute_.copy_small(host_result_.samples, step_.result.samples, static_cast<uint64_t>(rows) * sizeof(int32_t),
                      Link::kDeviceToHost, "samples");
  finish_step();
}

// The step's result and, behind it, its tokens.
void Session::bring_result(int64_t nodes, Tree* tree, Acceptance* acceptance) {
  const auto* const from = reinterpret_cast<const std::byte*>(step_.result.acceptance);
  const uint64_t before = StepResult::bytes(layout_.pass_rows());
  CHECK(from + before == reinterpret_cast<const std::byte*>(step_.inputs.tokens));
  compute_.copy_small(host_results_.data(), from, before + static_cast<uint64_t>(nodes) * sizeof(int32_t),
                      Link::kDeviceToHost, "result");
  finish_step();
  const StepResult& result = host_result_;
  const int64_t accepted = result.acceptance->count;
  CHECK(*result.count == nodes && accepted > 0 && accepted <= nodes, "nodes=", *result.count, " of ", nodes,
        ", accepted=", accepted);
  const auto* const tokens = reinterpret_cast<const int32_t*>(host_results_.data() + before);
  tree->tokens.assign(tokens, tokens + nodes);
  tree->parents.assign(result.parents, result.parents + nodes);
  tree->depths.assign(result.depths, result.depths + nodes);
  tree->scores.assign(result.scores, result.scores + nodes);
  acceptance->nodes.assign(result.acceptance->nodes, result.acceptance->nodes + accepted);
  acceptance->next = result.acceptance->next;
}

void Session::finish_step() {
  compute_.synchronize();
  cache_->check();
  if (streamer_) streamer_->check();
}

// Whether these are the first of the nodes that the device accepted: it has their numbers.
bool Session::accepted_on_device(const Acceptance& acceptance) const {
  if (!on_device_) return false;
  const TreeAcceptance& there = *host_result_.acceptance;
  const std::vector<int32_t>& nodes = acceptance.nodes;
  return static_cast<int64_t>(nodes.size()) <= there.count && std::equal(nodes.begin(), nodes.end(), there.nodes);
}

void Session::commit(const Acceptance& acceptance) {
  const int64_t count = static_cast<int64_t>(acceptance.nodes.size());
  CHECK(count > 0 && count <= step_rows_, "count=", count);
  const int32_t* source = step_.inputs.source;
  if (accepted_on_device(acceptance)) {
    source = step_.result.acceptance->nodes;
    ++commits_on_device_;
  } else {
    std::copy(acceptance.nodes.begin(), acceptance.nodes.end(), host_.source);
    compute_.copy_small(step_.inputs.source, host_.source, static_cast<uint64_t>(count) * sizeof(int32_t),
                        Link::kHostToDevice, "accepted");
  }
  if (mode_ == StepMode::kPartial) return cache_->append_pending(source, count, compute_);
  const bool refresh = mode_ == StepMode::kRefresh;
  if (streamer_ && cache_->fills_disk(count)) streamer_->stop();
  if (partial_) partial_->before_commit(*cache_, refresh, compute_);
  cache_->append(source, count, compute_);
  if (partial_) partial_->after_commit(*cache_, refresh, compute_);
}

}  // namespace headrace
