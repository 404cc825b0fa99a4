// What the tests of attention share: a context of keys and values, cut into segments that lie in shuffled memory with
// NaN beyond their rows, queries, and plain attention in doubles.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/attention/op.h"
#include "tests/support/kernel_test.h"

namespace headrace {

struct AttentionCase {
  int64_t heads = 3, kv_heads = 1, head_dim = 16;
  DType type = DType::kF32, k_type = DType::kF32, v_type = DType::kF32;
  float q_scale = 1.0f;  // of the queries' values: large ones make large scores
  int64_t window = 0;
  bool sinks = false;

  std::string name() const;
  // Of a query head: below its scores, among them, and far above.
  float sink(int64_t head) const;
  std::vector<float> all_sinks() const;
  float scale() const;
  int64_t group() const { return heads / kv_heads; }
  AttentionShape shape(int64_t queries, int64_t q_stride) const;
};

// Shapes that the models have, and odd ones; all types at a small one.
std::vector<AttentionCase> attention_cases();
// The same, and those whose prefix is low-bit rows.
std::vector<AttentionCase> prefix_cases();
// With a window: shorter than a tile, than the tail, a multiple of a tile, longer than the context.
std::vector<AttentionCase> windowed_cases();
// With sinks.
std::vector<AttentionCase> sink_cases();

// Rows of one layer: K and V are [rows][kv_heads][head_dim], rounded to the cache's types.
struct AttentionContext {
  AttentionCase c;
  int64_t rows;
  std::vector<float> k, v;
  AttentionContext(const AttentionCase& attention_case, int64_t row_count, uint64_t seed);

  // [kv_heads][stride][head_dim] of rows [begin, begin + count); what lies beyond is NaN.
  static std::vector<float> by_head(const std::vector<float>& from, const AttentionCase& c, int64_t begin,
                                    int64_t count, int64_t stride);
  // Of the tail: low-bit rows are held exactly.
  static DType exact(DType type) { return low_bit(type) ? DType::kF32 : type; }
};

// Values that are not finite, for rows that some query must not see.
struct Poison {
  bool k, v;
  float value;
  bool one_element;  // of each row and KV head, the last; else all

  bool shows() const { return value != value; }  // an infinite key may weigh nothing, rightly
  std::string name() const;
  // Of rows [begin, end).
  void put(int64_t begin, int64_t end, AttentionContext* context) const;
};
std::vector<Poison> poisons();

// Expected output and its tolerance's magnitude (kernel_test.h), query head after query head.
struct AttentionExpectation {
  std::vector<double> values, magnitude;
};
// The rows of positions [first_seen(t), t].
std::vector<int64_t> seen_rows(const AttentionCase& c, int64_t t);
// Appends the result of one query ([heads][head_dim]) over some rows of the context. `weight_error`: relative, of each
// weight, beyond fp32's.
void attend(const AttentionContext& context, const float* q, const std::vector<int64_t>& rows, double weight_error,
            AttentionExpectation* out);

class AttentionTest : public testing_support::KernelTest {
 protected:
  struct Segments {
    std::vector<testing_support::DeviceArray> arrays;
    std::vector<KvSegment> list;
  };
  // Segments of at most `rows_each` rows, a multiple of the tile, with `spare` rows of NaN behind each head's.
  Segments segments(const AttentionContext& context, int64_t rows_each, int64_t spare);

  // Of each weight, relative, beyond fp32's: bodies that work on tensor cores, or on pairs of bf16, round the weights
  // to the type of V where all types are one. The tail is always fp32.
  double prefill_weight_error(const AttentionCase& c) const;
  double prefix_weight_error(const AttentionCase& c) const;
};

}  // namespace headrace
