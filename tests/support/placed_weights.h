// Tests that the text does not depend on where weights are: engines of tiny models with each draft on each device, and
// what saved prefixes and kept rows must not change. Header only.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_drafts.h"
#include "tests/support/turns.h"

namespace headrace::testing {

// What a session said of a made-up prompt, each token decoded for itself, and what it took.
struct SaidInBudget {
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> logits;
  MemoryPlan plan;
  uint64_t in_bytes = 0;  // over the link to the device
  ExpertUse use;
};

// It takes no more memory than is planned.
inline SaidInBudget decode_in_budget(const LoadedModel& model, const SessionOptions& options, int64_t tokens) {
  const std::vector<int32_t> prompt =
      made_up_ids(options.prompt_tokens, static_cast<int32_t>(model.checkpoint->config().vocab));
  MemoryBudget &vram = model.device->vram(), &host = model.device->host_mem();
  vram.reset_peak();
  host.reset_peak();
  const uint64_t vram_before = vram.used_bytes(), host_before = host.own_peak_bytes();
  SaidInBudget said;
  const auto session = model.session(options);
  said.plan = session->plan();
  const uint64_t in = model.device->bytes_over(Link::kHostToDevice);
  said.tokens = decode_plainly(*session, prompt, tokens, &said.logits);
  said.in_bytes = model.device->bytes_over(Link::kHostToDevice) - in;
  said.use = session->expert_use();
  EXPECT_LE(vram.peak_bytes() - vram_before, said.plan.vram_bytes);
  EXPECT_LE(host.own_peak_bytes() - host_before, said.plan.host_total_bytes - said.plan.host_weights_bytes);
  return said;
}

// Of a tiny model. Its ring is small, so that it turns often.
inline EngineOptions small_engine(const std::string& model, DeviceChoice device) {
  EngineOptions o;
  o.model = tiny_model(model);
  o.device = {.choice = device, .threads = 2};
  o.want_tokenizer = false;
  o.ring = {.slots = 2, .slot_bytes = 64 * kKiB};
  return o;
}

// The same, without a draft, for tests of what a budget makes leave the device. A tiny model's layers are less than a
// granule of a GPU's memory.
class PlaceByBudget : public ::testing::TestWithParam<DeviceChoice> {
 protected:
  static EngineOptions options(const std::string& model) {
    EngineOptions o = small_engine(model, GetParam());
    o.prefill_group = 64;
    o.host_embedding = false;
    o.draft.type = SpecType::kNone;
    return o;
  }
  static GenerateOptions run() {
    return {.max_tokens = 10, .sampling = {.temperature = 0.8f, .seed = 3}, .ignore_eos = true};
  }
};

struct Drafted {
  DeviceChoice device;
  const char* model;
  SpecType draft;
};

// Every draft on every device.
inline std::vector<Drafted> each_draft() {
  std::vector<Drafted> all;
  for (const DeviceChoice device : session_devices()) {
    for (const SpecType draft : {SpecType::kNone, SpecType::kNgram, SpecType::kEagle3, SpecType::kMtp}) {
      all.push_back({device, draft == SpecType::kMtp ? "qwen35" : "llama31", draft});
    }
  }
  return all;
}

inline std::string drafted_name(const ::testing::TestParamInfo<Drafted>& given) {
  std::string draft = spec_type_name(given.param.draft);
  std::erase(draft, '-');
  return device_name(given.param.device) + "_" + given.param.model + "_" + draft;
}

class DraftedText : public ::testing::TestWithParam<Drafted> {
 protected:
  DraftedText() {
    if (GetParam().draft == SpecType::kEagle3) testing_support::tiny_eagle3_head().write(folder_.path());
  }
  EngineOptions options(WeightsPlace place) const {
    EngineOptions o = small_engine(GetParam().model, GetParam().device);
    o.prefill_group = 128;
    o.weights_place = place;
    o.draft.type = GetParam().draft;
    if (GetParam().draft == SpecType::kEagle3) o.draft.model = folder_.path();
    return o;
  }
  static GenerateOptions run(VerifyMode verify, KvMode kv, int64_t tokens = 40) {
    GenerateOptions run{
        .max_tokens = tokens, .kv = kv, .sampling = {.temperature = 0.8f, .seed = 3}, .ignore_eos = true};
    run.verify = VerifyOptions{.mode = verify};
    return run;
  }
  const TemporaryFolder folder_;
};

// An engine and its runs.
struct Way {
  EngineOptions options;
  GenerateOptions run;
};

// Both ways say the same after a saved prefix and in a conversation whose rows are kept. check(): of each result of the
// first way with saved prefixes.
inline void expect_same_after_saved_prefixes_and_kept_rows(
    const Way& there, const Way& usual, const std::function<void(const GenerateResult&)>& check = {}) {
  {
    const TemporaryFolder first, second;
    EngineOptions saves = there.options, saves_as_usual = usual.options;
    saves.prefix_cache.folder = first.path();
    saves_as_usual.prefix_cache.folder = second.path();
    Engine a(saves), b(saves_as_usual);
    for (const int64_t prompt : {1300, 1900}) {
      const std::vector<int32_t> ids = made_up_ids(prompt, 320);
      const GenerateResult said = a.generate(ids, there.run, nullptr), expected = b.generate(ids, usual.run, nullptr);
      EXPECT_EQ(said.prefix.rows, expected.prefix.rows);
      EXPECT_EQ(said.prefix.rows > 0, prompt == 1900);
      EXPECT_EQ(said.token_ids, expected.token_ids);
      if (check) check(said);
    }
  }
  const auto turns = [](const Way& way) {
    GenerateOptions keeping = way.run;
    keeping.keep = KeepRows::kPrompt;
    keeping.keep_tokens = 2048;
    Engine engine(way.options);
    return talk(engine, keeping);
  };
  EXPECT_EQ(turns(there), turns(usual));
}

}  // namespace headrace::testing
