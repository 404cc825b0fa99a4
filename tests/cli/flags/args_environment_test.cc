// The environment variables of flags: what they say, and where they give way.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/cli/flags/args_fixture.h"

namespace headrace {
namespace {

TEST(Args, EveryFlagHasAnEnvironmentVariable) {
  const std::vector<std::pair<const char*, const char*>> variables = {
      {"HEADRACE_MODEL", "from-env"}, {"HEADRACE_CTX_SIZE", "4K"},      {"HEADRACE_KV", "device"},
      {"HEADRACE_PREDICT", "11"},     {"HEADRACE_CACHE_TYPE_K", "f32"}, {"HEADRACE_IGNORE_EOS", "1"},
      {"HEADRACE_TEMP", "0.5"},       {"HEADRACE_THREADS", "2"},        {"HEADRACE_HOST_MEM", "1GiB"}};
  for (const auto& [name, value] : variables) ::setenv(name, value, 1);
  const auto args = std::get<GenerateArgs>(parse_args({"generate", "-p", "x", "-t", "4"}));
  ::setenv("HEADRACE_TEMP", "warm", 1);
  const std::string wrong = refusal({"generate", "-p", "x"});
  for (const auto& [name, value] : variables) ::unsetenv(name);
  EXPECT_EQ(args.engine.model, "from-env");
  EXPECT_EQ(args.engine.ctx_size, 4096);
  EXPECT_EQ(args.engine.kv, KvMode::kDevice);
  EXPECT_EQ(args.engine.cache_type_k, DType::kF32);
  EXPECT_EQ(args.engine.device.host_mem_bytes, kGiB);
  EXPECT_EQ(args.engine.device.threads, 4);  // the flag wins
  EXPECT_EQ(args.generate.max_tokens, 11);
  EXPECT_FLOAT_EQ(args.generate.sampling.temperature, 0.5f);
  EXPECT_TRUE(args.generate.ignore_eos);
  EXPECT_NE(wrong.find("'warm'"), std::string::npos) << wrong;
  EXPECT_NE(wrong.find("(from HEADRACE_TEMP)"), std::string::npos) << wrong;
}

using Named = std::vector<std::pair<const char*, const char*>>;

class Variables {
 public:
  explicit Variables(Named variables) : variables_(std::move(variables)) {
    for (const auto& [name, value] : variables_) ::setenv(name, value, 1);
  }
  ~Variables() {
    for (const auto& [name, value] : variables_) ::unsetenv(name);
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  const Named variables_;
};

// What the two would be refused for is no reason where one of them is a variable and the other a flag.
TEST(Args, AVariableGivesWayToTheCommandLine) {
  {
    const Variables variables({{"HEADRACE_MODEL", "m"}, {"HEADRACE_DEVICE", "cpu"}, {"HEADRACE_PREDICT", "-1"}});
    const auto plan = std::get<PlanArgs>(parse_args({"plan", "--shape", "qwen3-0.6b", "--gpu", "rtx4090"})).plan;
    EXPECT_EQ(plan.engine.model, "");
    EXPECT_EQ(plan.engine.device.choice, DeviceChoice::kAuto);
    EXPECT_EQ(plan.output_tokens, 256);
    EXPECT_EQ(std::get<BenchArgs>(parse_args({"bench", "--shape", "qwen3-0.6b"})).bench.engine.model, "");
    EXPECT_EQ(std::get<InspectArgs>(parse_args({"inspect"})).model, "m");
    EXPECT_EQ(std::get<InspectArgs>(parse_args({"inspect", "n"})).model, "n");
    EXPECT_NE(refusal({"plan", "-n", "-1"}).find("'-1' is not a whole number"), std::string::npos);
  }
  {
    const Variables variables({{"HEADRACE_SHAPE", "qwen3-0.6b"}, {"HEADRACE_MODEL", "m"}});
    EXPECT_EQ(std::get<PlanArgs>(parse_args({"plan", "-m", "n"})).plan.shape, "");
    EXPECT_NE(refusal({"plan"}).find("--model excludes --shape"), std::string::npos);  // both are variables
  }
  {
    const Variables variables({{"HEADRACE_CHAT_TEMPLATE", "chatml"}, {"HEADRACE_SYSTEM", "Be brief."}});
    const GenerateArgs args = generate({"-p", "x", "--no-chat-template"});
    EXPECT_EQ(args.engine.chat_template, "");
    EXPECT_EQ(args.system, "");
    EXPECT_EQ(generate({"-p", "x", "--chat-template-file", "f"}).engine.chat_template, "");
    EXPECT_EQ(generate({"-p", "x"}).engine.chat_template, "chatml");
  }
  const Variables variable(Named{{"HEADRACE_NO_CHAT_TEMPLATE", "1"}});
  EXPECT_TRUE(generate({"-p", "x", "--system", "Be brief."}).engine.use_chat_template);
  EXPECT_FALSE(generate({"-p", "x"}).engine.use_chat_template);
}

TEST(Args, AVariableThatMeansNothingHereIsPassedOver) {
  const auto verify = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"-p", "x"});
    return generate(more).engine.verify;
  };
  const Variables variables({{"HEADRACE_PARTIAL_BUDGET", "1K"}, {"HEADRACE_REFRESH_INTERVAL", "20"}});
  EXPECT_EQ(verify({}), VerifyOptions{.mode = VerifyMode::kAuto});
  EXPECT_EQ(verify({"--spec-type", "none"}), VerifyOptions{.mode = VerifyMode::kAuto});
  EXPECT_EQ(verify({"--spec-type", "ngram-simple"}).budget, 1024);
  EXPECT_EQ(verify({"--spec-type", "ngram-simple"}).interval, 20);
  EXPECT_EQ(verify({"--spec-type", "ngram-simple", "--verify", "full"}).budget, std::nullopt);
  EXPECT_EQ(verify({"--verify", "lossless"}).budget, 1024);
  const Variables full({{"HEADRACE_VERIFY", "full"}, {"HEADRACE_SPEC_TYPE", "ngram-simple"}});
  EXPECT_EQ(verify({}).budget, std::nullopt);
  EXPECT_EQ(verify({"--partial-budget", "2K"}).budget, 2048);
  EXPECT_EQ(verify({"--partial-budget", "2K"}).interval, 20);
  EXPECT_EQ(verify({"--partial-budget", "2K"}).mode, VerifyMode::kAuto);
}

// One name for what is a batch's file and what a measurement writes over would cost somebody the batch.
TEST(Args, OutputsHaveVariablesOfTheirOwn) {
  const Variables variables({{"HEADRACE_OUTPUT", "x.jsonl"},
                             {"HEADRACE_BENCH_OUTPUT", "b.json"},
                             {"HEADRACE_QUALITY_OUTPUT", "q.json"},
                             {"HEADRACE_PROFILE_OUTPUT", "csv"},
                             {"HEADRACE_PARTIAL_KV", "auto"},
                             {"HEADRACE_QUALITY_PARTIAL_KV", "int8,blocks"},
                             {"HEADRACE_MODEL", "m"}});
  EXPECT_EQ(std::get<SummarizeArgs>(parse_args({"summarize", "a"})).results, "x.jsonl");
  EXPECT_EQ(std::get<SummarizeArgs>(parse_args({"summarize", "a", "--json"})).results, "");
  EXPECT_EQ(std::get<BenchArgs>(parse_args({"bench"})).results, "b.json");
  EXPECT_EQ(std::get<QualityArgs>(parse_args({"bench", "quality", "--documents", "a"})).results, "q.json");
  EXPECT_EQ(std::get<QualityArgs>(parse_args({"bench", "quality", "--documents", "a"})).quality.partial,
            (std::vector<PartialKind>{PartialKind::kInt8, PartialKind::kBlocks}));
  EXPECT_EQ(std::get<ProfileArgs>(parse_args({"profile"})).format, ProfileFormat::kCsv);
  EXPECT_EQ(std::get<ProfileArgs>(parse_args({"profile", "--json"})).format, ProfileFormat::kJson);
  EXPECT_EQ(std::get<ProfileArgs>(parse_args({"profile", "--format", "md"})).format, ProfileFormat::kMarkdown);
  const Variables json(Named{{"HEADRACE_JSON", "1"}});
  EXPECT_FALSE(std::get<SummarizeArgs>(parse_args({"summarize", "a", "-o", "y.jsonl"})).output.json);
  EXPECT_EQ(std::get<ProfileArgs>(parse_args({"profile", "-o", "md"})).format, ProfileFormat::kMarkdown);
  EXPECT_EQ(std::get<ProfileArgs>(parse_args({"profile", "-o", "p.csv"})).format, ProfileFormat::kJson);
}

}  // namespace
}  // namespace headrace
