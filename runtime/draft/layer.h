// The operations of a draft's decoder layer (EAGLE-3, LongSpec), with the strides of its rows. Owns only the run's
// settings; the caller owns weights, rows and cache. Thread: as in draft.h.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "kernels/attention/op.h"
#include "kernels/product/op.h"
#include "runtime/base/bump_allocator.h"
#include "runtime/draft/buffers.h"
#include "runtime/draft/cache.h"
#include "runtime/layers/forward.h"
#include "runtime/layers/product_bytes.h"

namespace headrace {

struct DraftLayerSizes {
  DType type;  // of the weights
  int64_t hidden, heads, kv_heads, head_dim, ffn;
  int64_t vocab;  // of the logits
  double rms_eps;

  template <typename Config>
  static DraftLayerSizes of(const Config& config, DType type) {
    return {.type = type,
            .hidden = config.hidden,
            .heads = config.heads,
            .kv_heads = config.kv_heads,
            .head_dim = config.head_dim,
            .ffn = config.ffn,
            .vocab = config.vocab,
            .rms_eps = config.rms_eps};
  }
  int64_t attended() const { return heads * head_dim; }
  int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
  uint64_t bytes(int64_t elements) const { return static_cast<uint64_t>(elements) * dtype_bytes(type); }
  RowShape cache_rows() const {
    return {.layers = 1, .kv_heads = kv_heads, .head_dim = head_dim, .k_type = type, .v_type = type};
  }
};

// Views into a draft's buffer.
struct DraftLayerWork {
  RopeTables rope;
  void* normed;               // [rows, hidden]
  void *qkv, *attention;      // [rows, qkv_width()], [rows, attended()]
  void *gate_up, *activated;  // [rows, 2 ffn], [rows, ffn]
  float* logits;              // [rows, vocab]
  AttentionState state, scratch;

  // `rows` is padded; `queries` is not.
  static DraftLayerWork carve(const DraftLayerSizes& sizes, int64_t rows, int64_t queries, int64_t context,
                              BumpAllocator& allocator);
};

// Rows of a prompt in one product of a draft. At most the smallest segment: saved rows, in multiples of a GPU's prefill
// group, then all come from whole groups, which round alike for every prompt.
constexpr int64_t kDraftPrefillGroupRows = 512;

class DraftLayer {
 public:
  struct Product {
    const void* x = nullptr;
    Weight w{};
    const void *bias = nullptr, *residual = nullptr;
    void* out = nullptr;
    int64_t rows = 0, n = 0, k = 0;
    ProductPath path = ProductPath::kDecode;
    bool out_f32 = false;
    const void* norm = nullptr;  // of x, before
  };
  struct Mlp {
    const void* norm;
    const Weight &gate_up, &down;
    void* hidden;  // [rows, hidden], in place
    int64_t rows;
  };

  // Memory beside the operands of products, of one kind at a time: those of every such layer, and `own` (n, k and path
  // count).
  static uint64_t product_bytes(const ProductPlace& place, const DraftLayerSizes& sizes, int64_t prompt_tokens,
                                std::initializer_list<Product> own);

  DraftLayer(const DraftLayerSizes& sizes, const DraftLayerWork& work, int64_t context, Stream& compute)
      : sizes_(sizes), work_(work), context_(context), compute_(compute) {}

  void fill_rope(const RopeConfig& rope, int64_t max_positions) const;
  void multiply(const Product& p) const;
  // Contiguous rows of `cols` elements to rows with stride `out_stride`.
  void normalise(const void* x, const void* weight, void* out, int64_t rows, int64_t cols, int64_t out_stride) const;
  void normalise(const void* x, const void* weight, void* out, int64_t rows) const {
    normalise(x, weight, out, rows, sizes_.hidden, sizes_.hidden);
  }
  // Rows of qkv: q in place; K and V, rounded to the cache's types, to `to`.
  void rotate(void* qkv, const int32_t* positions, int64_t rows, const KvRows& to) const;
  // The same into the cache's ring, for rows from `position` on.
  void rotate_into(const DraftCache& cache, void* qkv, const int32_t* positions, int64_t position, int64_t rows) const;
  void rotate_queries(void* q, const int32_t* positions, int64_t rows) const;  // [rows, attended()]
  AttentionShape attention_shape(int64_t rows, int64_t q_stride, const RowShape& kv) const;
  void attend(const DraftRows& rows, const DraftCache& cache);  // work.qkv -> work.attention
  void mlp(const Mlp& m) const;

 private:
  ProductParams params_of(const Product& p) const;

  const DraftLayerSizes sizes_;
  const DraftLayerWork work_;
  const int64_t context_;
  Stream& compute_;
  std::vector<KvSegment> segments_;  // reused
};

}  // namespace headrace
