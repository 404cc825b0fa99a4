// Every type that can be read, against the reference's weights (tests/data/model, made by make_reference.py there).
#include "runtime/model/gguf/dequantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>

#include "kernels/cpu/isa.h"
#include "runtime/model/gguf/gguf.h"

namespace headrace {
namespace {

std::string slurp(const std::string& name) {
  std::ifstream file(std::string(HEADRACE_TEST_DATA) + "/model/" + name, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Rounds as the base header's scalar conversions do.
std::string rounded(const float* values, size_t count, DType type) {
  std::string out(count * dtype_bytes(type), '\0');
  for (size_t i = 0; i < count; ++i) {
    if (type == DType::kF32) std::memcpy(&out[i * 4], &values[i], 4);
    const uint16_t bits = type == DType::kBF16 ? f32_to_bf16(values[i]).bits : f32_to_f16(values[i]).bits;
    if (type != DType::kF32) std::memcpy(&out[i * 2], &bits, 2);
  }
  return out;
}

TEST(Dequantize, EqualsTheReferenceToTheBit) {
  const std::string file = slurp("quants.gguf"), expected = slurp("quants.expected");
  const GgufFile gguf = parse_gguf(MemoryBytes(file, "quants.gguf"));
  ASSERT_EQ(gguf.tensors.size(), 20u);
  size_t position = 0;
  const kernels::Isa before = kernels::isa();
  for (const GgufTensor& tensor : gguf.tensors) {
    ASSERT_TRUE(can_read(*tensor.type)) << tensor.name;
    EXPECT_EQ(tensor.name, tensor.type->name);
    const int64_t count = tensor.shape[0] * tensor.shape[1];
    ASSERT_LE(position + static_cast<size_t>(count) * 4, expected.size());
    std::vector<float> reference(static_cast<size_t>(count));
    std::memcpy(reference.data(), &expected[position], reference.size() * 4);
    position += reference.size() * 4;
    for (const kernels::Isa isa : kernels::kAllIsas) {
      if (!kernels::isa_supported(isa)) continue;
      kernels::set_isa(isa);
      for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
        std::string out(reference.size() * dtype_bytes(type) + 8, '\x5a');  // 8 guard bytes
        dequantize(*tensor.type, file.data() + tensor.begin, type, out.data(), count);
        EXPECT_TRUE(out.substr(0, out.size() - 8) == rounded(reference.data(), reference.size(), type))
            << tensor.name << " as " << dtype_name(type) << ", " << kernels::isa_name(isa);
        EXPECT_EQ(out.substr(out.size() - 8), std::string(8, '\x5a')) << tensor.name;
      }
    }
    kernels::set_isa(before);
  }
  EXPECT_EQ(position, expected.size());
}

TEST(Dequantize, KeepsInfinityAndNan) {
  const uint16_t halves[] = {0x7c00, 0xfc00, 0x7e00, 0x0001, 0x83ff};
  float out[5];
  dequantize(*find_ggml_type(1), reinterpret_cast<const char*>(halves), DType::kF32, out, 5);
  EXPECT_EQ(out[0], INFINITY);
  EXPECT_EQ(out[1], -INFINITY);
  EXPECT_TRUE(std::isnan(out[2]));
  EXPECT_EQ(out[3], 0x1p-24f);
  EXPECT_EQ(out[4], -1023 * 0x1p-24f);
  const float wide[] = {NAN, INFINITY, -INFINITY};
  uint16_t narrow[3];
  dequantize(*find_ggml_type(0), reinterpret_cast<const char*>(wide), DType::kBF16, narrow, 3);
  EXPECT_TRUE(std::isnan(bf16_to_f32({narrow[0]})));
  EXPECT_EQ(narrow[1], 0x7f80);
  EXPECT_EQ(narrow[2], 0xff80);
}

TEST(Dequantize, KnowsWhatItCannotRead) {
  ASSERT_NE(find_ggml_type(19), nullptr);
  EXPECT_STREQ(find_ggml_type(19)->name, "IQ1_S");
  EXPECT_FALSE(can_read(*find_ggml_type(19)));
  EXPECT_EQ(find_ggml_type(4), nullptr);  // Q4_2, long gone
  EXPECT_EQ(find_ggml_type(1000), nullptr);
}

}  // namespace
}  // namespace headrace
