#include "runtime/draft/eagle3/draft.h"

#include <algorithm>

#include "kernels/elementwise/op.h"

namespace headrace {
namespace {

DraftDecoder decoder_of(const Eagle3Config& config, const Eagle3Weights& weights) {
  const DType type = weights.dtype();
  const LayerSpec layer = config.layer();
  const std::vector<ProductSize> products = {{config.hidden, config.target_hidden, type},
                                             {layer.attention().qkv_width(), 2 * config.hidden, type}};
  return {.layers = {layer},
          .hidden = config.hidden,
          .logits = config.vocab,
          .type = type,
          .hidden_type = type,
          .keeps_blocks = weights.keeps_blocks(),
          .rms_eps = config.rms_eps,
          .rope = &config.rope,
          .max_positions = config.max_positions,
          .products = products,
          .prompt_products = products};
}

}  // namespace

Eagle3Draft::Eagle3Draft(Device& device, const Eagle3Config& config, const Eagle3Weights& weights,
                         const Weights& target, const DraftSetup& options)
    : StateDraft(device, options, decoder_of(config, weights), weights.views(),
                 {.shape = options.tree,
                  .vocab = config.vocab,
                  .map = static_cast<const int32_t*>(weights.views().target_ids),
                  .sampling = options.run.sampling},
                 config.target_vocab),
      config_(config),
      weights_(weights),
      target_(target) {
  plan();
}

// ---- the target's states --------------------------------------------------------------------------------------------

std::optional<size_t> Eagle3Draft::feature_index(int64_t layer) const {
  const auto found = std::find(config_.feature_layers.begin(), config_.feature_layers.end(), layer);
  if (found == config_.feature_layers.end()) return std::nullopt;
  return static_cast<size_t>(found - config_.feature_layers.begin());
}

// Adds fc's block of this layer to the features of the pass's rows, which are the input's from `first_row` on. `room`
// is for what fc reads, where that is not the target's states themselves: they are rounded to the head's type, and
// normalised with fc_norm.
void Eagle3Draft::project(const Pass& pass, const LayerInput& input, int64_t first_row, void* features, void* room) {
  const size_t index = *feature_index(input.layer);
  const Eagle3Views& w = weights_.views();
  const int64_t width = config_.target_hidden;
  const void* x =
      static_cast<const std::byte*>(input.hidden) + static_cast<uint64_t>(first_row * width) * dtype_bytes(input.type);
  if (input.type != pass.type) {
    convert({.in = x, .out = room, .in_type = input.type, .out_type = pass.type, .count = pass.rows * width},
            *compute_);
    x = room;
  }
  if (config_.fc_norm) {
    normalise(pass, {.x = x, .weight = w.fc_norm[index], .out = room, .cols = width, .out_stride = width});
    x = room;
  }
  multiply(pass, {.x = x, .weight = w.fc[index], .residual = index == 0 ? nullptr : features, .out = features});
}

// ---- the layer ------------------------------------------------------------------------------------------------------

// [RMSNorm(embedding of a token); RMSNorm(its feature)] -> q, k, v.
void Eagle3Draft::join(const Pass& pass, const int32_t* tokens, const void* features, const Joined& to) {
  const Eagle3Views& w = weights_.views();
  const int64_t hidden = config_.hidden;
  embed_tokens(w.embedding != nullptr ? w.embedding : target_.embedding(),
               {.ids = tokens, .rows = pass.rows, .type = pass.type, .out_type = pass.type, .out = to.token},
               *compute_);
  normalise(pass, {to.token, w.input_norm, to.joined, hidden, 2 * hidden});
  normalise(pass, {features, w.hidden_norm, pass.at(to.joined, hidden), hidden, 2 * hidden});
  multiply(pass, {.x = to.joined, .weight = w.qkv, .out = pass.work.qkv});
}

// The second half: attention and work_.feature -> work_.output.
void Eagle3Draft::finish_layer(const Pass& pass) {
  const Eagle3Views& w = weights_.views();
  const int64_t hidden = config_.hidden;
  const void* residual = work_.feature;
  if (config_.norm_before_residual) {
    normalise(pass, {work_.feature, w.hidden_norm, work_.output, hidden, hidden});
    residual = work_.output;
  }
  attention_output(pass, w, residual, work_.output);
  feed_forward(pass, w, work_.output);
  if (config_.norm_output) normalise(pass, {work_.output, w.final_norm, work_.output, hidden, hidden});
}

StateDraft::Head Eagle3Draft::head() const {
  const Eagle3Views& w = weights_.views();
  return {.norm = config_.norm_output ? nullptr : w.final_norm, .weight = w.head != nullptr ? w.head : target_.head()};
}

}  // namespace headrace
