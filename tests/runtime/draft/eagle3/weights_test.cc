// An EAGLE-3 head on each device: every view holds what the file holds, in the shapes that are multiplied with.
#include "runtime/draft/eagle3/weights.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/draft_files.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using testing_support::eagle3_target;
using testing_support::Eagle3Files;

class Eagle3OnDevice : public ::testing::TestWithParam<DeviceChoice> {
 protected:
  std::vector<char> read(const void* data, uint64_t bytes) {
    const PinnedBuffer host = device_->allocate_pinned(bytes, "a test's staging");
    const std::unique_ptr<Stream> stream = device_->make_stream("test", StreamRole::kCopy);
    stream->copy(host.data(), data, bytes, Link::kDeviceToHost);
    stream->synchronize();
    return {host.as<char>(), host.as<char>() + bytes};
  }
  // The tensors' rows one after another, in the weights' type.
  void expect_rows(const Eagle3Checkpoint& head, DType type, const void* data, const std::vector<std::string>& names) {
    std::vector<char> expected;
    for (const std::string& name : names) {
      const TensorInfo* info = head.find(name);
      ASSERT_NE(info, nullptr) << name;
      const size_t before = expected.size();
      expected.resize(before + static_cast<size_t>(info->rows() * info->cols()) * dtype_bytes(type));
      head.read_rows(*info, 0, info->rows(), type, expected.data() + before);
    }
    EXPECT_EQ(read(data, expected.size()), expected) << names.front();
  }
  void expect_all(const Eagle3Checkpoint& head, const Eagle3Weights& weights) {
    const Eagle3Weights::Views& v = weights.views();
    const std::string p = "midlayer.";
    const auto rows = [&](const void* data, const std::vector<std::string>& names) {
      expect_rows(head, weights.dtype(), data, names);
    };
    const auto matrix = [&](const Weight& weight, const std::vector<std::string>& names) {
      EXPECT_TRUE(weight.plain());
      rows(weight.parts[0].data, names);
    };
    for (size_t i = 0; i < 3; ++i) {
      matrix(v.fc[i], {str("fc.", i, ".weight")});
      EXPECT_EQ(v.fc_norm[i] != nullptr, head.config().fc_norm);
      if (head.config().fc_norm) rows(v.fc_norm[i], {str("fc_norm.", i, ".weight")});
    }
    rows(v.input_norm, {p + "input_layernorm.weight"});
    rows(v.hidden_norm, {p + "hidden_norm.weight"});
    matrix(v.qkv, {p + "self_attn.q_proj.weight", p + "self_attn.k_proj.weight", p + "self_attn.v_proj.weight"});
    matrix(v.output, {p + "self_attn.o_proj.weight"});
    rows(v.ffn_norm, {p + "post_attention_layernorm.weight"});
    matrix(v.gate_up, {p + "mlp.gate_proj.weight", p + "mlp.up_proj.weight"});
    matrix(v.down, {p + "mlp.down_proj.weight"});
    rows(v.final_norm, {"norm.weight"});
    EXPECT_EQ(v.head != nullptr, head.config().own_head);
    if (head.config().own_head) matrix(v.head, {"lm_head.weight"});
    EXPECT_EQ(v.embedding != nullptr, head.config().own_embedding);
    if (head.config().own_embedding) matrix(v.embedding, {"embed_tokens.weight"});
    const std::vector<char> ids = read(v.target_ids, head.target_ids().size() * sizeof(int32_t));
    EXPECT_EQ(std::memcmp(ids.data(), head.target_ids().data(), ids.size()), 0);
  }

  std::unique_ptr<Device> device_ = open_device({.choice = GetParam(), .threads = 2});
};

TEST_P(Eagle3OnDevice, HoldsTheHeadForSmolLm2) {
  ModelConfig target;
  target.layers.resize(30), target.hidden = 576, target.vocab = 49152, target.max_positions = 65536;
  const std::unique_ptr<Eagle3Checkpoint> head = open_eagle3(HEADRACE_TEST_DATA "/eagle3", target);
  for (const DType type : {DType::kBF16, DType::kF32}) {
    Eagle3Weights weights = Eagle3Weights::reserve(*head, *device_, {type});
    EXPECT_FALSE(weights.loaded());
    ASSERT_TRUE(weights.load(*head, *device_, nullptr, nullptr));
    EXPECT_TRUE(weights.loaded());
    // 9.8 M weights and 8,192 ids, and at most a page of padding.
    EXPECT_NEAR(static_cast<double>(weights.bytes()), 9808128.0 * static_cast<double>(dtype_bytes(type)) + 32768, 4096);
    expect_all(*head, weights);
  }
}

// All but what a prompt is multiplied by.
TEST_P(Eagle3OnDevice, MayBeQuantised) {
  ModelConfig target;
  target.layers.resize(30), target.hidden = 576, target.vocab = 49152, target.max_positions = 65536;
  const std::unique_ptr<Eagle3Checkpoint> head = open_eagle3(HEADRACE_TEST_DATA "/eagle3", target);
  Eagle3Weights weights = Eagle3Weights::reserve(*head, *device_, {DType::kBF16, WeightPolicy::kQ8_0});
  ASSERT_TRUE(weights.load(*head, *device_, nullptr, nullptr));
  EXPECT_EQ(weights.damage().tensors, 0);
  const Eagle3Views& v = weights.views();
  const std::string p = "midlayer.";
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(v.fc[i].plain());
    expect_rows(*head, DType::kBF16, v.fc[i].parts[0].data, {str("fc.", i, ".weight")});
  }
  ASSERT_TRUE(v.qkv.plain());
  expect_rows(*head, DType::kBF16, v.qkv.parts[0].data,
              {p + "self_attn.q_proj.weight", p + "self_attn.k_proj.weight", p + "self_attn.v_proj.weight"});
  for (const Weight* weight : {&v.output, &v.gate_up, &v.down, &v.head}) {
    ASSERT_EQ(weight->count, 1);
    EXPECT_EQ(weight->parts[0].type, WeightType::kQ8_0);
  }
}

TEST_P(Eagle3OnDevice, HoldsWhatIsOptional) {
  Eagle3Files files;
  files.config["embed_requires_grad"] = true;
  for (const char* name : {"fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight"})
    files.tensors[name] = testing_support::f32_tensor(name, {8});
  files.tensors["embed_tokens.weight"] = testing_support::f32_tensor("embed_tokens.weight", {20, 8});
  const TemporaryFolder folder;
  files.write(folder.path());
  const std::unique_ptr<Eagle3Checkpoint> head = open_eagle3(folder.path(), eagle3_target());
  Eagle3Weights weights = Eagle3Weights::reserve(*head, *device_, {DType::kF16});
  ASSERT_TRUE(weights.load(*head, *device_, nullptr, nullptr));
  expect_all(*head, weights);
}

TEST_P(Eagle3OnDevice, AnInterruptLeavesItUnloaded) {
  const TemporaryFolder folder;
  Eagle3Files().write(folder.path());
  const std::unique_ptr<Eagle3Checkpoint> head = open_eagle3(folder.path(), eagle3_target());
  Eagle3Weights weights = Eagle3Weights::reserve(*head, *device_, {DType::kF32});
  const std::atomic<bool> interrupt = true;
  EXPECT_FALSE(weights.load(*head, *device_, nullptr, &interrupt));
  EXPECT_FALSE(weights.loaded());
}

INSTANTIATE_TEST_SUITE_P(Devices, Eagle3OnDevice, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& given) { return testing::device_name(given.param); });

}  // namespace
}  // namespace headrace
