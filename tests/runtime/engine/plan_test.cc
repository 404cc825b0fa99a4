// Engine::plan: what is planned is what is run, on the device, on its image on paper, and for a card that is not there.
#include <gtest/gtest.h>

#include "cache/minimum_budgets.h"
#include "offload/device/dry_run_device.h"
#include "runtime/draft/cache.h"
#include "runtime/engine/engine.h"
#include "runtime/model/files/shapes.h"
#include "runtime/model/random_checkpoint.h"
#include "tests/support/refusal.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_drafts.h"

namespace headrace {
namespace {

using testing_support::amount_after;

EngineOptions planned() {
  EngineOptions options;
  options.model = testing::tiny_model("llama31");
  options.device = {.choice = DeviceChoice::kCpu, .host_mem_bytes = 256 * kMiB, .threads = 2};
  options.want_tokenizer = false;
  options.dtype = DType::kF32;
  options.ring.slots = 2;
  options.ring.slot_bytes = kMiB;
  return options;
}

void expect_same(const MemoryPlan& a, const MemoryPlan& b) {
  EXPECT_EQ(a.to_string(), b.to_string());
  EXPECT_EQ(a.vram_bytes, b.vram_bytes);
  EXPECT_EQ(a.host_total_bytes, b.host_total_bytes);
  EXPECT_EQ(a.ring_slot_bytes, b.ring_slot_bytes);
  EXPECT_EQ(a.resident_segments, b.resident_segments);
}

TEST(Plan, IsWhatRunsHereAndOnPaper) {
  struct Case {
    KvMode kv;
    SpecType draft;
    std::optional<VerifyMode> verify;
    std::optional<int64_t> budget = 64;  // none: a copy of all rows in int8
  };
  for (const Case& c :
       {Case{KvMode::kAuto, SpecType::kNone, std::nullopt}, Case{KvMode::kHost, SpecType::kNone, VerifyMode::kLossless},
        Case{KvMode::kHost, SpecType::kNgram, VerifyMode::kApproximate},
        Case{KvMode::kHost, SpecType::kNgram, VerifyMode::kLossless, std::nullopt}}) {
    EngineOptions options = planned();
    options.draft.type = c.draft;
    options.verify = {.mode = c.verify, .budget = c.budget};
    const GenerateOptions run{.max_tokens = 2, .kv = c.kv, .ignore_eos = true};
    Engine engine(options);
    const RunPlan here = engine.plan(1100, run);
    EXPECT_EQ(here.draft, c.draft == SpecType::kNone ? "" : "ngram-simple");
    EXPECT_EQ(here.partial.blocks, c.verify && c.budget ? 4 : 0);
    EXPECT_EQ(here.partial.copy, c.budget ? std::nullopt : std::optional(DType::kInt8));
    const auto device = open_device(options.device);
    const Engine dry_run(options, nullptr, open_dry_run_device(dry_run_of(*device)));
    EXPECT_EQ(dry_run.describe(), engine.describe());
    expect_same(dry_run.plan(1100, run).memory, here.memory);
    const GenerateResult done = engine.generate(testing::made_up_ids(1100, 512), run, nullptr);
    expect_same(done.plan, here.memory);
    EXPECT_LE(done.memory.vram_peak_bytes, whole_pages(here.weights_bytes) + here.memory.vram_bytes);
  }
}

// Of a head that was trained short: the rows of its window, however long the context is, and all rows if asked for.
TEST(Plan, CountsTheWindowOfAHead) {
  const TemporaryFolder folder;
  testing_support::DraftFiles head = testing_support::tiny_eagle3_head();
  head.config["max_position_embeddings"] = 512;
  head.write(folder.path());
  const auto plan = [&](int64_t prompt, int64_t window) {
    EngineOptions options = planned();
    options.draft = {
        .type = SpecType::kEagle3, .model = folder.path(), .window = window, .tree = parse_tree("chain:3")};
    Engine engine(options);
    const GenerateOptions run{.max_tokens = 8, .ignore_eos = true};
    const RunPlan planned = engine.plan(prompt, run);
    const GenerateResult done = engine.generate(testing::made_up_ids(prompt, 512), run, nullptr);
    EXPECT_EQ(done.draft_window.rows, planned.draft_window.rows);
    EXPECT_EQ(done.draft_window.trained_positions, planned.draft_window.trained_positions);
    expect_same(done.plan, planned.memory);
    EXPECT_LE(done.memory.vram_peak_bytes, whole_pages(planned.weights_bytes) +
                                               whole_pages(planned.draft_weights_bytes) + planned.memory.vram_bytes);
    return planned;
  };
  EXPECT_EQ(plan(400, -1).draft_window.rows, 0);
  const RunPlan usual = plan(1900, -1), named = plan(1900, 441), whole = plan(1900, 0);
  EXPECT_EQ(usual.draft_window.rows, 512 - 3 - kPrefixTile - kDraftSinkRows);
  EXPECT_EQ(usual.draft_window.trained_positions, 512);
  EXPECT_EQ(named.draft_window.trained_positions, 0);
  EXPECT_EQ(whole.draft_window.rows, 0);
  expect_same(usual.memory, named.memory);
  EXPECT_LT(usual.memory.vram_bytes + 1024 * 2 * 32 * sizeof(float), whole.memory.vram_bytes);  // K and V
}

// Of a draft that retrieves: rows of the whole text, the chosen ones beside its window, and their scores.
TEST(Plan, CountsWhatADraftRetrieves) {
  const TemporaryFolder folder;
  testing_support::tiny_eagle3_head().write(folder.path());
  for (const SpecType type : {SpecType::kEagle3, SpecType::kSimple}) {
    const auto plan = [&](std::optional<RetrievalShape> retrieval) {
      EngineOptions options = planned();
      options.draft = {.type = type,
                       .model = type == SpecType::kEagle3 ? folder.path() : options.model,
                       .window = kMinDraftWindow,
                       .retrieval = retrieval,
                       .tree = parse_tree("chain:3")};
      Engine engine(options);
      const GenerateOptions run{.max_tokens = 8, .ignore_eos = true};
      const RunPlan planned = engine.plan(1900, run);
      const GenerateResult done = engine.generate(testing::made_up_ids(1900, 512), run, nullptr);
      EXPECT_EQ(done.draft_window.retrieval.chunks, retrieval ? retrieval->chunks : 0);
      expect_same(done.plan, planned.memory);
      EXPECT_LE(done.memory.vram_peak_bytes, whole_pages(planned.weights_bytes) +
                                                 whole_pages(planned.draft_weights_bytes) + planned.memory.vram_bytes);
      return planned.memory.vram_bytes;
    };
    const uint64_t window = plan({}), few = plan(RetrievalShape{.chunks = 6}),
                   many = plan(RetrievalShape{.chunks = 30});
    const uint64_t row_bytes = (type == SpecType::kEagle3 ? 1 : 4) * 2 * 32 * sizeof(float);  // K and V
    EXPECT_GT(few, window + 1024 * row_bytes);
    EXPECT_GE(many, few + 24 * 32 * row_bytes);
  }
}

// No CUDA is needed, nor the 16 GB that the weights would take.
TEST(Plan, NeedsNeitherACardNorItsMemory) {
  const Shape shape = find_shape("llama-3.1-8b");
  EngineOptions options;
  options.want_tokenizer = false;
  const DryRunCard card{.name = "a card", .vram_bytes = 22 * kGiB, .host_bytes = 64 * kGiB, .taken_bytes = 704 * kMiB};
  for (const VerifyMode verify : {VerifyMode::kFull, VerifyMode::kLossless}) {
    options.verify.mode = verify;
    const Engine engine(options, make_random_checkpoint(shape.name, shape.config, 0), open_dry_run_device(card));
    const RunPlan plan = engine.plan(61440, {.max_tokens = 256});
    EXPECT_EQ(plan.weights_bytes, 16060522496u);
    EXPECT_LE(plan.memory.vram_bytes + plan.weights_bytes + card.taken_bytes, card.vram_bytes);
    EXPECT_GT(plan.memory.resident_bytes, 0u);
    EXPECT_GT(plan.memory.host_bytes, 0u);
    // Some of what was measured on an H200: --kv auto --vram 22GiB keeps 4.75 GiB resident and 3 GiB in host memory.
    if (verify == VerifyMode::kFull) {
      EXPECT_NEAR(static_cast<double>(plan.memory.host_bytes), 3.0 * kGiB, 0.3 * kGiB);
    }
  }
}

TEST(Plan, OnPaperRefusesAsARunDoes) {
  const Shape shape = find_shape("llama-3.1-8b");
  EngineOptions options;
  options.want_tokenizer = false;
  const DryRunCard card{.name = "a card", .vram_bytes = 18 * kGiB, .host_bytes = 4 * kGiB};
  const Engine engine(options, make_random_checkpoint(shape.name, shape.config, 0), open_dry_run_device(card));
  try {
    engine.plan(61440, {.max_tokens = 256});
    ADD_FAILURE() << "it fits";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDoesNotFit);
    EXPECT_NE(std::string(error.what()).find("tokens would fit"), std::string::npos) << error.what();
  }
}

// Of 8B and 60K on such a card; none: it fits.
std::optional<DoesNotFit> refusal_on(const DryRunCard& card, const EngineOptions& options) {
  const Shape shape = find_shape("llama-3.1-8b");
  const Engine engine(options, make_random_checkpoint(shape.name, shape.config, 0), open_dry_run_device(card));
  try {
    engine.plan(61440, {.max_tokens = 256});
    return std::nullopt;
  } catch (const DoesNotFit& refusal) {
    return refusal;
  }
}

DryRunCard with_more(DryRunCard card, uint64_t vram_bytes, uint64_t host_bytes) {
  card.vram_bytes += vram_bytes;
  card.host_bytes += host_bytes;
  return card;
}

void expect_exact(const DryRunCard& card, const EngineOptions& options) {
  const std::optional<DoesNotFit> refusal = refusal_on(card, options);
  ASSERT_TRUE(refusal) << card.name;
  const MinimumBudgets& minimum = refusal->minimum();
  const PlanInput& in = refusal->input();
  if (minimum.host_bytes > 0) {
    const uint64_t more = minimum.host_bytes - in.host_free;
    EXPECT_FALSE(refusal_on(with_more(card, 0, more), options)) << card.name << refusal->what();
    EXPECT_TRUE(refusal_on(with_more(card, 0, more - kPageBytes), options)) << card.name << refusal->what();
  }
  if (minimum.vram_bytes > 0) {
    const uint64_t more = minimum.vram_bytes - in.vram_free;
    EXPECT_FALSE(refusal_on(with_more(card, more, 0), options)) << card.name << refusal->what();
    EXPECT_TRUE(refusal_on(with_more(card, more - kPageBytes, 0), options)) << card.name << refusal->what();
  }
  if (minimum.host_bytes + minimum.vram_bytes == 0) {
    const uint64_t more = minimum.both_vram_bytes - in.vram_free;
    EXPECT_FALSE(refusal_on(with_more(card, more, minimum.both_host_bytes - in.host_free), options)) << refusal->what();
    EXPECT_TRUE(refusal_on(with_more(card, more, minimum.both_host_bytes - in.host_free - kPageBytes), options));
  }
}

// What a refusal says would do does, and a page less does not, where passes are larger when they stream, too.
TEST(Plan, TheLeastThatARefusalNamesFits) {
  EngineOptions options;
  options.weights_place = WeightsPlace::kDevice;
  options.want_tokenizer = false;
  for (const VerifyMode verify : {VerifyMode::kFull, VerifyMode::kLossless}) {
    for (const KvMode kv : {KvMode::kAuto, KvMode::kDevice, KvMode::kHost}) {
      options.verify.mode = verify;
      options.kv = kv;
      expect_exact({.name = "short of both", .vram_bytes = 15500 * kMiB, .host_bytes = 4 * kGiB}, options);
      expect_exact({.name = "short of host memory", .vram_bytes = 19 * kGiB, .host_bytes = kGiB}, options);
      if (kv != KvMode::kDevice) continue;
      expect_exact({.name = "of the device's", .vram_bytes = 16 * kGiB, .host_bytes = 64 * kGiB}, options);
    }
  }
}

// Both tiers come out of --host-mem there: it is what is named, and --vram above it limits nothing.
TEST(Plan, OfACpuWithMoreVramThanMemoryRefusesByItsMemory) {
  EngineOptions options;
  options.weights_place = WeightsPlace::kDevice;
  options.want_tokenizer = false;
  const DryRunCard card{.name = "CPU", .backend = Backend::kCpu, .vram_bytes = 96 * kGiB, .host_bytes = 20 * kGiB};
  for (const KvMode kv : {KvMode::kAuto, KvMode::kDevice, KvMode::kHost}) {
    options.kv = kv;
    const std::optional<DoesNotFit> refusal = refusal_on(card, options);
    ASSERT_TRUE(refusal);
    const std::string what = refusal->info().what, hint = refusal->info().hint;
    EXPECT_EQ(refusal->info().where, "--host-mem") << refusal->what();
    EXPECT_EQ(hint.find("--vram"), std::string::npos) << hint;
    const uint64_t free = card.host_bytes - whole_pages(16060522496u);  // the weights
    EXPECT_EQ(refusal->input().host_free, free);
    const uint64_t needed = refusal->minimum().host_bytes, step = kGiB / 100 + 1;  // as it is said, it is rounded
    const uint64_t said = amount_after(what, "needs "), more = amount_after(hint, "raise --host-mem by ");
    EXPECT_TRUE(said >= needed && said <= needed + step) << refusal->what();
    EXPECT_TRUE(more >= needed - free && more <= needed - free + step) << refusal->what();
    EXPECT_LE(amount_after(what, "tokens, "), free) << refusal->what();
    EXPECT_FALSE(refusal_on(with_more(card, 0, more), options)) << refusal->what();
    expect_exact(card, options);
  }
}

// A little above, it is soon the limit: more memory alone is offered only as far as that does.
// The same of weights that the device cannot hold: the others are in host memory.
TEST(Plan, TheLeastThatARefusalNamesFitsWithWeightsInHostMemory) {
  EngineOptions options;
  options.want_tokenizer = false;
  for (const VerifyMode verify : {VerifyMode::kFull, VerifyMode::kLossless}) {
    options.verify.mode = verify;
    for (const WeightsPlace place : {WeightsPlace::kAuto, WeightsPlace::kHost}) {
      options.weights_place = place;
      expect_exact({.name = "short of host memory", .vram_bytes = 12 * kGiB, .host_bytes = 10 * kGiB}, options);
      expect_exact({.name = "short of both", .vram_bytes = 4 * kGiB, .host_bytes = 4 * kGiB}, options);
      expect_exact({.name = "of the device's", .vram_bytes = 2000 * kMiB, .host_bytes = 64 * kGiB}, options);
    }
  }
}

// As many layers stay as there is room for beside rows that have left.
TEST(Plan, WeightsLeaveOnceRowsHave) {
  const Shape shape = find_shape("llama-3.1-8b");
  EngineOptions options;
  options.want_tokenizer = false;
  int64_t before = 0;
  for (const uint64_t gib : {24, 18, 12, 8}) {
    const DryRunCard card{.name = "a card", .vram_bytes = gib * kGiB, .host_bytes = 64 * kGiB};
    const Engine engine(options, make_random_checkpoint(shape.name, shape.config, 0), open_dry_run_device(card));
    const RunPlan plan = engine.plan(61440, {.max_tokens = 256});
    const MemoryPlan& memory = plan.memory;
    EXPECT_LE(plan.weights_bytes + memory.vram_bytes, card.vram_bytes);
    EXPECT_GE(memory.host_weights_layers, before) << gib;
    EXPECT_EQ(memory.streams_weights(), gib <= 12) << gib;
    before = memory.host_weights_layers;
    if (!memory.streams_weights()) continue;
    EXPECT_LT(memory.resident_bytes, 500 * kMiB) << "rows take the room of a layer";
    EXPECT_EQ(memory.weights_slot_bytes, whole_pages(436224000u)) << "a layer";
    EXPECT_EQ(memory.host_weights_bytes, static_cast<uint64_t>(before) * memory.weights_slot_bytes);
  }
  EXPECT_LT(before, 32);
}

TEST(Plan, OfACpuWithLittleMoreVramThanMemoryOffersWhatDoes) {
  EngineOptions options;
  options.weights_place = WeightsPlace::kDevice;
  options.want_tokenizer = false;
  for (const KvMode kv : {KvMode::kAuto, KvMode::kDevice, KvMode::kHost}) {
    options.kv = kv;
    for (const uint64_t vram_gib : {18, 21, 22, 24, 28}) {
      expect_exact({.name = "CPU", .backend = Backend::kCpu, .vram_bytes = vram_gib * kGiB, .host_bytes = 20 * kGiB},
                   options);
    }
  }
}

TEST(DryRunDevice, CountsAsARealOneAndRunsNothing) {
  const auto device = open_dry_run_device({.name = "a card", .vram_bytes = 8 * kGiB, .host_bytes = kGiB});
  const DeviceBuffer most = device->allocate(8 * kGiB, "all");
  EXPECT_EQ(device->vram().free_bytes(), 0u);
  EXPECT_THROW(device->allocate(1, "more"), Error);
  const auto stream = device->make_stream("s", StreamRole::kCompute);
  EXPECT_THROW(stream->copy(most.data(), most.data(), 8, Link::kWithinDevice), Error);
  const auto cpu =
      open_dry_run_device({.name = "CPU", .backend = Backend::kCpu, .vram_bytes = kGiB, .host_bytes = kGiB});
  const DeviceBuffer half = cpu->allocate(kGiB / 2, "half");
  EXPECT_EQ(cpu->host_mem().free_bytes(), kGiB / 2);  // one memory
}

}  // namespace
}  // namespace headrace
