// Whole runs with drafts whose config or flags change what they compute: the text is that of plain decoding. Their
// values are in eagle3/reference_test; every_draft_test has the kinds of drafts.
#include <gtest/gtest.h>

#include "runtime/engine/engine.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_drafts.h"

namespace headrace {
namespace {

struct Variant {
  const char* name;
  SpecType type;
  nlohmann::json config = nlohmann::json::object();  // of a head, in the place of what it has
  RopeOverrides rope{};
};

const Variant kVariants[] = {
    {.name = "norms of EAGLE-3.1",
     .type = SpecType::kEagle3,
     .config = {{"fc_norm", true}, {"norm_output", true}, {"norm_before_residual", true}}},
    {.name = "a head with YaRN and a base by flags",
     .type = SpecType::kEagle3,
     .config = {{"max_position_embeddings", 256}},
     .rope = {.scaling = RopeScaling::kYarn, .factor = 4, .theta = 500}},
    {.name = "a head without its scaling",
     .type = SpecType::kEagle3,
     .config = {{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}, {"max_position_embeddings", 1024}},
     .rope = {.scaling = RopeScaling::kNone}},
    {.name = "a small model with a scaling by flags",
     .type = SpecType::kSimple,
     .rope = {.scaling = RopeScaling::kLinear, .factor = 1.5}},
};

class DraftVariants : public ::testing::TestWithParam<DeviceChoice> {};
INSTANTIATE_TEST_SUITE_P(Devices, DraftVariants, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& given) { return testing::device_name(given.param); });

TEST_P(DraftVariants, SayWhatPlainDecodingSays) {
  const std::vector<int32_t> prompt = testing::made_up_ids(700, 512);
  GenerateOptions run{.max_tokens = 48, .sampling = {.temperature = 0.7f, .seed = 3}, .ignore_eos = true};
  const VerifyOptions full = {.mode = VerifyMode::kFull},
                      blocks = {.mode = VerifyMode::kLossless, .budget = 64, .interval = 12},
                      copy = {.mode = VerifyMode::kLossless, .partial = PartialKind::kInt8};
  std::vector<int32_t> plain;
  for (const Variant& variant : kVariants) {
    const TemporaryFolder folder;
    testing_support::DraftFiles head = testing_support::tiny_eagle3_head();
    head.config.update(variant.config);
    for (int i = 0; head.config.contains("fc_norm") && i < 3; ++i) head.add(str("fc_norm.", i, ".weight"), {64});
    head.write(folder.path());
    EngineOptions options;
    options.model = testing::tiny_model("llama31");
    options.device = {.choice = GetParam(), .threads = 2};
    options.want_tokenizer = false;
    options.dtype = DType::kF32;
    options.draft = {.type = variant.type,
                     .model = variant.type == SpecType::kEagle3 ? folder.path() : options.model,
                     .rope = variant.rope,
                     .tree = parse_tree("eagle2:16,4,6")};
    Engine engine(options);
    run.speculate = !plain.empty();
    run.verify = full;
    if (plain.empty()) plain = engine.generate(prompt, run, nullptr).token_ids;
    run.speculate = true;
    for (const auto& [kv, verify] :
         {std::pair{KvMode::kDevice, full}, {KvMode::kHost, blocks}, {KvMode::kHost, copy}}) {
      run.kv = kv;
      run.verify = verify;
      const GenerateResult said = engine.generate(prompt, run, nullptr);
      EXPECT_EQ(said.token_ids, plain) << variant.name;
      EXPECT_GT(said.speculation.accepted, 0) << variant.name;
    }
  }
}

}  // namespace
}  // namespace headrace
