// Refreshes that stream what the int8 copy lacks of the rows (docs/design.md, section 8): the text is that of plain
// decoding, for fewer bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "tests/support/sanitized.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using testing::LoadedModel;

class RemainderText : public ::testing::TestWithParam<DeviceChoice> {
 protected:
  static EngineOptions options(bool remainders) {
    EngineOptions options;
    options.model = testing::tiny_model("qwen3");
    options.device = {.choice = GetParam(), .threads = 2};
    options.want_tokenizer = false;
    options.dtype = DType::kBF16;
    options.ring.slots = 2;
    options.remainders = remainders;
    options.prefill_group = 512;
    return options;
  }
  static std::vector<int32_t> prompt(int64_t tokens) { return testing::repeated_ids(tokens, 512); }
  static GenerateOptions run(VerifyMode mode) {
    GenerateOptions run{.max_tokens = 60, .kv = KvMode::kHost, .sampling = {.seed = 3}, .ignore_eos = true};
    run.verify = VerifyOptions{.mode = mode, .partial = PartialKind::kInt8, .interval = 20};
    return run;
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, RemainderText, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& given) { return testing::device_name(given.param); });

// Prompts that end inside a segment and at a border, and answers that seal one.
TEST_P(RemainderText, IsThatOfPlainDecodingForFewerBytes) {
  for (const SpecType spec : {SpecType::kNone, SpecType::kNgram}) {
    EngineOptions with = options(true), without = options(false);
    with.draft.type = without.draft.type = spec;
    Engine streams_less(with), streams_all(without);
    for (const int64_t tokens : {1100, 1024, 1500}) {
      for (const float temperature : {0.0f, 0.9f}) {
        if (testing::kSanitized && temperature > 0) continue;
        GenerateOptions plain = run(VerifyMode::kFull), lossless = run(VerifyMode::kLossless);
        plain.speculate = false;
        plain.sampling.temperature = lossless.sampling.temperature = temperature;
        lossless.pending = PendingTreeLimits{.width = 0};
        lossless.step_costs = {.partial_ms = 1, .refresh_ms = 4};  // both runs have the same steps
        const GenerateResult wanted = streams_all.generate(prompt(tokens), plain, nullptr);
        const GenerateResult all = streams_all.generate(prompt(tokens), lossless, nullptr);
        const GenerateResult less = streams_less.generate(prompt(tokens), lossless, nullptr);
        EXPECT_EQ(all.plan.remainder_segments, 0);
        EXPECT_EQ(less.plan.remainder_segments, tokens / 512);
        ASSERT_EQ(all.token_ids, wanted.token_ids) << tokens << " T " << temperature;
        ASSERT_EQ(less.token_ids, wanted.token_ids) << tokens << " T " << temperature;
        EXPECT_EQ(less.speculation.of(StepMode::kRefresh).steps, all.speculation.of(StepMode::kRefresh).steps);
        // The ring may have been filled ahead for one more refresh, or not, when a run ends.
        if (tokens == 1500) continue;  // from where it seals a segment, that one is streamed as it is
        const double share =
            static_cast<double>(less.transfers.decode_h2d_bytes) / static_cast<double>(all.transfers.decode_h2d_bytes);
        EXPECT_LT(share, 0.5) << tokens << " T " << temperature;
        EXPECT_GT(share, 0.2) << tokens << " T " << temperature;
      }
    }
  }
}

// A conversation on rows that are kept: each answer is what plain decoding says on the same rows.
TEST_P(RemainderText, FollowsRowsThatAreKept) {
  Engine with(options(true)), without(options(false));
  std::vector<int32_t> ids = prompt(1300);
  for (int turn = 0; turn < 3; ++turn) {
    GenerateOptions lossless = run(VerifyMode::kLossless), plain = run(VerifyMode::kFull);
    lossless.max_tokens = plain.max_tokens = 250;  // the first answers seal a segment
    plain.speculate = false;
    for (GenerateOptions* each : {&lossless, &plain}) {
      each->keep = KeepRows::kAll;
      each->keep_tokens = 2500;
    }
    const GenerateResult said = with.generate(ids, lossless, nullptr), wanted = without.generate(ids, plain, nullptr);
    EXPECT_EQ(said.token_ids, wanted.token_ids) << turn;
    EXPECT_EQ(said.kept_tokens > 0, turn > 0);
    EXPECT_GT(said.plan.remainder_segments, 0);
    ids.insert(ids.end(), said.token_ids.begin(), said.token_ids.end());
    const std::vector<int32_t> more = testing::made_up_ids(50, 512, 9 + static_cast<uint32_t>(turn));
    ids.insert(ids.end(), more.begin(), more.end());
    if (turn == 1) ids.resize(1200);  // a shorter beginning of the same text
  }
}

// Rows that a saved prefix brings have remainders, too.
TEST_P(RemainderText, FollowsASavedPrefix) {
  const TemporaryFolder folder;
  EngineOptions saves = options(true);
  saves.prefix_cache.folder = folder.path();
  Engine engine(saves), without(options(false));
  GenerateOptions plain = run(VerifyMode::kFull);
  plain.speculate = false;
  const std::vector<int32_t> ids = prompt(1900);
  const GenerateResult wanted = without.generate(ids, plain, nullptr);
  const GenerateResult first = engine.generate(ids, run(VerifyMode::kLossless), nullptr);
  const GenerateResult hit = engine.generate(ids, run(VerifyMode::kLossless), nullptr);
  EXPECT_GT(hit.prefix.rows, 0);
  EXPECT_EQ(first.token_ids, wanted.token_ids);
  EXPECT_EQ(hit.token_ids, wanted.token_ids);
  EXPECT_EQ(hit.plan.remainder_segments, 3);
  EXPECT_EQ(hit.transfers.decode_h2d_bytes, first.transfers.decode_h2d_bytes);
}

// What the plan counts more with remainders is what a session takes more.
TEST_P(RemainderText, TakesTheMemoryOfThePlan) {
  uint64_t taken[2][2], planned[2][2];  // without and with remainders: of the device, of the host
  for (const bool remainders : {false, true}) {
    const LoadedModel model(testing::tiny_model("qwen3"), DType::kBF16, GetParam());
    SessionOptions options = model.options(1500, 16);
    options.kv = KvMode::kHost;
    options.partial.shape.copy = DType::kInt8;
    options.remainders = remainders;
    MemoryBudget &vram = model.device->vram(), &host = model.device->host_mem();
    vram.reset_peak();
    host.reset_peak();
    const uint64_t vram_before = vram.used_bytes(), host_before = host.own_peak_bytes();
    const auto session = model.session(options);
    testing::decode_plainly(*session, testing::made_up_ids(1500, 512), 4);
    const MemoryPlan& plan = session->plan();
    EXPECT_EQ(plan.remainder_bytes > 0, remainders);
    planned[remainders][0] = plan.vram_bytes;
    planned[remainders][1] = plan.host_total_bytes;
    taken[remainders][0] = vram.peak_bytes() - vram_before;
    taken[remainders][1] = host.own_peak_bytes() - host_before;
    EXPECT_LE(taken[remainders][1], planned[remainders][1]);
  }
  for (int memory : {0, 1}) {
    EXPECT_EQ(taken[1][memory] - taken[0][memory], planned[1][memory] - planned[0][memory]) << memory;
    EXPECT_GT(taken[1][memory], taken[0][memory]);
  }
}

}  // namespace
}  // namespace headrace
