// A model's weights on the device, in the shapes that the forward pass multiplies with: q, k and v as one matrix, gate
// and up as one; matrices that a file has quantised stay so if they are to be kept. Layers that the device has no room
// for are in pinned host memory, in the same layout, from where WeightStreamer brings them. Owns the memory; the views
// below point into it. Immutable once loaded, until released.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "offload/device/device.h"
#include "runtime/base/progress.h"
#include "runtime/model/checkpoint.h"
#include "runtime/model/weight_places.h"

namespace headrace {

struct ExpertSlab;

// What a matrix takes as it is stored in a file, or in the compute type where it is not kept.
inline uint64_t stored_bytes(const Weight& weight) {
  uint64_t bytes = 0;
  for (const WeightPart& part : weight.parts) bytes += weight_bytes(part.type, part.rows, weight.cols);
  return bytes;
}

// The matrices of a layer's experts: those of expert 0, and how far apart the experts' are. All are of the same types.
struct ExpertWeights {
  Weight router;                                 // [spec.scores(), hidden], never quantised
  Weight gate_up, down;                          // [2 * width, hidden] and [hidden, width], of expert 0
  uint64_t gate_up_stride = 0, down_stride = 0;  // in bytes
  // The shared expert's matrices have the form of the others and follow them, so it is one more of them.
  bool shared_is_last = false;
  // Where they have biases; else null. Of the router, [count], and of expert 0.
  const void *router_bias = nullptr, *gate_up_bias = nullptr, *down_bias = nullptr;
  uint64_t gate_up_bias_stride = 0, down_bias_stride = 0;
  // Where they are beside the dense part; else null.
  const void* router_scale = nullptr;  // [hidden], of the router's input
  const float* factors = nullptr;      // [count]
  // [hidden] each: of what the dense part makes, of what the experts read, and of what they make.
  const void *dense_norm = nullptr, *norm = nullptr, *output_norm = nullptr;
  // Not null: the experts' matrices and biases are those of its slots (kernels/experts/slab.h).
  const ExpertSlab* slab = nullptr;
};

// What a token adds to a layer (runtime/layers/token_inputs.h). None is quantised: they are small, and what they round
// stays in the residual stream.
struct TokenLayerWeights {
  Weight gate;                   // [width, hidden]
  Weight projection;             // [hidden, width]
  const void* norm = nullptr;    // [hidden]
  const void* scalar = nullptr;  // [1]: LayerWeights::scalar of such a layer, at whose end this is
};
struct TokenInputWeights {
  Weight table;                // [vocab * layers, width]: a token's rows follow each other. Always in host memory
  Weight projection;           // [layers * width, hidden], never quantised: of a token's embedding
  const void* norm = nullptr;  // [width]
};

// Vectors are of the weights' type, or f32; matrices are [out, in]. Null where the layer has none.
struct LayerWeights {
  LayerSpec spec;
  const void* input_norm = nullptr;  // [hidden]
  // [spec.in_width(), hidden], the mixer's first product. Attention: q, k, v, and the gates where the output is gated.
  // DeltaNet: q, k and v (its channels), z, b, a; the last two are never quantised.
  Weight qkv;
  const void* qkv_bias = nullptr;     // [(heads + 2 kv_heads) * head_dim]
  const void* q_norm = nullptr;       // [head_dim]
  const void* k_norm = nullptr;       // [head_dim]
  const float* sinks = nullptr;       // [heads]
  const float* conv = nullptr;        // [channels, conv]: the last of a row multiplies the current token
  const float* decay = nullptr;       // [v_heads], below 0: the state decays by exp(decay * softplus(a + dt_bias))
  const float* dt_bias = nullptr;     // [v_heads]
  const float* head_norm = nullptr;   // [v_dim], of each value head's output
  Weight output;                      // [hidden, spec.out_width()]
  const void* output_bias = nullptr;  // [hidden]
  const void* output_norm = nullptr;  // [hidden], of what attention adds
  const void* ffn_norm = nullptr;     // [hidden]
  // [2 * ffn, hidden], of the shared expert where there is one; none, as down, where there are experts alone.
  Weight gate_up;
  Weight down;                      // [hidden, ffn]
  const void* down_norm = nullptr;  // [hidden], of what the feed-forward part adds
  const void* scalar = nullptr;     // [1]: the residual stream is multiplied by it at the layer's end
  ExpertWeights experts;
  TokenLayerWeights token;

  uint64_t experts_bytes() const {  // of all experts' matrices: stored_bytes()
    if (!spec.ffn.experts) return 0;
    return static_cast<uint64_t>(spec.ffn.experts->count) *
           (stored_bytes(experts.gate_up) + stored_bytes(experts.down));
  }
};

// The block that guesses the token after the next: fc of [embedding of the next token; the model's state after its last
// norm], each normalised, then a layer, a norm and the model's head.
struct MtpWeights {
  const void* embedding_norm = nullptr;  // [hidden]
  const void* hidden_norm = nullptr;     // [hidden]
  Weight fc;                             // [hidden, 2 * hidden]
  LayerWeights layer;
  const void* norm = nullptr;  // [hidden]; the model's last where the block has none
};

// What a matrix takes in the compute type, between others.
inline uint64_t unpacked_bytes(const Weight& weight, DType type) {
  return round_up(weight_bytes(plain_weight_type(type), weight.rows(), weight.cols), 256);
}

// Where a model's weights are; what is not named is on the device.
struct WeightPlacement {
  int64_t host_layers = 0;      // the last layers' weights are in pinned host memory, in the device's layout
  bool experts_alone = false;   // of these layers the experts' matrices alone, and a shared one's
  bool host_embedding = false;  // so are the embeddings, if they may be
  // Those layers have substitutes of this type on the device, too. REQUIRES: Weights::possible_substitutes() has it.
  std::optional<WeightType> substitute{};
};

class Substitutes;

class Weights {
 public:
  ~Weights();
  Weights(Weights&&) noexcept;
  Weights& operator=(Weights&&) noexcept;
  // Checks names and shapes and lays out the whole. It has no memory yet. `checkpoint` must outlive allocate() and
  // load().
  static Weights place(const Checkpoint& checkpoint, Backend backend, const WeightStoreOptions& options);
  // The same with all memory on the device.
  static Weights reserve(const Checkpoint& checkpoint, Device& device, const WeightStoreOptions& options);
  // Reserves the memory, before a byte is read. REQUIRES: there is none. Throws Error(kDoesNotFit).
  void allocate(Device& device, const WeightPlacement& placement);
  // Frees the memory, so that the weights are not loaded. REQUIRES: nothing reads them; the device is idle.
  void release();
  bool allocated() const { return body_->allocated; }
  // False if `interrupt` was set on the way: then nothing is loaded. `progress` and `interrupt` may be null.
  bool load(const Checkpoint& checkpoint, Device& device, Progress* progress, const std::atomic<bool>* interrupt);
  bool loaded() const;
  // The embeddings, of which a step reads a row for each token, may be in pinned host memory unless the head is tied to
  // them. Bytes of the device that they take, or would take, and would leave; 0: they have to stay, or have left.
  uint64_t movable_bytes() const;
  bool embedding_in_host() const { return body_->store.in_host(0); }
  uint64_t embedding_bytes() const { return body_->store.part_bytes(0); }  // wherever they are
  // REQUIRES: movable_bytes(); loaded; the device is idle.
  void move_embedding_to_host(Device& device);
  uint64_t staging_bytes() const;  // as WeightStore
  const WeightDamage& damage() const { return body_->store.damage(); }

  const WeightStoreOptions& options() const { return body_->store.options(); }
  DType dtype() const { return body_->store.dtype(); }  // of vectors and of matrices that are not kept in blocks
  bool keeps_blocks() const { return body_->store.keeps_blocks(); }
  std::optional<WeightType> quantises_to() const { return body_->store.quantises_to(); }
  uint64_t bytes() const { return body_->store.bytes() + substitute_bytes(); }  // of the device
  std::vector<WeightTypeUse> types() const { return body_->store.types(); }
  uint64_t layers_bytes() const;  // of the layers' matrices but their experts': stored_bytes()
  const LayerWeights& layer(int64_t index) const { return body_->layers[static_cast<size_t>(index)]; }
  const MtpWeights* mtp() const { return body_->mtp ? &*body_->mtp : nullptr; }  // null: the model has none
  const TokenInputWeights* token_inputs() const { return body_->token_inputs ? &*body_->token_inputs : nullptr; }
  const Weight& embedding() const { return body_->embedding; }  // [vocab, hidden]
  const void* final_norm() const { return body_->final_norm; }  // [hidden]
  const Weight& head() const { return body_->head; }            // [vocab, hidden]; the embedding where the head is tied
  float logit_cap() const { return body_->logit_cap; }          // ModelConfig::logit_cap

  // ---- layers in host memory ----
  int64_t layer_count() const { return static_cast<int64_t>(body_->layers.size()); }
  int64_t host_layers() const { return body_->host_layers; }
  bool has_experts() const;                                    // some layer has
  bool experts_alone() const { return body_->experts_alone; }  // of these layers
  // In whole pages: all of a layer's weights; those that leave where experts leave alone, 0 where it has no experts.
  uint64_t layer_bytes(int64_t layer) const;
  uint64_t expert_part_bytes(int64_t layer) const;
  uint64_t host_bytes(int64_t layer) const;  // in host memory now
  // What is there of a layer.
  std::vector<std::span<const std::byte>> host_parts(int64_t layer) const;
  // The layer, if these have been copied to `data`, one after another.
  LayerWeights layer_at(int64_t layer, const std::byte* data) const;
  // Of all that may be on the device, wherever it is, without substitutes; of what never is, which is in pinned memory.
  uint64_t all_bytes() const { return body_->all_bytes; }
  uint64_t host_bytes() const { return body_->host_bytes; }

  // ---- substitutes of those layers ----
  // Of all layers, for sizes and types, the most bits first: they have no memory. None: the model has experts, or no
  // type has fewer bits than its layers.
  const std::vector<std::unique_ptr<Substitutes>>& possible_substitutes() const { return body_->possible; }
  const Substitutes* possible_substitutes(WeightType type) const;  // null: not among them
  std::optional<WeightType> substitute() const;                    // of the layers in host memory now
  uint64_t substitute_bytes() const;
  // Frees or reserves them, where the layers stay as they are; then they are not loaded. As allocate() and release().
  void set_substitute(Device& device, std::optional<WeightType> type);
  // What partial steps multiply: a layer's substitute, or itself where it has none.
  const LayerWeights& partial_layer(int64_t index) const;

 private:
  struct LayerParts {                         // of the store, one behind the other
    size_t all_but_experts = 0, experts = 0;  // experts: 0 where the layer has none
    size_t first_expert_view = 0;
  };
  // Views point to each other's memory, so it stays where it is.
  struct Body {
    Body(const WeightStoreOptions& options, Backend backend);
    ~Body();
    void bind();
    std::vector<size_t> parts_that_leave(int64_t layer, bool without_rest) const;

    WeightStore store;
    WeightPlaces places{&store};
    std::vector<LayerWeights> layers;
    std::vector<size_t> first_views;  // of each layer in `places`, and behind the last
    std::vector<LayerParts> parts;    // of each layer
    std::optional<MtpWeights> mtp;
    bool own_mtp_norm = true, tied_head = false, allocated = false;
    const void* final_norm = nullptr;
    Weight embedding, head;
    float logit_cap = 0;
    int64_t host_layers = 0;
    bool experts_alone = false;
    std::optional<TokenInputWeights> token_inputs;
    size_t table_part = 0;  // of the store, theirs
    uint64_t all_bytes = 0, host_bytes = 0;
    const Checkpoint* checkpoint = nullptr;
    std::vector<std::unique_ptr<Substitutes>> possible;
    std::unique_ptr<Substitutes> substitutes;  // null: there are none
  };
  explicit Weights(std::unique_ptr<Body> body) : body_(std::move(body)) {}

  std::unique_ptr<Body> body_;
};

}  // namespace headrace
