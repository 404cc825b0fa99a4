// A low-rank update merged into a GGUF model: every matrix is w + b . a in the order of rows that the loader gives, all
// else is as it was.
#include "tests/support/low_rank.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/model/files/open_checkpoint.h"
#include "tests/runtime/model/files/model_files.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/torch_files.h"

namespace headrace {
namespace {

using testing_support::merge_low_rank;
using testing_support::raw_bytes;
using testing_support::ZipFile;

constexpr int64_t kRank = 3;

// As NumPy writes it; values from -1 to 1 by name and place, in steps that f16 holds.
float update_value(const std::string& name, size_t index) {
  return static_cast<float>(static_cast<int>((name.size() * 31 + static_cast<size_t>(name[9]) + index * 7) % 33) - 16) /
         16;
}
std::string npy(const std::string& name, const std::vector<int64_t>& shape) {
  std::string text = "{'descr': '<f2', 'fortran_order': False, 'shape': (";
  size_t elements = 1;
  for (const int64_t size : shape) text += str(size, ", "), elements *= static_cast<size_t>(size);
  text += "), }\n";
  std::string out = std::string("\x93NUMPY\x01\x00", 8) + raw_bytes(static_cast<uint16_t>(text.size())) + text;
  for (size_t i = 0; i < elements; ++i) out += raw_bytes(f32_to_f16(update_value(name, i)).bits);
  return out;
}

// For testing_support::small_gguf: one layer, hidden 32, 2 heads and 1 KV head of 16.
ZipFile small_update() {
  ZipFile zip;
  zip.entries.push_back({"rope_theta.npy", std::string("\x93NUMPY\x01\x00", 8) + raw_bytes(uint16_t{57}) +
                                               "{'descr': '<f8', 'fortran_order': False, 'shape': (), } \n" +
                                               raw_bytes(5e6)});
  for (const auto& [name, rows] : {std::pair<const char*, int64_t>{"q", 32}, {"k", 16}, {"v", 16}, {"o", 32}}) {
    const std::string base = str("layers.0.", name, "_proj.");
    zip.entries.push_back({base + "a.npy", npy(base + "a", {kRank, 32})});
    zip.entries.push_back({base + "b.npy", npy(base + "b", {rows, kRank})});
  }
  return zip;
}

std::vector<float> all_of(const Checkpoint& model, const std::string& name) {
  const TensorInfo* info = model.find(name);
  CHECK(info != nullptr, name);
  std::vector<float> values(static_cast<size_t>(info->rows() * info->cols()));
  model.read_rows(*info, 0, info->rows(), DType::kF32, values.data());
  return values;
}

TEST(LowRank, EveryProjectionAndNothingElse) {
  const TemporaryFolder folder;
  testing_support::GgufWriter writer = testing_support::small_gguf("llama");
  writer.add_u32("llama.rope.dimension_count", 16);
  const std::string before = folder.write("before.gguf", writer.finish());
  const std::string update = folder.write("update.npz", small_update().finish());
  const std::string after =
      folder.write("after.gguf", merge_low_rank(before, update, {.name = "longer", .max_positions = 4096}));

  const std::unique_ptr<Checkpoint> old_model = open_checkpoint(before), model = open_checkpoint(after);
  EXPECT_EQ(model->config().max_positions, 4096);
  EXPECT_EQ(model->config().rope.theta, 5e6);
  EXPECT_EQ(model->config().end_ids, old_model->config().end_ids);
  EXPECT_EQ(model->chat_template(), old_model->chat_template());
  const auto encoded = [](const Checkpoint& checkpoint) {
    return checkpoint.load_tokenizer().encode("abcab", AddBos::kYes, SpecialTokens::kAsText);
  };
  EXPECT_EQ(encoded(*model), encoded(*old_model));
  ASSERT_EQ(model->tensors().size(), old_model->tensors().size());
  for (const TensorInfo& info : old_model->tensors()) {
    std::vector<float> expected = all_of(*old_model, info.name);
    const size_t place = info.name.find("self_attn.");
    if (place != std::string::npos) {
      const std::string base = "layers.0." + info.name.substr(place + 10, 7);
      for (size_t i = 0; i < expected.size(); ++i) {
        double sum = 0;
        for (size_t k = 0; k < kRank; ++k)
          sum += double{update_value(base + "b", i / 32 * kRank + k)} * update_value(base + "a", k * 32 + i % 32);
        expected[i] += static_cast<float>(sum);
      }
    }
    EXPECT_EQ(all_of(*model, info.name), expected) << info.name;
  }
}

TEST(LowRank, UpdatesThatDoNotFit) {
  const TemporaryFolder folder;
  testing_support::GgufWriter writer = testing_support::small_gguf("llama");
  writer.add_u32("llama.rope.dimension_count", 16);
  const std::string model = folder.write("model.gguf", writer.finish());
  const auto refused = [&](const ZipFile& zip, const std::string& expected) {
    try {
      merge_low_rank(model, folder.write("update.npz", zip.finish()), {.name = "x", .max_positions = 4096});
      ADD_FAILURE() << "merged; expected: " << expected;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
  };
  ZipFile zip = small_update();
  zip.entries[3].name = "layers.0.k_proj.c.npy";
  refused(zip, "lacks the array layers.0.k_proj.a");
  zip = small_update();
  zip.entries.push_back({"layers.1.q_proj.a.npy", npy("layers.1.q_proj.a", {kRank, 32})});
  refused(zip, "holds layers.1.q_proj.a");
  zip = small_update();
  zip.entries[4].bytes = npy("layers.0.k_proj.b", {32, kRank});
  refused(zip, "layers.0.k_proj does not fit");
  zip.entries[4].bytes = "\x93NUMPY";
  refused(zip, "layers.0.k_proj.b.npy: is no array");
  zip = small_update();
  zip.entries[1].method = 8;
  refused(zip, "compressed");
}

}  // namespace
}  // namespace headrace
