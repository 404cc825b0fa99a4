// The command lines of what measures: bench, bench quality and profile.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>
#include <variant>
#include <vector>

#include "tests/cli/flags/args_fixture.h"

namespace headrace {
namespace {

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
  EXPECT_NE(told({"--kv", "host,disk"}).find("'disk' is not one of auto, device, host"), std::string::npos);
  EXPECT_NE(told({"-n", "0"}).find("--decode-tokens"), std::string::npos);
  EXPECT_NE(told({"--repeat", "0"}).find("--repeat"), std::string::npos);
  EXPECT_NE(told({"-m", "model"}).find("--model excludes --shape"), std::string::npos);
  EXPECT_NE(refusal({"bench"}).find("--list-shapes"), std::string::npos);
}

TEST(Args, WeightsOfAShapeHaveAType) {
  const auto bench = [](const std::string& weights) {
    return std::get<BenchArgs>(parse_args({"bench", "--shape", "llama-3.1-8b", "--weights", weights})).bench;
  };
  for (const char* name : {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k", "q2_k", "q3_k", "iq4_nl",
                           "iq4_xs", "q4_k_m", "q5_k_m", "mxfp4"}) {
    const BenchOptions options = bench(name);
    ASSERT_NE(options.shape_weights, nullptr) << name;
    EXPECT_STREQ(options.shape_weights->name, name);
    EXPECT_EQ(options.engine.weights, WeightPolicy::kKeep);
  }
  EXPECT_EQ(bench("keep").shape_weights, nullptr);
  EXPECT_EQ(bench("dtype").engine.weights, WeightPolicy::kDequantise);
  EXPECT_EQ(bench("bf16").engine.weights, WeightPolicy::kBf16);
  const std::vector<std::string> plan = {"plan", "--shape", "llama-3.1-8b", "--weights", "q5_k_m"};
  EXPECT_STREQ(std::get<PlanArgs>(parse_args(plan)).plan.shape_weights->name, "q5_k_m");
  const std::string unknown = refusal({"plan", "--shape", "llama-3.1-8b", "--weights", "iq1_s"});
  EXPECT_NE(unknown.find("'iq1_s' is not one of keep, dtype, bf16, q8_0, q6_k, q5_k, q4_k; with --shape also q4_0, "),
            std::string::npos)
      << unknown;
  for (const std::vector<std::string>& command : {std::vector<std::string>{"bench", "-m", "model"},
                                                  {"plan", "-m", "model"},
                                                  {"generate", "-m", "model", "-p", "a"}}) {
    std::vector<std::string> args = command;
    args.insert(args.end(), {"--weights", "q4_k_m"});
    const std::string wrong = refusal(args);
    for (const char* part :
         {"--weights", "'q4_k_m'", "--shape", "(keep)", "(dtype, bf16)", "(q8_0, q6_k, q5_k, q4_k)"}) {
      EXPECT_NE(wrong.find(part), std::string::npos) << wrong;
    }
  }
}

TEST(Args, WeightsOfAFileMayBeDequantisedOrQuantised) {
  for (const auto& [name, policy] : {std::pair<const char*, WeightPolicy>{"dtype", WeightPolicy::kDequantise},
                                     {"bf16", WeightPolicy::kBf16},
                                     {"q8_0", WeightPolicy::kQ8_0},
                                     {"q6_k", WeightPolicy::kQ6K},
                                     {"q5_k", WeightPolicy::kQ5K},
                                     {"q4_k", WeightPolicy::kQ4K}}) {
    const auto with = [value = name](std::vector<std::string> args) {
      args.insert(args.end(), {"--weights", value});
      return parse_args(args);
    };
    EXPECT_EQ(std::get<GenerateArgs>(with({"generate", "-m", "m", "-p", "a"})).engine.weights, policy);
    EXPECT_EQ(std::get<BenchArgs>(with({"bench", "-m", "m"})).bench.engine.weights, policy);
    EXPECT_EQ(std::get<PlanArgs>(with({"plan", "-m", "m"})).plan.engine.weights, policy);
    EXPECT_EQ(std::get<InspectArgs>(with({"inspect", "m"})).weights, policy);
  }
}

// On every command that has --weights, and from its variable.
TEST(Args, PrefillHasAType) {
  const auto engine_of = [](const std::vector<std::string>& args) {
    return std::visit(
        [](const auto& parsed) -> EngineOptions {
          if constexpr (requires { parsed.engine; }) return parsed.engine;
          if constexpr (requires { parsed.bench.engine; }) return parsed.bench.engine;
          if constexpr (requires { parsed.plan.engine; }) return parsed.plan.engine;
          if constexpr (requires { parsed.quality.engine; }) return parsed.quality.engine;
          ADD_FAILURE() << "no engine";
          return {};
        },
        parse_args(args));
  };
  for (const std::vector<std::string>& command : {std::vector<std::string>{"generate", "-p", "a"},
                                                  {"summarize", "a.txt"},
                                                  {"chat"},
                                                  {"batch", "-i", "a", "-o", "b"},
                                                  {"serve"},
                                                  {"plan"},
                                                  {"bench"},
                                                  {"bench", "quality", "--documents", "a.txt"}}) {
    std::vector<std::string> args = command;
    args.insert(args.end(), {"-m", "model"});
    EXPECT_EQ(engine_of(args).prefill, PrefillType::kAuto) << command[0];
    ::setenv("HEADRACE_PREFILL_TYPE", "int8", 1);
    EXPECT_EQ(engine_of(args).prefill, PrefillType::kInt8) << command[0];
    ::unsetenv("HEADRACE_PREFILL_TYPE");
    args.insert(args.end(), {"--prefill-type", "bf16"});
    EXPECT_EQ(engine_of(args).prefill, PrefillType::kCompute) << command[0];
    for (const char* const wrong : {"q8_0", "fp8", "f32", ""}) {
      args.back() = wrong;
      const std::string told = refusal(args);
      EXPECT_NE(told.find("--prefill-type"), std::string::npos) << told;
      EXPECT_NE(told.find("auto, bf16, int8"), std::string::npos) << told;
    }
  }
}

TEST(Args, PerplexityMayBeComparedWithAnotherPrefill) {
  const std::vector<std::string> plain = {"bench", "quality", "-m", "model", "--documents", "a.txt"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = plain;
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  const auto against = [&](const std::vector<std::string>& more) {
    return std::get<QualityArgs>(parse_args(with(more))).against;
  };
  EXPECT_FALSE(against({"--perplexity"}));
  EXPECT_EQ(against({"--perplexity", "--against", "bf16"}), PrefillType::kCompute);
  EXPECT_EQ(against({"--perplexity", "--against", "int8", "--prefill-type", "bf16"}), PrefillType::kInt8);
  EXPECT_NE(refusal(with({"--against", "bf16"})).find("--perplexity"), std::string::npos);
  EXPECT_NE(refusal(with({"--perplexity", "--against", "q4_k"})).find("--against"), std::string::npos);
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
  EXPECT_NE(refusal({"profile", "-o", "report"}).find("'report' is neither json, csv or md"), std::string::npos);
}

}  // namespace
}  // namespace headrace
