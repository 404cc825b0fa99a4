// Every draft, every kind of tree, every place of the KV cache, several temperatures: the text is that of plain
// decoding (docs/design.md, section 6). On a tiny model, so that the whole table is done in seconds; what the drafts of
// real models accept is tested elsewhere, here each is right often enough that paths are accepted.
//
// HEADRACE_TOKEN_EXACT=long: 20 prompts of 256 tokens each for every draft and tree, for a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <numeric>

#include "runtime/draft/cache.h"
#include "runtime/draft/open/open_draft.h"
#include "runtime/engine/drafting.h"
#include "runtime/engine/engine.h"
#include "tests/runtime/draft/side_by_side.h"
#include "tests/support/session_fixture.h"
#include "tests/support/stops_at.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/those.h"
#include "tests/support/tiny_drafts.h"
#include "tests/support/turns.h"

namespace headrace {
namespace {

using testing::LoadedModel;
using testing::Session;

constexpr const char* kTarget = "llama31";  // 4 layers, hidden 64, 4 heads of 16 and 2 KV heads, 512 ids; so has MTP's
constexpr size_t kPrompt = 1000;            // decoding crosses the end of the second segment
constexpr const char* kTrees[] = {"eagle2:16,4,6", "opt:20,6,0.5", "beams:4,8,8", "chain:3", "auto"};
constexpr KvMode kModes[] = {KvMode::kDevice, KvMode::kAuto, KvMode::kHost};
const SamplingSettings kSettings[] = {
    {}, {.temperature = 0.7f, .seed = 3}, {.temperature = 1.2f, .top_p = 0.9f, .seed = 4}};

struct Case {
  std::string tree;
  KvMode kv;
  size_t sampling, prompt;
  std::string name() const {
    return str(tree, ", --kv ", static_cast<int>(kv), ", temperature ", kSettings[sampling].temperature, ", prompt ",
               prompt);
  }
};

struct Kind {
  SpecType type;
  bool look_up = false;    // beside it
  bool retrieval = false;  // --draft-cache
  // Of what stands beside look-up, a head with a window has the whole table.
  bool brief() const { return look_up && (retrieval || type != SpecType::kEagle3); }
  bool just(SpecType kind) const { return type == kind && !look_up && !retrieval; }
};

using Instance = std::tuple<DeviceChoice, testing::RowsType, Kind>;

class EveryDraft : public ::testing::TestWithParam<Instance> {
 protected:
  void SetUp() override {
    const char* const asked = std::getenv("HEADRACE_TOKEN_EXACT");
    long_ = asked != nullptr && std::string_view(asked) == "long";
    tokens_ = long_ ? 256 : 40;
    options_.type = std::get<2>(GetParam()).type;
    options_.look_up = std::get<2>(GetParam()).look_up;
    if (std::get<2>(GetParam()).retrieval) {
      options_.retrieval = RetrievalShape{.chunks = 6, .rows = 32, .every = 2};
      options_.window = kMinDraftWindow;
    }
    if (options_.type == SpecType::kEagle3) testing_support::tiny_eagle3_head().write(folder_.path());
    if (options_.type == SpecType::kLongSpec) testing_support::tiny_longspec_layer().write(folder_.path());
    if (options_.type == SpecType::kMtp) testing_support::tiny_mtp_model().write(folder_.path());
    if (options_.type != SpecType::kNgram && options_.type != SpecType::kMtp) {
      options_.model = options_.type == SpecType::kSimple ? testing::tiny_model(kTarget) : folder_.path();
    }
    roomy_ = load(0);
  }

  std::string target() const { return options_.type == SpecType::kMtp ? folder_.path() : testing::tiny_model(kTarget); }
  std::unique_ptr<LoadedModel> load(uint64_t vram_bytes) const {
    return std::make_unique<LoadedModel>(target(), std::get<1>(GetParam()), std::get<0>(GetParam()), 2, vram_bytes);
  }
  std::vector<int32_t> prompt(size_t index) const {
    return testing::made_up_ids(kPrompt, 512, static_cast<uint32_t>(index) + 1);
  }
  SessionOptions run_options(const Case& c) const {
    SessionOptions run = roomy_->options(kPrompt, tokens_);
    run.kv = c.kv;
    run.sampling = kSettings[c.sampling];
    run.ring.slots = 2;
    run.ring.slot_bytes = 64 * kKiB;
    return run;
  }
  const std::vector<int32_t>& plain(const Case& c) {
    std::vector<int32_t>& tokens = plain_[{c.sampling, c.prompt}];
    if (tokens.empty()) {
      SessionOptions run = run_options(c);
      run.kv = KvMode::kDevice;
      tokens = testing::decode_plainly(*roomy_->session(run), prompt(c.prompt), tokens_);
    }
    return tokens;
  }

  EngineOptions engine_options() const {
    EngineOptions options;
    options.model = target();
    options.device = {.choice = std::get<0>(GetParam()), .threads = 2};
    options.want_tokenizer = false;
    const testing::RowsType type = std::get<1>(GetParam());
    options.dtype = testing::weights_type(type);
    options.prefill = type.prefill();
    if (low_bit(type)) options.cache_type_k = options.cache_type_v = type;
    options.draft = options_;
    options.ring.slots = 2;
    return options;
  }

  struct Run {
    std::unique_ptr<Draft> draft;
    std::unique_ptr<Session> session;
  };
  static Run start(const LoadedModel& on, DraftModel* model, SessionOptions run) {
    run.context_tokens += model->tree().levels;
    run.pass_rows = model->tree().nodes;
    Run started;
    started.draft = model->start(
        {.prompt_tokens = run.prompt_tokens, .context_tokens = run.context_tokens, .sampling = run.sampling});
    run.draft = started.draft.get();
    started.session = on.session(run);
    return started;
  }
  std::unique_ptr<DraftModel> open(const LoadedModel& on, const std::string& tree) const {
    DraftOptions options = options_;
    if (options.type != SpecType::kNgram) options.tree = parse_tree(tree);
    return open_draft(options, *on.device, on.checkpoint->config(), on.weights);
  }

  // A device on which a part of the cache is resident and a part is not.
  std::unique_ptr<LoadedModel> load_tight(const std::string& tree) const {
    const std::unique_ptr<LoadedModel> fresh = load(0);  // whose stream has no products yet: their memory is planned
    const auto model = open(*fresh, tree);
    const auto bytes = [&](KvMode kv) {
      return start(*fresh, model.get(), run_options({tree, kv, 0, 0})).session->plan().vram_bytes;
    };
    const uint64_t taken = open_device({.choice = std::get<0>(GetParam())})->vram().used_bytes();
    const uint64_t weights = whole_pages(fresh->weights.bytes()) + whole_pages(model->weights_bytes());
    // Not quite all of it: without ring and active segment the whole takes little more than a part.
    return load(taken + weights + (bytes(KvMode::kHost) + 15 * bytes(KvMode::kDevice)) / 16);
  }

  void expect_exact(const LoadedModel& on, DraftModel* model, const Case& c) {
    const Run run = start(on, model, run_options(c));
    model->load(nullptr, nullptr);
    if (c.kv != KvMode::kDevice) {
      EXPECT_GT(run.session->plan().host_bytes, 0u) << c.name();
    }
    if (c.kv == KvMode::kAuto) {
      const MemoryPlan& plan = run.session->plan();  // or all of the last layer, which some drafts read
      const bool part = plan.resident_segments > 0 || plan.host_layers < on.checkpoint->config().layer_count();
      EXPECT_TRUE(part) << c.name();
    }
    std::vector<int32_t> tokens = {*run.session->prefill(prompt(c.prompt), nullptr, nullptr)};
    Drafting drafting(model, run.draft.get(), *on.compute, {.streams = c.kv != KvMode::kDevice, .most_steps = tokens_});
    Tree tree;
    Acceptance acceptance;
    while (static_cast<int64_t>(tokens.size()) < tokens_) {
      const int64_t position = run.session->rows();
      tree.reset(tokens.back());
      drafting.begin(StepMode::kFull, 0, 0);
      const ProposedTree proposed =
          drafting.propose_into(tokens.back(), position, run.session->tree_inputs(StepMode::kFull));
      if (proposed.nodes > 0) {
        run.session->verify(proposed, StepMode::kFull, &tree, &acceptance);
      } else {
        drafting.propose(tokens.back(), position, &tree);
        accept(tree, run.session->verify(tree), &acceptance);
      }
      run.session->commit(acceptance);
      drafting.observe(tree, acceptance, position, {});
      accepted_ += static_cast<int64_t>(acceptance.nodes.size()) - 1;
      for (size_t i = 1; i < acceptance.nodes.size(); ++i) {
        tokens.push_back(tree.tokens[static_cast<size_t>(acceptance.nodes[i])]);
      }
      tokens.push_back(acceptance.next);
    }
    tokens.resize(static_cast<size_t>(tokens_));
    EXPECT_EQ(tokens, plain(c)) << c.name();
    const bool on_host = options_.type == SpecType::kNgram || c.tree.starts_with("opt");
    if (!options_.look_up) {  // it decides from step to step
      EXPECT_EQ(run.session->steps_on_device() == 0, on_host) << c.name();
    }
    ++runs_;
  }

  // All of the table for one prompt; or, for 20, each prompt's own place and temperature in turn.
  std::vector<Case> cases(const std::string& tree) const {
    std::vector<Case> out;
    for (size_t i = 0; i < (long_ ? 20 : 9); ++i) {
      out.push_back({.tree = tree, .kv = kModes[i % 3], .sampling = i / 3 % 3, .prompt = long_ ? i : 0});
    }
    return out;
  }

  const TemporaryFolder folder_;  // of the draft, or of the model with a block of its own
  DraftOptions options_;
  bool long_ = false;
  int64_t tokens_ = 0, accepted_ = 0, runs_ = 0;
  std::unique_ptr<LoadedModel> roomy_;
  std::map<std::pair<size_t, size_t>, std::vector<int32_t>> plain_;  // by sampling and prompt
};

TEST_P(EveryDraft, SaysWhatPlainDecodingSays) {
  for (const std::string tree : kTrees) {
    if (options_.type == SpecType::kNgram && tree != kTrees[0]) continue;  // its trees are what it finds
    // A draft's own rows are never int8: one tree that is made on the device, and one on the host.
    const bool int8 = std::get<1>(GetParam()) == DType::kInt8;
    const bool two = int8 || options_.look_up || options_.retrieval;
    // With a tree on the host, and int8 rows of three layers alone, a part of the cache needs more memory than all.
    if (int8 && options_.retrieval && tree != kTrees[0]) continue;
    if (two && tree != kTrees[0] && tree != kTrees[1]) continue;
    const std::unique_ptr<LoadedModel> tight = load_tight(tree);
    const auto on_roomy = open(*roomy_, tree), on_tight = open(*tight, tree);
    for (const Case& c : cases(tree)) {
      const bool is_tight = c.kv == KvMode::kAuto;
      expect_exact(is_tight ? *tight : *roomy_, (is_tight ? on_tight : on_roomy).get(), c);
    }
  }
  // A draft that is never right proves little. Look-up finds something where the text repeats itself.
  EXPECT_GT(accepted_, options_.type == SpecType::kNgram ? 0 : 5 * runs_);
  std::printf("%lld runs, %.2f accepted tokens a run of %lld\n", static_cast<long long>(runs_),
              static_cast<double>(accepted_) / static_cast<double>(runs_), static_cast<long long>(tokens_));
}

// A head whose positions are fewer than the context's gets a window by itself.
class EveryHead : public EveryDraft {};
TEST_P(EveryHead, SaysItThoughItWasTrainedShort) {
  testing_support::DraftFiles head = testing_support::tiny_eagle3_head();
  head.config["max_position_embeddings"] = 512;
  head.write(folder_.path());
  for (const std::string tree : {"eagle2:16,4,6", "opt:20,6,0.5"}) {
    const std::unique_ptr<LoadedModel> tight = load_tight(tree);
    const auto on_roomy = open(*roomy_, tree), on_tight = open(*tight, tree);
    const int64_t rows = kPrompt;
    const DraftRun run = {.prompt_tokens = rows, .context_tokens = rows + tokens_};
    ASSERT_EQ(on_roomy->window(run).trained_positions, 512);
    ASSERT_LT(on_roomy->window(run).rows, 512);
    for (const Case& c : cases(tree)) {
      const bool is_tight = c.kv == KvMode::kAuto;
      expect_exact(is_tight ? *tight : *roomy_, (is_tight ? on_tight : on_roomy).get(), c);
    }
  }
  EXPECT_GT(accepted_, 5 * runs_);
  Engine engine(engine_options());
  GenerateOptions run{.max_tokens = 64, .sampling = kSettings[1], .ignore_eos = true, .speculate = false};
  run.verify = VerifyOptions{.mode = VerifyMode::kFull};
  const GenerateResult plain = engine.generate(prompt(1), run, nullptr);
  EXPECT_EQ(plain.draft_window.rows, 0);
  run.speculate = true;
  run.kv = KvMode::kHost;
  run.verify = VerifyOptions{.mode = VerifyMode::kLossless, .budget = 64, .interval = 30};
  const GenerateResult again = engine.generate(prompt(1), run, nullptr);
  EXPECT_EQ(again.token_ids, plain.token_ids);
  EXPECT_EQ(again.draft_window.trained_positions, 512);
  EXPECT_GT(again.speculation.verify_outcome.judged, 0);
}

// A head that loading quantises with the target, or a block that is a part of it.
class EveryQuantisedHead : public EveryDraft {};
TEST_P(EveryQuantisedHead, SaysWhatPlainDecodingSays) {
  const auto [device, type, kind] = GetParam();
  EngineOptions options = engine_options();
  options.weights = WeightPolicy::kQ8_0;
  const LoadedModel quantised(target(), type, device, 2, 0, WeightPolicy::kQ8_0);
  const auto bytes = [&](const LoadedModel& on) { return open(on, kTrees[0])->weights_bytes() + on.weights.bytes(); };
  EXPECT_LT(bytes(quantised), bytes(*roomy_));
  EXPECT_EQ(open(quantised, kTrees[0])->weights_bytes() == 0, kind.type == SpecType::kMtp);
  for (const char* const tree : {"eagle2:16,4,6", "opt:20,6,0.5"}) {
    options.draft.tree = parse_tree(tree);
    Engine engine(options);
    for (const SamplingSettings& sampling : kSettings) {
      GenerateOptions run{.max_tokens = tokens_, .sampling = sampling, .ignore_eos = true, .speculate = false};
      run.verify = VerifyOptions{.mode = VerifyMode::kFull};
      const std::vector<int32_t> plain = engine.generate(prompt(1), run, nullptr).token_ids;
      run.speculate = true;
      for (const VerifyMode mode : {VerifyMode::kFull, VerifyMode::kLossless}) {
        run.verify = VerifyOptions{.mode = mode, .budget = 64, .interval = 30};
        const GenerateResult result = engine.generate(prompt(1), run, nullptr);
        EXPECT_EQ(result.token_ids, plain) << tree << ", temperature " << sampling.temperature;
        accepted_ += result.speculation.accepted;
      }
    }
  }
  EXPECT_GT(accepted_, 0);
}

// Runs that keep their rows: what they say does not depend on the draft, on how tokens are judged, nor on where the
// rows are, though the rows of an answer were computed in other passes.
TEST_P(EveryDraft, SaysItInTurns) {
  EngineOptions options = engine_options();
  if (options_.type == SpecType::kEagle3) options.draft.window = 320;  // beyond which it forgets
  Engine engine(options);
  GenerateOptions run{.max_tokens = 40, .keep = KeepRows::kAll, .keep_tokens = 2040, .sampling = kSettings[1]};
  run.ignore_eos = true;
  run.speculate = false;
  run.verify = VerifyOptions{.mode = VerifyMode::kFull};
  const testing::Turns plain = testing::talk(engine, run);
  run.speculate = true;
  const bool all = std::get<1>(GetParam()) == DType::kF32 && !std::get<2>(GetParam()).brief();
  int64_t accepted = 0;
  for (const KvMode kv : {KvMode::kDevice, KvMode::kHost}) {
    run.kv = kv;
    run.verify = VerifyOptions{.mode = VerifyMode::kFull};
    if (all || kv == KvMode::kHost) {
      EXPECT_EQ(testing::talk(engine, run, 1000, &accepted), plain);
    }
    run.verify = VerifyOptions{.mode = VerifyMode::kLossless, .budget = 64, .interval = 30};
    if (all || kv == KvMode::kDevice) {
      EXPECT_EQ(testing::talk(engine, run, 1000, &accepted), plain);
    }
    run.pending = {.width = 16, .grown = 160, .nodes = 160, .least = 0.001};
    if (all) {
      EXPECT_EQ(testing::talk(engine, run, 1000, &accepted), plain);
    }
    run.pending.reset();
  }
  for (const VerifyOptions& verify :
       {VerifyOptions{.mode = VerifyMode::kLossless, .partial = PartialKind::kInt8}, {.mode = VerifyMode::kAuto}}) {
    run.verify = verify;
    EXPECT_EQ(testing::talk(engine, run, 1000, &accepted), plain);
  }
  if (options_.type != SpecType::kNgram) {  // nothing in the text repeats itself
    EXPECT_GT(accepted, 100);
  }
}

// A draft that continues from what the one before has left is right as often as a fresh one.
TEST_P(EveryDraft, ContinuesWhereTheOneBeforeEnded) {
  if (options_.type == SpecType::kNgram || std::get<1>(GetParam()) != DType::kF32) return;
  for (const int64_t window : {int64_t{0}, int64_t{320}}) {
    if (window == 0 && options_.retrieval) continue;
    EngineOptions options = engine_options();
    options.draft.window = window;
    options.draft.tree = parse_tree("chain:3");
    Engine engine(options), other(options);
    GenerateOptions run{.max_tokens = 40, .keep = KeepRows::kPrompt, .keep_tokens = 2040, .sampling = kSettings[1]};
    run.ignore_eos = true;
    run.verify = VerifyOptions{.mode = VerifyMode::kFull};
    std::vector<int32_t> text = prompt(3);
    for (int turn = 0; turn < 3; ++turn) {
      const GenerateResult kept = engine.generate(text, run, nullptr);
      const bool keeps = std::get<0>(GetParam()) == DeviceChoice::kCpu;  // a GPU keeps groups of 2,048 rows
      EXPECT_EQ(kept.kept_tokens > 0, keeps && turn > 0);
      GenerateOptions alone = run;
      alone.keep = KeepRows::kNone;
      const GenerateResult fresh = other.generate(text, alone, nullptr);
      EXPECT_EQ(kept.token_ids, fresh.token_ids) << turn;
      EXPECT_EQ(kept.speculation.accepted, fresh.speculation.accepted) << turn << ", window " << window;
      EXPECT_GT(kept.speculation.accepted, 0);
      text.insert(text.end(), kept.token_ids.begin(), kept.token_ids.end());
      const std::vector<int32_t> question = testing::made_up_ids(150, 512, 60);
      text.insert(text.end(), question.begin(), question.end());
    }
  }
}

// At each depth no more proposals are right than have a token there, and none is right beyond where it is wrong.
void expect_depths(const Speculation& s) {
  const std::vector<int64_t>&offered = s.offered_by_depth, &right = s.accepted_by_depth;
  EXPECT_EQ(std::accumulate(right.begin(), right.end(), int64_t{0}), s.accepted);
  ASSERT_LE(right.size(), offered.size());
  EXPECT_TRUE(std::is_sorted(offered.rbegin(), offered.rend()));
  EXPECT_TRUE(std::is_sorted(right.rbegin(), right.rend()));
  for (size_t i = 0; i < right.size(); ++i) EXPECT_LE(right[i], offered[i]) << "depth " << i + 1;
}

// The same where most passes see the partial KV alone: a refresh takes back what was wrong, of the draft's cache, too.
class EveryDraftOfRows : public EveryDraft {};  // with int8 rows no look-up, which reads none
TEST_P(EveryDraftOfRows, SaysItWithPartialVerification) {
  const bool int8 = std::get<1>(GetParam()) == DType::kInt8;  // the table above has it at every temperature
  Engine engine(engine_options());
  VerifyOutcome verify_outcome;
  int64_t accepted = 0, followed = 0;
  for (const SamplingSettings& sampling : kSettings) {
    if ((int8 || std::get<2>(GetParam()).brief()) && &sampling != &kSettings[1]) continue;
    GenerateOptions run{.max_tokens = 64, .sampling = sampling, .ignore_eos = true, .speculate = false};
    run.verify = VerifyOptions{.mode = VerifyMode::kFull};
    const std::vector<int32_t> said = engine.generate(prompt(1), run, nullptr).token_ids;
    run.speculate = true;
    const Speculation whole = engine.generate(prompt(1), run, nullptr).speculation;
    expect_depths(whole);
    EXPECT_EQ(whole.offered_by_depth.empty(), whole.proposed == 0);
    for (const KvMode kv : {KvMode::kDevice, KvMode::kHost}) {
      for (const int64_t interval : {int64_t{30}, kAutoInterval}) {
        run.kv = kv;
        run.verify = VerifyOptions{.mode = VerifyMode::kLossless, .budget = 64, .interval = interval};
        const GenerateResult again = engine.generate(prompt(1), run, nullptr);
        EXPECT_EQ(again.token_ids, said) << "T " << sampling.temperature << ", every " << interval;
        EXPECT_GT(again.speculation.of(StepMode::kPartial).steps, 0);
        expect_depths(again.speculation);
        verify_outcome.add(again.speculation.verify_outcome);
        accepted += again.speculation.accepted;
        // Pending tokens as a tree, which the draft continues where its first choices lead.
        run.pending = {.width = 16, .grown = 160, .nodes = 160, .least = 0.001};
        const GenerateResult tree = engine.generate(prompt(1), run, nullptr);
        run.pending.reset();
        EXPECT_EQ(tree.token_ids, said) << "T " << sampling.temperature << ", every " << interval << ", a tree";
        expect_depths(tree.speculation);
        followed += tree.speculation.of(StepMode::kPartial).accepted;
      }
    }
    run.verify = VerifyOptions{.mode = VerifyMode::kLossless, .partial = PartialKind::kInt8};
    const GenerateResult copy = engine.generate(prompt(1), run, nullptr);
    EXPECT_EQ(copy.token_ids, said) << "T " << sampling.temperature << ", a copy of all rows";
    EXPECT_GT(copy.speculation.of(StepMode::kPartial).steps, 0);
    expect_depths(copy.speculation);
  }
  EXPECT_GT(verify_outcome.rejected, 0) << "nothing was ever taken back";
  EXPECT_GT(verify_outcome.judged, verify_outcome.rejected);
  EXPECT_GT(accepted, 0);
  EXPECT_GT(followed, 0) << "no guess of the draft was followed in a tree of pending tokens";
}

// With a tree of pending tokens that a draft continues a run ends where plain decoding ends, at an end token and at -n;
// and one that is interrupted has said what is certain.
class EveryDraftInF32 : public EveryDraft {};  // one type says as much as two
TEST_P(EveryDraftInF32, EndsWherePlainDecodingEnds) {
  Engine engine(engine_options());
  GenerateOptions plain_run{.sampling = {.temperature = 1.0f}, .speculate = false};
  plain_run.verify = VerifyOptions{.mode = VerifyMode::kFull};
  int stops = 0;
  size_t told = 0;
  for (const uint64_t seed : {1, 2}) {
    for (const int64_t most : {11, 100}) {
      plain_run.sampling.seed = seed;
      plain_run.max_tokens = most;
      const GenerateResult plain = engine.generate(prompt(1), plain_run, nullptr);
      stops += plain.finish_reason == FinishReason::kStop ? 1 : 0;
      GenerateOptions run = plain_run;
      run.speculate = true;
      run.kv = KvMode::kHost;
      run.pending = {.width = 16, .grown = 160, .nodes = 160, .least = 0.001};
      for (const int64_t interval : {int64_t{10}, kAutoInterval}) {
        run.verify = VerifyOptions{.mode = VerifyMode::kLossless, .budget = 64, .interval = interval};
        const GenerateResult said = engine.generate(prompt(1), run, nullptr);
        EXPECT_EQ(said.token_ids, plain.token_ids) << "seed " << seed << ", " << most << ", every " << interval;
        EXPECT_EQ(said.finish_reason, plain.finish_reason);
        EXPECT_EQ(said.timings.decode_tokens, plain.timings.decode_tokens);
      }
      if (most < 100) continue;
      run.verify->interval = 5;  // no times decide
      for (const int update : {2, 7, 14}) {
        std::atomic<bool> flag{false};
        testing::StopsAt progress(update, &flag);
        run.interrupt = &flag;
        const GenerateResult cut = engine.generate(prompt(1), run, &progress);
        if (cut.finish_reason != FinishReason::kInterrupted) {  // it was at its end before
          EXPECT_EQ(cut.token_ids, plain.token_ids);
          continue;
        }
        told = std::max(told, cut.token_ids.size());
        ASSERT_LE(cut.token_ids.size(), plain.token_ids.size());
        EXPECT_TRUE(std::equal(cut.token_ids.begin(), cut.token_ids.end(), plain.token_ids.begin()));
        EXPECT_EQ(cut.token_ids.size(), static_cast<size_t>(cut.speculation.committed) + 1)
            << "pending tokens were told";
      }
    }
  }
  EXPECT_GT(stops, 0) << "no run met an end token: choose other seeds";
  EXPECT_GT(told, 1u) << "no interrupted run came to a refresh";
}

// A draft that is the target itself, and a partial KV that holds nearly all: what it proposes is followed nearly
// always.
class TargetAsDraft : public EveryDraft {};
TEST_P(TargetAsDraft, IsFollowed) {
  EngineOptions options = engine_options();
  options.draft.tree = parse_tree("chain:3");
  options.draft.window = 0;
  Engine engine(options);
  const std::vector<int32_t> ids = testing::made_up_ids(1100, 512);  // 50 blocks to choose from
  for (const SamplingSettings& sampling : {kSettings[0], kSettings[1]}) {
    GenerateOptions run{.max_tokens = 64, .kv = KvMode::kHost, .sampling = sampling, .ignore_eos = true};
    run.verify = VerifyOptions{.mode = VerifyMode::kLossless, .budget = 768, .interval = 20};
    run.pending = {.width = 64, .grown = 256, .nodes = 256, .least = 0.001};
    const Speculation s = engine.generate(ids, run, nullptr).speculation;
    // So small a model is unsure of everything: a partial KV that lacks two blocks overturns some.
    const bool noise = sampling.temperature > 0;
    EXPECT_GT(s.accepted, s.proposed * (noise ? 85 : 65) / 100) << "T " << sampling.temperature;
    EXPECT_EQ(s.offered_by_depth.size(), 3u);
    expect_depths(s);
    EXPECT_GT(s.of(StepMode::kRefresh).a_step(s.committed), 11) << "T " << sampling.temperature;
    EXPECT_LT(s.of(StepMode::kPartial).steps, 25) << "T " << sampling.temperature;
  }
}

// A draft that is nearly always right has the same figures whatever its proposals are a part of: at each depth nearly
// all of them are accepted, and tau is the number of levels in the steps that judge proposals.
TEST_P(TargetAsDraft, CountsAlikeInChainsTreesAndPendingTrees) {
  const std::vector<int32_t> ids = testing::made_up_ids(1100, 512);
  const PendingTreeLimits chain{.width = 0}, tree{.width = 64, .grown = 256, .nodes = 256, .least = 0.001};
  for (const std::string shape : {"chain:3", "beams:3,4,4"}) {
    EngineOptions options = engine_options();
    options.draft.tree = parse_tree(shape);
    options.draft.window = 0;
    Engine engine(options);
    const auto count = [&](VerifyMode mode, const PendingTreeLimits& pending, StepMode proposing) {
      GenerateOptions run{.max_tokens = 97, .kv = KvMode::kHost, .sampling = kSettings[1], .ignore_eos = true};
      run.verify = VerifyOptions{.mode = mode};
      if (mode != VerifyMode::kFull) run.verify->partial = PartialKind::kInt8;
      run.verify->interval = 24;
      run.pending = pending;
      const Speculation s = engine.generate(ids, run, nullptr).speculation;
      SCOPED_TRACE(str(shape, ", mode ", static_cast<int>(mode), ", width ", pending.width));
      expect_depths(s);
      const std::vector<int64_t>&offered = s.offered_by_depth, &right = s.accepted_by_depth;
      ASSERT_EQ(offered.size(), 3u);
      ASSERT_EQ(right.size(), 3u);
      // An answer's last proposals may be cut, and behind the first wrong token all are wrong.
      for (size_t depth = 0; depth < 3; ++depth) EXPECT_GE(right[depth], offered[0] * 8 / 10) << "depth " << depth + 1;
      EXPECT_GT(s.of(proposing).tau(), 2.4);
      EXPECT_LE(s.of(proposing).tau(), 3);
      EXPECT_DOUBLE_EQ(s.tau(), static_cast<double>(s.accepted) / static_cast<double>(s.steps));
    };
    count(VerifyMode::kFull, chain, StepMode::kFull);
    count(VerifyMode::kLossless, chain, StepMode::kPartial);
    count(VerifyMode::kLossless, tree, StepMode::kPartial);
  }
}

// A tree that never sees the host is the same tree, and as much of it is right; what the host cuts off of that, or
// puts in its place, is what is committed.
TEST_P(EveryDraft, IsJudgedOnTheDevice) {
  if (options_.type == SpecType::kNgram || options_.look_up) return;  // trees are made on the host, as the table saw
  if (std::get<1>(GetParam()) == DType::kInt8 && options_.type != SpecType::kLongSpec) return;  // reads no int8 rows
  constexpr StepMode kSteps[] = {StepMode::kFull,    StepMode::kFull,    StepMode::kFull,    StepMode::kRefresh,
                                 StepMode::kPartial, StepMode::kPartial, StepMode::kPartial, StepMode::kPartial};
  for (const std::string tree : {"chain:3", "eagle2:16,4,6", "beams:4,8,8"}) {
    const auto model = open(*roomy_, tree);
    testing::SideBySide runs(*roomy_, model.get(), run_options({tree, KvMode::kDevice, 1, 0}));
    int32_t root = runs.prefill(prompt(0));
    int64_t longest = 0, by_the_host = 0;
    for (size_t i = 0; i < std::size(kSteps); ++i) {
      const bool held = tree == "chain:3" && i == 2;  // few enough tasks for a CPU stream's queue
      testing::SideBySide::Step step = runs.through_the_host(root, kSteps[i]);
      ASSERT_TRUE(step == runs.on_the_device(root, kSteps[i], held)) << tree << ", step " << i;
      std::vector<int32_t>& nodes = step.acceptance.nodes;
      longest = std::max(longest, static_cast<int64_t>(nodes.size()));
      if (i % 4 == 1 && nodes.size() > 1) nodes.pop_back();
      if (i % 4 == 2) {
        by_the_host += nodes.size() > 1 && nodes[1] == 1 ? 0 : 1;
        nodes = {0, 1};
      }
      step.acceptance.next = step.samples[static_cast<size_t>(nodes.back())];
      runs.commit(step);
      root = step.acceptance.next;
    }
    EXPECT_GT(longest, 1) << tree << ": a path of the root alone proves little";
    EXPECT_EQ(runs.on_device().steps_on_device(), static_cast<int64_t>(std::size(kSteps)));
    EXPECT_EQ(runs.on_device().commits_on_device(), static_cast<int64_t>(std::size(kSteps)) - by_the_host);
  }
}

std::vector<Instance> instances() {
  const std::vector<Kind> kinds = {{.type = SpecType::kEagle3},
                                   {.type = SpecType::kLongSpec},
                                   {.type = SpecType::kSimple},
                                   {.type = SpecType::kNgram},
                                   {.type = SpecType::kMtp},
                                   {.type = SpecType::kEagle3, .look_up = true},
                                   {.type = SpecType::kLongSpec, .look_up = true},
                                   {.type = SpecType::kSimple, .look_up = true},
                                   {.type = SpecType::kMtp, .look_up = true},
                                   {.type = SpecType::kEagle3, .retrieval = true},
                                   {.type = SpecType::kSimple, .retrieval = true},
                                   {.type = SpecType::kEagle3, .look_up = true, .retrieval = true}};
  std::vector<Instance> all;
  for (const DeviceChoice device : testing::session_devices()) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kInt8}) {
      for (const Kind& kind : kinds) {
        if (kind.retrieval && dtype == DType::kBF16) continue;  // f32 and int8 say as much
        if (kind.brief() && dtype != DType::kF32) continue;
        all.emplace_back(device, dtype, kind);
      }
    }
    for (const Kind& kind : kinds) {
      if (!kind.look_up && !kind.retrieval) all.emplace_back(device, testing::kReadInInt8, kind);
    }
  }
  return all;
}

std::string name_of_instance(const ::testing::TestParamInfo<Instance>& given) {
  const Kind& kind = std::get<2>(given.param);
  std::string type = str(spec_type_name(kind.type), kind.look_up ? "-look-up" : "", kind.retrieval ? "-retrieval" : "");
  std::replace(type.begin(), type.end(), '-', '_');
  return testing::device_name(std::get<0>(given.param)) + "_" + std::get<1>(given.param).name() + "_" + type;
}

// keep(device, type, kind).
template <typename Keep>
auto instances_that(const Keep& keep) {
  return ::testing::ValuesIn(
      testing::those(instances(), [&](const Instance& instance) { return std::apply(keep, instance); }));
}

INSTANTIATE_TEST_SUITE_P(All, EveryDraft, ::testing::ValuesIn(instances()), name_of_instance);
INSTANTIATE_TEST_SUITE_P(All, EveryHead, instances_that([](DeviceChoice, testing::RowsType, const Kind& kind) {
                           return kind.just(SpecType::kEagle3);
                         }),
                         name_of_instance);
// A GPU multiplies quantised weights in bf16 alone.
INSTANTIATE_TEST_SUITE_P(All, EveryQuantisedHead,
                         instances_that([](DeviceChoice device, testing::RowsType type, const Kind& kind) {
                           return (kind.just(SpecType::kEagle3) || kind.just(SpecType::kMtp)) && !low_bit(type) &&
                                  (device == DeviceChoice::kCpu || type == DType::kBF16);
                         }),
                         name_of_instance);
INSTANTIATE_TEST_SUITE_P(All, EveryDraftOfRows,
                         instances_that([](DeviceChoice, testing::RowsType type, const Kind& kind) {
                           return type != DType::kInt8 || kind.type != SpecType::kNgram;
                         }),
                         name_of_instance);
INSTANTIATE_TEST_SUITE_P(All, EveryDraftInF32, instances_that([](DeviceChoice, testing::RowsType type, const Kind&) {
                           return type == DType::kF32;
                         }),
                         name_of_instance);
INSTANTIATE_TEST_SUITE_P(All, TargetAsDraft, instances_that([](DeviceChoice, testing::RowsType type, const Kind& kind) {
                           return type == DType::kF32 && kind.just(SpecType::kSimple);
                         }),
                         name_of_instance);

}  // namespace
}  // namespace headrace
