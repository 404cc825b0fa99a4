// A copy of all rows for partial steps: what they see of it, and that a lossless run's text is plain decoding's
// (docs/design.md, section 8).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/engine/engine.h"
#include "tests/support/engine_search.h"
#include "tests/support/sanitized.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/those.h"

namespace headrace {
namespace {

using testing::kSanitized;
using testing::LoadedModel;
using testing::Session;

// Their heads have 32 elements, which int4 needs. Most layers of the second have a recurrent state in place of rows.
constexpr const char *kModel = "qwen3", *kHybrid = "qwen35";

class RowCopySteps : public ::testing::TestWithParam<std::tuple<DeviceChoice, const char*>> {
 protected:
  const LoadedModel model{testing::tiny_model(std::get<1>(GetParam())), DType::kF32, std::get<0>(GetParam())};
  const int32_t vocab = static_cast<int32_t>(model.checkpoint->config().vocab);

  std::unique_ptr<Session> session(int64_t prompt, std::optional<DType> copy, KvMode kv) const {
    SessionOptions options = model.options(prompt, 520);
    options.kv = kv;
    options.pass_rows = 40;
    options.grow_rows = copy ? 8 : 0;
    options.partial.shape.copy = copy;
    return model.session(options);
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, RowCopySteps,
                         ::testing::Combine(::testing::ValuesIn(testing::session_devices()),
                                            ::testing::Values(kModel, kHybrid)),
                         [](const auto& given) {
                           return testing::device_name(std::get<0>(given.param)) + "_" + std::get<1>(given.param);
                         });

Tree chain(const std::vector<int32_t>& ids, int64_t first, int64_t count) {
  Tree tree;
  tree.reset(ids[static_cast<size_t>(first)]);
  for (int64_t i = 1; i < count; ++i) tree.add(ids[static_cast<size_t>(first + i)], static_cast<int32_t>(i) - 1);
  return tree;
}

Acceptance path(int64_t count) {
  Acceptance acceptance{.nodes = {}, .next = 0};
  for (int32_t i = 0; i < count; ++i) acceptance.nodes.push_back(i);
  return acceptance;
}

// The largest difference of two passes' logits.
float distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  float most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i])) return INFINITY;
    most = std::max(most, std::fabs(a[i] - b[i]));
  }
  return most;
}

// Partial steps on a copy beside full steps, then a refresh or a full step, and again: how far their logits are apart.
float walk(Session& copy, Session& full, const std::vector<int32_t>& prompt, const std::vector<int32_t>& ids,
           int64_t rounds) {
  copy.prefill(prompt, nullptr, nullptr);
  full.prefill(prompt, nullptr, nullptr);
  float apart = 0;
  int64_t at = 0;
  for (int64_t round = 0; round < rounds; ++round) {
    EXPECT_TRUE(copy.partial_ready());
    const Tree tree = chain(ids, at, 8);
    const Ranked grown = copy.grow(tree, 0);
    const std::vector<int32_t> samples(grown.samples.begin(), grown.samples.end());
    full.verify(chain(ids, at, 40));
    const std::vector<float> exact = full.logits(40);
    full.commit(path(40));
    for (int64_t done = 0; done < 40; done += 20) {
      const std::span<const int32_t> said = copy.verify(chain(ids, at + done, 20), StepMode::kPartial);
      if (done == 0) {
        EXPECT_TRUE(std::equal(samples.begin(), samples.end(), said.begin()));
      }
      const auto from = exact.begin() + static_cast<int64_t>(exact.size()) / 40 * done;
      const std::vector<float> here(from, from + static_cast<int64_t>(exact.size()) / 2);
      apart = std::max(apart, distance(copy.logits(20), here));
      copy.commit(path(20));
    }
    const StepMode mode = round % 2 == 0 ? StepMode::kRefresh : StepMode::kFull;
    copy.verify(chain(ids, at, 40), mode);
    EXPECT_EQ(copy.logits(40), exact) << "a refresh is a full step";
    copy.commit(path(40));
    EXPECT_EQ(copy.rows(), full.rows());
    at += 40;
  }
  return apart;
}

// A copy that rounds nothing: a partial step has the bits of a full one. The walk is so long that rows that were
// committed come before the tail, those beyond a border of segments, too.
TEST_P(RowCopySteps, ReadEveryRowAtItsPlace) {
  const std::vector<int32_t> ids = testing::made_up_ids(480, vocab, 7);
  for (const auto& [prompt, kv] : {std::pair(400, KvMode::kDevice), std::pair(990, KvMode::kHost)}) {
    const auto copy = session(prompt, DType::kF32, kv), full = session(prompt, std::nullopt, kv);
    const std::vector<int32_t> text = testing::made_up_ids(prompt, vocab);
    EXPECT_EQ(walk(*copy, *full, text, ids, kSanitized ? 10 : 12), 0) << prompt;
  }
}

// Fewer bits move the logits a little, the fewer the more.
TEST_P(RowCopySteps, SeeRoundedRows) {
  const std::vector<int32_t> ids = testing::made_up_ids(320, vocab, 7), text = testing::made_up_ids(990, vocab);
  const auto moved = [&](DType type) {
    const auto copy = session(990, type, KvMode::kHost), full = session(990, std::nullopt, KvMode::kHost);
    return walk(*copy, *full, text, ids, kSanitized ? 2 : 4);
  };
  const float int8 = moved(DType::kInt8), int4 = moved(DType::kInt4);
  EXPECT_GT(int8, 0);
  EXPECT_LT(int8, 0.05f);
  EXPECT_GT(int4, 2 * int8);
  EXPECT_LT(int4, 0.8f);
}

// A context that has no row before its tail has no copy, and one that outgrows it is read from the copy from then on.
TEST_P(RowCopySteps, BeginWhereThereIsAPrefix) {
  const std::vector<int32_t> ids = testing::made_up_ids(320, vocab, 7);
  const auto copy = session(200, DType::kInt8, KvMode::kHost);
  copy->prefill(testing::made_up_ids(200, vocab), nullptr, nullptr);
  for (int64_t rows = 200; rows < 340; rows += 20) {
    EXPECT_EQ(copy->partial_ready(), rows >= 320) << rows;
    copy->verify(chain(ids, rows - 200, 20), StepMode::kFull);
    copy->commit(path(20));
  }
}

struct Kind {
  PartialKind kind;
  SpecType spec;
  DType dtype;
  DeviceChoice device;
  const char* model;
};

class RowCopyText : public ::testing::TestWithParam<Kind> {
 protected:
  static EngineOptions options() {
    EngineOptions options;
    options.model = testing::tiny_model(GetParam().model);
    options.device = {.choice = GetParam().device, .threads = 2};
    options.want_tokenizer = false;
    options.dtype = GetParam().dtype;
    options.ring.slots = 2;
    options.draft.type = GetParam().spec;
    if (GetParam().kind == PartialKind::kInt4 && GetParam().spec == SpecType::kNone) {  // fewer bits than the cache's
      options.cache_type_k = options.cache_type_v = DType::kInt8;
    }
    return options;
  }
  static std::vector<int32_t> prompt(int64_t tokens) { return testing::repeated_ids(tokens, 320); }
  static VerifyOptions verify(VerifyMode mode, int64_t interval) {
    return {.mode = mode, .partial = GetParam().kind, .interval = interval};
  }
};

// Whatever the interval and the temperature, for chains and trees of pending tokens, and where the run begins with a
// context that has no prefix; a border of segments is crossed.
TEST_P(RowCopyText, IsThatOfPlainDecoding) {
  Engine engine(options());
  VerifyOutcome outcome;
  struct Text {
    int64_t tokens;
    float temperature;
  };
  std::vector<Text> texts = {{290, 0.0f}, {440, 0.9f}};
  if (kSanitized) texts = {{440, 0.9f}};
  for (const auto& [tokens, temperature] : texts) {
    GenerateOptions run{.max_tokens = 120, .sampling = {.temperature = temperature, .seed = 3}, .ignore_eos = true};
    run.kv = KvMode::kHost;
    run.speculate = false;
    run.verify = VerifyOptions{.mode = VerifyMode::kFull};
    const GenerateResult plain = engine.generate(prompt(tokens), run, nullptr);
    run.speculate = true;
    for (const bool tree : {false, true}) {
      for (const int64_t interval : {int64_t{30}, kAutoInterval}) {
        run.verify = verify(VerifyMode::kLossless, interval);
        run.pending.reset();
        if (tree) run.pending = {.width = 12, .grown = 90, .nodes = 120, .least = 0.001};
        const GenerateResult said = engine.generate(prompt(tokens), run, nullptr);
        ASSERT_EQ(said.token_ids, plain.token_ids) << tokens << " T " << temperature << " every " << interval;
        EXPECT_EQ(said.speculation.partial_kv, partial_kind_name(GetParam().kind));
        EXPECT_GT(said.speculation.of(StepMode::kPartial).steps, 0);
        outcome.add(said.speculation.verify_outcome);
      }
    }
  }
  EXPECT_GT(outcome.judged, 100);
  EXPECT_LT(outcome.rejected, outcome.judged / 4);
}

// What few tokens are overturned is worth: a chain of more than a hundred tokens waits for one refresh. A GPU whose
// refreshes stream has a tree.
class RowCopyTextWithoutADraft : public RowCopyText {};  // whose guesses end chains; with saved prefixes
TEST_P(RowCopyTextWithoutADraft, PendsInLongChains) {
  Engine engine(options());
  GenerateOptions run{.max_tokens = 300, .kv = KvMode::kHost, .ignore_eos = true};
  run.verify = verify(VerifyMode::kLossless, kMaxPending);
  const Speculation s = engine.generate(prompt(440), run, nullptr).speculation;
  if (GetParam().device == DeviceChoice::kCuda) {
    EXPECT_GT(s.of(StepMode::kPartial).nodes, s.of(StepMode::kPartial).steps);
    return;
  }
  EXPECT_LE(s.of(StepMode::kRefresh).steps, 2 + s.verify_outcome.rejected) << s.verify_outcome.rejected;
  EXPECT_EQ(s.of(StepMode::kPartial).nodes, s.of(StepMode::kPartial).steps) << "a node a step";
}

// In approximate mode the text depends on the copy alone: not on where the KV cache is, nor on a saved prefix, whose
// rows fill the copy as computed ones do. The prompt is longer than the group of 2,048 rows that a GPU saves.
TEST_P(RowCopyTextWithoutADraft, DependsOnTheCopyAloneWhereApproximate) {
  const TemporaryFolder folder;
  EngineOptions opened = options(), saves = options();
  opened.rope = saves.rope = {.scaling = RopeScaling::kLinear, .factor = 2};  // the model was trained for 2,048 tokens
  saves.prefix_cache.folder = folder.path();
  Engine fresh(opened), engine(saves);
  GenerateOptions run{.max_tokens = 60, .sampling = {.temperature = 1.2f, .seed = 5}, .ignore_eos = true};
  run.verify = verify(VerifyMode::kApproximate, kAutoInterval);
  run.kv = KvMode::kHost;
  const std::vector<int32_t> ids = prompt(2200);
  const GenerateResult first = fresh.generate(ids, run, nullptr), saving = engine.generate(ids, run, nullptr);
  run.kv = KvMode::kDevice;
  const GenerateResult hit = engine.generate(ids, run, nullptr);
  EXPECT_GE(hit.prefix.rows, 2048);
  EXPECT_EQ(saving.token_ids, first.token_ids);
  EXPECT_EQ(hit.token_ids, first.token_ids);
  EXPECT_EQ(hit.plan.partial_bytes, first.plan.partial_bytes) << "a named copy is made wherever the KV cache is";
}

// In a budget that holds the copy once prefill has freed its memory, and not beside it. Refreshes then stream what the
// int8 copy lacks of the rows as well.
class LateCopy : public ::testing::TestWithParam<std::tuple<DeviceChoice, PartialKind>> {};
TEST_P(LateCopy, IsTheOneThatPrefillMakes) {
  constexpr int64_t kPrompt = 8000;
  const auto [device, kind] = GetParam();
  EngineOptions small;
  small.model = testing::tiny_model(kHybrid);
  small.device = {.choice = device, .threads = 2};
  small.want_tokenizer = false;
  small.dtype = DType::kBF16;
  small.ring.slots = 2;
  small.remainders = true;
  small.rope = {.scaling = RopeScaling::kLinear, .factor = 12};
  small.prefill_group = 8192;  // prefill's buffers are to be larger than a step's, as a GPU's are
  Engine large(small);
  GenerateOptions run{.max_tokens = 60, .sampling = {.temperature = 0.8f, .seed = 7}, .ignore_eos = true};
  run.kv = KvMode::kHost;
  run.verify = VerifyOptions{.mode = VerifyMode::kApproximate, .partial = kind, .interval = 10};
  const std::vector<int32_t> ids = testing::repeated_ids(kPrompt, 320);
  const int64_t remainders = kind == PartialKind::kInt8 ? segment_of(kPrompt) : 0;
  const auto room_of = [&](const MemoryPlan& plan) {
    if (!plan.late_partial) return testing::Room::kTooMuch;
    return plan.remainder_segments == remainders ? testing::Room::kWanted : testing::Room::kTooLittle;
  };
  const std::unique_ptr<Engine> engine = testing::engine_with_room(&small, kPrompt, run, room_of);
  ASSERT_NE(engine, nullptr);
  const GenerateResult early = large.generate(ids, run, nullptr), late = engine->generate(ids, run, nullptr);
  EXPECT_FALSE(early.plan.late_partial);
  EXPECT_TRUE(late.plan.late_partial);
  EXPECT_LE(late.memory.vram_peak_bytes, small.device.vram_bytes);
  EXPECT_EQ(late.token_ids, early.token_ids);
  EXPECT_GT(late.speculation.of(StepMode::kPartial).steps, 20);
  EXPECT_EQ(early.plan.remainder_segments, remainders);
  if (remainders > 0) {  // else the pass that fills the copy leaves the next chunks on their way
    EXPECT_EQ(late.transfers.decode_h2d_bytes, early.transfers.decode_h2d_bytes);
  }
  run.verify->mode = VerifyMode::kFull;
  const std::vector<int32_t> plain = large.generate(ids, run, nullptr).token_ids;
  run.verify->mode = VerifyMode::kLossless;
  EXPECT_EQ(engine->generate(ids, run, nullptr).token_ids, plain);
}
INSTANTIATE_TEST_SUITE_P(Devices, LateCopy,
                         ::testing::Combine(::testing::ValuesIn(testing::session_devices()),
                                            ::testing::Values(PartialKind::kInt8, PartialKind::kInt4)),
                         [](const auto& given) {
                           return testing::device_name(std::get<0>(given.param)) + "_" +
                                  partial_kind_name(std::get<1>(given.param));
                         });

std::vector<Kind> kinds() {
  std::vector<Kind> all;
  for (const DeviceChoice device : testing::session_devices()) {
    for (const PartialKind kind : {PartialKind::kInt8, PartialKind::kInt4}) {
      for (const SpecType spec : {SpecType::kNone, SpecType::kNgram}) {
        const DType dtype = (kind == PartialKind::kInt8) == (spec == SpecType::kNone) ? DType::kF32 : DType::kBF16;
        for (const char* const model : {kModel, kHybrid}) all.push_back({kind, spec, dtype, device, model});
      }
    }
  }
  return all;
}

std::string name_of_kind(const ::testing::TestParamInfo<Kind>& instance) {
  const Kind& kind = instance.param;
  return testing::device_name(kind.device) + "_" + partial_kind_name(kind.kind) +
         (kind.spec == SpecType::kNone ? "_none_" : "_ngram_") + dtype_name(kind.dtype) + "_" + kind.model;
}

INSTANTIATE_TEST_SUITE_P(Kinds, RowCopyText, ::testing::ValuesIn(kinds()), name_of_kind);
INSTANTIATE_TEST_SUITE_P(Kinds, RowCopyTextWithoutADraft,
                         ::testing::ValuesIn(testing::those(
                             kinds(), [](const Kind& k) { return k.spec == SpecType::kNone && k.model == kModel; })),
                         name_of_kind);

}  // namespace
}  // namespace headrace
