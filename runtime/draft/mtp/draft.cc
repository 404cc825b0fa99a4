#include "runtime/draft/mtp/draft.h"

#include <algorithm>

namespace headrace {
namespace {

DraftDecoder decoder_of(const ModelConfig& config, const Weights& target) {
  const DType type = target.dtype();
  const LayerSpec& layer = target.mtp()->layer.spec;
  const ProductSize fc = {config.hidden, 2 * config.hidden, type};
  return {.layers = {layer},
          .hidden = config.hidden,
          .logits = config.vocab,
          .type = type,
          .hidden_type = type,
          .keeps_blocks = target.keeps_blocks(),
          .rms_eps = config.rms_eps,
          .rope = &config.rope,
          .max_positions = config.max_positions,
          .products = {fc},
          .prompt_products = {fc, {layer.in_width(), config.hidden, type}}};
}

}  // namespace

MtpDraft::MtpDraft(Device& device, const ModelConfig& config, const Weights& target, const DraftSetup& options)
    : StateDraft(device, options, decoder_of(config, target), target.mtp()->layer,
                 {.shape = options.tree, .vocab = config.vocab, .sampling = options.run.sampling}, config.vocab),
      layers_of_target_(config.layer_count()),
      target_(target),
      block_(*target.mtp()) {
  plan();
}

// On a GPU a prompt's products need plain weights.
void MtpDraft::carve(Buffers* buffers) {
  StateDraft::carve(buffers);
  BumpAllocator& prefill = buffers->prefill;
  if (!keeps_prompt_features()) group_features_ = prefill.take_bytes(bytes(prompt_group() * decoder_.hidden));
  uint64_t matrix = 0;
  for (const Weight* weight : {&block_.fc, &block_.layer.qkv}) {
    if (!weight->plain()) matrix = std::max(matrix, unpacked_bytes(*weight, decoder_.type));
  }
  if (matrix > 0 && device_.backend() == Backend::kCuda) matrix_ = prefill.take_bytes(matrix);
}

// ---- the target's states --------------------------------------------------------------------------------------------

void MtpDraft::prefill_layer(const LayerInput& input) {
  if (reads(input.layer)) prompt_states_ = input;
  StateDraft::prefill_layer(input);
}

void MtpDraft::project(const Pass& pass, const LayerInput& input, int64_t first_row, void* features, void*) {
  const int64_t hidden = decoder_.hidden;
  const auto before = static_cast<uint64_t>(first_row * hidden) * dtype_bytes(input.type);
  Pass reading = pass;
  reading.hidden_type = input.type;
  normalise(reading, {.x = static_cast<const std::byte*>(input.hidden) + before,
                      .weight = target_.final_norm(),
                      .out = features,
                      .cols = hidden,
                      .out_stride = hidden});
}

const void* MtpDraft::prompt_features(int64_t first, int64_t rows) {
  if (keeps_prompt_features()) return StateDraft::prompt_features(first, rows);
  CHECK(first >= prompt_states_.first, "rows from ", first, ", states from ", prompt_states_.first);
  project(prompt_pass({}, nullptr, rows), prompt_states_, first - prompt_states_.first, group_features_, nullptr);
  return group_features_;
}

// ---- the layer ------------------------------------------------------------------------------------------------------

// fc of [RMSNorm(embedding of a token); RMSNorm(its feature)] is the layer's input, which is left in to.token.
void MtpDraft::join(const Pass& pass, const int32_t* tokens, const void* features, const Joined& to) {
  const int64_t hidden = decoder_.hidden;
  embed_tokens(target_.embedding(),
               {.ids = tokens, .rows = pass.rows, .type = pass.type, .out_type = pass.type, .out = to.token},
               *compute_);
  normalise(pass, {to.token, block_.embedding_norm, to.joined, hidden, 2 * hidden});
  normalise(pass, {features, block_.hidden_norm, pass.at(to.joined, hidden), hidden, 2 * hidden});
  Pass layer = pass;
  layer.work.normed = to.joined;  // a prompt's pass has no room of its own
  if (pass.path == ProductPath::kPrefill) layer.matrix = matrix_;
  multiply(layer, {.x = to.joined, .weight = block_.fc, .out = to.token});
  qkv_product(layer, block_.layer, to.token);
}

void MtpDraft::finish_layer(const Pass& pass) {
  const int64_t hidden = decoder_.hidden;
  gate_output(pass, block_.layer);
  attention_output(pass, block_.layer, work_.joined.token, work_.output);
  feed_forward(pass, block_.layer, work_.output);
  normalise(pass, {work_.output, block_.norm, work_.output, hidden, hidden});
}

}  // namespace headrace
