#include "runtime/model/files/tensor_parts.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "cache/base.h"
#include "runtime/model/files/mxfp4.h"

namespace headrace {
namespace {

constexpr std::string_view kQ = "self_attn.q_proj.weight";

struct Rows {
  const char* name;
  int64_t count;
};

void check_shape(const TensorInfo& stored, const std::vector<int64_t>& expected, const std::string& source) {
  if (stored.shape == expected) return;
  throw_error(ExitCode::kBadInput, source,
              str("tensor ", printable(stored.name), " has the shape ", shape_text(stored.shape),
                  "; its config asks for ", shape_text(expected)));
}

// Rows follow each other in the order of the list.
void append_split(const TensorInfo& stored, size_t index, std::string_view fused, const std::vector<Rows>& split,
                  int64_t cols, const std::string& source, std::vector<TensorPart>* out) {
  int64_t rows = 0;
  for (const Rows& part : split) rows += part.count;
  check_shape(stored, {rows, cols}, source);
  const std::string prefix = stored.name.substr(0, stored.name.size() - fused.size());
  int64_t first = 0;
  for (const Rows& part : split) {
    const uint64_t bytes = stored.stored_bytes / static_cast<uint64_t>(rows) * static_cast<uint64_t>(part.count);
    out->push_back({.tensor = {prefix + part.name, {part.count, cols}, stored.stored_type, bytes},
                    .stored = index,
                    .first_row = first});
    first += part.count;
  }
}

// The matrices of all experts, or their biases, that are stored as one tensor.
enum class FusedAs : uint8_t {
  kRows,     // [count, rows, cols], where gate's rows may come before up's
  kColumns,  // [count, cols, rows], where gate's and up's alternate
  kBiases,   // [count, rows], likewise
  kBlocks,   // [count, rows, cols / 32, 16], likewise: MXFP4 (mxfp4.h), beside which there is a tensor of scales
};
struct FusedExperts {
  std::string_view name;
  std::vector<const char*> parts;
  FusedAs as = FusedAs::kRows;
};
const FusedExperts kFusedExperts[] = {{"mlp.experts.gate_proj.weight", {"gate_proj"}},
                                      {"mlp.experts.up_proj.weight", {"up_proj"}},
                                      {"mlp.experts.down_proj.weight", {"down_proj"}},
                                      {"mlp.experts.gate_up_proj.weight", {"gate_proj", "up_proj"}},
                                      {"mlp.experts.gate_up_proj", {"gate_proj", "up_proj"}},
                                      {"mlp.experts.down_proj", {"down_proj"}},
                                      {"mlp.experts.gate_up_proj.columns", {"gate_proj", "up_proj"}, FusedAs::kColumns},
                                      {"mlp.experts.down_proj.columns", {"down_proj"}, FusedAs::kColumns},
                                      {"mlp.experts.gate_proj.bias", {"gate_proj"}, FusedAs::kBiases},
                                      {"mlp.experts.up_proj.bias", {"up_proj"}, FusedAs::kBiases},
                                      {"mlp.experts.down_proj.bias", {"down_proj"}, FusedAs::kBiases},
                                      {"mlp.experts.gate_up_proj.bias", {"gate_proj", "up_proj"}, FusedAs::kBiases},
                                      {"mlp.experts.gate_up_proj.blocks", {"gate_proj", "up_proj"}, FusedAs::kBlocks},
                                      {"mlp.experts.down_proj.blocks", {"down_proj"}, FusedAs::kBlocks}};

// Of the tensor of blocks with this index: that of its scales.
size_t scales_of(const std::vector<TensorInfo>& stored, size_t index, const std::vector<int64_t>& shape,
                 const std::string& source) {
  constexpr std::string_view kBlocks = "_blocks", kScales = "_scales";
  const std::string& name = stored[index].name;
  const std::string wanted = name.substr(0, name.size() - kBlocks.size()) + std::string(kScales);
  const auto found =
      std::find_if(stored.begin(), stored.end(), [&](const TensorInfo& tensor) { return tensor.name == wanted; });
  if (found == stored.end())
    throw_error(ExitCode::kBadInput, source,
                str("lacks the tensor ", printable(wanted), ", the scales of ", printable(name)));
  check_shape(*found, {shape.begin(), shape.end() - 1}, source);
  for (const TensorInfo* const tensor : {&stored[index], &*found})
    if (tensor->stored_type != "U8")
      throw_error(ExitCode::kBadInput, source,
                  str("tensor ", printable(tensor->name), " is stored as ", tensor->stored_type, "; U8 is expected"));
  return static_cast<size_t>(found - stored.begin());
}

// The element of matrix `part` of `parts` in the expert `index`, whose matrices have `rows` rows in all.
ElementPlaces places_of(FusedAs as, int64_t index, int64_t part, int64_t parts, int64_t rows, int64_t cols) {
  if (as == FusedAs::kColumns) return {index * rows * cols + part, parts, rows};
  if (as == FusedAs::kBlocks) return {index * rows + part, parts, 1};
  if (as == FusedAs::kBiases && parts > 1) return {index * rows + part, 0, parts};
  return {};
}

// False: the tensor is none of these.
bool append_experts(const TensorInfo& stored, size_t index, const std::vector<TensorInfo>& all,
                    const ModelConfig& config, const std::string& source, std::vector<TensorPart>* out) {
  const auto fused = std::find_if(std::begin(kFusedExperts), std::end(kFusedExperts),
                                  [&](const FusedExperts& each) { return stored.name.ends_with(each.name); });
  const std::optional<ExpertsSpec>& experts = config.layers.front().ffn.experts;
  if (!experts || fused == std::end(kFusedExperts)) return false;
  const bool down = fused->name.find("down") != std::string_view::npos;
  const int64_t rows = down ? config.hidden : experts->width, cols = down ? experts->width : config.hidden;
  const auto parts = static_cast<int64_t>(fused->parts.size());
  const bool biases = fused->as == FusedAs::kBiases;
  const std::vector<int64_t> own = biases ? std::vector<int64_t>{rows} : std::vector<int64_t>{rows, cols};
  std::vector<int64_t> shape = {experts->count, parts * rows};
  const bool blocks = fused->as == FusedAs::kBlocks;
  if (blocks) {
    shape.insert(shape.end(), {ceil_div(cols, kMxfp4Group), kMxfp4GroupBytes});
  } else if (!biases) {
    shape.insert(shape.end() - (fused->as == FusedAs::kColumns ? 1 : 0), cols);
  }
  check_shape(all[index], shape, source);
  if (blocks && cols % kMxfp4Group != 0)
    throw_error(ExitCode::kBadInput, source,
                str("tensor ", printable(all[index].name), " has groups of ", kMxfp4Group, " weights; rows of ", cols,
                    " are not made of them"));
  const std::optional<size_t> scales = blocks ? std::optional(scales_of(all, index, shape, source)) : std::nullopt;
  const std::string prefix =
      stored.name.substr(0, stored.name.size() - fused->name.size()) + std::string("mlp.experts.");
  const int64_t matrices = experts->count * parts;
  for (int64_t i = 0; i < matrices; ++i) {
    const std::string name =
        str(prefix, i / parts, ".", fused->parts[static_cast<size_t>(i % parts)], biases ? ".bias" : ".weight");
    const uint64_t bytes = stored.stored_bytes / static_cast<uint64_t>(matrices);
    TensorPart& part = out->emplace_back();
    part.tensor = {name, own, stored.stored_type, bytes};
    if (blocks)
      part.tensor.stored_type = "MXFP4", part.tensor.stored_bytes = bytes / kMxfp4GroupBytes * kMxfp4BlockBytes;
    part.stored = index;
    part.first_row = i * (biases ? 1 : rows);
    part.places = places_of(fused->as, i / parts, i % parts, parts, parts * rows, cols);
    part.scales = scales;
    part.run = i / parts;
    part.runs = experts->count;
  }
  return true;
}

// Each head has rows of q, then its gate's.
void append_gated(const TensorPart& stored, const AttentionSpec& attention, int64_t hidden, const std::string& source,
                  std::vector<TensorPart>* out) {
  check_shape(stored.tensor, {2 * attention.q_width(), hidden}, source);
  const std::string prefix = stored.tensor.name.substr(0, stored.tensor.name.size() - kQ.size());
  for (const bool gate : {false, true}) {
    TensorPart part = stored;
    part.tensor.name = prefix + std::string(gate ? "self_attn.gate_proj.weight" : kQ);
    part.tensor.shape = {attention.q_width(), hidden};
    part.tensor.stored_bytes /= 2;
    part.order = {.head_dim = attention.head_dim,
                  .stride = 2 * attention.head_dim,
                  .offset = gate ? attention.head_dim : 0,
                  .rotary = gate ? attention.head_dim : attention.rotary_dims()};
    out->push_back(std::move(part));
  }
}

// Of q and k, and of what else has a value for each of their rows.
RowOrder order_of(const TensorInfo& tensor, const AttentionSpec& attention, bool rotary_pairs) {
  constexpr std::string_view kNames[] = {kQ, "self_attn.k_proj.weight", "self_attn.q_proj.bias",
                                         "self_attn.k_proj.bias"};
  constexpr std::string_view kNorms[] = {"self_attn.q_norm.weight", "self_attn.k_norm.weight"};
  const auto is_named = [&](std::string_view end) { return tensor.name.ends_with(end); };
  const bool part = attention.rotary_dims() != attention.head_dim;
  const bool named = std::any_of(std::begin(kNames), std::end(kNames), is_named) ||
                     (part && std::any_of(std::begin(kNorms), std::end(kNorms), is_named));
  const int64_t rows = tensor.shape.size() == 1 ? tensor.cols() : tensor.rows();
  // A tensor beyond the config's layers is of any shape.
  if (!named || !(part || rotary_pairs) || rows % attention.head_dim != 0) return {};
  return {.head_dim = attention.head_dim,
          .stride = attention.head_dim,
          .rotary = attention.rotary_dims(),
          .neighbours = rotary_pairs};
}

// Names the tensor as the decoder does. False: it is none of the decoder's.
bool to_decoder(const JsonForm& form, TensorPart* part) {
  std::string& name = part->tensor.name;
  if (form.tensor_name != nullptr) name = form.tensor_name(name);
  if (name.empty()) return false;
  for (const StoredValues& stored : form.stored) {
    if (!name.ends_with(stored.suffix)) continue;
    part->as = stored.as;
    if (!stored.decoder.empty()) name.replace(name.size() - stored.suffix.size(), stored.suffix.size(), stored.decoder);
    break;
  }
  return true;
}

// A depthwise convolution, [channels, 1, tokens] or [channels, tokens], is a vector to the decoder. A shared expert's
// gate, which may be stored as a vector, is a matrix of one row. What a token adds to the layers is a row for each.
void shape_for_decoder(const ModelConfig& config, const std::string& source, TensorInfo* tensor) {
  if (tensor->name.ends_with("mlp.shared_expert_gate.weight") && tensor->shape.size() == 1)
    tensor->shape.insert(tensor->shape.begin(), 1);
  if (config.token_width() > 0 && tensor->name == "model.embed_tokens_per_layer.weight") {
    const int64_t layers = config.layer_count(), width = config.token_width();
    check_shape(*tensor, {config.vocab, layers * width}, source);
    const std::optional<WeightType> blocks = tensor->block_type();
    if (blocks && width % weight_type_info(*blocks).block_elements != 0)
      throw_error(ExitCode::kBadInput, source,
                  str("tensor ", printable(tensor->name), " is stored as ", tensor->stored_type, ", whose blocks hold ",
                      weight_type_info(*blocks).block_elements, " weights; the ", width,
                      " that a token adds to a layer are not made of them"));
    tensor->shape = {config.vocab * layers, width};
  }
  if (!tensor->name.ends_with("linear_attn.conv1d.weight")) return;
  int64_t count = 1;
  for (const int64_t size : tensor->shape) count *= size;
  tensor->shape = {count};
}

}  // namespace

std::vector<TensorPart> decoder_parts(const ModelConfig& config, const std::vector<TensorInfo>& stored,
                                      const std::string& source, const StoredForm& form) {
  constexpr std::string_view kQkv = "self_attn.qkv_proj.weight", kQkvBias = "self_attn.qkv_proj.bias",
                             kGateUp = "mlp.gate_up_proj.weight";
  const AttentionSpec& attention = config.attention();  // of all layers in the files that join matrices
  const int64_t q = attention.q_width(), kv = attention.kv_width(), ffn = config.layers.front().ffn.width;
  const std::vector<Rows> qkv = {
      {"self_attn.q_proj.weight", q}, {"self_attn.k_proj.weight", kv}, {"self_attn.v_proj.weight", kv}};
  const std::vector<Rows> gate_up = {{"mlp.gate_proj.weight", ffn}, {"mlp.up_proj.weight", ffn}};
  std::vector<TensorPart> out;
  for (size_t i = 0; i < stored.size(); ++i) {
    TensorPart part = {.tensor = stored[i], .stored = i};
    if (form.json != nullptr && !to_decoder(*form.json, &part)) continue;
    TensorInfo& tensor = part.tensor;
    if (tensor.name.ends_with(kQkvBias))
      throw_error(ExitCode::kBadInput, source,
                  str("tensor ", printable(tensor.name), ": one bias of q, k and v together is not supported"));
    if (append_experts(tensor, i, stored, config, source, &out)) continue;
    if (tensor.name.ends_with(kQkv)) {
      append_split(tensor, i, kQkv, qkv, config.hidden, source, &out);
    } else if (tensor.name.ends_with(kGateUp)) {
      append_split(tensor, i, kGateUp, gate_up, config.hidden, source, &out);
    } else if (attention.gated_output && tensor.name.ends_with(kQ)) {
      append_gated(part, attention, config.hidden, source, &out);
    } else {
      shape_for_decoder(config, source, &tensor);
      part.order = order_of(tensor, attention, form.rotary_pairs);
      out.push_back(std::move(part));
    }
  }
  return out;
}

}  // namespace headrace
