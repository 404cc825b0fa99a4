// Saved prefixes of models with recurrent states or windows: a hit begins at the last saved states within the tokens
// that prompts share, and has the bits of a fresh run, whatever became of the files in between.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cache/minimum_budgets.h"
#include "runtime/engine/engine.h"
#include "runtime/prefix/cache_key.h"
#include "runtime/prefix/run.h"
#include "tests/support/sanitized.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using testing::LoadedModel;
using testing::Session;

constexpr int32_t kTinyVocab = 320;
constexpr int64_t kGpuGroup = 512;

std::vector<int32_t> continued(const std::vector<int32_t>& first, int64_t common, int64_t more, uint32_t seed = 77) {
  std::vector<int32_t> ids(first.begin(), first.begin() + common);
  const std::vector<int32_t> rest = testing::made_up_ids(more, kTinyVocab, seed);
  ids.insert(ids.end(), rest.begin(), rest.end());
  return ids;
}

using DeviceTypeAndModel = std::tuple<DeviceChoice, testing::RowsType, const char*>;

class PrefixStates : public ::testing::TestWithParam<DeviceTypeAndModel> {
 protected:
  EngineOptions options(const std::string& folder) const {
    const auto& [device, rows, model] = GetParam();
    EngineOptions o;
    o.model = testing::tiny_model(model);
    o.device = {.choice = device, .threads = 2};
    o.want_tokenizer = false;
    o.dtype = testing::weights_type(rows);
    o.cache_type_k = o.cache_type_v = rows;
    o.prefill = rows.prefill();
    o.prefill_group = kGpuGroup;
    o.prefix_cache.folder = folder;
    return o;
  }
  static GenerateOptions run() {
    return {.max_tokens = 16, .sampling = {.temperature = 1, .seed = 5}, .ignore_eos = true};
  }
  int64_t unit() const {
    const auto& [device, rows, model] = GetParam();
    return device == DeviceChoice::kCpu || rows.prefill_int8 ? kPrefixTile : kGpuGroup;
  }
  int64_t last(int64_t tokens) const { return (tokens - 16) / unit() * unit(); }
  std::vector<int32_t> fresh(const std::vector<int32_t>& prompt) const {
    return Engine(options("")).generate(prompt, run(), nullptr).token_ids;
  }
  // The blocks of states by where they are.
  static std::map<int64_t, PrefixKey> states_in(const std::string& folder) {
    std::map<int64_t, PrefixKey> states;
    const PrefixStore store({.folder = folder}, PrefixStore::Use::kLook);
    for (const auto& [key, entry] : store.index().entries()) {
      if (entry.block.kind == PrefixBlockKind::kStates) states[entry.block.end_row()] = key;
    }
    return states;
  }

  const TemporaryFolder folder;
};
std::string name_of_case(const ::testing::TestParamInfo<DeviceTypeAndModel>& given) {
  const auto& [device, rows, model] = given.param;
  return testing::device_name(device) + "_" + rows.name() + "_" + model;
}
INSTANTIATE_TEST_SUITE_P(, PrefixStates,
                         ::testing::Combine(::testing::ValuesIn(testing::session_devices()),
                                            ::testing::ValuesIn(testing::types_to_share()),
                                            ::testing::Values("qwen35", "qwen35moe", "gemma3")),
                         name_of_case);

// The logits, not the text.
TEST_P(PrefixStates, AHitHasTheBitsOfAFreshRun) {
  const LoadedModel model(testing::tiny_model(std::get<2>(GetParam())), std::get<1>(GetParam()),
                          std::get<0>(GetParam()));
  PrefixStore store({.folder = folder.path()});
  struct Answer {
    std::vector<std::vector<float>> logits;
    PrefixUse use;
  };
  const auto answer = [&](const std::vector<int32_t>& prompt, bool saved, KvMode kv = KvMode::kAuto) {
    const auto tokens = static_cast<int64_t>(prompt.size());
    SessionOptions options = model.options(tokens, 12);
    options.prefill_group = kGpuGroup;
    options.kv = kv;
    std::unique_ptr<PrefixRun> prefix;
    if (saved) {
      const ModelConfig& config = model.checkpoint->config();
      prefix = std::make_unique<PrefixRun>(
          store, PrefixRunSetup{.shape = row_shape(config, options.k_type, options.v_type, model.weights.dtype()),
                                .identity = {},
                                .model = "tiny",
                                .unit = unit(),
                                .draft = {},
                                .states = snapshot_shape(config, model.weights.dtype(), options.k_type, options.v_type),
                                .states_at = snapshot_positions(tokens, unit()),
                                .prompt = prompt});
      options.prefix = prefix.get();
    }
    Answer answer;
    const std::unique_ptr<Session> session = model.session(options);
    testing::decode_plainly(*session, prompt, 4, &answer.logits);
    if (prefix) prefix->finish(nullptr, nullptr, &answer.use);
    return answer;
  };
  const std::vector<int32_t> first = testing::made_up_ids(4400, kTinyVocab);
  const Answer saving = answer(first, true), again = answer(first, true);
  EXPECT_EQ(saving.logits, answer(first, false).logits);
  EXPECT_EQ(saving.use.rows, 0);
  EXPECT_EQ(saving.use.saved_rows, last(4400));
  EXPECT_EQ(again.logits, saving.logits);
  EXPECT_EQ(again.use.rows, last(4400));
  EXPECT_EQ(again.use.saved_bytes, 0u);
  // The positions of states that were saved of what prompts share with the first one; 0: the beginning.
  std::set<int64_t> shared = {0};
  for (const int64_t at : snapshot_positions(4400, unit())) shared.insert(at);
  EXPECT_EQ(*shared.rbegin(), last(4400));
  std::vector<int64_t> cuts = {60, 2047, 2048, 3000, 4095, 4351, 4352, 4400};
  if (testing::kSanitized) cuts = {2047, 3000, 4400};
  for (const int64_t common : cuts) {
    const std::vector<int32_t> other = continued(first, common, common % 2 == 0 ? 37 : 300);
    const int64_t wanted = *std::prev(shared.upper_bound(common));
    const Answer hit = answer(other, true, common % 2 == 0 ? KvMode::kHost : KvMode::kDevice);
    EXPECT_EQ(hit.logits, answer(other, false).logits) << common;
    EXPECT_EQ(hit.use.rows, wanted) << common;
    for (const int64_t at : snapshot_positions(static_cast<int64_t>(other.size()), unit())) {
      if (at <= common) shared.insert(at);
    }
    EXPECT_TRUE(hit.use.notes.empty());
  }
}

// A restart between the turns of a chat costs what is new, too, although each answer is changed (`<think>` goes).
TEST_P(PrefixStates, AChatThatIsRestartedGoesOn) {
  std::vector<int32_t> prompt = testing::made_up_ids(700, kTinyVocab);
  int64_t before = 0;
  for (uint32_t turn = 0; turn < 4; ++turn) {
    GenerateOptions keeps = run();
    keeps.keep = KeepRows::kPrompt;
    Engine engine(options(folder.path()));
    const GenerateResult result = engine.generate(prompt, keeps, nullptr);
    EXPECT_EQ(result.token_ids, fresh(prompt)) << turn;
    EXPECT_EQ(result.prefix.rows, before) << turn;
    before = last(static_cast<int64_t>(prompt.size()));
    const auto shared = static_cast<int64_t>(prompt.size()) - 7;
    const std::vector<int32_t> other = continued(prompt, shared, 40, turn + 50);
    const GenerateResult kept = engine.generate(other, keeps, nullptr);  // of what was saved, too
    EXPECT_EQ(kept.kept_tokens, before) << turn;
    EXPECT_EQ(kept.token_ids, fresh(other)) << turn;
    prompt = continued(prompt, shared, 300 + 200 * turn, turn + 20);
  }
}

// Where a hit ends, the run after it can begin.
TEST_P(PrefixStates, AHitLeavesItsStatesToTheNextRun) {
  const std::vector<int32_t> prompt = testing::made_up_ids(1500, kTinyVocab);
  Engine(options(folder.path())).generate(prompt, run(), nullptr);
  GenerateOptions keeps = run();
  keeps.keep = KeepRows::kPrompt;
  Engine engine(options(folder.path()));
  EXPECT_EQ(engine.generate(prompt, keeps, nullptr).prefix.rows, last(1500));
  const std::vector<int32_t> other = continued(prompt, 1490, 50);
  const GenerateResult kept = engine.generate(other, keeps, nullptr);
  EXPECT_EQ(kept.kept_tokens, last(1500));
  EXPECT_EQ(kept.token_ids, fresh(other));
}

TEST_P(PrefixStates, ShortAndOtherPromptsAreMisses) {
  Engine engine(options(folder.path()));
  const std::vector<int32_t> tiny = testing::made_up_ids(70, kTinyVocab);
  for (int twice = 0; twice < 2; ++twice) {
    const GenerateResult result = engine.generate(tiny, run(), nullptr);
    EXPECT_EQ(result.prefix.rows, 0);
    EXPECT_EQ(result.prefix.saved_rows, 0);
    EXPECT_EQ(result.token_ids, fresh(tiny));
  }
  EXPECT_TRUE(states_in(folder.path()).empty());
  const std::vector<int32_t> first = testing::made_up_ids(900, kTinyVocab, 2);
  engine.generate(first, run(), nullptr);
  const std::vector<int32_t> other = continued(first, last(900) - 1, 200);
  const GenerateResult less = engine.generate(other, run(), nullptr);
  EXPECT_EQ(less.prefix.rows, 0);
  EXPECT_EQ(less.token_ids, fresh(other));
}

// Only the states are lost: the run begins at the ones before, says why, and saves them again.
TEST_P(PrefixStates, DamagedStatesAreAMissToThoseBefore) {
  const std::vector<int32_t> prompt = testing::made_up_ids(2700, kTinyVocab);
  const std::vector<int32_t> expected = fresh(prompt);
  Engine(options(folder.path())).generate(prompt, run(), nullptr);
  const std::map<int64_t, PrefixKey> states = states_in(folder.path());
  ASSERT_EQ(states.size(), 2u);
  ASSERT_EQ(states.begin()->first, 2048);
  const std::string name = key_text(states.rbegin()->second), data = name + ".kv", manifest = name + ".seg";
  const std::string good = folder.read(data), good_manifest = folder.read(manifest);
  const auto flipped = [&](const std::string& file, size_t at) {
    std::string bytes = folder.read(file);
    bytes[at] = static_cast<char>(bytes[at] ^ 16);
    folder.write(file, bytes);
  };
  const SnapshotShape shape = [&] {
    const Engine engine(options(""));
    const DType rows = std::get<1>(GetParam());
    return snapshot_shape(engine.config(), engine.dtype(), rows, rows);
  }();
  const size_t part = StateSnapshots::part_bytes(shape), second = shape.elements.front().bytes;
  ASSERT_EQ(good.size(), part * static_cast<size_t>(shape.layers));
  struct Damage {
    const char* what;
    std::function<void()> make;
    std::string said;
  };
  const std::string bytes_said = "are not those that were written";
  const std::vector<Damage> damages = {
      {"a state, or keys", [&] { flipped(data, 5); }, bytes_said},
      {"the convolution's inputs, or values", [&] { flipped(data, second + 3); }, bytes_said},
      {"the zeros behind, or the last value", [&] { flipped(data, part - 1); }, bytes_said},
      {"the last layer", [&] { flipped(data, good.size() - part + 9); }, bytes_said},
      {"cut short", [&] { folder.write(data, good.substr(0, good.size() - part)); }, "data of another size"},
      {"no data", [&] { std::filesystem::remove(folder / data); }, "no data beside it"},
      {"the manifest's kind", [&] { flipped(manifest, 16); }, "has a wrong checksum"},
      {"the manifest", [&] { flipped(manifest, 130); }, "has a wrong checksum"},
      {"a manifest cut short", [&] { folder.write(manifest, good_manifest.substr(0, 90)); }, "wrong checksum"}};
  for (const Damage& damage : damages) {
    damage.make();
    Engine engine(options(folder.path()));
    const GenerateResult mended = engine.generate(prompt, run(), nullptr);
    EXPECT_EQ(mended.token_ids, expected) << damage.what;
    EXPECT_EQ(mended.prefix.rows, 2048) << damage.what;
    ASSERT_EQ(mended.prefix.notes.size(), 1u) << damage.what;
    EXPECT_NE(mended.prefix.notes[0].find(damage.said), std::string::npos) << mended.prefix.notes[0];
    EXPECT_NE(mended.prefix.notes[0].find(name), std::string::npos) << mended.prefix.notes[0];
    EXPECT_EQ(mended.prefix.saved_rows, last(2700)) << damage.what;
    EXPECT_EQ(folder.read(data), good) << damage.what << ": saved again, the same bytes";
    const GenerateResult again = engine.generate(prompt, run(), nullptr);
    EXPECT_EQ(again.prefix.rows, last(2700)) << damage.what;
    EXPECT_EQ(again.token_ids, expected);
  }
  std::filesystem::remove(folder / manifest);
  EXPECT_EQ(Engine(options(folder.path())).generate(prompt, run(), nullptr).prefix.rows, 2048);
  for (const auto& [position, key] : states) flipped(key_text(key) + ".kv", 7);
  const GenerateResult none = Engine(options(folder.path())).generate(prompt, run(), nullptr);
  EXPECT_EQ(none.prefix.rows, 0);
  EXPECT_EQ(none.prefix.restarts, 2);
  EXPECT_EQ(none.token_ids, expected);
}

// Rows are of use with states alone, so damaged rows end the prefix at the states before them.
TEST_P(PrefixStates, DamagedRowsEndAtTheStatesBefore) {
  const std::vector<int32_t> prompt = testing::made_up_ids(2700, kTinyVocab);
  Engine(options(folder.path())).generate(prompt, run(), nullptr);
  const PrefixStore store({.folder = folder.path()}, PrefixStore::Use::kLook);
  for (const auto& [key, entry] : store.index().entries()) {
    if (entry.block.kind != PrefixBlockKind::kRows || entry.block.first_row != 2048) continue;
    std::string bytes = folder.read(key_text(key) + ".kv");
    bytes[40] = static_cast<char>(bytes[40] ^ 1);
    folder.write(key_text(key) + ".kv", bytes);
  }
  const GenerateResult mended = Engine(options(folder.path())).generate(prompt, run(), nullptr);
  EXPECT_EQ(mended.prefix.rows, 2048);
  EXPECT_EQ(mended.token_ids, fresh(prompt));
}

TEST_P(PrefixStates, PruningLeavesWhatCanBeUsed) {
  const std::vector<int32_t> prompt = testing::made_up_ids(2700, kTinyVocab), expected = fresh(prompt);
  Engine(options(folder / "whole")).generate(prompt, run(), nullptr);
  const uint64_t all = PrefixStore({.folder = folder / "whole"}, PrefixStore::Use::kLook).index().bytes();
  std::set<int64_t> found;
  constexpr uint64_t kSteps = testing::kSanitized ? 3 : 6;
  for (uint64_t step = 0; step <= kSteps; ++step) {
    const std::string copy = folder / std::to_string(step);
    std::filesystem::copy(folder / "whole", copy);
    {
      PrefixStore store({.folder = copy});
      store.prune(all * (kSteps - step) / kSteps);
      EXPECT_LE(store.index().bytes(), all * (kSteps - step) / kSteps);
      EXPECT_TRUE(store.index().orphans().empty());
    }
    const GenerateResult left = Engine(options(copy)).generate(prompt, run(), nullptr);
    EXPECT_EQ(left.token_ids, expected) << step;
    EXPECT_TRUE(left.prefix.notes.empty());
    found.insert(left.prefix.rows);
  }
  EXPECT_TRUE(found.contains(0) && found.contains(last(2700))) << found.size();
  for (const int64_t rows : found) EXPECT_TRUE(rows == 0 || rows == 2048 || rows == last(2700)) << rows;
}

// A folder with room for less than the prompt holds a beginning of it, with the states of that.
TEST_P(PrefixStates, ALimitLeavesOutTheLast) {
  const std::vector<int32_t> prompt = testing::made_up_ids(2700, kTinyVocab);
  Engine(options(folder / "whole")).generate(prompt, run(), nullptr);
  const uint64_t all = PrefixStore({.folder = folder / "whole"}, PrefixStore::Use::kLook).index().bytes();
  EngineOptions limited = options(folder / "limited");
  limited.prefix_cache.limit_bytes = all - 1;
  EXPECT_EQ(Engine(limited).generate(prompt, run(), nullptr).prefix.saved_rows, 2048);
  const GenerateResult hit = Engine(limited).generate(prompt, run(), nullptr);
  EXPECT_EQ(hit.prefix.rows, 2048);
  EXPECT_EQ(hit.token_ids, fresh(prompt));
}

TEST_P(PrefixStates, AnInterruptedRunSavesNothing) {
  const std::atomic<bool> interrupt{true};
  GenerateOptions stopped = run();
  stopped.interrupt = &interrupt;
  Engine engine(options(folder.path()));
  EXPECT_EQ(engine.generate(testing::made_up_ids(900, kTinyVocab), stopped, nullptr).prefix.saved_rows, 0);
  EXPECT_EQ(PrefixStore({.folder = folder.path()}, PrefixStore::Use::kLook).index().entries().size(), 0u);
}

// A run without the room for snapshots goes on without saved prefixes, and says so.
TEST(PrefixStatesRoom, NoneIsMade) {
  const TemporaryFolder folder;
  const std::vector<int32_t> prompt = testing::made_up_ids(3000, kTinyVocab);
  EngineOptions options;
  options.model = testing::tiny_model("qwen35");
  options.device = {.choice = DeviceChoice::kCpu, .threads = 1};
  options.want_tokenizer = false;
  const GenerateOptions run{.max_tokens = 4, .ignore_eos = true};
  Engine plain(options);
  const GenerateResult fresh = plain.generate(prompt, run, nullptr);
  const RunPlan plan = plain.plan(3000, run);
  options.device.host_mem_bytes =
      plan.weights_bytes + plan.memory.vram_bytes + plan.memory.host_total_bytes + 64 * kKiB;
  options.prefix_cache.folder = folder.path();
  const GenerateResult without = Engine(options).generate(prompt, run, nullptr);
  EXPECT_EQ(without.token_ids, fresh.token_ids);
  EXPECT_EQ(without.prefix.saved_rows, 0);
  ASSERT_EQ(without.prefix.notes.size(), 1u);
  EXPECT_NE(without.prefix.notes[0].find("--host-mem has no room"), std::string::npos) << without.prefix.notes[0];
  options.device.host_mem_bytes += 4 * kMiB;
  EXPECT_GT(Engine(options).generate(prompt, run, nullptr).prefix.saved_rows, 2048);
}

// A draft that nobody named goes before the prefixes, which were asked for. What is left out is said as what it is.
TEST(PrefixStatesRoom, IsThatOfADraftThatNobodyNamed) {
  const std::vector<int32_t> prompt = testing::made_up_ids(3000, kTinyVocab);
  EngineOptions options;
  options.model = testing::tiny_model("qwen35");
  options.device = {.choice = DeviceChoice::kCpu, .threads = 1};
  options.want_tokenizer = false;
  const GenerateOptions run{.max_tokens = 4, .ignore_eos = true};
  struct Seen {
    bool saves;
    std::string draft;
    bool operator==(const Seen&) const = default;
  };
  std::vector<Seen> seen;
  std::vector<int32_t> expected;
  const uint64_t plain = Engine(options).plan(3000, run).weights_bytes;
  options.draft.type = SpecType::kAuto;
  for (uint64_t room = 9 * kMiB; room > kMiB; room -= kMiB / 4) {
    const TemporaryFolder folder;
    options.prefix_cache.folder = folder.path();
    options.device.host_mem_bytes = plain + room;
    GenerateResult said;
    try {
      said = Engine(options).generate(prompt, run, nullptr);
    } catch (const DoesNotFit&) {
      break;
    }
    if (expected.empty()) expected = said.token_ids;
    EXPECT_EQ(said.token_ids, expected);
    const Seen now = {said.prefix.saved_rows > 0, said.speculation.type};
    EXPECT_EQ(said.prefix.notes.empty(), now.saves) << room;
    EXPECT_EQ(said.memory_note.find("no room for the draft") == std::string::npos, !now.draft.empty()) << room;
    if (seen.empty() || now != seen.back()) seen.push_back(now);
  }
  ASSERT_GE(seen.size(), 3u);
  EXPECT_EQ(seen[0], (Seen{true, "draft-mtp"}));
  EXPECT_EQ(seen[1], (Seen{true, ""}));
  EXPECT_FALSE(seen.back().saves);
}

// Each of these decides the bits of rows or of states.
TEST(PrefixStatesKey, IsOfTheLayersSizes) {
  const LoadedModel model(testing::tiny_model("qwen35"), DType::kBF16);
  const auto key = [&](const std::function<void(ModelConfig&)>& change) {
    ModelConfig config = model.checkpoint->config();
    change(config);
    return rows_cache_key({.weights = {},
                           .config = &config,
                           .dtype = DType::kBF16,
                           .k_type = DType::kBF16,
                           .v_type = DType::kBF16,
                           .quantised = std::nullopt},
                          *model.device);
  };
  const auto attention = [](const std::function<void(AttentionSpec&)>& change) {
    return [change](ModelConfig& config) {
      for (LayerSpec& layer : config.layers) {
        if (layer.has_attention()) change(layer.attention());
      }
    };
  };
  const auto delta = [](const std::function<void(DeltaNetSpec&)>& change) {
    return [change](ModelConfig& config) {
      for (LayerSpec& layer : config.layers) {
        if (!layer.has_attention()) change(std::get<DeltaNetSpec>(layer.mixer));
      }
    };
  };
  std::set<PrefixKey> keys;
  const std::vector<std::function<void(ModelConfig&)>> changes = {
      [](ModelConfig&) {},
      attention([](AttentionSpec& a) { a.rope_dims *= 2; }),
      attention([](AttentionSpec& a) { a.gated_output = false; }),
      delta([](DeltaNetSpec& d) { d.k_heads *= 2; }),
      delta([](DeltaNetSpec& d) { d.v_heads *= 2; }),
      delta([](DeltaNetSpec& d) { d.k_dim *= 2; }),
      delta([](DeltaNetSpec& d) { d.v_dim *= 2; }),
      delta([](DeltaNetSpec& d) { d.conv += 1; }),
      delta([](DeltaNetSpec& d) { d.tiled = !d.tiled; }),
      [](ModelConfig& config) { std::swap(config.layers[2], config.layers[3]); }};
  for (const auto& change : changes) keys.insert(key(change));
  EXPECT_EQ(keys.size(), changes.size());
}

}  // namespace
}  // namespace headrace
