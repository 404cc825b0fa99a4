#include "runtime/model/files/tensor_parts.h"

#include <string_view>
#include <utility>

#include "cache/base.h"

namespace headrace {
namespace {

struct Rows {
  const char* name;
  int64_t count;
};

// Rows follow each other in the order of the list.
void append_split(const TensorInfo& stored, size_t index, std::string_view fused, const std::vector<Rows>& split,
                  int64_t cols, const std::string& source, std::vector<TensorPart>* out) {
  int64_t rows = 0;
  for (const Rows& part : split) rows += part.count;
  const std::vector<int64_t> expected = {rows, cols};
  if (stored.shape != expected)
    throw_error(ExitCode::kBadInput, source,
                str("tensor ", printable(stored.name), " has the shape ", shape_text(stored.shape),
                    "; its config asks for ", shape_text(expected)));
  const std::string prefix = stored.name.substr(0, stored.name.size() - fused.size());
  int64_t first = 0;
  for (const Rows& part : split) {
    const uint64_t bytes = stored.stored_bytes / static_cast<uint64_t>(rows) * static_cast<uint64_t>(part.count);
    out->push_back({{prefix + part.name, {part.count, cols}, stored.stored_type, bytes}, index, first});
    first += part.count;
  }
}

// The decoder's tensors in a model that takes images: as transformers writes them since 4.52, and as it did before.
// Empty: a tensor is none of them.
std::string name_in_decoder(std::string_view name) {
  constexpr std::string_view kNow = "model.language_model.", kBefore = "language_model.";
  if (name.starts_with(kNow)) return str("model.", name.substr(kNow.size()));
  if (name.starts_with(kBefore)) return std::string(name.substr(kBefore.size()));
  return name == "lm_head.weight" ? std::string(name) : "";
}

}  // namespace

std::vector<TensorPart> decoder_parts(const ModelConfig& config, const std::vector<TensorInfo>& stored,
                                      const std::string& source) {
  constexpr std::string_view kQkv = "self_attn.qkv_proj.weight", kQkvBias = "self_attn.qkv_proj.bias",
                             kGateUp = "mlp.gate_up_proj.weight";
  const LayerSpec& layer = config.layers.front();  // in the files that join matrices, all layers are alike
  const int64_t q = layer.attention().q_width(), kv = layer.attention().kv_width(), ffn = layer.ffn.width;
  const std::vector<Rows> qkv = {
      {"self_attn.q_proj.weight", q}, {"self_attn.k_proj.weight", kv}, {"self_attn.v_proj.weight", kv}};
  const std::vector<Rows> gate_up = {{"mlp.gate_proj.weight", ffn}, {"mlp.up_proj.weight", ffn}};
  std::vector<TensorPart> out;
  for (size_t i = 0; i < stored.size(); ++i) {
    TensorInfo tensor = stored[i];
    if (config.images) tensor.name = name_in_decoder(tensor.name);
    if (tensor.name.ends_with(kQkvBias))
      throw_error(ExitCode::kBadInput, source,
                  str("tensor ", printable(tensor.name), ": one bias of q, k and v together is not supported"));
    if (tensor.name.ends_with(kQkv)) {
      append_split(tensor, i, kQkv, qkv, config.hidden, source, &out);
    } else if (tensor.name.ends_with(kGateUp)) {
      append_split(tensor, i, kGateUp, gate_up, config.hidden, source, &out);
    } else if (!tensor.name.empty()) {
      out.push_back({std::move(tensor), i, 0});
    }
  }
  return out;
}

}  // namespace headrace
