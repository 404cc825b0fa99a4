#include "runtime/session/target_pass.h"

#include <algorithm>
#include <bit>

#include "kernels/elementwise/op.h"
#include "kernels/tree/op.h"
#include "offload/device/trace.h"

namespace headrace {

TargetPass::TargetPass(const SessionPlan& plan, const SessionBuffers& buffers, const PassKv& kv)
    : layout_(plan.layout),
      options_(layout_.options()),
      config_(layout_.config()),
      weights_(layout_.weights()),
      compute_(layout_.compute()),
      buffers_(buffers),
      kv_(kv),
      attention_(plan, buffers, kv),
      recurrence_(plan, buffers, kv) {}

int32_t TargetPass::sample_prompt() {
  step_rows_ = 1;
  buffers_.host_inputs().draw_positions[0] = static_cast<int32_t>(options_.prompt_tokens);
  buffers_.upload_inputs(buffers_.step().path_offset);
  draw(buffers_.make_pass(buffers_.step().layer, buffers_.step().inputs.positions, 1, ProductPath::kDecode));
  buffers_.download_samples(1);
  finish_step();
  return buffers_.host_result().samples[0];
}

std::span<const int32_t> TargetPass::verify(const Tree& tree, StepMode mode) {
  const int64_t nodes = tree.size();
  CHECK(nodes > 0 && nodes <= layout_.pass_rows(), "nodes=", nodes);
  const TraceSpan span(compute_, "verify");
  start_pass(mode, nodes);
  upload_step(tree);
  play_pass();
  buffers_.download_samples(nodes);
  finish_step();
  return {buffers_.host_result().samples, static_cast<size_t>(nodes)};
}

TreeInputs TargetPass::tree_inputs(StepMode mode) const {
  const StepResult& result = buffers_.step().result;
  const StepInputs& in = buffers_.step().inputs;
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
                   .least_slot = kv_.partial != nullptr ? static_cast<int32_t>(kv_.partial->least_slot()) : 0,
                   .committed = in.committed},
          .slot_shift = mode == StepMode::kPartial ? static_cast<int32_t>(kv_.partial->slot_shift()) : 0};
}

// The host does not know the depth of the tree. Assuming the maximum costs a few tiles that no node sees.
std::span<const int32_t> TargetPass::verify(const ProposedTree& proposed, StepMode mode, Tree* tree,
                                            Acceptance* acceptance) {
  const int64_t nodes = proposed.nodes, pending = kv_.cache.pending_rows();
  CHECK(nodes > 0 && nodes <= std::min(layout_.pass_rows(), kMaxTreeNodes), "nodes=", nodes);
  CHECK(pending == 0 || mode == StepMode::kPartial, "pending ", pending);
  const TraceSpan span(compute_, "verify");
  start_pass(mode, nodes);
  on_device_ = true;
  scope_.deepest_position = kv_.cache.rows() + pending + proposed.levels;
  CHECK(scope_.deepest_position < options_.context_tokens && pending + proposed.levels < kTailWindow, "position ",
        scope_.deepest_position);
  play_pass();
  buffers_.download_result(nodes);
  finish_step();
  read_result(nodes, tree, acceptance);
  ++steps_on_device_;
  return {buffers_.host_result().samples, static_cast<size_t>(nodes)};
}

void TargetPass::start_pass(StepMode mode, int64_t nodes) {
  CHECK(mode == StepMode::kFull || kv_.partial != nullptr, "a run without a partial KV");
  scope_.mode = mode;
  scope_.grows = false;
  step_rows_ = nodes;
  scope_.pending_nodes = mode == StepMode::kPartial ? 0 : kv_.cache.pending_rows();
  on_device_ = false;
}

void TargetPass::play_pass() {
  recurrence_.begin(scope_.mode);
  const Pass pass =
      buffers_.make_pass(buffers_.step().layer, buffers_.step().inputs.positions, step_rows_, ProductPath::kDecode);
  const auto enqueue = [&] {
    run_pass(pass);
    if (on_device_) accept_proposed();
  };
  const bool streams = kv_.streamer != nullptr && scope_.mode != StepMode::kPartial;
  if (streams) kv_.streamer->begin_step(kv_.cache.sealed_segments());
  if (streams || scope_.mode == StepMode::kRefresh || !options_.graphs) {  // each refresh chooses among more blocks
    enqueue();
  } else {
    const bool partial = scope_.mode == StepMode::kPartial;
    const int64_t segments = partial ? partial_segments() : prefix_segments();
    replay_.run(compute_, {step_rows_, segments, on_device_ ? 1 : 0, partial ? 1 : 0}, enqueue);
  }
}

Ranked TargetPass::grow(const Tree& tree, int64_t first, int32_t followed) {
  const int64_t rows = tree.size() - first;
  CHECK(rows > 0 && rows <= options_.grow_rows && tree.size() <= layout_.pass_rows(), "rows=", rows, " of ",
        tree.size());
  CHECK(kv_.partial != nullptr && kv_.partial->initialised() && kv_.cache.pending_rows() == 0, "pending ",
        kv_.cache.pending_rows());
  const TraceSpan span(compute_, "grow");
  start_pass(StepMode::kPartial, growth_rows(rows, first));
  scope_.grows = true;
  recurrence_.begin_growth(tree, first, followed);
  upload_growth(tree, first);
  const Pass pass =
      buffers_.make_pass(buffers_.step().layer, buffers_.step().inputs.positions, step_rows_, ProductPath::kDecode);
  const auto enqueue = [&] {
    run_pass(pass);
    rank(pass.rows);
  };
  if (options_.graphs) {
    growth_replay_.run(compute_, {pass.rows, partial_segments(), 0, 0}, enqueue);
  } else {
    enqueue();
  }
  buffers_.download_ranked();
  buffers_.download_samples(rows);
  finish_step();
  const auto deepest = std::max_element(tree.depths.begin() + first, tree.depths.end());
  show_query(deepest - tree.depths.begin() - first);
  // The sample is provisional: if there is no token, token 0 replaces it until the refresh.
  int32_t* const samples = buffers_.host_result().samples;
  for (int64_t i = 0; i < rows; ++i) samples[i] = std::max(samples[i], 0);
  const size_t count = static_cast<size_t>(rows), ranked = count * kRankedTokens;
  const auto* const log_probs = reinterpret_cast<const float*>(buffers_.host_ranked());
  const auto* const tokens = reinterpret_cast<const int32_t*>(log_probs + options_.grow_rows * kRankedTokens);
  return {
      .samples = {buffers_.host_result().samples, count}, .tokens = {tokens, ranked}, .log_probs = {log_probs, ranked}};
}

void TargetPass::rank(int64_t rows) {
  auto* const log_probs = reinterpret_cast<float*>(buffers_.step().ranked);
  top_log_probs({.logits = buffers_.step().logits,
                 .positions = buffers_.step().inputs.positions,
                 .log_probs = log_probs,
                 .tokens = reinterpret_cast<int32_t*>(log_probs + options_.grow_rows * kRankedTokens),
                 .workspace = buffers_.step().rank_workspace,
                 .rows = rows,
                 .vocab = config_.vocab,
                 .stride = config_.vocab,
                 .k = kRankedTokens,
                 .position_offset = 1,
                 .temperature = options_.sampling.temperature,
                 .seed = options_.sampling.seed},
                compute_);
}

// Rows of a growing step. On a GPU, where a few more rows cost little, they are rounded up to a few sizes, so that a
// few graphs serve all steps. The last node is repeated to fill them, in pass rows that no query reads before their own
// nodes are there.
int64_t TargetPass::growth_rows(int64_t rows, int64_t first) const {
  constexpr int64_t kAtATime = 16;  // powers of two up to here, then multiples
  if (layout_.device().backend() == Backend::kCpu) return rows;
  const int64_t whole = rows > kAtATime ? ceil_div(rows, kAtATime) * kAtATime
                                        : static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows)));
  return std::max(rows, std::min({whole, options_.grow_rows, layout_.pass_rows() - first}));
}

// If nothing streams, the enqueued work depends only on the number of nodes and of prefix segments.
void TargetPass::run_pass(const Pass& pass) {
  embed_tokens(weights_.embedding(),
               {.ids = buffers_.step().inputs.tokens,
                .rows = pass.rows,
                .type = weights_.dtype(),
                .out_type = DType::kF32,
                .out = buffers_.step().hidden},
               compute_);
  for (int64_t layer = 0; layer < config_.layer_count(); ++layer) {
    const TraceSpan inside(compute_, {"layer", layer});
    const int64_t place = layout_.groups().place(layer);
    show_draft(layer, pass.rows);
    const LayerWeights& weights = weights_.layer(layer);
    if (weights.spec.has_attention()) {
      rotated_qkv_product(pass, weights, buffers_.step().hidden,
                          kv_.cache.pass_destination(place, scope_.grows ? buffers_.step().inputs.first_row : nullptr));
      attention_.run(pass, place, scope_);
      gate_output(pass, weights);
    } else {
      qkv_product(pass, weights, buffers_.step().hidden);
      recurrence_.run(pass, weights, place, scope_);
    }
    layer_output(pass, weights, buffers_.step().hidden);
  }
  show_draft(config_.layer_count(), pass.rows);
  draw(pass);
}

// The states at the input of a layer.
void TargetPass::show_draft(int64_t layer, int64_t rows) const {
  if (options_.draft != nullptr) options_.draft->pass_layer({layer, buffers_.step().hidden, DType::kF32, rows});
}

// The number of segments with rows that some node of the step reads.
int64_t TargetPass::prefix_segments() const { return segments_for(tail_begin(scope_.deepest_position)); }

// The same for a partial step.
int64_t TargetPass::partial_segments() const {
  return static_cast<int64_t>(kv_.partial->segments(0, scope_.deepest_position).size());
}

void TargetPass::upload_step(const Tree& tree) {
  const int64_t first = kv_.cache.rows() + (scope_.mode == StepMode::kPartial ? kv_.cache.pending_rows() : 0);
  const int64_t stride = layout_.path_stride();
  scope_.deepest_position = first;
  for (int64_t i = 0; i < tree.size(); ++i) {
    const size_t node = static_cast<size_t>(i);
    const int64_t position = first + tree.depths[node];
    CHECK(position < options_.context_tokens && position - kv_.cache.rows() < kTailWindow && tree.depths[node] < stride,
          "position ", position);
    scope_.deepest_position = std::max(scope_.deepest_position, position);
    set_input(i, tree.tokens[node], position);
    if (i > 0) {  // the parent's path, then the node itself
      std::copy_n(buffers_.host_inputs().path + tree.parents[node] * stride, tree.depths[node],
                  buffers_.host_inputs().path + i * stride);
    }
    buffers_.host_inputs().path[i * stride + tree.depths[node]] = static_cast<int32_t>(i);
  }
  *buffers_.host_inputs().committed = static_cast<int32_t>(first);
  buffers_.upload_inputs(upload_bytes(tree.size()));
}

// A node's path passes through rows of earlier calls.
void TargetPass::upload_growth(const Tree& tree, int64_t first) {
  const int64_t stride = layout_.path_stride();
  scope_.deepest_position = kv_.cache.rows();
  for (int64_t i = 0; i < step_rows_; ++i) {
    const size_t node = static_cast<size_t>(std::min(first + i, tree.size() - 1));
    const int64_t depth = tree.depths[node], position = kv_.cache.rows() + depth;
    CHECK(position < options_.context_tokens && depth < stride, "position ", position);
    scope_.deepest_position = std::max(scope_.deepest_position, position);
    set_input(i, tree.tokens[node], position);
    buffers_.host_inputs().path[i * stride + depth] = static_cast<int32_t>(first + i);
    int32_t ancestor = tree.parents[node];
    for (int64_t d = depth - 1; d >= 0; --d) {
      buffers_.host_inputs().path[i * stride + d] = ancestor;
      ancestor = tree.parents[static_cast<size_t>(ancestor)];
    }
  }
  *buffers_.host_inputs().committed = static_cast<int32_t>(kv_.cache.rows());
  *buffers_.host_inputs().first_row = static_cast<int32_t>(first);
  buffers_.upload_inputs(upload_bytes(step_rows_));
}

void TargetPass::set_input(int64_t row, int32_t token, int64_t position) {
  buffers_.host_inputs().tokens[row] = token;
  buffers_.host_inputs().positions[row] = static_cast<int32_t>(position);
  buffers_.host_inputs().draw_positions[row] = static_cast<int32_t>(position + 1);
  if (scope_.mode == StepMode::kPartial)
    buffers_.host_inputs().slots[row] = static_cast<int32_t>(kv_.partial->slot_of(position));
}

// Bytes of a step's inputs that `rows` rows use; the paths come last.
uint64_t TargetPass::upload_bytes(int64_t rows) const {
  return buffers_.step().path_offset + static_cast<uint64_t>(rows * layout_.path_stride()) * sizeof(int32_t);
}

void TargetPass::draw(const Pass& pass) {
  for (int64_t first = 0; first < pass.rows; first += layout_.drawn_rows()) {
    Pass some = pass;
    some.rows = std::min(layout_.drawn_rows(), pass.rows - first);
    output_logits(some, weights_, buffers_.step().hidden + first * config_.hidden, buffers_.step().logits);
    const TraceSpan span(compute_, "sample");
    sample({.logits = buffers_.step().logits,
            .positions = buffers_.step().inputs.draw_positions + first,
            .tokens = buffers_.step().result.samples + first,
            .workspace = buffers_.step().sample_workspace,
            .rows = some.rows,
            .vocab = config_.vocab,
            .settings = options_.sampling},
           compute_);
    if (scores()) score(first, some.rows);
  }
}

void TargetPass::score(int64_t first, int64_t rows) {
  const StepLogProbs& out = buffers_.step().log_probs;
  const int64_t tops = layout_.top_tokens();
  token_log_probs({.logits = buffers_.step().logits,
                   .tokens = buffers_.step().result.samples + first,
                   .log_probs = out.samples + first,
                   .rows = rows,
                   .vocab = config_.vocab},
                  compute_);
  top_log_probs({.logits = buffers_.step().logits,
                 .log_probs = out.top + first * tops,
                 .tokens = out.tokens + first * tops,
                 .workspace = buffers_.step().rank_workspace,
                 .rows = rows,
                 .vocab = config_.vocab,
                 .stride = config_.vocab,
                 .k = tops},
                compute_);
}

RowLogProbs TargetPass::log_probs(int64_t row) const {
  if (!scores()) return {};
  CHECK(row >= 0 && row < step_rows_, "row ", row, " of ", step_rows_);
  const StepLogProbs& host = buffers_.host_log_probs();
  const auto tops = static_cast<size_t>(layout_.top_tokens());
  const int64_t first = row * layout_.top_tokens();
  return {.sample = host.samples[row], .tokens = {host.tokens + first, tops}, .log_probs = {host.top + first, tops}};
}

void TargetPass::accept_proposed() {
  tree_accept({.tokens = buffers_.step().inputs.tokens,
               .parents = buffers_.step().result.parents,
               .samples = buffers_.step().result.samples,
               .out = buffers_.step().result.acceptance,
               .nodes = step_rows_},
              compute_);
}

void TargetPass::read_result(int64_t nodes, Tree* tree, Acceptance* acceptance) const {
  const StepResult& result = buffers_.host_result();
  const int64_t accepted = result.acceptance->count;
  CHECK(*result.count == nodes && accepted > 0 && accepted <= nodes, "nodes=", *result.count, " of ", nodes,
        ", accepted=", accepted);
  const int32_t* const tokens = buffers_.host_tree_tokens();
  tree->tokens.assign(tokens, tokens + nodes);
  tree->parents.assign(result.parents, result.parents + nodes);
  tree->depths.assign(result.depths, result.depths + nodes);
  tree->scores.assign(result.scores, result.scores + nodes);
  acceptance->nodes.assign(result.acceptance->nodes, result.acceptance->nodes + accepted);
  acceptance->next = result.acceptance->next;
}

void TargetPass::finish_step() {
  if (scores()) buffers_.download_log_probs();
  compute_.synchronize();
  kv_.cache.backing().check();
  if (kv_.streamer != nullptr) kv_.streamer->check();
}

// Whether these are the first nodes of the path that the device accepted; their indices are then on the device.
bool TargetPass::accepted_on_device(const Acceptance& acceptance) const {
  if (!on_device_) return false;
  const TreeAcceptance& there = *buffers_.host_result().acceptance;
  const std::vector<int32_t>& nodes = acceptance.nodes;
  return static_cast<int64_t>(nodes.size()) <= there.count && std::equal(nodes.begin(), nodes.end(), there.nodes);
}

void TargetPass::commit(const Acceptance& acceptance) {
  const int64_t count = static_cast<int64_t>(acceptance.nodes.size());
  CHECK(count > 0 && count <= step_rows_, "count=", count);
  const int32_t* source = buffers_.step().inputs.source;
  if (accepted_on_device(acceptance)) {
    source = buffers_.step().result.acceptance->nodes;
    ++commits_on_device_;
  } else {
    buffers_.upload_source(acceptance.nodes);
  }
  recurrence_.commit(source, count, scope_.mode);
  if (scope_.mode == StepMode::kPartial) {
    kv_.cache.append_pending(source, count, compute_);
    return show_query(acceptance.nodes.back());
  }
  const bool refresh = scope_.mode == StepMode::kRefresh;
  if (kv_.streamer != nullptr && kv_.cache.fills_disk(count)) kv_.streamer->stop();
  if (kv_.partial != nullptr) kv_.partial->before_commit(kv_.cache, refresh, compute_);
  kv_.cache.append(source, count, compute_);
  if (kv_.partial != nullptr) kv_.partial->after_commit(kv_.cache, refresh, compute_);
  show_query(acceptance.nodes.back());
}

// Shows the draft a query of the last layer, which stays in the pass's buffer until the next pass.
void TargetPass::show_query(int64_t row) {
  if (options_.draft == nullptr) return;
  const ScoringQueries query = scoring_queries(layout_, buffers_.step().layer, row + 1, 1);
  options_.draft->observe_query({.q = query.q, .type = query.type, .refresh = scope_.mode == StepMode::kRefresh});
}

std::vector<float> TargetPass::logits(int64_t rows) const {
  CHECK(rows <= layout_.logit_rows() && step_rows_ <= layout_.drawn_rows(), "rows=", rows, " of ", step_rows_);
  const uint64_t bytes = static_cast<uint64_t>(rows * config_.vocab) * sizeof(float);
  PinnedBuffer host = layout_.device().allocate_pinned(bytes, "logits for the host");
  compute_.copy(host.data(), buffers_.step().logits, bytes, Link::kDeviceToHost, "logits");
  compute_.synchronize();
  return {host.as<float>(), host.as<float>() + rows * config_.vocab};
}

}  // namespace headrace
