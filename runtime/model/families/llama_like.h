// What the decoders that are like Llama's have in common: the pieces of which their families' readers are made. All
// layers are alike. Each function throws Error(kBadInput) that names the file, the key and the value. Pure.
#pragma once

#include <cstdint>

#include "runtime/model/config.h"
#include "runtime/model/families/family.h"

namespace headrace {

// ---- config.json ----

// Quantised weights, activations other than SiLU, biases of the MLP.
void refuse_unsupported(const JsonFields& fields);
// Calls it, and reads the hidden size, the vocabulary, the positions and epsilon.
void read_sizes(const JsonFields& fields, ModelConfig* config);
// What a file may leave out.
struct HeadDefaults {
  bool kv_heads = false;  // num_key_value_heads: one per head
  int64_t head_dim = 0;   // 0: hidden / heads
};
AttentionSpec read_heads(const JsonFields& fields, const ModelConfig& config, const HeadDefaults& defaults);
// sliding_window, if it is below the positions; `absent`: what its absence means. null: no window.
void refuse_window(const JsonFields& fields, const ModelConfig& config, int64_t absent);
// Layers without experts, of which no published model with experts has any.
void refuse_dense_layers(const JsonFields& fields);
// How many experts there are and how many a token uses; what an absent key means, 0: the key is needed.
struct ExpertKeys {
  const char* count = "num_experts";
  const char* used = "num_experts_per_tok";
  int64_t usual_count = 0, usual_used = 0;
};
ExpertsSpec read_expert_counts(const JsonFields& fields, const ExpertKeys& keys);
// The layers, which have this attention; rotary positions, the head, the end ids. The sizes have been read.
enum class QueryScale { kNone, kByPosition };
void read_layers(const JsonFields& fields, const AttentionSpec& attention, ModelConfig* config,
                 QueryScale scale = QueryScale::kNone);
// The same, of a model whose layers have this feed-forward part, too.
void read_layers(const JsonFields& fields, const LayerSpec& layer, ModelConfig* config,
                 QueryScale scale = QueryScale::kNone);

// ---- GGUF ----

// The hidden size, the vocabulary, the positions and epsilon. Refuses LongRoPE, and mixtures of experts unless allowed.
enum class Mixtures { kRefused, kAllowed };
void read_sizes(const GgufSource& source, ModelConfig* config, Mixtures mixtures = Mixtures::kRefused);
// A scale of queries and keys that only Ministral 3 has.
void refuse_query_scale(const GgufSource& source);
// Heads, and the biases that the file has.
enum class RopeDims { kAll, kPart };
enum class Windows { kRefused, kAllowed };
AttentionSpec read_heads(const GgufSource& source, const ModelConfig& config, RopeDims rotated = RopeDims::kAll,
                         Windows windows = Windows::kRefused);
// How many experts there are and how many a token uses. llama.cpp divides the chosen ones' weights by their sum in
// every model of the architectures that are read so.
ExpertsSpec read_expert_counts(const GgufSource& source);
// The RoPE that the keys and rope_freqs.weight say; the positions that it makes.
void read_rope(const GgufSource& source, ModelConfig* config);
// The layers, which have this attention; the head.
void read_layers(const GgufSource& source, const AttentionSpec& attention, ModelConfig* config);
void read_layers(const GgufSource& source, const LayerSpec& layer, ModelConfig* config);
// All of these, for a family whose files say everything.
void read_decoder(const GgufSource& source, ModelConfig* config);

// The names of a layer's tensors.
const std::vector<TensorName>& llama_like_tensors();

}  // namespace headrace
