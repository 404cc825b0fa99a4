// Logits that are not finite: no token is drawn from them, and a run whose text comes to them ends with an Error that
// says where. A row that is not the text's, a wrong guess's, ends nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "kernels/sample/op.h"
#include "runtime/engine/engine.h"
#include "tests/support/refusal.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/weights_file.h"

namespace headrace {
namespace {

using testing_support::make_overflow;

// Two copies of a tiny model: one is sound, the other overflows on a token that the sound one's answer comes to.
class Overflow : public ::testing::Test {
 protected:
  static constexpr int64_t kPrompt = 330;

  static std::string copy(const std::string& name, int64_t token) {
    namespace fs = std::filesystem;
    const std::string to = *folder_ / name;
    fs::create_directories(to);
    for (const char* file : {"config.json", "model.safetensors"})
      fs::copy_file(testing::tiny_model("llama31") + "/" + file, to + "/" + file);
    make_overflow(to + "/model.safetensors", token);
    return to;
  }
  static EngineOptions options(const std::string& model) {
    EngineOptions options;
    options.model = model;
    options.device = {.choice = DeviceChoice::kCpu, .threads = 2};
    options.want_tokenizer = false;
    options.dtype = DType::kF32;
    return options;
  }
  static GenerateOptions plain() {
    GenerateOptions run{.max_tokens = 60, .ignore_eos = true};
    run.verify = VerifyOptions{.mode = VerifyMode::kFull};
    return run;
  }
  static std::vector<int32_t> prompt() { return testing::made_up_ids(kPrompt, 512); }

  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    said_ = 0;
    sound_ = copy("sound", -1);
    Engine engine(options(sound_));
    answer_ = engine.generate(prompt(), plain(), nullptr).token_ids;
    const std::vector<int32_t> before = prompt();
    while (said_ < 40) {  // the first from the fifth on that is in the text for the first time
      const int32_t token = answer_[said_++];
      const auto here = answer_.begin() + static_cast<int64_t>(said_) - 1;
      if (said_ > 5 && std::find(before.begin(), before.end(), token) == before.end() &&
          std::find(answer_.begin(), here, token) == here)
        break;
    }
    ASSERT_LT(said_, 40u);
    token_ = answer_[said_ - 1];
    broken_ = copy("broken", token_);
  }
  static void TearDownTestSuite() { delete folder_; }

  static inline TemporaryFolder* folder_ = nullptr;
  static inline std::string sound_, broken_;
  static inline std::vector<int32_t> answer_;
  static inline size_t said_ = 0;  // tokens of the answer up to and including the one that overflows
  static inline int32_t token_ = -1;
};

TEST_F(Overflow, EndsARunWhereItsTextComesToIt) {
  Engine engine(options(broken_));
  const auto expect_at = [&](int64_t answered, const GenerateOptions& run, const std::vector<int32_t>& ids) {
    const std::string where = answered == 0 ? str("after the prompt's ", ids.size(), " tokens")
                                            : str("after ", answered, " tokens of the answer, at position ",
                                                  static_cast<int64_t>(ids.size()) + answered);
    testing_support::expect_error(ExitCode::kBadInput, broken_, {where, "hold NaN", "damaged"},
                                  [&] { engine.generate(ids, run, nullptr); });
  };
  const auto said = static_cast<int64_t>(said_);
  expect_at(said, plain(), prompt());
  std::vector<int32_t> poisoned = prompt();
  poisoned.back() = token_;
  expect_at(0, plain(), poisoned);
  GenerateOptions run = plain();
  run.max_tokens = said;  // the last token's own logits are nobody's
  EXPECT_EQ(engine.generate(prompt(), run, nullptr).token_ids,
            std::vector<int32_t>(answer_.begin(), answer_.begin() + said));
  for (const int64_t interval : {int64_t{8}, kAutoInterval}) {  // pending tokens, a chain or a tree
    run = plain();
    run.verify = VerifyOptions{.mode = VerifyMode::kLossless, .budget = 64, .interval = interval};
    expect_at(said, run, prompt());
  }
  run.verify = VerifyOptions{.mode = VerifyMode::kApproximate, .budget = 64, .interval = 8};
  expect_at(0, run, poisoned);
  // The engine goes on with the next prompt.
  run = plain();
  run.max_tokens = 3;
  EXPECT_EQ(engine.generate(prompt(), run, nullptr).token_ids.size(), 3u);
}

// The first few tensors by name, the others by their number.
TEST_F(Overflow, TheErrorNamesTheDamagedTensors) {
  const std::string model = copy("damaged", -1);
  for (int layer = 0; layer < 3; ++layer) {
    for (const char* name : {"self_attn.k_proj", "mlp.down_proj"}) {
      testing_support::set_weights(model + "/model.safetensors", str("model.layers.", layer, ".", name, ".weight"), 1,
                                   2, {std::numeric_limits<float>::quiet_NaN()});
    }
  }
  EngineOptions allowed = options(model);
  allowed.allow_damaged_weights = true;
  Engine engine(allowed);
  testing_support::expect_error(ExitCode::kBadInput, model,
                                {"The file is damaged: ", "model.layers.0.self_attn.k_proj.weight holds NaN",
                                 "; 3 more tensors hold NaN or infinity"},
                                [&] { engine.generate(prompt(), plain(), nullptr); });
}

class OverflowOnDevice : public Overflow, public ::testing::WithParamInterface<DeviceChoice> {};

// A guess that is not the target's own next token: its row has no token, and the run goes on as if it had not been.
TEST_P(OverflowOnDevice, OfAWrongGuessEndsNothing) {
  const testing::LoadedModel model(broken_, DType::kF32, GetParam());
  SessionOptions run = model.options(kPrompt, 20);
  run.pass_rows = 4;
  const std::unique_ptr<testing::Session> session = model.session(run);
  std::vector<int32_t> tokens = {*session->prefill(prompt(), nullptr, nullptr)};
  Tree tree;
  Acceptance acceptance;
  while (tokens.size() + 1 < said_) {  // the text has not come to it yet
    tree.reset(tokens.back());
    tree.add(answer_[tokens.size()], 0);  // right
    tree.add(token_, 0);
    tree.add(token_, 1);
    const std::span<const int32_t> samples = session->verify(tree);
    EXPECT_EQ(samples[2], kNanLogit);
    EXPECT_EQ(samples[3], kNanLogit);
    accept(tree, samples, &acceptance);
    ASSERT_EQ(acceptance.nodes.size(), 2u);
    session->commit(acceptance);
    tokens.push_back(tree.tokens[1]);
    tokens.push_back(acceptance.next);
  }
  EXPECT_EQ(tokens, std::vector<int32_t>(answer_.begin(), answer_.begin() + static_cast<int64_t>(tokens.size())));
}
INSTANTIATE_TEST_SUITE_P(Devices, OverflowOnDevice, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& each) { return testing::device_name(each.param); });

}  // namespace
}  // namespace headrace
