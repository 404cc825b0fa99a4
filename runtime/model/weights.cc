#include "runtime/model/weights.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_set>

#include "runtime/base/utf8.h"
#include "runtime/model/decoder_tensors.h"
#include "runtime/model/substitutes.h"
#include "runtime/model/weight_places.h"

namespace headrace {
namespace {

// A layer's tensors under their common prefix.
struct LayerTensors {
  const Checkpoint& checkpoint;
  std::string prefix;
  const TensorInfo* operator()(const char* name, const std::vector<int64_t>& shape) const {
    return &checkpoint.require(prefix + name, shape);
  }
};

void place_attention(const LayerTensors& tensor, int64_t hidden, LayerWeights* w, WeightPlaces* places) {
  const AttentionSpec& a = w->spec.attention();
  const int64_t q = a.q_width(), kv = a.kv_width();
  const TensorInfo* const q_rows = tensor("self_attn.q_proj.weight", {q, hidden});
  const bool own = a.makes_rows();
  const TensorInfo* const k_rows = own ? tensor("self_attn.k_proj.weight", {kv, hidden}) : nullptr;
  const TensorInfo* const v_rows = own && !a.k_is_v ? tensor("self_attn.v_proj.weight", {kv, hidden}) : nullptr;
  if (!own) {
    places->place(&w->qkv, {q_rows});
  } else if (a.k_is_v) {
    places->place(&w->qkv, {q_rows, k_rows});
  } else if (a.gated_output) {
    places->place(&w->qkv, {q_rows, k_rows, v_rows, tensor("self_attn.gate_proj.weight", {q, hidden})});
  } else {
    places->place(&w->qkv, {q_rows, k_rows, v_rows});
  }
  if (a.qkv_bias)
    places->place(&w->qkv_bias, {tensor("self_attn.q_proj.bias", {q}), tensor("self_attn.k_proj.bias", {kv}),
                                 tensor("self_attn.v_proj.bias", {kv})});
  if (a.qk_norm) {
    places->place(&w->q_norm, {tensor("self_attn.q_norm.weight", {a.head_dim})});
    if (own) places->place(&w->k_norm, {tensor("self_attn.k_norm.weight", {a.head_dim})});
  }
  places->place(&w->output, {tensor("self_attn.o_proj.weight", {hidden, q})});
  if (a.output_bias) places->place(&w->output_bias, {tensor("self_attn.o_proj.bias", {hidden})});
  if (a.sinks) places->place_f32(&w->sinks, tensor("self_attn.sinks", {a.heads}));
}

void place_delta_net(const LayerTensors& tensor, int64_t hidden, LayerWeights* w, WeightPlaces* places) {
  const DeltaNetSpec& d = w->spec.delta_net();
  places->place(&w->qkv, {tensor("linear_attn.in_proj_qkv.weight", {d.channels(), hidden}),
                          tensor("linear_attn.in_proj_z.weight", {d.v_width(), hidden}),
                          {tensor("linear_attn.in_proj_b.weight", {d.v_heads, hidden}), true},
                          {tensor("linear_attn.in_proj_a.weight", {d.v_heads, hidden}), true}});
  places->place_f32(&w->conv, tensor("linear_attn.conv1d.weight", {d.channels() * d.conv}));
  places->place_f32(&w->decay, tensor("linear_attn.A", {d.v_heads}));
  places->place_f32(&w->dt_bias, tensor("linear_attn.dt_bias", {d.v_heads}));
  places->place_f32(&w->head_norm, tensor("linear_attn.norm.weight", {d.v_dim}));
  places->place(&w->output, {tensor("linear_attn.out_proj.weight", {hidden, d.v_width()})});
}

// The experts' matrices one after another; `place(e)` places those of expert e.
template <typename Place>
uint64_t place_each(int64_t count, const WeightPlaces& places, const Place& place) {
  uint64_t first = 0, stride = 0;
  for (int64_t e = 0; e < count; ++e) {
    const uint64_t at = places.next();
    place(e);
    if (e == 0) first = at, stride = places.next() - at;
    CHECK(at == first + static_cast<uint64_t>(e) * stride, "expert ", e, " has matrices of another size");
  }
  return stride;
}

// Of a dense part, or of a shared expert.
struct DenseTensors {
  const LayerTensors& tensor;
  const FfnSpec& spec;
  int64_t hidden;
  const TensorInfo* operator()(const char* name, const std::vector<int64_t>& shape) const {
    return tensor(str(spec.experts && spec.experts->shared ? "mlp.shared_expert." : "mlp.", name, ".weight").c_str(),
                  shape);
  }
  void place_gate_up(Weight* w, WeightPlaces* places) const {
    places->place(w, {(*this)("gate_proj", {spec.width, hidden}), (*this)("up_proj", {spec.width, hidden})});
  }
  void place_down(Weight* w, WeightPlaces* places) const {
    places->place(w, {(*this)("down_proj", {hidden, spec.width})});
  }
};

bool same_form(const Weight& a, const Weight& b) {
  bool same = a.cols == b.cols && a.count == b.count;
  for (int i = 0; same && i < a.count; ++i) {
    same = a.parts[i].type == b.parts[i].type && a.parts[i].rows == b.parts[i].rows;
  }
  return same;
}

void place_expert_biases(const LayerTensors& tensor, const ExpertsSpec& spec, int64_t hidden, ExpertWeights* w,
                         WeightPlaces* places) {
  const auto of = [&](int64_t e, const char* name, int64_t size) {
    return tensor(str("mlp.experts.", e, ".", name, ".bias").c_str(), {size});
  };
  w->gate_up_bias_stride = place_each(spec.count, *places, [&](int64_t e) {
    const auto parts = {of(e, "gate_proj", spec.width), of(e, "up_proj", spec.width)};
    if (e == 0) return places->place(&w->gate_up_bias, parts);
    places->place(parts);
  });
  w->down_bias_stride = place_each(spec.count, *places, [&](int64_t e) {
    const auto parts = {of(e, "down_proj", hidden)};
    if (e == 0) return places->place(&w->down_bias, parts);
    places->place(parts);
  });
}

void place_router(const DenseTensors& shared, ExpertWeights* w, WeightPlaces* places) {
  const ExpertsSpec& spec = *shared.spec.experts;
  const LayerTensors& tensor = shared.tensor;
  const int64_t hidden = shared.hidden;
  const TensorInfo* const router = tensor("mlp.gate.weight", {spec.count, hidden});
  if (spec.shared) {
    places->place_plain(&w->router, {router, tensor("mlp.shared_expert_gate.weight", {1, hidden})});
  } else {
    places->place_plain(&w->router, {router});
  }
  if (spec.beside) {
    places->place(&w->router_scale, {tensor("mlp.gate.scale", {hidden})});
    places->place_f32(&w->factors, tensor("mlp.experts.scale", {spec.count}));
    places->place(&w->dense_norm, {tensor(kBesideNorms[0], {hidden})});
    places->place(&w->norm, {tensor(kBesideNorms[1], {hidden})});
    places->place(&w->output_norm, {tensor(kBesideNorms[2], {hidden})});
  }
  if (spec.bias) places->place(&w->router_bias, {tensor("mlp.gate.bias", {spec.count})});
}

// Each kind of matrix, or of biases, of all experts, and then a shared one's.
void place_experts(const DenseTensors& shared, LayerWeights* layer, WeightPlaces* places) {
  const ExpertsSpec& spec = *shared.spec.experts;
  const LayerTensors& tensor = shared.tensor;
  const int64_t hidden = shared.hidden;
  ExpertWeights* const w = &layer->experts;
  const auto of = [&](int64_t e, const char* name, const std::vector<int64_t>& shape) {
    return tensor(str("mlp.experts.", e, ".", name, ".weight").c_str(), shape);
  };
  w->gate_up_stride = place_each(spec.count, *places, [&](int64_t e) {
    const auto parts = {WeightStore::Rows(of(e, "gate_proj", {spec.width, hidden})),
                        WeightStore::Rows(of(e, "up_proj", {spec.width, hidden}))};
    if (e == 0) return places->place(&w->gate_up, parts);
    places->place_after(w->gate_up, parts);
  });
  if (spec.shared) shared.place_gate_up(&layer->gate_up, places);
  w->down_stride = place_each(spec.count, *places, [&](int64_t e) {
    const auto parts = {WeightStore::Rows(of(e, "down_proj", {hidden, spec.width}))};
    if (e == 0) return places->place(&w->down, parts);
    places->place_after(w->down, parts);
  });
  if (spec.shared) shared.place_down(&layer->down, places);
  w->shared_is_last = spec.shared && same_form(layer->gate_up, w->gate_up) && same_form(layer->down, w->down);
  if (spec.bias) place_expert_biases(tensor, spec, hidden, w, places);
}

// All but the experts' matrices, and what is beside those.
void place_layer(const LayerTensors& tensor, const LayerSpec& spec, int64_t hidden, LayerWeights* w,
                 WeightPlaces* places) {
  w->spec = spec;
  places->place(&w->input_norm, {tensor("input_layernorm.weight", {hidden})});
  (spec.has_attention() ? place_attention : place_delta_net)(tensor, hidden, w, places);
  if (spec.output_norms) places->place(&w->output_norm, {tensor("post_attention_layernorm.weight", {hidden})});
  const char* const ffn_norm =
      spec.output_norms ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight";
  places->place(&w->ffn_norm, {tensor(ffn_norm, {hidden})});
  const DenseTensors dense = {tensor, spec.ffn, hidden};
  if (spec.ffn.experts) place_router(dense, &w->experts, places);
  if (spec.ffn.width > 0 && !(spec.ffn.experts && spec.ffn.experts->shared)) {
    dense.place_gate_up(&w->gate_up, places);
    dense.place_down(&w->down, places);
  }
  if (spec.output_norms) places->place(&w->down_norm, {tensor("post_feedforward_layernorm.weight", {hidden})});
  const void** const scalar = spec.token_width > 0 ? &w->token.scalar : &w->scalar;
  if (spec.scaled) places->place(scalar, {tensor("layer_scalar", {1})});
  if (spec.token_width == 0) return;
  places->place_plain(&w->token.gate, {tensor("per_layer_input_gate.weight", {spec.token_width, hidden})});
  places->place_plain(&w->token.projection, {tensor("per_layer_projection.weight", {hidden, spec.token_width})});
  places->place(&w->token.norm, {tensor("post_per_layer_input_norm.weight", {hidden})});
}

// The table is a part of its own, which is returned.
size_t place_token_inputs(const Checkpoint& checkpoint, const ModelConfig& c, TokenInputWeights* w,
                          WeightPlaces* places, WeightStore* store) {
  const int64_t layers = c.layer_count(), width = c.token_width();
  const LayerTensors tensor = {checkpoint, "model."};
  places->place(&w->table, {tensor("embed_tokens_per_layer.weight", {c.vocab * layers, width})});
  const size_t part = store->end_part();
  places->place_plain(&w->projection, {tensor("per_layer_model_projection.weight", {layers * width, c.hidden})});
  places->place(&w->norm, {tensor("per_layer_projection_norm.weight", {width})});
  return part;
}

void place_mtp(const LayerTensors& tensor, const MtpSpec& spec, int64_t hidden, MtpWeights* w, WeightPlaces* places) {
  places->place(&w->embedding_norm, {tensor("pre_fc_norm_embedding.weight", {hidden})});
  places->place(&w->hidden_norm, {tensor("pre_fc_norm_hidden.weight", {hidden})});
  places->place(&w->fc, {tensor("fc.weight", {hidden, 2 * hidden})});
  const LayerTensors layer = {tensor.checkpoint, tensor.prefix + "layers.0."};
  place_layer(layer, spec.layer, hidden, &w->layer, places);
  if (spec.layer.ffn.experts) place_experts({layer, spec.layer.ffn, hidden}, &w->layer, places);
  if (spec.own_norm) places->place(&w->norm, {tensor("norm.weight", {hidden})});
}

// The layer that a tensor's name has, -1 for one that is no number; none: the name has none.
std::optional<int64_t> layer_in_name(std::string_view name) {
  for (const std::string_view prefix : {"model.layers.", "blk."}) {
    if (!name.starts_with(prefix)) continue;
    int64_t layer = -1;
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), layer);
    return layer;
  }
  return std::nullopt;
}
bool is_layer(int64_t layer, const ModelConfig& config) { return layer >= 0 && layer < config.layer_count(); }

// Of a layer that reads another's rows: files may have what would make its own nevertheless, which nothing reads.
bool is_idle(std::string_view name, const ModelConfig& config) {
  for (const std::string_view end : {".self_attn.k_proj.weight", ".self_attn.v_proj.weight", ".self_attn.k_norm.weight",
                                     ".attn_k.weight", ".attn_v.weight", ".attn_k_norm.weight"}) {
    if (!name.ends_with(end)) continue;
    const int64_t layer = layer_in_name(name).value_or(-1);
    return is_layer(layer, config) && config.layer(layer).has_attention() && !config.layer(layer).keeps_rows();
  }
  return false;
}

// Parts of a layer or of the head that change nothing: tables that are computed, masks, scales of a cache in 8 bits.
bool is_harmless(std::string_view name) {
  for (const std::string_view end : {".inv_freq", ".cos_cached", ".sin_cached", ".masked_bias", "attn.bias",
                                     "attention.bias", ".attn_rot_embd.weight", ".k_scale", ".v_scale", ".q_scale",
                                     ".kv_scale", ".prob_scale", ".position_ids", "rope_freqs.weight"})
    if (name.ends_with(end)) return true;
  return name == "lm_head.weight";  // of a tied head
}

// Of the decoder that is computed: its layers, its embeddings, its last norm, its head.
bool is_ours(std::string_view name, const ModelConfig& config) {
  if (config.mtp && name.starts_with("mtp.")) return true;
  if (const std::optional<int64_t> layer = layer_in_name(name)) return is_layer(*layer, config);
  for (const std::string_view prefix : {"model.norm", "model.final", "model.embed", "model.per_layer", "lm_head.",
                                        "final_logits_bias", "output", "token_embd", "position_embd", "per_layer"})
    if (name.starts_with(prefix)) return true;
  return false;
}

// The scales of experts in MXFP4, which are read with them (runtime/model/files/mxfp4.h).
bool is_scale_of_mxfp4(std::string_view name) { return name.ends_with("_proj.scales"); }

// The scales of a matrix in fp8, which are read with it.
bool is_scale_of_fp8(const Checkpoint& checkpoint, std::string_view name) {
  constexpr std::string_view kScales = "_scale_inv";
  if (!name.ends_with(kScales)) return false;
  const TensorInfo* const matrix = checkpoint.find(std::string(name.substr(0, name.size() - kScales.size())));
  return matrix != nullptr && matrix->stored_type == "F8_E4M3";
}

// A layer with parts that nothing computes is a layer of another kind: its text would be wrong.
void refuse_unused(const Checkpoint& checkpoint) {
  constexpr size_t kShown = 3;
  const std::vector<DecoderTensor> used = decoder_tensors(checkpoint.config());
  std::unordered_set<std::string_view> names;
  for (const DecoderTensor& tensor : used) names.insert(tensor.name);
  std::vector<std::string_view> unused;
  for (const TensorInfo& tensor : checkpoint.tensors())
    if (!names.contains(tensor.name) && is_ours(tensor.name, checkpoint.config()) && !is_harmless(tensor.name) &&
        !is_idle(tensor.name, checkpoint.config()) && !is_scale_of_fp8(checkpoint, tensor.name) &&
        !is_scale_of_mxfp4(tensor.name))
      unused.push_back(tensor.name);
  if (unused.empty()) return;
  std::string text;
  for (size_t i = 0; i < std::min(kShown, unused.size()); ++i)
    text += str(i == 0 ? "" : ", ", printable(std::string(unused[i])));
  if (unused.size() > kShown) text += str(" and ", unused.size() - kShown, " more");
  throw_error(ExitCode::kBadInput, checkpoint.path(),
              str("has tensors that a model of the family ", checkpoint.config().family, " does not use: ", text),
              "its layers compute something that Headrace does not know, so its text would be wrong");
}

}  // namespace

void place_layer(const Checkpoint& checkpoint, int64_t index, LayerWeights* w, WeightPlaces* places) {
  const ModelConfig& c = checkpoint.config();
  place_layer({checkpoint, str("model.layers.", index, ".")}, c.layer(index), c.hidden, w, places);
}

Weights Weights::place(const Checkpoint& checkpoint, Backend backend, const WeightStoreOptions& options) {
  refuse_unused(checkpoint);
  const ModelConfig& c = checkpoint.config();
  auto body = std::make_unique<Body>(options, backend);
  WeightPlaces& places = body->places;
  body->logit_cap = static_cast<float>(c.logit_cap);
  body->tied_head = c.tied_head;
  places.place(&body->embedding, {&checkpoint.require("model.embed_tokens.weight", {c.vocab, c.hidden})});
  body->store.end_part(!c.tied_head);
  body->layers.resize(c.layers.size());
  for (int64_t i = 0; i < c.layer_count(); ++i) {
    body->first_views.push_back(places.count());
    const LayerTensors tensor = {checkpoint, str("model.layers.", i, ".")};
    place_layer(tensor, c.layer(i), c.hidden, &body->layers[static_cast<size_t>(i)], &places);
    body->parts.push_back({.all_but_experts = body->store.end_part(), .first_expert_view = places.count()});
    if (!c.layer(i).ffn.experts) continue;
    place_experts({tensor, c.layer(i).ffn, c.hidden}, &body->layers[static_cast<size_t>(i)], &places);
    body->parts.back().experts = body->store.end_part();
  }
  body->first_views.push_back(places.count());
  if (c.token_width() > 0) {
    body->table_part = place_token_inputs(checkpoint, c, &body->token_inputs.emplace(), &places, &body->store);
    body->host_bytes = body->store.part_bytes(body->table_part);
  }
  places.place(&body->final_norm, {&checkpoint.require("model.norm.weight", {c.hidden})});
  if (!c.tied_head) places.place(&body->head, {&checkpoint.require("lm_head.weight", {c.vocab, c.hidden})});
  if (c.mtp) {
    body->own_mtp_norm = c.mtp->own_norm;
    place_mtp({checkpoint, "mtp."}, *c.mtp, c.hidden, &body->mtp.emplace(), &places);
  }
  if (c.tied_head) body->head = body->embedding;
  body->all_bytes = body->store.bytes() - body->host_bytes;
  body->checkpoint = &checkpoint;
  body->possible = possible_substitutes_of(checkpoint, body->store, backend);
  return Weights(std::move(body));
}

Weights Weights::reserve(const Checkpoint& checkpoint, Device& device, const WeightStoreOptions& options) {
  Weights weights = place(checkpoint, device.backend(), options);
  weights.allocate(device, {});
  return weights;
}

void Weights::Body::bind() {
  places.bind();
  if (mtp && !own_mtp_norm) mtp->norm = final_norm;
  if (tied_head) head = embedding;
}

void Weights::allocate(Device& device, const WeightPlacement& placement) {
  CHECK(!allocated() && placement.host_layers >= 0 && placement.host_layers <= layer_count(),
        "host_layers=", placement.host_layers);
  std::vector<bool> in_host(body_->store.part_count());
  in_host[0] = placement.host_embedding && !body_->tied_head;
  for (int64_t layer = layer_count() - placement.host_layers; layer < layer_count(); ++layer) {
    for (const size_t part : body_->parts_that_leave(layer, placement.experts_alone)) in_host[part] = true;
  }
  if (body_->token_inputs) in_host[body_->table_part] = true;
  body_->store.allocate(device, "weights", in_host);
  body_->bind();
  body_->host_layers = placement.host_layers;
  body_->experts_alone = placement.experts_alone;
  body_->allocated = true;
  try {
    set_substitute(device, placement.substitute);
  } catch (...) {
    release();
    throw;
  }
}

void Weights::release() {
  body_->substitutes.reset();
  body_->store.release();
  body_->host_layers = 0;
  body_->experts_alone = false;
  body_->allocated = false;
}

uint64_t Weights::movable_bytes() const { return body_->tied_head || embedding_in_host() ? 0 : embedding_bytes(); }

void Weights::move_embedding_to_host(Device& device) {
  body_->store.move_to_host(0, device, "embeddings");
  body_->bind();
}

std::vector<size_t> Weights::Body::parts_that_leave(int64_t layer, bool without_rest) const {
  const LayerParts& of = parts[static_cast<size_t>(layer)];
  std::vector<size_t> leave;
  if (!without_rest) leave.push_back(of.all_but_experts);
  if (of.experts != 0) leave.push_back(of.experts);
  return leave;
}

uint64_t Weights::layer_bytes(int64_t layer) const {
  const LayerParts& of = body_->parts[static_cast<size_t>(layer)];
  return body_->store.part_bytes(of.all_but_experts) + expert_part_bytes(layer);
}

uint64_t Weights::expert_part_bytes(int64_t layer) const {
  const size_t part = body_->parts[static_cast<size_t>(layer)].experts;
  return part == 0 ? 0 : body_->store.part_bytes(part);
}

bool Weights::has_experts() const {
  return std::any_of(body_->parts.begin(), body_->parts.end(),
                     [](const LayerParts& layer) { return layer.experts != 0; });
}

uint64_t Weights::host_bytes(int64_t layer) const {
  if (layer < layer_count() - host_layers()) return 0;
  return experts_alone() ? expert_part_bytes(layer) : layer_bytes(layer);
}

std::vector<std::span<const std::byte>> Weights::host_parts(int64_t layer) const {
  std::vector<std::span<const std::byte>> parts;
  if (layer < layer_count() - host_layers()) return parts;
  for (const size_t part : body_->parts_that_leave(layer, experts_alone())) {
    parts.emplace_back(body_->store.part_data(part), body_->store.part_bytes(part));
  }
  return parts;
}

LayerWeights Weights::layer_at(int64_t layer, const std::byte* data) const {
  const auto index = static_cast<size_t>(layer);
  const LayerParts& of = body_->parts[index];
  const LayerWeights& own = body_->layers[index];
  LayerWeights there = own;
  if (experts_alone() && of.experts == 0) return there;
  const size_t first = experts_alone() ? of.first_expert_view : body_->first_views[index];
  const size_t part = experts_alone() ? of.experts : of.all_but_experts;
  body_->places.bind_copy(first, body_->first_views[index + 1], own, body_->store.part_begin(part), data, &there);
  return there;
}

uint64_t Weights::layers_bytes() const {
  uint64_t bytes = 0;
  for (const LayerWeights& w : body_->layers) {
    for (const Weight* weight :
         {&w.qkv, &w.output, &w.gate_up, &w.down, &w.experts.router, &w.token.gate, &w.token.projection})
      bytes += stored_bytes(*weight);
  }
  if (body_->token_inputs) bytes += stored_bytes(body_->token_inputs->projection);
  return bytes;
}

}  // namespace headrace
