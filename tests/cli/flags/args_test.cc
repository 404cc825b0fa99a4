// The command line as a user types it: every flag, and refusals that name flag and value.
#include "cli/flags/args.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/cli/flags/args_fixture.h"

namespace headrace {
namespace {

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

TEST(Args, VerificationFlags) {
  const auto parsed = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "-m", "model", "-p", "x"});
    return std::get<GenerateArgs>(parse_args(more)).engine.verify;
  };
  const VerifyOptions plain = parsed({});
  EXPECT_EQ(plain.mode, VerifyMode::kAuto);
  EXPECT_EQ(parsed({"--verify", "auto"}).mode, VerifyMode::kAuto);
  EXPECT_EQ(plain.partial, PartialKind::kAuto);
  EXPECT_EQ(plain.budget, std::nullopt);
  EXPECT_EQ(plain.blocks(), 4096 / 16);
  EXPECT_EQ(plain.interval, kAutoInterval);
  const VerifyOptions full = parsed({"--verify", "approximate", "--partial-budget", "8K", "--refresh-interval", "20",
                                     "--block-score", "specpv", "--block-reduce", "last"});
  EXPECT_EQ(full.mode, VerifyMode::kApproximate);
  EXPECT_EQ(full.budget, 8192);
  EXPECT_EQ(full.interval, 20);
  EXPECT_EQ(full.score, BlockScore::kSpecPv);
  EXPECT_EQ(full.reduce, BlockReduce::kLast);
  EXPECT_EQ(parsed({"--verify", "lossless", "--block-score", "recent"}).score, BlockScore::kRecent);
  EXPECT_EQ(plain.max_overturned, 1);
  EXPECT_EQ(parsed({"--verify", "approximate", "--max-overturned", "2%"}).max_overturned, 0.02);
  EXPECT_EQ(parsed({"--verify", "approximate", "--max-overturned", "0%"}).max_overturned, 0);
  EXPECT_EQ(plain.window, kTailWindow);
  EXPECT_EQ(parsed({"--verify", "lossless", "--block-window", "64"}).window, 64);
  EXPECT_EQ(parsed({"--verify", "lossless", "--block-queries", "tree"}).queries, BlockQueries::kTree);
  EXPECT_EQ(parsed({"--refresh-interval", "auto"}).interval, kAutoInterval);
  EXPECT_EQ(parsed({"--spec-type", "ngram-simple", "--partial-budget", "1K"}).budget, 1024);
  for (const PartialKind kind : {PartialKind::kAuto, PartialKind::kBlocks, PartialKind::kInt4, PartialKind::kInt8}) {
    EXPECT_EQ(parsed({"--verify", "lossless", "--partial-kv", partial_kind_name(kind)}).partial, kind);
  }
  const auto told = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "-m", "model", "-p", "x"});
    return refusal(more);
  };
  EXPECT_NE(told({"--verify", "lossless", "--partial-kv", "q4"}).find("'q4' is not one of auto, blocks, int4, int8"),
            std::string::npos);
  EXPECT_EQ(parsed({"--spec-type", "none", "--partial-kv", "int8"}).partial, PartialKind::kInt8);
  EXPECT_NE(told({"--verify", "full", "--partial-kv", "int8"}).find("no effect with --verify full"), std::string::npos);
  EXPECT_EQ(parsed({"--partial-kv", "int8"}).partial, PartialKind::kInt8);
  for (const char* window : {"0", "100", "320", "-64", "x"}) {
    EXPECT_NE(told({"--verify", "lossless", "--block-window", window}).find(str("'", window, "'")), std::string::npos);
  }
  for (const std::vector<std::string>& of_blocks : {std::vector<std::string>{"--partial-budget", "1K"},
                                                    {"--block-score", "specpv"},
                                                    {"--block-reduce", "max"},
                                                    {"--block-queries", "tree"},
                                                    {"--block-window", "128"}}) {
    const std::vector<std::string> copy = {"--verify", "lossless", "--partial-kv", "int4", of_blocks[0], of_blocks[1]};
    EXPECT_NE(told(copy).find("no effect with --partial-kv int4"), std::string::npos) << of_blocks[0];
    std::vector<std::string> blocks = copy;
    blocks[3] = "blocks";
    EXPECT_EQ(parsed(blocks).partial, PartialKind::kBlocks);
  }
  EXPECT_NE(told({"--verify", "both"}).find("'both' is not one of auto, lossless, approximate, full"),
            std::string::npos);
  EXPECT_NE(told({"--partial-budget", "100"}).find("'100' is not a multiple of 64"), std::string::npos);
  EXPECT_NE(told({"--partial-budget", "32K"}).find("of at most 16K"), std::string::npos);
  for (const char* share : {"2", "0.02", "-1%", "101%", "%", "x%"}) {
    EXPECT_NE(told({"--verify", "approximate", "--max-overturned", share}).find(str("'", share, "' is not a share")),
              std::string::npos);
  }
  for (const char* mode : {"full", "lossless", "auto"}) {
    EXPECT_NE(told({"--verify", mode, "--max-overturned", "2%"}).find("--verify approximate alone"), std::string::npos);
  }
  EXPECT_NE(told({"--refresh-interval", "193"}).find("193"), std::string::npos);
  EXPECT_NE(told({"--refresh-interval", "0"}).find("0"), std::string::npos);
  EXPECT_NE(told({"--verify", "full", "--block-reduce", "max"}).find("--block-*"), std::string::npos);
}

TEST(Args, FormsOfSummariesAndRequests) {
  const auto summarize = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"summarize", "-m", "model", "a.txt"});
    return std::get<SummarizeArgs>(parse_args(more));
  };
  const SummarizeArgs usual = summarize({});
  EXPECT_EQ(usual.generate.max_tokens, 1024);
  EXPECT_EQ(usual.format, SummaryFormat::kText);
  EXPECT_EQ(usual.shard.count, 0);
  EXPECT_EQ(summarize({"-n", "50"}).generate.max_tokens, 50);
  EXPECT_EQ(summarize({"--summary-format", "csv"}).format, SummaryFormat::kCsv);
  EXPECT_TRUE(summarize({"--summary-format", "jsonl"}).output.json);
  EXPECT_EQ(summarize({"--out-dir", "d"}).format, SummaryFormat::kMarkdown);
  EXPECT_EQ(summarize({"--out-dir", "d", "--summary-format", "jsonl"}).format, SummaryFormat::kJsonLines);
  EXPECT_FALSE(summarize({"--out-dir", "d", "--summary-format", "jsonl"}).output.json);
  EXPECT_EQ(summarize({"--shard", "2/5"}).shard.index, 2);
  EXPECT_NE(refusal({"summarize", "-m", "m", "a", "--summary-format", "xml"}).find("'xml' is not one of text, md, csv"),
            std::string::npos);
  const ChatArgs chat = std::get<ChatArgs>(parse_args({"chat", "-m", "m", "a", "--long", "split"}));
  EXPECT_TRUE(chat.split);
  EXPECT_EQ(chat.generate.max_tokens, 256);
  EXPECT_EQ(std::get<ChatArgs>(parse_args({"chat", "-m", "m", "a", "--truncate", "middle"})).truncate,
            Truncate::kMiddle);
  const BatchMakeArgs make = std::get<BatchMakeArgs>(
      parse_args({"batch", "make", "d", "e", "-o", "r.jsonl", "-n", "9", "--request-model", "m", "--system", "s"}));
  EXPECT_EQ(make.paths, (std::vector<std::string>{"d", "e"}));
  EXPECT_EQ(make.requests, "r.jsonl");
  EXPECT_EQ(make.max_tokens, 9);
  EXPECT_EQ(make.model + make.system, "ms");
  EXPECT_TRUE(std::get<PlanArgs>(parse_args({"plan", "--shape", "qwen3-8b", "--details"})).details);
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
  EXPECT_TRUE(generate({"-p", "x", "--thinking"}).engine.thinking);
  EXPECT_FALSE(generate({"-p", "x"}).engine.thinking);
  EXPECT_EQ(generate({"-p", "x", "--reasoning-budget", "512"}).generate.reasoning_budget, 512);
  EXPECT_EQ(generate({"-p", "x", "--reasoning-budget", "-1"}).generate.reasoning_budget, -1);
  EXPECT_EQ(generate({"-p", "x"}).generate.reasoning_budget, -1);
  EXPECT_TRUE(generate({"-p", "x", "--hide-thinking"}).output.hide_thinking);
  EXPECT_FALSE(generate({"-p", "x"}).output.hide_thinking);
  EXPECT_TRUE(generate({"-p", "x", "--allow-damaged-weights"}).engine.allow_damaged_weights);
  EXPECT_FALSE(generate({"-p", "x"}).engine.allow_damaged_weights);
}

TEST(Args, DraftRopeFlags) {
  EXPECT_FALSE(generate({"-p", "x"}).engine.draft.rope.scaling.has_value());
  const DraftOptions draft =
      generate({"-p", "x", "--spec-type", "draft-eagle3", "-md", "head", "--draft-rope-scaling", "yarn",
                "--draft-rope-scale", "16", "--draft-rope-theta", "10000", "--draft-yarn-orig-ctx", "2K"})
          .engine.draft;
  EXPECT_EQ(draft.rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(draft.rope.factor, 16);
  EXPECT_EQ(draft.rope.theta, 10000);
  EXPECT_EQ(draft.rope.original_positions, 2048);
  for (const auto& [flag, value] : {std::pair{"--draft-rope-scaling", "ntk"},
                                    {"--draft-rope-scale", "0.5"},
                                    {"--draft-rope-scale", "2000"},
                                    {"--draft-rope-theta", "0"},
                                    {"--draft-yarn-orig-ctx", "0"}}) {
    const std::string said = refusal({"generate", "-m", "model", "-p", "x", flag, value});
    EXPECT_NE(said.find(flag), std::string::npos) << said;
    EXPECT_NE(said.find(value), std::string::npos) << said;
  }
}

TEST(Args, DraftCache) {
  const auto given = [](const char* value) {
    return generate({"-p", "x", "--spec-type", "draft-eagle3", "-md", "head", "--draft-cache", value})
        .engine.draft.retrieval;
  };
  EXPECT_FALSE(generate({"-p", "x"}).engine.draft.retrieval.has_value());
  EXPECT_FALSE(given("window").has_value());
  EXPECT_EQ(given("retrieval")->chunks, 0);  // as many as usual
  EXPECT_EQ(given("retrieval")->rows, 32);
  EXPECT_EQ(given("retrieval:12")->chunks, 12);
  const RetrievalShape all = *given("retrieval:12,64,8");
  EXPECT_EQ(all.chunks, 12);
  EXPECT_EQ(all.rows, 64);
  EXPECT_EQ(all.every, 8);
  for (const char* wrong : {"all", "retrieval:", "retrieval:0", "retrieval:12,", "retrieval:12,8",
                            "retrieval:12,64,8,1", "retrievals", "retrieval 3", "retrieval:5000", "retrieval:x"}) {
    const std::string said = refusal({"generate", "-m", "model", "-p", "x", "--draft-cache", wrong});
    EXPECT_NE(said.find("--draft-cache"), std::string::npos) << said;
  }
}

TEST(Args, LookUpBesideADraft) {
  for (const SpecType type : {SpecType::kEagle3, SpecType::kLongSpec, SpecType::kSimple}) {
    for (const bool look_up : {true, false}) {
      const std::string value = str(spec_type_name(type), look_up ? ",ngram-simple" : "");
      const DraftOptions draft = generate({"-p", "x", "--spec-type", value, "-md", "draft"}).engine.draft;
      EXPECT_EQ(draft.type, type) << value;
      EXPECT_EQ(draft.look_up, look_up) << value;
    }
  }
  EXPECT_EQ(generate({"-p", "x"}).engine.draft.type, SpecType::kAuto);
  EXPECT_EQ(generate({"-p", "x", "--spec-type", "auto"}).engine.draft.type, SpecType::kAuto);
  EXPECT_EQ(generate({"-p", "x", "--spec-type", "none"}).engine.draft.type, SpecType::kNone);
  EXPECT_TRUE(generate({"-p", "x", "--spec-type", "draft-mtp,ngram-simple"}).engine.draft.look_up);
  for (const char* wrong : {"none,ngram-simple", "auto,ngram-simple", "ngram-simple,ngram-simple",
                            "ngram-simple,draft-eagle3", "draft-eagle3,draft-simple", "draft-eagle3,"}) {
    const std::string said = refusal({"generate", "-m", "model", "-p", "x", "--spec-type", wrong});
    EXPECT_NE(said.find("--spec-type"), std::string::npos) << said;
    EXPECT_NE(said.find(wrong), std::string::npos) << said;
  }
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

TEST(Args, DevicesAreAListOfOneKind) {
  const std::vector<std::string> base = {"batch", "-m", "model", "-i", "in", "-o", "out"};
  const auto with = [&base](const std::vector<std::string>& more) {
    std::vector<std::string> args = base;
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  EXPECT_TRUE(std::get<BatchArgs>(parse_args(base)).devices.empty());
  const auto gpus = std::get<BatchArgs>(parse_args(with({"--devices", "cuda:1,cuda:0"}))).devices;
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0].choice, DeviceChoice::kCuda);
  EXPECT_EQ(gpus[0].cuda_index, 1);
  EXPECT_EQ(gpus[1].cuda_index, 0);
  const auto cpus = std::get<BatchArgs>(parse_args(with({"--devices", "cpu,cpu,cpu"}))).devices;
  ASSERT_EQ(cpus.size(), 3u);
  EXPECT_EQ(cpus[2].choice, DeviceChoice::kCpu);
  EXPECT_EQ(std::get<BatchArgs>(parse_args(with({"--devices", "cpu", "--in-order"}))).devices.size(), 1u);

  EXPECT_NE(refusal(with({"--devices", "cpu,gpu"})).find("'gpu' is not one of cpu, cuda:N"), std::string::npos);
  EXPECT_NE(refusal(with({"--devices", "cuda:0,auto"})).find("'auto'"), std::string::npos);
  EXPECT_NE(refusal(with({"--devices", ""})).find("''"), std::string::npos);
  EXPECT_NE(refusal(with({"--devices", "cuda:0,cuda:1,cuda:0"})).find("lists cuda:0 twice"), std::string::npos);
  EXPECT_NE(refusal(with({"--devices", "cuda:0,cpu"})).find("mixes cpu and cuda"), std::string::npos);
  EXPECT_NE(refusal(with({"--devices", "cpu,cpu", "--in-order"})).find("--in-order"), std::string::npos);
  EXPECT_NE(refusal(with({"--devices", "cpu,cpu", "--trace", "t"})).find("--trace"), std::string::npos);
  EXPECT_NE(refusal(with({"--devices", "cpu", "--device", "cpu"})).find("excludes"), std::string::npos);
  std::string many = "cpu";
  for (int i = 0; i < 64; ++i) many += ",cpu";
  EXPECT_NE(refusal(with({"--devices", many})).find("lists 65 devices"), std::string::npos);

  const std::vector<std::string> text = {"summarize", "-m", "model", "a.txt", "--devices", "cpu,cpu"};
  EXPECT_NE(refusal(text).find("--devices needs -o FILE or --json"), std::string::npos);
  std::vector<std::string> as_json = text;
  as_json.push_back("--json");
  EXPECT_EQ(std::get<SummarizeArgs>(parse_args(as_json)).devices.size(), 2u);
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

TEST(Args, ChatTakesDocumentsOrNone) {
  const auto args =
      std::get<ChatArgs>(parse_args({"chat", "a.txt", "-m", "model", "folder", "-sys", "be brief", "-q"}));
  EXPECT_EQ(args.paths, (std::vector<std::string>{"a.txt", "folder"}));
  EXPECT_EQ(args.system, "be brief");
  EXPECT_TRUE(args.output.quiet);
  EXPECT_TRUE(std::get<ChatArgs>(parse_args({"chat", "-m", "model"})).paths.empty());
  EXPECT_NE(refusal({"chat", "-m", "model", "a.txt", "-"}).find("'-' is not allowed"), std::string::npos);
  EXPECT_NE(refusal({"chat", "a.txt"}).find("-m/--model"), std::string::npos);
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

// A size with a slip in it is no folder's name.
TEST(Args, WhatFollowsTheLastColonIsASize) {
  const std::string folder = ::testing::TempDir() + "headrace_args:colon";
  EXPECT_NE(refusal({"generate", "-m", "model", "--spill", folder})
                .find("'colon' is not a size such as 24GiB, and no folder"),
            std::string::npos);
  for (const char* wrong : {"pc:nonsense", "pc:", "pc:2GiBs", "pc:-1GiB", "a:b:c"}) {
    EXPECT_NE(refusal({"generate", "-m", "model", "--prefix-cache", wrong}).find("is not a size"), std::string::npos)
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

// llama.cpp's name of its own type of 8 bits is taken for ours.
TEST(Args, Int8CacheTypesHaveTwoNames) {
  for (const char* name : {"int8", "q8_0"}) {
    const GenerateArgs args = generate({"-ctk", name, "-p", "hello"});
    EXPECT_EQ(args.engine.cache_type_k, DType::kInt8) << name;
    EXPECT_EQ(args.engine.cache_type_v, std::nullopt) << name;
  }
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
      {{"--dtype", "q8_0"}, {"--dtype", "'q8_0'", "auto, bf16, f32"}},
      {{"-ctk", "int9"}, {"--cache-type-k", "'int9'", "bf16, f16, f32, int8, q8_0"}},
      {{"-ctv", "int4"}, {"--cache-type-v", "'int4'", "bf16, f16, f32, int8, q8_0"}},
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
      {{"--thinking", "--chat-template", "qwen3"}, {"--thinking", "exclude"}},
      {{"--thinking", "--no-chat-template"}, {"--thinking", "exclude"}},
      {{"--thinking", "--reasoning-budget", "0"}, {"--thinking", "--reasoning-budget 0"}},
      {{"--reasoning-budget", "-2"}, {"--reasoning-budget", "-2"}},
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
  EXPECT_NE(refusal({"generate", "-p", "x"}).find("-m/--model is required"), std::string::npos);
  EXPECT_NE(refusal({"summarize", "-m", "model"}).find("documents"), std::string::npos);
  EXPECT_NE(refusal({"inspect"}).find("model"), std::string::npos);
  EXPECT_NE(refusal({"inspect", "m", "--thinking"}).find("--thinking needs --render"), std::string::npos);
  EXPECT_NE(refusal({"inspect", "m", "--chat-template-file", "f"}).find("needs --render"), std::string::npos);
  EXPECT_NE(refusal({"summarize", "a", "-m", "model", "-o", "x", "--json"}).find("--json"), std::string::npos);
  EXPECT_NE(refusal({"summarize", "a", "-m", "model", "--truncate", "end"}).find("'end'"), std::string::npos);
}

TEST(Args, HelpNamesWhatThereIs) {
  const std::string all = std::get<HelpArgs>(parse_args({"--help"})).text;
  for (const char* command : {"generate", "summarize", "inspect", "HEADRACE_"}) {
    EXPECT_NE(all.find(command), std::string::npos) << command << "\n" << all;
  }
  const std::string one = std::get<HelpArgs>(parse_args({"generate", "--help-all"})).text;
  for (const char* flag : {"--model", "--ctx-size", "-ctk", "--temp", "--ignore-eos", "[256]", "HEADRACE_TEMP"}) {
    EXPECT_NE(one.find(flag), std::string::npos) << flag << "\n" << one;
  }
  EXPECT_EQ(std::get<HelpArgs>(parse_args({"--version"})).text.substr(0, 9), "headrace ");
}

TEST(Args, ServeTakesItsLimits) {
  const auto serve = [](std::vector<std::string> args) {
    args.insert(args.begin(), {"serve", "-m", "model"});
    return std::get<ServeArgs>(parse_args(args));
  };
  const ServeArgs usual = serve({});
  EXPECT_EQ(usual.server.host, "127.0.0.1");
  EXPECT_EQ(usual.server.port, 8080);
  EXPECT_EQ(usual.server.queue, 16);
  EXPECT_TRUE(usual.server.use_chat_template);
  const ServeArgs args =
      serve({"--host", "::1", "--port", "0", "--api-key-file", "keys", "--queue", "0", "--queue-time", "2.5",
             "--read-time", "1", "--max-body", "2MiB", "--temp", "0.5", "--no-chat-template"});
  EXPECT_EQ(args.server.host, "::1");
  EXPECT_EQ(args.server.port, 0);
  EXPECT_EQ(args.server.api_key_file, "keys");
  EXPECT_EQ(args.server.queue, 0);
  EXPECT_DOUBLE_EQ(args.server.queue_seconds, 2.5);
  EXPECT_DOUBLE_EQ(args.server.read_seconds, 1);
  EXPECT_EQ(args.server.body_bytes, 2 * kMiB);
  EXPECT_FALSE(args.server.use_chat_template);
  EXPECT_FLOAT_EQ(args.generate.sampling.temperature, 0.5f);
}

}  // namespace
}  // namespace headrace
