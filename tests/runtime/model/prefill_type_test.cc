// What --prefill-type auto comes to, by the weights and the type of the computation.
#include <gtest/gtest.h>

#include "runtime/model/weight_store.h"

namespace headrace {
namespace {

TEST(PrefillType, AutoIsInt8WhereWeightsAreQuantised) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    EXPECT_EQ(prefills_in_int8(PrefillType::kAuto, {.dtype = dtype, .quantised = true}), dtype != DType::kF32);
    EXPECT_FALSE(prefills_in_int8(PrefillType::kAuto, {.dtype = dtype, .quantised = false}));
    for (const bool quantised : {false, true}) {  // on request whatever the weights are
      EXPECT_TRUE(prefills_in_int8(PrefillType::kInt8, {.dtype = dtype, .quantised = quantised}));
      EXPECT_FALSE(prefills_in_int8(PrefillType::kCompute, {.dtype = dtype, .quantised = quantised}));
    }
  }
  EXPECT_STREQ(prefill_type_name(true, DType::kF32), "int8");
  EXPECT_STREQ(prefill_type_name(false, DType::kF32), dtype_name(DType::kF32));
}

}  // namespace
}  // namespace headrace
