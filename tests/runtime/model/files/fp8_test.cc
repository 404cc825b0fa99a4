// Directories with matrices in e4m3 and one scale a block: each value, and the logits of a model that is stored so.
#include "runtime/model/files/fp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/model/convert.h"
#include "runtime/model/files/tensor_files.h"
#include "tests/support/draft_files.h"
#include "tests/support/golden.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using nlohmann::json;
using testing_support::FileTensor;
using testing_support::safetensors_bytes;

// By the definition of the format.
double defined_value(int bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction / 8.0, -6) : std::ldexp(1 + fraction / 8.0, exponent - 7);
  return bits < 128 ? magnitude : -magnitude;
}

TEST(Fp8, EachOfThe256Values) {
  for (int bits = 0; bits < 256; ++bits) {
    const float value = kE4m3.values[static_cast<size_t>(bits)];
    if ((bits & 127) == 127) {
      EXPECT_TRUE(std::isnan(value)) << bits;
    } else {
      EXPECT_EQ(static_cast<double>(value), defined_value(bits)) << bits;
      EXPECT_EQ(std::signbit(value), bits >= 128) << bits;
    }
  }
  EXPECT_EQ(kE4m3.values[0x7e], 448.0f);
}

std::string bf16_bytes(const std::vector<float>& values) {
  std::string bytes(2 * values.size(), '\0');
  convert_elements(DType::kF32, reinterpret_cast<const char*>(values.data()), DType::kBF16, bytes.data(),
                   static_cast<int64_t>(values.size()));
  return bytes;
}

// 300 x 200: three blocks of rows and two of columns, the last of each smaller.
TEST(Fp8, AMatrixIsItsValuesTimesTheScalesOfTheirBlocks) {
  constexpr int64_t kRows = 300, kCols = 200, kBlock = 128;
  const std::vector<float> scales = {0.5f, 3.0f, 0.0078125f, 1.5f, 100.0f, 0.25f};  // exact in bf16
  std::string bytes;
  for (int64_t i = 0; i < kRows * kCols; ++i) bytes += static_cast<char>(i * 37 % 127 + (i % 3 == 0 ? 128 : 0));
  const TemporaryFolder folder;
  std::ofstream(folder.path() + "/model.safetensors", std::ios::binary) << safetensors_bytes(
      {{"w", {"F8_E4M3", {kRows, kCols}, bytes}}, {"w_scale_inv", {"BF16", {3, 2}, bf16_bytes(scales)}}});
  const TensorFiles files(folder.path(), Fp8Blocks{.rows = kBlock, .cols = kBlock});
  const auto expected = [&](int64_t i) {
    const int64_t row = i / kCols, col = i % kCols;
    return static_cast<float>(defined_value(static_cast<unsigned char>(bytes[static_cast<size_t>(i)]))) *
           scales[static_cast<size_t>(row / kBlock * 2 + col / kBlock)];
  };
  const size_t matrix = files.tensors()[0].name == "w" ? 0 : 1;
  for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{{0, kRows * kCols},
                                                                             {0, 1},
                                                                             {127 * kCols + 100, 2 * kCols},
                                                                             {255 * kCols, 45 * kCols},
                                                                             {kRows * kCols - 1, 1}}) {
    std::vector<float> values(static_cast<size_t>(count));
    files.read(matrix, first, count, DType::kF32, values.data());
    std::vector<bf16> rounded(static_cast<size_t>(count));
    files.read(matrix, first, count, DType::kBF16, rounded.data());
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(values[static_cast<size_t>(i)], expected(first + i)) << first << " + " << i;
      ASSERT_EQ(rounded[static_cast<size_t>(i)].bits, f32_to_bf16(expected(first + i)).bits) << first << " + " << i;
    }
  }
  EXPECT_EQ(files.natural_dtype(), DType::kBF16);
}

// The nearest of the numbers of the format.
uint8_t nearest_e4m3(float value) {
  int best = 0;
  for (int bits = 0; bits < 256; ++bits) {
    if ((bits & 127) == 127) continue;
    if (std::fabs(static_cast<float>(defined_value(bits)) - value) <
        std::fabs(static_cast<float>(defined_value(best)) - value)) {
      best = bits;
    }
  }
  return static_cast<uint8_t>(best);
}

struct StoredModel {
  std::map<std::string, FileTensor> fp8, plain;  // the second: the same values in f32
};

bool converted(const std::string& name, const std::vector<std::string>& left_out) {
  const bool linear = name.ends_with("_proj.weight");
  return linear && std::find(left_out.begin(), left_out.end(), name.substr(0, name.size() - 7)) == left_out.end();
}

std::string f32_bytes(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

// The matrices of a tiny model in blocks of 24 x 40, which divide none of them; those in `left_out` stay as they are.
StoredModel stored_model(const std::string& model, const std::vector<std::string>& left_out) {
  constexpr int64_t kRows = 24, kCols = 40;
  const testing::Golden golden = testing::read_golden(model + "/model.safetensors");
  StoredModel out;
  for (const auto& [name, values] : golden.floats) {
    const std::vector<int64_t>& shape = golden.shapes.at(name);
    out.plain[name] = out.fp8[name] = {"F32", shape, f32_bytes(values)};
    if (!converted(name, left_out)) continue;
    const int64_t rows = shape[0], cols = shape[1], across = ceil_div(cols, kCols);
    std::vector<float> scales(static_cast<size_t>(ceil_div(rows, kRows) * across), 0.0f), read(values.size());
    const auto scale_of = [&](size_t i) -> float& {
      const int64_t row = static_cast<int64_t>(i) / cols, col = static_cast<int64_t>(i) % cols;
      return scales[static_cast<size_t>(row / kRows * across + col / kCols)];
    };
    for (size_t i = 0; i < values.size(); ++i) scale_of(i) = std::max(scale_of(i), std::fabs(values[i]) / 448);
    std::string bytes(values.size(), '\0');
    for (size_t i = 0; i < values.size(); ++i) {
      const uint8_t bits = nearest_e4m3(values[i] / scale_of(i));
      bytes[i] = static_cast<char>(bits);
      read[i] = static_cast<float>(defined_value(bits)) * scale_of(i);
    }
    out.fp8[name] = {"F8_E4M3", shape, bytes};
    out.fp8[name + "_scale_inv"] = {"F32", {ceil_div(rows, kRows), across}, f32_bytes(scales)};
    out.plain[name].bytes = f32_bytes(read);
  }
  return out;
}

json config_of(const std::string& model) {
  std::ifstream in(model + "/config.json");
  return json::parse(in);
}

void write_model(const std::string& folder, const json& config, const std::map<std::string, FileTensor>& tensors) {
  std::ofstream(folder + "/config.json") << config.dump(1);
  std::ofstream(folder + "/model.safetensors", std::ios::binary) << safetensors_bytes(tensors);
}

std::vector<float> logits_of(const std::string& folder) {
  constexpr int64_t kTokens = 70;
  const testing::LoadedModel model{folder, DType::kF32, DeviceChoice::kCpu};
  auto session = model.session(model.options(kTokens, 1));
  session->prefill(testing::made_up_ids(kTokens, model.checkpoint->config().vocab), nullptr, nullptr);
  return session->logits(1);
}

// Llama, whose matrices are stored as the decoder has them, and Qwen3.5, whose q and gates are one matrix in another
// order of rows, also with a shared expert.
TEST(Fp8, ADirectoryHasTheLogitsOfItsValues) {
  for (const char* name : {"llama31", "qwen35", "qwen35moe"}) {
    SCOPED_TRACE(name);
    const std::string model = testing::tiny_model(name);
    const std::vector<std::string> left_out = {"model.layers.0.mlp.down_proj"};
    const StoredModel stored = stored_model(model, left_out);
    json config = config_of(model);
    const TemporaryFolder fp8, plain;
    write_model(plain.path(), config, stored.plain);
    config["quantization_config"] = {{"quant_method", "fp8"},
                                     {"fmt", "e4m3"},
                                     {"activation_scheme", "dynamic"},
                                     {"weight_block_size", {24, 40}},
                                     {"modules_to_not_convert", left_out}};
    write_model(fp8.path(), config, stored.fp8);
    const std::vector<float> logits = logits_of(fp8.path());
    EXPECT_EQ(logits, logits_of(plain.path()));
    EXPECT_NE(logits, logits_of(model));
  }
}

std::string what_it_says(const json& quantised, const std::map<std::string, FileTensor>& tensors) {
  const TemporaryFolder folder;
  json config = config_of(testing::tiny_model("llama31"));
  config["quantization_config"] = quantised;
  write_model(folder.path(), config, tensors);
  try {
    open_checkpoint(folder.path());
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Fp8, OtherFormsAreRefusedByName) {
  const StoredModel stored = stored_model(testing::tiny_model("llama31"), {});
  const json good = {{"quant_method", "fp8"}, {"weight_block_size", {24, 40}}};
  EXPECT_EQ(what_it_says(good, stored.fp8), "accepted");
  const auto expect = [&](const char* key, const json& value, const char* says) {
    json config = good;
    config[key] = value;
    EXPECT_NE(what_it_says(config, stored.fp8).find(says), std::string::npos) << what_it_says(config, stored.fp8);
  };
  expect("weight_block_size", nullptr, "without weight_block_size");
  expect("weight_block_size", {128}, "weight_block_size");
  expect("weight_block_size", {0, 128}, "weight_block_size");
  expect("fmt", "e5m2", "fmt \"e5m2\"");
  expect("activation_scheme", "static", "activation_scheme \"static\"");
  expect("quant_method", "compressed-tensors", "\"compressed-tensors\"");
  expect("weight_block_size", {128, 128}, "for blocks of 128 x 128");
  std::map<std::string, FileTensor> without = stored.fp8;
  without.erase("model.layers.0.self_attn.q_proj.weight_scale_inv");
  EXPECT_NE(what_it_says(good, without).find("there is no model.layers.0.self_attn.q_proj.weight_scale_inv"),
            std::string::npos);
}

}  // namespace
}  // namespace headrace
