#include "runtime/draft/state_draft.h"

#include <utility>

#include "kernels/elementwise/op.h"

namespace headrace {
namespace {

// Rows that the ring of a windowed draft keeps beyond its window for the next run: most answers, from the end of which
// the next prompt goes back to the end of this one.
constexpr int64_t kMostTakenBack = 4096;

int64_t most_taken_back(const DraftRun& run) {
  if (run.most_prompt_tokens == 0) return run.most_pending;
  return run.windowed ? std::max(run.most_pending, kMostTakenBack) : run.context_tokens;
}

DraftCacheShape cache_shape(const DraftSetup& options) {
  const bool chooses = options.retrieval.shape.chunks > 0;
  return {.context_rows = options.run.context_tokens,
          .window = options.window,
          .pass_rows = round_rows(options.tree),
          .most_taken_back = most_taken_back(options.run),
          .sinks = chooses ? SinkRows::kFollowTheWindow : SinkRows::kStay,
          .chosen_rows = options.retrieval.shape.placed_rows()};
}

// A forwarded row of position p predicts the token of position p + 2: its feature is for p, its token for p + 1.
TreeSetup with_places(TreeSetup tree, const DraftSetup& options) {
  tree.position_offset = 2;
  tree.first_row = stable_rows(options.tree);
  return tree;
}

}  // namespace

StateDraft::StateDraft(Device& device, const DraftSetup& options, DraftDecoder decoder, const LayerWeights& layer,
                       TreeSetup tree, int64_t vocab)
    : LayerDraft(device, options, std::move(decoder), cache_shape(options), with_places(std::move(tree), options),
                 vocab),
      layer_(layer) {}

void StateDraft::carve(Buffers* buffers) {
  const int64_t stable = stable_rows(options_.tree), most = most_rows(stable), hidden = decoder_.hidden;
  // Only the last accepted row is multiplied with the head; it needs padding too.
  const int64_t rows = padded(most) + padded(1), nodes = padded(pass_nodes());
  const auto rows_of = [&](int64_t count, int64_t width) { return buffers->work.take_bytes(bytes(count * width)); };
  carve_inputs(stable, stable, buffers);
  work_.pass_features = rows_of(nodes, hidden);
  work_.room = rows_of(nodes, pass_room());
  work_.feature = rows_of(rows, hidden);
  work_.output = rows_of(rows, hidden);
  carve_layers(rows, most, padded(options_.tree.widest()), buffers);
  work_.joined = {rows_of(rows, hidden), rows_of(rows, 2 * hidden)};
  carve_prefill(buffers);
}

void StateDraft::pass_layer(const LayerInput& input) {
  if (reads(input.layer)) project(make_pass(nullptr, input.rows), input, 0, work_.pass_features, work_.room);
}

// work_.feature and the tokens -> work_.output. The rows' K and V go to the cache's pass rows.
void StateDraft::forward(const DraftRows& rows) {
  const Pass pass = make_pass(rows.positions, rows.count);
  join(pass, rows.tokens, work_.feature, work_.joined);
  rotate_rows(pass, layer_, 0, rows.count, cache_->pass_rows_from(0, rows.pass_row));
  attend(pass, 0, layer_, rows);
  finish_layer(pass);
}

// Rows [first, first + count) of work_.output -> logits from row 0 on.
void StateDraft::predict(int64_t first, int64_t count) {
  const Pass pass = make_pass(nullptr, count);
  const Head by = head();
  output_logits(pass, by.norm, by.weight, pass.at(work_.output, first * decoder_.hidden), layers_.logits);
}

// ---- the round ------------------------------------------------------------------------------------------------------

void StateDraft::gather(const void* from, int64_t from_rows, const int32_t* rows, int64_t count) {
  embedding({.ids = rows,
             .table = from,
             .out = work_.feature,
             .type = decoder_.type,
             .out_type = decoder_.type,
             .rows = count,
             .vocab = from_rows,
             .hidden = decoder_.hidden},
            *compute_);
}

// Joins the tokens that the last verify pass accepted with the tokens that follow them: rows of the cache from true
// features. The last row predicts the token after the root. On a GPU, where 64 rows cost as much as one, the number of
// rows is constant: the last one is repeated, so the round is the same graph whatever was accepted.
LayerDraft::Round StateDraft::catch_up(int32_t root, int64_t position) {
  stable_tokens_.push_back(root);
  const int64_t room = stable_rows(options_.tree);
  Round round;
  for (;;) {  // after a refresh there may be more than fit in a round
    const int64_t left = static_cast<int64_t>(stable_features_.size()), accepted = std::min(left, room);
    const int64_t rows = device_.backend() == Backend::kCpu ? accepted : room;
    CHECK(accepted > 0, "at ", position);
    place_rows_before_window();
    for (int64_t i = 0; i < rows; ++i) host_.more[i] = stable_features_[static_cast<size_t>(std::min(i, accepted - 1))];
    upload_chain(std::span(stable_tokens_).first(static_cast<size_t>(accepted)), rows);
    round = {.row = rows - 1, .key = rows, .deepest = cache_->rows() + accepted + builder_->levels()};
    replay_.run(*compute_, {0, rows, prefix_key(), shape_.prefix_end(round.deepest)}, [&] {
      gather(work_.pass_features, pass_nodes(), inputs_.more, rows);
      forward({.tokens = inputs_.tokens,
               .positions = inputs_.positions,
               .path = inputs_.path,
               .committed = inputs_.committed_before,
               .count = rows,
               .path_stride = room,
               .pass_row = 0,
               .deepest = round.deepest});
      predict(rows - 1, 1);
    });
    cache_->append(inputs_.order, accepted, *compute_);
    if (left <= room) break;
    stable_features_.erase(stable_features_.begin(), stable_features_.begin() + accepted);
    forget_stable(accepted);
  }
  CHECK(cache_->rows() == position, "rows ", cache_->rows(), " at ", position);
  place_rows_before_window();
  return round;
}

// The features of a level are the outputs of its parents.
const float* StateDraft::forward_level(const Round& round, int64_t level, const DraftRows& rows) {
  const int64_t from = level == 1 ? round.row : 0, count = level == 1 ? 1 : builder_->rows(level - 1);
  gather(static_cast<std::byte*>(work_.output) + bytes(from * decoder_.hidden), count, builder_->frontier().parent_rows,
         rows.count);
  forward(rows);
  predict(0, rows.count);
  return layers_.logits;
}

// Drops the rows of rejected tokens; the others are recomputed from features of the full KV.
void StateDraft::rewind(int64_t position) { cache_->rewind(std::min(position, cache_->rows())); }

void StateDraft::observe(const Tree& tree, const Acceptance& acceptance) {
  LayerDraft::observe(tree, acceptance);
  stable_features_.assign(acceptance.nodes.begin(), acceptance.nodes.end());
}

}  // namespace headrace
