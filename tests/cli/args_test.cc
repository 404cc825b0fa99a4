// The command line as a user types it: every flag, its environment variable, and refusals that name flag and value.
#include "cli/args.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

namespace headrace {
namespace {

std::string refusal(const std::vector<std::string>& args) {
  try {
    parse_args(args);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    return error.what();
  }
  ADD_FAILURE() << "not refused";
  return "";
}

GenerateArgs generate(std::vector<std::string> args) {
  args.insert(args.begin(), {"generate", "-m", "model"});
  return std::get<GenerateArgs>(parse_args(args));
}

TEST(Args, GenerateTakesEveryFlag) {
  const GenerateArgs args = generate({"-p",
                                      "hello",
                                      "-f",
                                      "a.txt",
                                      "-sys",
                                      "be brief",
                                      "-c",
                                      "128K",
                                      "--kv",
                                      "host",
                                      "-ctk",
                                      "f16",
                                      "-ctv",
                                      "f32",
                                      "--vram",
                                      "24GiB",
                                      "--host-mem",
                                      "512MiB",
                                      "--spill",
                                      "/mnt/a:b:200GiB",
                                      "-dev",
                                      "cpu",
                                      "-t",
                                      "3",
                                      "--dtype",
                                      "f32",
                                      "--chat-template",
                                      "llama3",
                                      "-n",
                                      "-1",
                                      "--temp",
                                      "0.7",
                                      "--top-k",
                                      "40",
                                      "--top-p",
                                      "0.9",
                                      "--min-p",
                                      "0.05",
                                      "-s",
                                      "18446744073709551615",
                                      "--ignore-eos",
                                      "--json",
                                      "--trace",
                                      "t.json",
                                      "-q"});
  EXPECT_EQ(args.engine.device.trace_path, "t.json");
  EXPECT_EQ(args.prompt, "hello");
  EXPECT_EQ(args.file, "a.txt");
  EXPECT_EQ(args.system, "be brief");
  EXPECT_EQ(args.engine.model, "model");
  EXPECT_EQ(args.engine.ctx_size, 131072);
  EXPECT_EQ(args.engine.kv, KvMode::kHost);
  EXPECT_EQ(args.engine.cache_type_k, DType::kF16);
  EXPECT_EQ(args.engine.cache_type_v, DType::kF32);
  EXPECT_EQ(args.engine.device.vram_bytes, 24 * kGiB);
  EXPECT_EQ(args.engine.device.host_mem_bytes, 512 * kMiB);
  EXPECT_EQ(args.engine.spill.folder, "/mnt/a:b");
  EXPECT_EQ(args.engine.spill.limit_bytes, 200 * kGiB);
  EXPECT_EQ(args.engine.device.choice, DeviceChoice::kCpu);
  EXPECT_EQ(args.engine.device.threads, 3);
  EXPECT_EQ(args.engine.dtype, DType::kF32);
  EXPECT_EQ(args.engine.chat_template, "llama3");
  EXPECT_TRUE(args.engine.use_chat_template);
  EXPECT_EQ(args.generate.max_tokens, -1);
  EXPECT_FLOAT_EQ(args.generate.sampling.temperature, 0.7f);
  EXPECT_EQ(args.generate.sampling.top_k, 40);
  EXPECT_FLOAT_EQ(args.generate.sampling.top_p, 0.9f);
  EXPECT_FLOAT_EQ(args.generate.sampling.min_p, 0.05f);
  EXPECT_EQ(args.generate.sampling.seed, UINT64_MAX);
  EXPECT_TRUE(args.generate.ignore_eos);
  EXPECT_TRUE(args.output.json);
  EXPECT_TRUE(args.output.quiet);
}

TEST(Args, BenchTakesEveryFlag) {
  const auto bench = [](std::vector<std::string> args) {
    args.insert(args.begin(), "bench");
    return std::get<BenchArgs>(parse_args(args));
  };
  const BenchArgs plain = bench({"--shape", "llama-3.1-8b"});
  EXPECT_EQ(plain.bench.shape, "llama-3.1-8b");
  EXPECT_EQ(plain.bench.prompt_tokens, std::vector<int64_t>{4096});
  EXPECT_EQ(plain.bench.kv, std::vector<KvMode>{KvMode::kAuto});
  EXPECT_EQ(plain.bench.decode_tokens, 32);
  EXPECT_EQ(plain.bench.repeat, 1);
  const BenchArgs full = bench({"-m",         "model", "--dtype", "f32",    "--prompt-tokens",
                                "16K,61440",  "-n",    "7",       "--kv",   "device,host,auto",
                                "--repeat",   "3",     "-s",      "9",      "-ctk",
                                "f16",        "-ctv",  "f32",     "--vram", "22GiB",
                                "--host-mem", "64GiB", "-dev",    "cuda:1", "--spill",
                                "/mnt/a:b/c", "-t",    "5",       "--json", "-o",
                                "out.json",   "-q"});
  EXPECT_EQ(full.bench.engine.model, "model");
  EXPECT_EQ(full.bench.engine.dtype, DType::kF32);
  EXPECT_EQ(full.bench.prompt_tokens, (std::vector<int64_t>{16384, 61440}));
  EXPECT_EQ(full.bench.decode_tokens, 7);
  EXPECT_EQ(full.bench.kv, (std::vector<KvMode>{KvMode::kDevice, KvMode::kHost, KvMode::kAuto}));
  EXPECT_EQ(full.bench.repeat, 3);
  EXPECT_EQ(full.bench.seed, 9u);
  EXPECT_EQ(full.bench.engine.cache_type_k, DType::kF16);
  EXPECT_EQ(full.bench.engine.cache_type_v, DType::kF32);
  EXPECT_EQ(full.bench.engine.device.vram_bytes, 22 * kGiB);
  EXPECT_EQ(full.bench.engine.device.host_mem_bytes, 64 * kGiB);
  EXPECT_EQ(full.bench.engine.device.cuda_index, 1);
  EXPECT_EQ(full.bench.engine.spill.folder, "/mnt/a:b/c");
  EXPECT_EQ(full.bench.engine.spill.limit_bytes, 0u);
  EXPECT_EQ(full.bench.engine.device.threads, 5);
  EXPECT_TRUE(full.output.json);
  EXPECT_TRUE(full.output.quiet);
  EXPECT_EQ(full.results, "out.json");
  EXPECT_TRUE(std::holds_alternative<ShapesArgs>(parse_args({"bench", "--list-shapes"})));
}

TEST(Args, BenchRefusals) {
  const auto told = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"bench", "--shape", "llama-3.1-8b"});
    return refusal(more);
  };
  for (const char* list : {"", ",", "16K,", ",16K", "16K,,1", "16K,x", "0"}) {
    EXPECT_NE(told({"-p", list}).find("--prompt-tokens"), std::string::npos) << list;
  }
  EXPECT_NE(told({"--kv", "host,disk"}).find("'disk' is none of auto, device, host"), std::string::npos);
  EXPECT_NE(told({"-n", "0"}).find("--decode-tokens"), std::string::npos);
  EXPECT_NE(told({"--repeat", "0"}).find("--repeat"), std::string::npos);
  EXPECT_NE(told({"-m", "model"}).find("exclude each other"), std::string::npos);
  EXPECT_NE(refusal({"bench"}).find("--list-shapes"), std::string::npos);
}

TEST(Args, BenchQualityTakesEveryFlag) {
  const auto quality = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"bench", "quality", "-m", "model", "--documents", "a.txt"});
    return std::get<QualityArgs>(parse_args(more));
  };
  const QualityOptions plain = quality({}).quality;
  EXPECT_EQ(plain.documents, std::vector<std::string>{"a.txt"});
  EXPECT_EQ(plain.budgets, (std::vector<int64_t>{512, 1024, 2048, 4096}));
  EXPECT_EQ(plain.intervals, (std::vector<int64_t>{20, 64}));
  EXPECT_EQ(plain.temperatures, (std::vector<float>{0.0f, 0.8f}));
  EXPECT_EQ(plain.prompt_tokens, 4096);
  EXPECT_EQ(plain.decode_tokens, 256);
  EXPECT_FALSE(plain.ignore_eos);
  EXPECT_TRUE(plain.engine.use_chat_template);
  const QualityArgs full = quality({"b.txt",        "-",
                                    "-p",           "8K",
                                    "-n",           "40",
                                    "--budgets",    "64,1K",
                                    "--temps",      "0.5",
                                    "--intervals",  "8,auto",
                                    "-s",           "7",
                                    "--ignore-eos", "-md",
                                    "small",        "--spec-type",
                                    "draft-simple", "--instruction",
                                    "Continue.",    "--block-score",
                                    "specpv",       "--no-chat-template",
                                    "-t",           "3",
                                    "--json",       "-o",
                                    "out.json"});
  const QualityOptions& o = full.quality;
  EXPECT_EQ(o.documents, (std::vector<std::string>{"a.txt", "b.txt", "-"}));
  EXPECT_EQ(o.prompt_tokens, 8192);
  EXPECT_EQ(o.decode_tokens, 40);
  EXPECT_EQ(o.budgets, (std::vector<int64_t>{64, 1024}));
  EXPECT_EQ(o.intervals, (std::vector<int64_t>{8, kAutoInterval}));
  EXPECT_EQ(o.temperatures, std::vector<float>{0.5f});
  EXPECT_EQ(o.instruction, "Continue.");
  EXPECT_EQ(o.seed, 7u);
  EXPECT_TRUE(o.ignore_eos);
  EXPECT_EQ(o.engine.model, "model");
  EXPECT_EQ(o.engine.draft.type, SpecType::kSimple);
  EXPECT_EQ(o.engine.draft.model, "small");
  EXPECT_EQ(o.engine.verify.score, BlockScore::kSpecPv);
  EXPECT_FALSE(o.engine.use_chat_template);
  EXPECT_EQ(o.engine.device.threads, 3);
  EXPECT_TRUE(full.output.json);
  EXPECT_EQ(full.results, "out.json");
  EXPECT_NE(refusal({"bench", "quality", "-m", "model"}).find("--documents"), std::string::npos);
  EXPECT_NE(refusal({"bench", "quality", "--documents", "a.txt"}).find("-m/--model"), std::string::npos);
}

TEST(Args, VerificationFlags) {
  const auto parsed = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "-m", "model", "-p", "x"});
    return std::get<GenerateArgs>(parse_args(more)).engine.verify;
  };
  const VerifyOptions plain = parsed({});
  EXPECT_FALSE(plain.mode.has_value());
  EXPECT_EQ(plain.budget, 4096);
  EXPECT_EQ(plain.interval, kAutoInterval);
  const VerifyOptions full = parsed({"--verify", "approximate", "--partial-budget", "8K", "--refresh-interval", "20",
                                     "--block-score", "specpv", "--block-reduce", "last"});
  EXPECT_EQ(full.mode, VerifyMode::kApproximate);
  EXPECT_EQ(full.budget, 8192);
  EXPECT_EQ(full.interval, 20);
  EXPECT_EQ(full.score, BlockScore::kSpecPv);
  EXPECT_EQ(full.reduce, BlockReduce::kLast);
  EXPECT_EQ(parsed({"--refresh-interval", "auto"}).interval, kAutoInterval);
  EXPECT_EQ(parsed({"--spec-type", "ngram-simple", "--partial-budget", "1K"}).budget, 1024);
  const auto told = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "-m", "model", "-p", "x"});
    return refusal(more);
  };
  EXPECT_NE(told({"--verify", "both"}).find("'both' is none of lossless, approximate, full"), std::string::npos);
  EXPECT_NE(told({"--partial-budget", "100"}).find("'100' is no multiple of 64"), std::string::npos);
  EXPECT_NE(told({"--partial-budget", "32K"}).find("up to 16K"), std::string::npos);
  EXPECT_NE(told({"--refresh-interval", "193"}).find("193"), std::string::npos);
  EXPECT_NE(told({"--refresh-interval", "0"}).find("0"), std::string::npos);
  EXPECT_NE(told({"--partial-budget", "2K"}).find("without --spec-type"), std::string::npos);
  EXPECT_NE(told({"--verify", "full", "--block-reduce", "max"}).find("--block-*"), std::string::npos);
}

TEST(Args, RopeFlags) {
  const RopeOverrides none = generate({"-p", "x"}).engine.rope;
  EXPECT_FALSE(none.scaling.has_value());
  EXPECT_EQ(none.factor, 0);
  const RopeOverrides rope = generate({"-p", "x", "--rope-scaling", "yarn", "--rope-scale", "4", "--rope-freq-base",
                                       "500000", "--yarn-orig-ctx", "8K"})
                                 .engine.rope;
  EXPECT_EQ(rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(rope.factor, 4);
  EXPECT_EQ(rope.theta, 500000);
  EXPECT_EQ(rope.original_positions, 8192);
  EXPECT_EQ(generate({"-p", "x", "--chat-template-file", "t.jinja"}).engine.chat_template_file, "t.jinja");
}

TEST(Args, DeviceMayNameAGpu) {
  EXPECT_EQ(generate({"-p", "x"}).engine.device.choice, DeviceChoice::kAuto);
  EXPECT_EQ(generate({"-p", "x"}).engine.device.cuda_index, -1);
  for (const auto& [value, index] : {std::pair{"cuda", -1}, {"cuda:0", 0}, {"cuda:12", 12}}) {
    const GenerateArgs args = generate({"-p", "x", "--device", value});
    EXPECT_EQ(args.engine.device.choice, DeviceChoice::kCuda) << value;
    EXPECT_EQ(args.engine.device.cuda_index, index) << value;
  }
}

TEST(Args, ListDevicesNeedsNothingElse) {
  EXPECT_TRUE(std::holds_alternative<DevicesArgs>(parse_args({"--list-devices"})));
  EXPECT_TRUE(std::holds_alternative<DevicesArgs>(parse_args({"generate", "--list-devices"})));
  EXPECT_TRUE(std::holds_alternative<DevicesArgs>(parse_args({"summarize", "--list-devices", "-m", "model"})));
}

TEST(Args, DefaultsAreThoseOfTheHelp) {
  const GenerateArgs args = generate({"-p", "x"});
  EXPECT_EQ(args.engine.ctx_size, 0);
  EXPECT_EQ(args.engine.kv, KvMode::kAuto);
  EXPECT_EQ(args.engine.dtype, std::nullopt);
  EXPECT_EQ(args.engine.device.threads, 0);
  EXPECT_EQ(args.generate.max_tokens, 256);
  EXPECT_EQ(args.generate.sampling.temperature, 0.0f);
  EXPECT_FALSE(args.generate.ignore_eos);
  EXPECT_FALSE(args.output.json);
}

TEST(Args, LongNamesAndEquals) {
  const GenerateArgs args = generate({"--prompt=-x starts with a dash", "--max-tokens=7", "--dtype=auto"});
  EXPECT_EQ(args.prompt, "-x starts with a dash");
  EXPECT_EQ(args.generate.max_tokens, 7);
  EXPECT_EQ(args.engine.dtype, std::nullopt);
  EXPECT_EQ(generate({"--predict", "9"}).generate.max_tokens, 9);
  EXPECT_EQ(generate({"-n", "9", "-n", "10"}).generate.max_tokens, 10);  // the last one counts
}

TEST(Args, SummarizeTakesPathsAnywhere) {
  const auto args = std::get<SummarizeArgs>(
      parse_args({"summarize", "a.txt", "-m", "model", "folder", "--truncate", "middle", "-o", "out.jsonl",
                  "--instruction", "Sum it up.", "--system", "You sum up.", "--", "-odd name"}));
  EXPECT_EQ(args.paths, (std::vector<std::string>{"a.txt", "folder", "./-odd name"}));
  EXPECT_EQ(args.truncate, Truncate::kMiddle);
  EXPECT_EQ(args.results, "out.jsonl");
  EXPECT_EQ(args.instruction, "Sum it up.");
  EXPECT_EQ(args.system, "You sum up.");
  const auto stdin_args = std::get<SummarizeArgs>(parse_args({"summarize", "-", "-m", "model"}));
  EXPECT_EQ(stdin_args.paths, (std::vector<std::string>{"-"}));
}

TEST(Args, Inspect) {
  const auto args = std::get<InspectArgs>(parse_args({"inspect", "model.gguf", "--tensors"}));
  EXPECT_EQ(args.model, "model.gguf");
  EXPECT_TRUE(args.tensors);
  EXPECT_FALSE(args.json);
}

TEST(Args, ThePrefixCacheIsAFolderAndASize) {
  EXPECT_TRUE(generate({}).engine.prefix_cache.folder.empty());
  const PrefixCacheOptions named = generate({"--prefix-cache", "some/where"}).engine.prefix_cache;
  EXPECT_EQ(named.folder, "some/where");
  EXPECT_EQ(named.limit_bytes, 0u);
  EXPECT_EQ(generate({"--prefix-cache", "some/where:20GiB"}).engine.prefix_cache.limit_bytes, 20 * kGiB);
  EXPECT_EQ(generate({"--prefix-cache", "/a:b/c"}).engine.prefix_cache.folder, "/a:b/c");
  EXPECT_EQ(generate({"--prefix-cache", "c:d:16m"}).engine.prefix_cache.folder, "c:d");
  for (const char* wrong : {"", ":20GiB", "/a:0"}) {
    EXPECT_NE(refusal({"generate", "-m", "model", "--prefix-cache", wrong}).find("--prefix-cache"), std::string::npos);
  }
}

TEST(Args, CacheSeesToAFolder) {
  const CacheArgs list = std::get<CacheArgs>(parse_args({"cache", "list", "some/where", "--json"}));
  EXPECT_EQ(list.action, CacheAction::kList);
  EXPECT_EQ(list.folder, "some/where");
  EXPECT_TRUE(list.json);
  EXPECT_EQ(std::get<CacheArgs>(parse_args({"cache", "verify", "x"})).action, CacheAction::kVerify);
  const CacheArgs prune = std::get<CacheArgs>(parse_args({"cache", "prune", "x", "--to", "3MiB"}));
  EXPECT_EQ(prune.action, CacheAction::kPrune);
  EXPECT_EQ(prune.limit_bytes, 3 * kMiB);
  EXPECT_EQ(std::get<CacheArgs>(parse_args({"cache", "prune", "x"})).limit_bytes, 0u);
  EXPECT_NE(refusal({"cache"}).find("headrace cache"), std::string::npos);
  EXPECT_NE(refusal({"cache", "prune", "x", "--to", "much"}).find("--to"), std::string::npos);
}

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
    EXPECT_NE(refusal({"plan", "-n", "-1"}).find("'-1' is no whole number from 1"), std::string::npos);
  }
  {
    const Variables variables({{"HEADRACE_SHAPE", "qwen3-0.6b"}, {"HEADRACE_MODEL", "m"}});
    EXPECT_EQ(std::get<PlanArgs>(parse_args({"plan", "-m", "n"})).plan.shape, "");
    EXPECT_NE(refusal({"plan"}).find("exclude each other"), std::string::npos);  // both are variables
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
  EXPECT_EQ(verify({}), VerifyOptions{});
  EXPECT_EQ(verify({"--spec-type", "ngram-simple"}).budget, 1024);
  EXPECT_EQ(verify({"--spec-type", "ngram-simple"}).interval, 20);
  EXPECT_EQ(verify({"--spec-type", "ngram-simple", "--verify", "full"}).budget, 4096);
  EXPECT_EQ(verify({"--verify", "lossless"}).budget, 1024);
  const Variables full({{"HEADRACE_VERIFY", "full"}, {"HEADRACE_SPEC_TYPE", "ngram-simple"}});
  EXPECT_EQ(verify({}).budget, 4096);
  EXPECT_EQ(verify({"--partial-budget", "2K"}).budget, 2048);
  EXPECT_EQ(verify({"--partial-budget", "2K"}).interval, 20);
  EXPECT_FALSE(verify({"--partial-budget", "2K"}).mode.has_value());
}

// One name for what is a batch's file and what a measurement writes over would cost somebody the batch.
TEST(Args, OutputsHaveVariablesOfTheirOwn) {
  const Variables variables({{"HEADRACE_OUTPUT", "x.jsonl"},
                             {"HEADRACE_BENCH_OUTPUT", "b.json"},
                             {"HEADRACE_QUALITY_OUTPUT", "q.json"},
                             {"HEADRACE_PROFILE_OUTPUT", "csv"},
                             {"HEADRACE_MODEL", "m"}});
  EXPECT_EQ(std::get<SummarizeArgs>(parse_args({"summarize", "a"})).results, "x.jsonl");
  EXPECT_EQ(std::get<SummarizeArgs>(parse_args({"summarize", "a", "--json"})).results, "");
  EXPECT_EQ(std::get<BenchArgs>(parse_args({"bench"})).results, "b.json");
  EXPECT_EQ(std::get<QualityArgs>(parse_args({"bench", "quality", "--documents", "a"})).results, "q.json");
  EXPECT_EQ(std::get<ProfileArgs>(parse_args({"profile"})).format, ProfileFormat::kCsv);
  EXPECT_EQ(std::get<ProfileArgs>(parse_args({"profile", "--json"})).format, ProfileFormat::kJson);
  EXPECT_EQ(std::get<ProfileArgs>(parse_args({"profile", "--format", "md"})).format, ProfileFormat::kMarkdown);
  const Variables json(Named{{"HEADRACE_JSON", "1"}});
  EXPECT_FALSE(std::get<SummarizeArgs>(parse_args({"summarize", "a", "-o", "y.jsonl"})).output.json);
  EXPECT_EQ(std::get<ProfileArgs>(parse_args({"profile", "-o", "md"})).format, ProfileFormat::kMarkdown);
  EXPECT_EQ(std::get<ProfileArgs>(parse_args({"profile", "-o", "p.csv"})).format, ProfileFormat::kJson);
}

// A size with a slip in it is no folder's name.
TEST(Args, WhatFollowsTheLastColonIsASize) {
  const std::string folder = ::testing::TempDir() + "headrace_args:colon";
  EXPECT_NE(refusal({"generate", "-m", "model", "--spill", folder}).find("'colon' is no size like 24GiB, nor is there"),
            std::string::npos);
  for (const char* wrong : {"pc:nonsense", "pc:", "pc:2GiBs", "pc:-1GiB", "a:b:c"}) {
    EXPECT_NE(refusal({"generate", "-m", "model", "--prefix-cache", wrong}).find("is no size"), std::string::npos)
        << wrong;
  }
  ASSERT_EQ(::mkdir(folder.c_str(), 0700), 0);
  const SpillOptions there = generate({"--spill", folder}).engine.spill;
  const SpillOptions sized = generate({"--spill", folder + ":2GiB"}).engine.spill;
  ::rmdir(folder.c_str());
  EXPECT_EQ(there.folder, folder);
  EXPECT_EQ(there.limit_bytes, 0u);
  EXPECT_EQ(sized.folder, folder);
  EXPECT_EQ(sized.limit_bytes, 2 * kGiB);
  EXPECT_EQ(generate({"--prefix-cache", "pc:new/"}).engine.prefix_cache.folder, "pc:new/");
}

TEST(Args, RefusalsNameFlagAndValue) {
  // {arguments after `generate -m model`, what the message must hold}
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> cases = {
      {{"-c", "0"}, {"--ctx-size", "'0'"}},
      {{"-c", "128KB"}, {"--ctx-size", "'128KB'", "128K"}},
      {{"--vram", "lots"}, {"--vram", "'lots'", "24GiB"}},
      {{"--vram", "0"}, {"--vram", "'0'"}},
      {{"--host-mem", "-1GiB"}, {"--host-mem", "-1GiB"}},
      {{"--kv", "disk"}, {"--kv", "'disk'", "auto, device, host"}},
      {{"--spill", ""}, {"--spill", "names no folder"}},
      {{"--spill", ":2GiB"}, {"--spill", "':2GiB'", "names no folder"}},
      {{"--spill", "/mnt:0"}, {"--spill", "'/mnt:0'", "no room"}},
      {{"-dev", "tpu"}, {"--device", "'tpu'", "auto, cuda, cpu, cuda:N"}},
      {{"-dev", "cuda:"}, {"--device", "'cuda:'"}},
      {{"-dev", "cuda:-1"}, {"--device", "'cuda:-1'"}},
      {{"-dev", "cuda:1x"}, {"--device", "'cuda:1x'"}},
      {{"-dev", "cuda:64"}, {"--device", "'cuda:64'", "63"}},
      {{"-dev", "cpu:0"}, {"--device", "'cpu:0'"}},
      {{"--dtype", "int8"}, {"--dtype", "'int8'", "auto, bf16, f32"}},
      {{"-ctk", "q8_0"}, {"--cache-type-k", "'q8_0'", "bf16, f16, f32"}},
      {{"-t", "0"}, {"--threads", "'0'"}},
      {{"-t", "2.5"}, {"--threads", "'2.5'"}},
      {{"-n", "0"}, {"--predict", "'0'"}},
      {{"-n", "-2"}, {"--predict", "'-2'"}},
      {{"-n", "many"}, {"--predict", "'many'"}},
      {{"--temp", "-0.1"}, {"--temp", "'-0.1'"}},
      {{"--temp", "nan"}, {"--temp", "'nan'"}},
      {{"--temp", "inf"}, {"--temp", "'inf'"}},
      {{"--temp", ""}, {"--temp", "''"}},
      {{"--top-p", "0"}, {"--top-p", "'0'"}},
      {{"--top-p", "1.1"}, {"--top-p", "'1.1'"}},
      {{"--top-k", "-1"}, {"--top-k", "'-1'"}},
      {{"--min-p", "2"}, {"--min-p", "'2'"}},
      {{"-s", "-1"}, {"--seed", "'-1'"}},
      {{"-s", "18446744073709551616"}, {"--seed", "'18446744073709551616'"}},
      {{"--no-such-flag"}, {"--no-such-flag"}},
      {{"stray"}, {"stray"}},
      {{"--chat-template", "chatml", "--no-chat-template"}, {"--chat-template", "--no-chat-template"}},
      {{"--no-chat-template", "--system", "x"}, {"--system", "--no-chat-template"}},
      {{"--chat-template-file", "f", "--chat-template", "chatml"}, {"--chat-template-file", "exclude"}},
      {{"--prompt", ""}, {"--prompt", "empty"}},
      {{"-f", ""}, {"--file", "empty"}},
      {{"--system", "a\xff"}, {"--system", "byte 1"}},
      {{"--rope-scaling", "cubic"}, {"--rope-scaling", "cubic"}},
      {{"--rope-scale", "0.5"}, {"--rope-scale", "'0.5'"}},
      {{"--rope-freq-base", "x"}, {"--rope-freq-base", "'x'"}},
      {{"-m"}, {"--model", "missing"}},
  };
  for (const auto& [flags, wanted] : cases) {
    std::vector<std::string> args = {"generate", "-m", "model", "-p", "x"};
    args.insert(args.end(), flags.begin(), flags.end());
    const std::string message = refusal(args);
    for (const std::string& part : wanted) EXPECT_NE(message.find(part), std::string::npos) << part << "\n" << message;
    EXPECT_NE(message.find("headrace generate --help"), std::string::npos) << message;
  }
}

TEST(Args, RefusesIncompleteCommands) {
  EXPECT_NE(refusal({}).find("headrace --help"), std::string::npos);
  EXPECT_NE(refusal({"translate"}).find("translate"), std::string::npos);
  EXPECT_NE(refusal({"generate", "-p", "x"}).find("-m/--model is needed"), std::string::npos);
  EXPECT_NE(refusal({"summarize", "-m", "model"}).find("documents"), std::string::npos);
  EXPECT_NE(refusal({"inspect"}).find("model"), std::string::npos);
  EXPECT_NE(refusal({"summarize", "a", "-m", "model", "-o", "x", "--json"}).find("--json"), std::string::npos);
  EXPECT_NE(refusal({"summarize", "a", "-m", "model", "--truncate", "end"}).find("'end'"), std::string::npos);
}

TEST(Args, HelpNamesWhatThereIs) {
  const std::string all = std::get<HelpArgs>(parse_args({"--help"})).text;
  for (const char* command : {"generate", "summarize", "inspect", "HEADRACE_"}) {
    EXPECT_NE(all.find(command), std::string::npos) << command << "\n" << all;
  }
  const std::string one = std::get<HelpArgs>(parse_args({"generate", "--help"})).text;
  for (const char* flag : {"--model", "--ctx-size", "-ctk", "--temp", "--ignore-eos", "[256]", "HEADRACE_TEMP"}) {
    EXPECT_NE(one.find(flag), std::string::npos) << flag << "\n" << one;
  }
  EXPECT_EQ(std::get<HelpArgs>(parse_args({"--version"})).text.substr(0, 9), "headrace ");
}

TEST(Args, ProfileTakesAFormOrAFile) {
  const auto profile = [](std::vector<std::string> args) {
    args.insert(args.begin(), "profile");
    return std::get<ProfileArgs>(parse_args(args));
  };
  struct Case {
    const char* value;
    ProfileFormat printed;
    const char* file;
    ProfileFormat written;
  };
  constexpr ProfileFormat kJson = ProfileFormat::kJson, kTable = ProfileFormat::kTable, kCsv = ProfileFormat::kCsv,
                          kMarkdown = ProfileFormat::kMarkdown;
  for (const Case& c : {Case{"json", kJson, "", kJson}, Case{"csv", kCsv, "", kJson}, Case{"md", kMarkdown, "", kJson},
                        Case{"a/p.json", kTable, "a/p.json", kJson}, Case{"p.csv", kTable, "p.csv", kCsv},
                        Case{"./md.md", kTable, "./md.md", kMarkdown}}) {
    const ProfileArgs args = profile({"-o", c.value});
    EXPECT_EQ(args.format, c.printed) << c.value;
    EXPECT_EQ(args.results, c.file);
    EXPECT_EQ(args.results_format, c.written) << c.value;
  }
  EXPECT_EQ(profile({"-o", "csv", "--format", "csv"}).format, kCsv);
  EXPECT_EQ(profile({"-o", "json", "--json"}).format, kJson);
  const ProfileArgs both = profile({"-o", "p.csv", "--json"});  // one on stdout, one in a file
  EXPECT_EQ(both.format, kJson);
  EXPECT_EQ(both.results_format, kCsv);
  for (const std::vector<std::string>& args : {std::vector<std::string>{"profile", "-o", "json", "--format", "table"},
                                               {"profile", "--json", "-o", "md"},
                                               {"profile", "--json", "--format", "csv"}}) {
    EXPECT_NE(refusal(args).find("exclude each other"), std::string::npos);
  }
  EXPECT_NE(refusal({"profile", "-o", "report"}).find("'report' is none of json, csv and md"), std::string::npos);
}

}  // namespace
}  // namespace headrace
