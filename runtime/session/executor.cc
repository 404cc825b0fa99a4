#include "runtime/session/executor.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/tree/op.h"
#include "offload/device/trace.h"
#include "runtime/layers/token_inputs.h"
#include "runtime/session/late_partial.h"
#include "runtime/session/pass_inputs.h"
#include "runtime/session/prefill.h"

namespace headrace {
Executor::Executor(const SessionPlan& plan, Sequence& sequence, TokenMasks* masks)
    : plan_(plan),
      layout_(plan.layout),
      options_(layout_.options()),
      config_(layout_.config()),
      weights_(layout_.weights()),
      compute_(layout_.compute()),
      sequence_(sequence),
      buffers_(layout_),
      link_(layout_.device()),
      layers_(weights_, link_),
      attention_(layout_, buffers_),
      recurrence_(layout_, buffers_),
      rules_(layout_, buffers_, masks),
      draw_(layout_, buffers_, rules_),
      scope_{.sequence = sequence} {}

Executor::~Executor() {  // nothing may use the memory when it is freed, this one's or the sequence's
  if (sequence_.prefix() != nullptr) sequence_.prefix()->abandon();
  drain(compute_);
}

void Executor::stop() {
  drain(compute_);
  streamer_.reset();
}

std::optional<int32_t> Executor::prefill(std::span<const int32_t> ids, Progress* progress,
                                         const std::atomic<bool>* interrupt) {
  CHECK(static_cast<int64_t>(ids.size()) == options_.prompt_tokens);
  sequence_.allocate();
  buffers_.allocate();
  layers_.begin(layout_.device(), plan_.memory.weights_slots, plan_.memory.weights_slot_bytes);
  link_.begin_pass();
  const Watcher watcher{.progress = progress, .interrupt = interrupt};
  if (!Prefill(sequence_, layout_, buffers_, layers_, watcher).run(ids)) return std::nullopt;
  layers_.end_once();
  buffers_.allocate_passes();
  if (plan_.memory.host_experts_alone) slabs_.emplace(weights_, plan_.memory, layout_.device(), compute_);
  rules_.begin(ids);
  if (sequence_.recurrent() != nullptr) sequence_.recurrent()->allocate_passes();
  if (plan_.memory.ring_slots > 0) make_row_streamer();
  if (plan_.memory.late_partial) fill_late_partial(sequence_, streamer_.get(), compute_);
  if (sequence_.partial() != nullptr) sequence_.partial()->finish_prefill(sequence_.cache(), compute_);
  return sample_prompt();
}

void Executor::make_row_streamer() {
  std::vector<int64_t> with_rows;
  RowRing ring{plan_.memory.ring_slots, plan_.memory.ring_slot_bytes};
  for (int64_t layer = 0; layer < config_.layer_count(); ++layer) {
    const StatePlace at = layout_.groups().at(layer);
    if (at.group != StateGroup::kRows || !at.own) continue;
    ring.keys.push_back(buffers_.key_maker(static_cast<int64_t>(with_rows.size())));
    with_rows.push_back(layer);
  }
  streamer_ =
      std::make_unique<KvStreamer>(layout_.device(), sequence_.cache().backing(), link_, std::move(with_rows), ring);
}

int32_t Executor::sample_prompt() {
  step_rows_ = 1;
  buffers_.host_inputs().draw_positions[0] = static_cast<int32_t>(options_.prompt_tokens);
  buffers_.upload_inputs(buffers_.step().path_offset);
  rules_.set_first();
  draw_.samples(decode_pass(), scores());
  buffers_.download_samples(1);
  finish_step();
  return buffers_.host_result().samples[0];
}

Pass Executor::decode_pass() const {
  return buffers_.make_pass(buffers_.step().layer, buffers_.step().inputs.positions, step_rows_, ProductPath::kDecode);
}

std::span<const int32_t> Executor::verify(const Tree& tree, StepMode mode) {
  const int64_t nodes = tree.size();
  CHECK(nodes > 0 && nodes <= layout_.pass_rows(), "nodes=", nodes);
  const TraceSpan span(compute_, "verify");
  start_pass(mode, nodes);
  scope_.deepest_position = upload_tree(layout_, buffers_, scope_, tree);
  const int64_t before = sequence_.rows() + (mode == StepMode::kPartial ? sequence_.pending_rows() : 0);
  rules_.set(tree, 0, nodes, before - options_.prompt_tokens);
  play_pass();
  buffers_.download_samples(nodes);
  finish_step();
  return {buffers_.host_result().samples, static_cast<size_t>(nodes)};
}

TreeInputs Executor::tree_inputs(StepMode mode) const {
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
                   .least_slot =
                       sequence_.partial() != nullptr ? static_cast<int32_t>(sequence_.partial()->least_slot()) : 0,
                   .committed = in.committed},
          .slot_shift = mode == StepMode::kPartial ? static_cast<int32_t>(sequence_.partial()->slot_shift()) : 0};
}

// The host does not know the depth of the tree. Assuming the maximum costs a few tiles that no node sees.
std::span<const int32_t> Executor::verify(const ProposedTree& proposed, StepMode mode, Tree* tree,
                                          Acceptance* acceptance) {
  const int64_t nodes = proposed.nodes, pending = sequence_.pending_rows();
  CHECK(nodes > 0 && nodes <= std::min(layout_.pass_rows(), kMaxTreeNodes), "nodes=", nodes);
  CHECK((pending == 0 || mode == StepMode::kPartial) && !ruled(), "pending ", pending);
  const TraceSpan span(compute_, "verify");
  start_pass(mode, nodes);
  on_device_ = true;
  scope_.deepest_position = sequence_.rows() + pending + proposed.levels;
  CHECK(scope_.deepest_position < options_.context_tokens && pending + proposed.levels < kTailWindow, "position ",
        scope_.deepest_position);
  play_pass();
  buffers_.download_result(nodes);
  finish_step();
  read_result(nodes, tree, acceptance);
  ++steps_on_device_;
  return {buffers_.host_result().samples, static_cast<size_t>(nodes)};
}

void Executor::start_pass(StepMode mode, int64_t nodes) {
  CHECK(mode == StepMode::kFull || sequence_.partial() != nullptr, "a run without a partial KV");
  scope_.mode = mode;
  scope_.streamer = mode == StepMode::kPartial ? nullptr : streamer_.get();
  scope_.grows = false;
  step_rows_ = nodes;
  scope_.pending_nodes = mode == StepMode::kPartial ? 0 : sequence_.pending_rows();
  on_device_ = false;
}

void Executor::play_pass() {
  recurrence_.begin(scope_);
  const Pass pass = decode_pass();
  const auto enqueue = [&] {
    run_pass(pass);
    if (on_device_) accept_proposed();
  };
  begin_link_pass();
  const bool streams = scope_.streamer != nullptr || streams_weights();
  if (streams || scope_.mode == StepMode::kRefresh || !options_.graphs) {  // each refresh chooses among more blocks
    enqueue();
  } else {
    const bool partial = scope_.mode == StepMode::kPartial;
    const int64_t segments = partial ? partial_segments() : prefix_segments();
    replay_.run(compute_, {step_rows_, segments, window_slots_end(), (on_device_ ? 2 : 0) + (partial ? 1 : 0)},
                enqueue);
  }
}

// A pass that multiplies substitutes uses nothing of the link, whose rings wait for the next pass that does.
void Executor::begin_link_pass() {
  if (!multiplies_substitutes()) link_.begin_pass();
  if (scope_.streamer != nullptr) scope_.streamer->begin_step(sequence_.cache().sealed_segments());
  link_.pump();
}

Ranked Executor::grow(const Tree& tree, int64_t first, int32_t followed) {
  const int64_t rows = tree.size() - first;
  CHECK(rows > 0 && rows <= options_.grow_rows && tree.size() <= layout_.pass_rows(), "rows=", rows, " of ",
        tree.size());
  CHECK(sequence_.partial() != nullptr && sequence_.partial()->initialised() && sequence_.pending_rows() == 0,
        "pending ", sequence_.pending_rows());
  const TraceSpan span(compute_, "grow");
  start_pass(StepMode::kPartial, growth_rows(rows, first));
  scope_.grows = true;
  recurrence_.begin_growth(sequence_, tree, first, followed);
  scope_.deepest_position = upload_growth(layout_, buffers_, scope_, tree, first, step_rows_);
  rules_.set(tree, first, step_rows_, sequence_.rows() - options_.prompt_tokens);
  const Pass pass = decode_pass();
  const auto enqueue = [&] {
    run_pass(pass);
    draw_.rank(pass);
  };
  begin_link_pass();
  if (options_.graphs && !streams_weights()) {
    growth_replay_.run(compute_, {pass.rows, partial_segments(), window_slots_end(), 0}, enqueue);
  } else {
    enqueue();
  }
  buffers_.download_ranked();
  buffers_.download_samples(rows);
  finish_step();
  const auto deepest = std::max_element(tree.depths.begin() + first, tree.depths.end());
  show_query(deepest - tree.depths.begin() - first);
  return draw_.ranked(rows);
}

// Rows of a growing step. On a GPU, where a few more rows cost little, they are rounded up to a few sizes, so that a
// few graphs serve all steps. The last node is repeated to fill them, in pass rows that no query reads before their own
// nodes are there.
int64_t Executor::growth_rows(int64_t rows, int64_t first) const {
  constexpr int64_t kAtATime = 16;  // powers of two up to here, then multiples
  if (layout_.device().backend() == Backend::kCpu) return rows;
  const int64_t whole = rows > kAtATime ? ceil_div(rows, kAtATime) * kAtATime
                                        : static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows)));
  return std::max(rows, std::min({whole, options_.grow_rows, layout_.pass_rows() - first}));
}

// If nothing streams, the enqueued work depends only on the number of nodes, of prefix segments and of a window's
// slots.
void Executor::run_pass(const Pass& pass) {
  embed_tokens(weights_.embedding(),
               {.ids = buffers_.step().inputs.tokens,
                .rows = pass.rows,
                .type = weights_.dtype(),
                .out_type = DType::kF32,
                .out = buffers_.step().hidden,
                .factor = embedding_factor(config_, weights_.dtype())},
               compute_);
  const bool substitutes = multiplies_substitutes();
  const int64_t layers = config_.layer_count();
  make_token_inputs(pass, config_, weights_, {.ids = buffers_.step().inputs.tokens, .first = 0, .count = layers});
  for (int64_t layer = 0; layer < layers; ++layer) {
    const TraceSpan inside(compute_, {"layer", layer});
    const StatePlace at = layout_.groups().at(layer);
    show_draft(layer, pass.rows);
    const LayerWeights& weights = slabs_        ? slabs_->layer(layer)
                                  : substitutes ? weights_.partial_layer(layer)
                                                : layers_.use(layer, compute_);
    if (at.group == StateGroup::kRecurrent) {
      qkv_product(pass, weights, buffers_.step().hidden);
      recurrence_.run(pass, weights, at.place, scope_);
    } else {
      const int32_t* const first = scope_.grows ? buffers_.step().inputs.first_row : nullptr;
      const KvRows to = at.own ? sequence_.pass_destination(at, first) : KvRows{};
      rotated_qkv_product(pass, weights, buffers_.step().hidden, to);
      show_queries(sequence_.draft(), at,
                   scoring_queries(layout_, weights.spec, pass.work, {.rows = pass.rows, .count = pass.rows}));
      attention_.run(pass, weights, at, scope_);
      gate_output(pass, weights);
    }
    layer_output(pass, weights, buffers_.step().hidden);
    add_token_input(pass, weights, layer, layers, buffers_.step().hidden);
    if (!substitutes) layers_.done(layer, compute_);
  }
  show_draft(layers, pass.rows);
  draw_.samples(pass, scores());
}

// The states at the input of a layer.
void Executor::show_draft(int64_t layer, int64_t rows) const {
  if (sequence_.draft() != nullptr) sequence_.draft()->pass_layer({layer, buffers_.step().hidden, DType::kF32, rows});
}

// The number of segments with rows that some node of the step reads.
int64_t Executor::prefix_segments() const { return segments_for(tail_begin(scope_.deepest_position)); }

// The same for a partial step.
int64_t Executor::partial_segments() const {
  if (sequence_.partial()->exact()) return prefix_segments();
  return static_cast<int64_t>(sequence_.partial()->segments(0, scope_.deepest_position).size());
}

// The last slot of layers with a window that some node of the step reads; 0: there is none.
int64_t Executor::window_slots_end() const {
  return sequence_.windows() != nullptr ? WindowRows::slots_end(tail_begin(scope_.deepest_position)) : 0;
}

void Executor::accept_proposed() {
  tree_accept({.tokens = buffers_.step().inputs.tokens,
               .parents = buffers_.step().result.parents,
               .samples = buffers_.step().result.samples,
               .out = buffers_.step().result.acceptance,
               .nodes = step_rows_},
              compute_);
}

void Executor::read_result(int64_t nodes, Tree* tree, Acceptance* acceptance) const {
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

void Executor::finish_step() {
  if (scores()) buffers_.download_log_probs();
  compute_.synchronize();
  sequence_.cache().backing().check();
  link_.check();
}

// Whether these are the first nodes of the path that the device accepted; their indices are then on the device.
bool Executor::accepted_on_device(const Acceptance& acceptance) const {
  if (!on_device_) return false;
  const TreeAcceptance& there = *buffers_.host_result().acceptance;
  const std::vector<int32_t>& nodes = acceptance.nodes;
  return static_cast<int64_t>(nodes.size()) <= there.count && std::equal(nodes.begin(), nodes.end(), there.nodes);
}

void Executor::commit(const Acceptance& acceptance) {
  const int64_t count = static_cast<int64_t>(acceptance.nodes.size());
  CHECK(count > 0 && count <= step_rows_, "count=", count);
  rules_.commit(acceptance.nodes);
  const int32_t* source = buffers_.step().inputs.source;
  if (accepted_on_device(acceptance)) {
    source = buffers_.step().result.acceptance->nodes;
    ++commits_on_device_;
  } else {
    buffers_.upload_source(acceptance.nodes);
  }
  recurrence_.commit(source, count, scope_);
  WindowRows* const windows = sequence_.windows();
  if (scope_.mode == StepMode::kPartial) {
    if (windows != nullptr) windows->append_pending(source, count, compute_);
    sequence_.cache().append_pending(source, count, compute_);
    return show_query(acceptance.nodes.back());
  }
  const bool refresh = scope_.mode == StepMode::kRefresh;
  if (streamer_ != nullptr && sequence_.cache().fills_disk(count)) streamer_->stop();
  if (sequence_.partial() != nullptr) sequence_.partial()->before_commit(sequence_.cache(), refresh, compute_);
  if (windows != nullptr) windows->append(source, count, compute_);
  sequence_.cache().append(source, count, compute_);
  if (sequence_.partial() != nullptr) sequence_.partial()->after_commit(sequence_.cache(), refresh, compute_);
  show_query(acceptance.nodes.back());
}

// Shows the draft a query of the last layer, which stays in the pass's buffer until the next pass.
void Executor::show_query(int64_t row) {
  if (sequence_.draft() == nullptr) return;
  const ScoringQueries query =
      scoring_queries(layout_, config_.layers.back(), buffers_.step().layer, {.rows = row + 1, .count = 1});
  sequence_.draft()->observe_query(
      {.q = query.q, .type = query.type, .refresh = scope_.mode == StepMode::kRefresh, .row = row});
}

ExpertUse Executor::expert_use() { return slabs_ ? slabs_->use() : ExpertUse(); }

RowLogProbs Executor::log_probs(int64_t row) const {
  if (!scores()) return {};
  CHECK(row >= 0 && row < step_rows_, "row ", row, " of ", step_rows_);
  return draw_.log_probs(row);
}

std::vector<float> Executor::logits(int64_t rows) const {
  CHECK(rows <= layout_.logit_rows() && step_rows_ <= layout_.drawn_rows(), "rows=", rows, " of ", step_rows_);
  return draw_.logits(rows);
}

}  // namespace headrace
