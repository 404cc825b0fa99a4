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

constexpr int64_t kMaxExperts = 1024, kMaxUsedExperts = 32;

// normed = rms_norm(x), and the scores of each row and expert: normed times the router's matrix, added in f32, plus its
// bias, if it has one. A row's bits are the same in every pass. Needs no padding.
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

// The `used` largest scores of a row, the largest first; of equal ones the lower index. A share is the softmax over all
// scores times `scale`, in f32; divided by the sum of the chosen ones, added in order of rank, if `normalise`; then
// times the factor of its expert.
struct RouteParams {
  const float* scores;  // [rows, count]
  int32_t* experts;     // [rows, used], each in [0, count), all different, whatever the scores are
  float* shares;        // [rows, used]
  int64_t rows, count, used;
  bool normalise;
  const float* factors = nullptr;  // [count]; null: 1
  float scale = 1.0f;              // above 0
};
void route(const RouteParams& params, Stream& stream);

// Lists pairs by expert, those of an expert in order: `places` has each pair's place in the list.
struct ListPairsParams {
  const int32_t* experts;  // [pairs], each in [0, count)
  int32_t* begin;          // [count + 1]: expert e has places [begin[e], begin[e + 1])
  int32_t* places;         // [pairs]
  int64_t pairs, count;
  int64_t used = 1;            // pairs of a row
  int32_t* from = nullptr;     // [pairs]: the row of each place's pair, which is pair / used; null: not listed
  int32_t* present = nullptr;  // [min(pairs, count)]: the experts that have pairs, ascending, then -1; null: not listed
};
void list_pairs(const ListPairsParams& params, Stream& stream);

// route(), then list_pairs() of what it chose: one launch for few rows. REQUIRES: the lists are of the routes' experts.
void choose_experts(const RouteParams& routes, const ListPairsParams& lists, Stream& stream);

// out[row] = residual[row], if there is one, + the sum of shares[row, r] * y[places[row, r]], which is added in f32 in
// order of r and rounded once, with the residual.
struct AddExpertsParams {
  const void* y;          // [rows * used, cols], or as many rows as the places need
  const int32_t* places;  // [rows, used]
  const float* shares;    // [rows, used]
  const void* residual;   // [rows, cols]; may be out itself, or null
  void* out;              // [rows, cols]
  DType type;             // of residual and out
  DType y_type;
  int64_t rows, used, cols;
};
void add_experts(const AddExpertsParams& params, Stream& stream);

}  // namespace headrace
