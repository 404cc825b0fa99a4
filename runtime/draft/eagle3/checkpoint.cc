#include "runtime/draft/eagle3/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "runtime/model/config_check.h"
#include "runtime/model/files/hub_cache.h"

namespace headrace {
namespace {

constexpr const char* kLayerTensors[] = {
    "midlayer.hidden_norm.weight",      "midlayer.input_layernorm.weight",  "midlayer.mlp.down_proj.weight",
    "midlayer.mlp.gate_proj.weight",    "midlayer.mlp.up_proj.weight",      "midlayer.post_attention_layernorm.weight",
    "midlayer.self_attn.k_proj.weight", "midlayer.self_attn.o_proj.weight", "midlayer.self_attn.q_proj.weight",
    "midlayer.self_attn.v_proj.weight",
};
constexpr const char* kOtherTensors[] = {
    "fc.weight",
    "norm.weight",
    "lm_head.weight",
    "embed_tokens.weight",
    "fc_norm.0.weight",
    "fc_norm.1.weight",
    "fc_norm.2.weight",
    "d2t",
    "t2d",
};
// Parts of the target, and computed tables, which some publishers include.
constexpr const char* kIgnoredTensors[] = {
    "midlayer.self_attn.rotary_emb.inv_freq",
    "rotary_emb.inv_freq",
    "verifier_lm_head.weight",
    "verifier_norm.weight",
};

bool take_prefix(std::string_view prefix, std::string* name) {
  if (name->compare(0, prefix.size(), prefix) != 0) return false;
  name->erase(0, prefix.size());
  return true;
}

// Unifies spellings: "model.layers.0.x", "layers.0.x" and "midlayer.x" are the same tensor.
std::string plain_name(std::string name) {
  take_prefix("model.", &name);
  return take_prefix("layers.0.", &name) ? "midlayer." + name : name;
}

template <typename Stored>
std::vector<int64_t> widened(std::string_view bytes) {
  std::vector<int64_t> out(bytes.size() / sizeof(Stored));
  for (size_t i = 0; i < out.size(); ++i) {
    Stored value;
    std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
    out[i] = value;
  }
  return out;
}

}  // namespace

Eagle3Checkpoint::Eagle3Checkpoint(const std::string& directory, const ModelConfig& target)
    : DraftCheckpoint(directory) {
  config_ = parse_eagle3_config(read_small_file(config_file_, kMaxConfigBytes), config_file_, target);
  files_ = TensorFiles(path_);
  name_tensors();
  check_shapes();
  read_target_ids();
}

void Eagle3Checkpoint::name_tensors() {
  for (size_t i = 0; i < files_.tensors().size(); ++i) {
    TensorInfo info = files_.tensors()[i];
    const std::string stored_name = std::exchange(info.name, plain_name(info.name));
    if (among(info.name, kIgnoredTensors)) continue;
    if (!among(info.name, kLayerTensors) && !among(info.name, kOtherTensors))
      throw_error(ExitCode::kBadInput, files_.file_of(i),
                  "holds the tensor \"" + printable(stored_name) + "\", which does not belong to an EAGLE-3 head",
                  "a head of another kind cannot be run without it");
    if (info.name != "fc.weight") {
      add_tensor(std::move(info), i);
      continue;
    }
    const std::vector<int64_t> shape = {config_.hidden, 3 * config_.target_hidden};
    if (info.shape != shape)
      throw_error(ExitCode::kBadInput, files_.file_of(i),
                  str("tensor fc.weight has the shape ", shape_text(info.shape), "; a hidden size of ", config_.hidden,
                      " and three states of the target's ", config_.target_hidden, " ask for ", shape_text(shape)));
    for (int64_t block = 0; block < 3; ++block)
      add_tensor({str("fc.", block, ".weight"),
                  {config_.hidden, config_.target_hidden},
                  info.stored_type,
                  info.stored_bytes / 3},
                 i, block * config_.target_hidden);
  }
  finish_tensors();
}

void Eagle3Checkpoint::check_shapes() {
  Eagle3Config& c = config_;
  if (find("fc.0.weight") == nullptr)
    throw_error(ExitCode::kBadInput, path_, "lacks the tensor fc.weight", "an EAGLE-3 head is expected here");
  const TensorInfo* q = find("midlayer.self_attn.q_proj.weight");
  if (q == nullptr) throw_error(ExitCode::kBadInput, path_, "lacks the tensor midlayer.self_attn.q_proj.weight");
  const int64_t rows = q->rows();
  if (rows % (2 * c.heads) != 0 || rows > kMaxWidth)
    throw_error(ExitCode::kBadInput, path_,
                str("tensor ", q->name, " has the shape ", shape_text(q->shape),
                    ": its rows do not give an even head_dim for the ", c.heads, " heads of its config"));
  c.head_dim = rows / c.heads;
  if (c.head_dim > kMaxDraftHeadDim)
    throw_error(ExitCode::kBadInput, path_,
                str("tensor ", q->name, " has ", rows, " rows for ", c.heads, " heads: head_dim ", c.head_dim,
                    " is above ", kMaxDraftHeadDim, ", the most that attention computes"));
  check_rope(c.rope, c.head_dim, config_file_);

  const std::string p = "midlayer.";
  const int64_t kv = c.kv_heads * c.head_dim;
  require(p + "self_attn.q_proj.weight", {rows, 2 * c.hidden});
  require(p + "self_attn.k_proj.weight", {kv, 2 * c.hidden});
  require(p + "self_attn.v_proj.weight", {kv, 2 * c.hidden});
  require(p + "self_attn.o_proj.weight", {c.hidden, rows});
  for (const char* norm : {"midlayer.input_layernorm.weight", "midlayer.hidden_norm.weight",
                           "midlayer.post_attention_layernorm.weight", "norm.weight"})
    require(norm, {c.hidden});
  require(p + "mlp.gate_proj.weight", {c.ffn, c.hidden});
  require(p + "mlp.up_proj.weight", {c.ffn, c.hidden});
  require(p + "mlp.down_proj.weight", {c.hidden, c.ffn});
  for (const char* norm : {"fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight"})
    c.fc_norm |= find(norm) != nullptr;
  for (int i = 0; c.fc_norm && i < 3; ++i) require(str("fc_norm.", i, ".weight"), {c.target_hidden});
  check_shared();
}

// Determines which parts are the head's own and which it shares with the target.
void Eagle3Checkpoint::check_shared() {
  Eagle3Config& c = config_;
  c.own_embedding |= c.hidden != c.target_hidden;
  if (c.own_embedding && find("embed_tokens.weight") == nullptr)
    throw_error(ExitCode::kBadInput, path_,
                str("lacks the tensor embed_tokens.weight, and its hidden size ", c.hidden,
                    " cannot share an embedding of the target's ", c.target_hidden));
  if (find("embed_tokens.weight") != nullptr) require("embed_tokens.weight", {c.target_vocab, c.hidden});
  // If the config has no vocabulary of the head, d2t decides; without d2t it is the target's, and without an lm_head so
  // is the head's.
  const TensorInfo* d2t = find("d2t");
  if (!c.own_head && d2t != nullptr && d2t->cols() < c.target_vocab) c.vocab = d2t->cols(), c.own_head = true;
  c.own_head |= c.hidden != c.target_hidden || find("lm_head.weight") != nullptr;
  if (c.own_head) require("lm_head.weight", {c.vocab, c.hidden});
}

// d2t holds offsets: draft id i is target id i + d2t[i]. t2d marks the target ids that have a draft id; the two must
// agree.
void Eagle3Checkpoint::read_target_ids() {
  const Eagle3Config& c = config_;
  const auto refuse = [&](const std::string& what) { throw_error(ExitCode::kBadInput, path_, what); };
  const auto elements = [&](const char* name, int64_t count) {
    const TensorInfo& info = require(name, {count});
    const std::string bytes = stored_range(info).text();
    if (info.stored_type == "I64") return widened<int64_t>(bytes);
    if (info.stored_type == "I32") return widened<int32_t>(bytes);
    if (info.stored_type != "BOOL" && info.stored_type != "U8")
      refuse(str("tensor ", name, " is stored as ", info.stored_type, "; whole numbers are expected"));
    return widened<uint8_t>(bytes);
  };
  const bool whole = c.vocab == c.target_vocab && find("d2t") == nullptr;
  const std::vector<int64_t> offsets =
      whole ? std::vector<int64_t>(static_cast<size_t>(c.vocab)) : elements("d2t", c.vocab);
  int64_t before = -1;
  for (size_t i = 0; i < offsets.size(); ++i) {
    const int64_t offset = offsets[i], room = c.target_vocab - static_cast<int64_t>(i);
    const int64_t id = offset >= -c.target_vocab && offset < room ? static_cast<int64_t>(i) + offset : -1;
    if (id <= before)
      refuse(str("d2t[", i, "] is ", offset, ": the target ids i + d2t[i] must ascend and be below the vocabulary of ",
                 c.target_vocab));
    target_ids_.push_back(static_cast<int32_t>(before = id));
  }
  if (find("t2d") == nullptr) return;
  const std::vector<int64_t> marks = elements("t2d", c.target_vocab);
  size_t next = 0;
  for (size_t id = 0; id < marks.size(); ++id) {
    const bool drafted = next < target_ids_.size() && target_ids_[next] == static_cast<int32_t>(id);
    if (drafted != (marks[id] != 0))
      refuse(str("d2t and t2d contradict each other: target id ", id,
                 drafted ? " is drafted, and t2d does not mark it" : " is marked by t2d, and no draft id is it"));
    next += drafted;
  }
}

std::unique_ptr<Eagle3Checkpoint> open_eagle3(const std::string& model, const ModelConfig& target) {
  return std::make_unique<Eagle3Checkpoint>(find_model(model), target);
}

}  // namespace headrace
