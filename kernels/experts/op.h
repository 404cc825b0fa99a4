// What a layer with experts does around their products (grouped_product() in kernels/product/op.h): scores experts,
// chooses a row's, lists the rows of each expert, and adds the experts' outputs. A row and one of its experts are a
// pair; pair row * used + r has the row's expert of rank r. All of it is on the device, so nothing waits for what was
// chosen. A row's results depend on its own values alone.
//
// Each op takes one params struct of views and a stream, owns nothing and returns at once. The CPU body is the truth.
#pragma once

#include <cstdint>

#include "cache/base.h"
#include "offload/device/stream.h"

namespace headrace {

constexpr int64_t kMaxExperts = 1024, kMaxUsedExperts = 32, kMaxScores = kMaxExperts + 1;

// normed = rms_norm(x), and the scores of each row and expert: normed times the router's matrix, added in f32, plus its
// bias, if it has one. A row's bits are the same in every pass. Needs no padding. The last of the scores may be a
// shared expert's gate.
struct RouterParams {
  const void* x;              // [rows, cols] of x_type
  const void* norm;           // [cols]: the norm's weight
  const void* weight;         // [count, cols]
  void* normed;               // [rows, cols]
  float* scores;              // [rows, count]
  DType x_type;               // type, or kF32
  DType type;                 // of norm, weight and normed
  int64_t rows, count, cols;  // at least two experts
  float eps;
  const void* bias = nullptr;  // [count] of `type`
};
void router(const RouterParams& params, Stream& stream);

// The `used` largest scores of a row, the largest first; of equal ones the lower index. A share is the softmax over its
// `count` scores times `scale`, in f32; divided by the sum of the chosen ones, added in order of rank, if `normalise`;
// then times the factor of its expert.
struct RouteParams {
  const float* scores;  // [rows, count], those of a row `stride` apart from the next one's
  int32_t* experts;     // [rows, used], each in [0, count), all different, whatever the scores are
  float* shares;        // [rows, used]
  int64_t rows, count, used, stride;
  bool normalise;
  const float* factors = nullptr;  // [count]; null: 1
  float scale = 1.0f;              // above 0
};
void route(const RouteParams& params, Stream& stream);

// Lists pairs by expert, those of an expert in order: `places` has each pair's place in the list. With `shared` there
// is one expert more, `count`, which has all rows: their places are behind those of the pairs, row by row.
struct ListPairsParams {
  const int32_t* experts;  // [pairs], each in [0, count)
  int32_t* begin;          // [all_experts() + 1]: expert e has places [begin[e], begin[e + 1])
  int32_t* places;         // [pairs]
  int64_t pairs, count;
  int64_t used = 1;            // pairs of a row
  int32_t* from = nullptr;     // [all_places()]: the row of each, of a pair pair / used; null: not listed
  int32_t* present = nullptr;  // [most_present()]: the experts that have places, ascending, then -1; null: not listed
  bool shared = false;

  int64_t all_experts() const { return count + (shared ? 1 : 0); }
  int64_t all_places() const { return pairs + (shared ? pairs / used : 0); }
  int64_t most_present() const { return all_places() < all_experts() ? all_places() : all_experts(); }
};
void list_pairs(const ListPairsParams& params, Stream& stream);

// route(), then list_pairs() of what it chose: one launch for few rows. REQUIRES: the lists are of the routes' experts.
void choose_experts(const RouteParams& routes, const ListPairsParams& lists, Stream& stream);

// What a shared expert makes of each row, and a number of each row, whose sigmoid multiplies it.
struct SharedOutput {
  const void* y = nullptr;  // [rows, cols]; null: there is none
  DType type{};
  const float* gates = nullptr;  // [rows], `stride` apart
  int64_t stride = 0;
};
// out[row] = residual[row], if there is one, + the sum of shares[row, r] * y[places[row, r]], which is added in f32 in
// order of r, then of the shared output, and rounded once, with the residual.
struct AddExpertsParams {
  const void* y;          // [rows * used, cols], or as many rows as the places need
  const int32_t* places;  // [rows, used]
  const float* shares;    // [rows, used]
  const void* residual;   // [rows, cols]; may be out itself, or null
  void* out;              // [rows, cols]
  DType type;             // of residual and out
  DType y_type;
  int64_t rows, used, cols;
  SharedOutput shared{};
};
void add_experts(const AddExpertsParams& params, Stream& stream);

}  // namespace headrace
