#include "runtime/draft/layer_draft.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "offload/device/trace.h"

namespace headrace {

namespace {

constexpr int64_t kSegmentsPerLaunch = 16;

DraftCacheShape with_rows(DraftCacheShape shape, const DraftDecoder& decoder) {
  shape.rows = row_shape(decoder.layers, decoder.type, decoder.type, decoder.type);
  return shape;
}

}  // namespace

LayerDraft::LayerDraft(Device& device, const DraftSetup& options, DraftDecoder decoder, const DraftCacheShape& shape,
                       const TreeSetup& tree, int64_t vocab)
    : device_(device),
      options_(options),
      decoder_(std::move(decoder)),
      shape_(with_rows(shape, decoder_)),
      tree_setup_(tree),
      vocab_(vocab) {}

// ---- memory ---------------------------------------------------------------------------------------------------------

void LayerDraft::plan() {
  Buffers sizes{BumpAllocator(nullptr), BumpAllocator(nullptr), BumpAllocator(nullptr), BumpAllocator(nullptr)};
  carve(&sizes);
  bytes_ = {sizes.work.used_bytes(), sizes.prefill.used_bytes(), sizes.inputs.used_bytes(), sizes.prompt.used_bytes()};
}

DraftMemory LayerDraft::memory() const {
  return {
      .lasting_bytes = whole_pages(bytes_.work) + product_bytes() + shape_.bytes() +
                       TreeBuilder::device_bytes(tree_setup_) + (chooses() ? Retrieval::bytes(options_.retrieval) : 0),
      .prefill_bytes = whole_pages(bytes_.prefill),
      .pinned_bytes = whole_pages(bytes_.inputs) + whole_pages(bytes_.prompt) + TreeBuilder::pinned_bytes(tree_setup_)};
}

void LayerDraft::allocate(Stream& compute) {
  compute_ = &compute;
  work_buffer_ = device_.allocate(bytes_.work, "the draft's buffers");
  inputs_buffer_ = device_.allocate_pinned(bytes_.inputs, "the draft's inputs");
  if (bytes_.prefill > 0) prefill_buffer_ = device_.allocate(bytes_.prefill, "the draft's prefill");
  if (bytes_.prompt > 0) prompt_buffer_ = device_.allocate_pinned(bytes_.prompt, "the draft's prompt");
  Buffers buffers{BumpAllocator(work_buffer_.data()), BumpAllocator(prefill_buffer_.data()),
                  BumpAllocator(inputs_buffer_.data()), BumpAllocator(prompt_buffer_.data())};
  carve(&buffers);
  std::iota(host_.order, host_.order + chain_rows_, 0);
  for (int64_t i = 0; i < chain_rows_; ++i) std::copy_n(host_.order, chain_rows_, host_.path + i * chain_rows_);
  const auto chain = static_cast<uint64_t>(chain_rows_) * sizeof(int32_t);
  compute.copy(inputs_.order, host_.order, chain, Link::kHostToDevice);
  compute.copy(inputs_.path, host_.path, chain * static_cast<uint64_t>(chain_rows_), Link::kHostToDevice);
  kept_cache_ ? cache_.emplace(*std::move(kept_cache_)) : cache_.emplace(device_, shape_);
  kept_cache_.reset();
  builder_.emplace(device_, tree_setup_);
  if (chooses()) retrieval_.emplace(device_, options_.retrieval, compute);
  layers_.rope.fill(*decoder_.rope,
                    {.head_dim = layers_.rope.head_dim,
                     .max_positions = decoder_.max_positions,
                     .rotary_dims = decoder_.layers.front().attention().rope_dims},
                    compute);
}

uint64_t LayerDraft::product_bytes() const {
  const DraftDecoder& d = decoder_;
  const ProductPlace place = product_place(device_.backend(), device_.threads(), d.keeps_blocks);
  std::vector<ProductSize> sizes = layer_products(d.hidden, d.layers, d.type, d.hidden_type);
  sizes.push_back({d.logits, d.hidden, DType::kF32});
  sizes.insert(sizes.end(), d.products.begin(), d.products.end());
  const int64_t group = std::min(options_.planned_tokens(), kDraftPrefillGroupRows);
  return std::max(most_product_bytes({place, d.type, kMaxTreeNodes, ProductPath::kDecode}, sizes),
                  most_product_bytes({place, d.type, group, ProductPath::kPrefill}, d.prompt_products));
}

void LayerDraft::carve_layers(int64_t rows, int64_t queries, int64_t logit_rows, Buffers* buffers) {
  const LayerWidths widths = LayerWidths::of(decoder_.hidden, decoder_.layers);
  BumpAllocator& work = buffers->work;
  layers_.rope = RopeTables::carve(*decoder_.rope, shape_.rows.head_dim, shape_.context_rows, work);
  layers_.work = LayerWork::carve(widths, decoder_.type, decoder_.hidden_type, rows, work);
  layers_.logits = work.take<float>(logit_rows * decoder_.logits);
  layers_.state = carve_states(widths, queries, work);
  layers_.scratch = carve_states(widths, queries * kSegmentsPerLaunch, work);
}

void LayerDraft::carve_inputs(int64_t rows, int64_t more, Buffers* buffers) {
  chain_rows_ = rows;
  const auto carved = [&](BumpAllocator& allocator) {
    Inputs in{};
    for (int32_t** list : {&in.tokens, &in.positions}) *list = allocator.take<int32_t>(rows);
    for (int32_t** one : {&in.committed_before, &in.committed, &in.root, &in.root_position, &in.slot_shift}) {
      *one = allocator.take<int32_t>(1);
    }
    in.more = allocator.take<int32_t>(more);
    in.changing_bytes = allocator.used_bytes();
    in.order = allocator.take<int32_t>(rows);
    in.path = allocator.take<int32_t>(rows * rows);
    return in;
  };
  inputs_ = carved(buffers->work);
  host_ = carved(buffers->inputs);
}

void LayerDraft::carve_prompt(int64_t rows, Buffers* buffers) {
  prompt_ = PromptRows::carve(rows, buffers->prefill);
  host_prompt_ = PromptRows::carve(rows, buffers->prompt);
}

// ---- the layers -----------------------------------------------------------------------------------------------------

Pass LayerDraft::make_pass(const int32_t* positions, int64_t rows) const {
  return {.work = layers_.work,
          .positions = positions,
          .rope = layers_.rope,
          .type = decoder_.type,
          .k_type = shape_.rows.k_type,
          .v_type = shape_.rows.v_type,
          .hidden_type = decoder_.hidden_type,
          .eps = static_cast<float>(decoder_.rms_eps),
          .rows = rows,
          .path = ProductPath::kDecode,
          .stream = compute_};
}

Pass LayerDraft::prompt_pass(const LayerWork& work, const int32_t* positions, int64_t rows) const {
  Pass pass = make_pass(positions, rows);
  pass.work = work;
  pass.path = ProductPath::kPrefill;
  return pass;
}

void LayerDraft::rotate_into_ring(const Pass& pass, const LayerWeights& weights, int64_t position) {
  for (int64_t done = 0; done < pass.rows;) {  // the ring may wrap within the rows
    const DraftCache::Run run = cache_->ring_run(0, position + done);
    const int64_t here = std::min(run.rows, pass.rows - done);
    rotate_rows(pass, weights, done, here, run.to);
    done += here;
  }
}

void LayerDraft::attend(const Pass& pass, int64_t layer, const LayerWeights& weights, const DraftRows& rows) {
  const PrefixAttentionParams prefix = attend_tail({.shape = attention_shape(pass, weights.spec.attention()),
                                                    .q = pass.work.qkv,
                                                    .positions = rows.positions,
                                                    .committed = rows.committed,
                                                    .path = rows.path,
                                                    .path_stride = rows.path_stride,
                                                    .state = layers_.state,
                                                    .scratch = layers_.scratch},
                                                   cache_->tail(layer), *compute_);
  cache_->prefix(layer, rows.deepest, &segments_);
  fold_prefix(prefix, segments_, pass.work.attention);
}

void LayerDraft::fold_prefix(const PrefixAttentionParams& prefix, std::span<const KvSegment> segments, void* out) {
  PrefixFold fold(prefix, {.segments = kSegmentsPerLaunch, .in_parts = false}, *compute_);
  for (const KvSegment& segment : segments) fold.add(segment);
  fold.finish(out);
}

// ---- prefill --------------------------------------------------------------------------------------------------------

// Uploads the rows of the sinks, then [first, first + kept); row i reads tokens[i].
void LayerDraft::upload_prompt(std::span<const int32_t> tokens, int64_t sinks, int64_t first, int64_t kept) {
  for (int64_t i = 0; i < sinks + kept; ++i) {
    const int64_t position = i < sinks ? i : first + i - sinks;
    host_prompt_.tokens[i] = tokens[static_cast<size_t>(position)];
    host_prompt_.positions[i] = static_cast<int32_t>(position);
  }
  compute_->copy(prompt_.tokens, host_prompt_.tokens, prompt_.bytes, Link::kHostToDevice);
}

void LayerDraft::end_prefill(int64_t rows, bool sinks_written) {
  compute_->synchronize();
  if (resumed_rows_ > 0) {
    cache_->continue_to(rows, *compute_);
  } else {
    cache_->set_rows(rows, sinks_written);
  }
  stable_tokens_.clear();
  prefill_buffer_ = {};
  prompt_buffer_ = {};
}

// ---- the round ------------------------------------------------------------------------------------------------------

void LayerDraft::upload_chain(std::span<const int32_t> tokens, int64_t rows) {
  const int64_t before = cache_->rows(), count = static_cast<int64_t>(tokens.size());
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t row = std::min(i, count - 1);
    const int32_t token = tokens[static_cast<size_t>(row)];
    host_.tokens[i] = token < vocab_ ? token : 0;
    host_.positions[i] = static_cast<int32_t>(before + row);
  }
  upload_inputs(count);
}

void LayerDraft::upload_inputs(int64_t count) {
  *host_.committed_before = static_cast<int32_t>(cache_->rows());
  *host_.committed = static_cast<int32_t>(cache_->rows() + count);
  compute_->copy_small(inputs_.tokens, host_.tokens, host_.changing_bytes, Link::kHostToDevice);
}

void LayerDraft::forget_stable(int64_t count) {
  stable_tokens_.erase(stable_tokens_.begin(), stable_tokens_.begin() + count);
  compute_->synchronize();  // the host side of the inputs is overwritten
}

void LayerDraft::grow_tree(const Round& round, const TreeRows& to) {
  const TreeRoot root = {.token = inputs_.root,
                         .position = inputs_.root_position,
                         .committed = inputs_.committed,
                         .slot_shift = inputs_.slot_shift};
  root_logits_ = forward_root(round);
  builder_->grow(0, root_logits_, inputs_.positions + round.row, root, *compute_);
  for (int64_t level = 1; level < builder_->levels() && !builder_->stopped(*compute_); ++level) {
    const TreeFrontier& frontier = builder_->frontier();
    const float* const logits = forward_level(round, level,
                                              {.tokens = frontier.tokens,
                                               .positions = frontier.positions,
                                               .path = frontier.path,
                                               .committed = inputs_.committed,
                                               .count = builder_->rows(level),
                                               .path_stride = frontier.path_stride,
                                               .pass_row = builder_->first_pass_row(level),
                                               .deepest = round.deepest});
    builder_->grow(level, logits, frontier.positions, root, *compute_);
  }
  builder_->select(root, to, *compute_);
}

// Two graphs on a GPU: the work of catch_up(), then the tree; between them the commit, whose count the host decides.
// They change with the limits and with the rows that attention sees: every 64 positions with a window, else every 512.
void LayerDraft::play_round(int32_t root, int64_t position, const TreeInputs& to) {
  const TraceSpan span(*compute_, "propose");
  *host_.root = root;
  *host_.root_position = static_cast<int32_t>(position);
  *host_.slot_shift = to.slot_shift;
  const Round round = catch_up(root, position);
  if (builder_->stops_early()) return grow_tree(round, to.rows);
  const Replay::Key key = {builder_->key_of(to.rows), round.key, prefix_key(), shape_.prefix_end(round.deepest)};
  replay_.run(*compute_, key, [&] { grow_tree(round, to.rows); });
}

void LayerDraft::propose(int32_t root, int64_t position, const TreeLimits& limits, Tree* tree) {
  builder_->begin(limits);
  play_round(root, position, {.rows = builder_->own_rows()});
  builder_->to_host(*compute_, tree);
}

ProposedTree LayerDraft::propose_into(int32_t root, int64_t position, const TreeLimits& limits, const TreeInputs& to) {
  builder_->begin(limits);
  if (builder_->stops_early()) return {};
  play_round(root, position, to);
  return builder_->proposed();
}

void LayerDraft::attach(const KvCache& target) {
  target_cache_ = &target;
  if (retrieval_) retrieval_->attach(target);
}

void LayerDraft::pass_queries(const PassQueries& queries) {
  if (retrieval_) retrieval_->keep_queries(queries, *compute_);
}

void LayerDraft::observe_query(const TargetQuery& query) {
  if (retrieval_) retrieval_->observe_query(query, *target_cache_, *compute_);
}

void LayerDraft::place_rows_before_window() {
  if (shape_.placed_rows() == 0) return;
  const int64_t first = shape_.first_kept(cache_->rows());
  const bool chosen_anew = retrieval_ && retrieval_->due();
  if (first == 0 || (first == cache_->placed_before() && !chosen_anew)) return;
  const TraceSpan span(*compute_, "place");
  const Retrieval::Choice choice = retrieval_ ? retrieval_->choose(first, *compute_) : Retrieval::Choice{};
  cache_->place({.chosen = choice.chunks, .count = choice.count, .rows = options_.retrieval.shape.rows},
                layers_.rope.cos_sin, *compute_);
}

std::optional<TokenRank> LayerDraft::rank(int32_t token) {
  CHECK(root_logits_ != nullptr && builder_->levels() == 1, "levels=", builder_->levels());
  const auto vocab = static_cast<size_t>(tree_setup_.vocab);
  std::vector<float> logits(vocab);
  std::vector<int32_t> ids(vocab);  // the target's
  std::iota(ids.begin(), ids.end(), 0);
  compute_->copy(logits.data(), root_logits_, vocab * sizeof(float), Link::kDeviceToHost);
  if (tree_setup_.map != nullptr) {
    compute_->copy(ids.data(), tree_setup_.map, vocab * sizeof(int32_t), Link::kDeviceToHost);
  }
  compute_->synchronize();
  const auto found = std::find(ids.begin(), ids.end(), token);
  if (found == ids.end()) return TokenRank{.log_prob = -std::numeric_limits<double>::infinity()};
  const auto best = std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - static_cast<double>(*best));
  const float own = logits[static_cast<size_t>(found - ids.begin())];
  return TokenRank{.first = found - ids.begin() == best - logits.begin(),
                   .log_prob = static_cast<double>(own) - static_cast<double>(*best) - std::log(sum)};
}

void LayerDraft::observe(const Tree& tree, const Acceptance& acceptance) {
  stable_tokens_.clear();
  for (size_t i = 1; i < acceptance.nodes.size(); ++i) {
    stable_tokens_.push_back(tree.tokens[static_cast<size_t>(acceptance.nodes[i])]);
  }
}

}  // namespace headrace
