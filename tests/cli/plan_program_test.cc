// headrace plan as a user meets it: what fits, what would, and whose rates the times are by.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/process.h"
#include "tests/cli/tiny_model.h"
#include "tests/support/sanitized.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using nlohmann::json;

class PlanProgram : public ::testing::Test {
 protected:
  Finished plan(std::vector<std::string> args) {
    args.insert(args.begin(), "plan");
    return run_program(args, {.input = "", .environment = {{"HOME", home_.path()}}, .stdout_path = ""});
  }
  // The shape of Llama-3.1-8B on a 4090.
  Finished plan_8b(std::vector<std::string> more, const std::string& host = "16GiB") {
    std::vector<std::string> args = {"--shape", "llama-3.1-8b", "--gpu", "rtx4090", "--host-mem", host};
    args.insert(args.end(), more.begin(), more.end());
    return plan(args);
  }
  std::string kept(const std::string& device, const std::string& driver) {
    return json({{"program", "headrace profile"},
                 {"version", 1},
                 {"device", device},
                 {"driver", driver},
                 {"measured", "2026-11-21T20:15:00Z"},
                 {"rates",
                  {{"gpu", true},
                   {"to_device_gb_per_s", 25},
                   {"to_host_gb_per_s", 25},
                   {"weights_gb_per_s", 900},
                   {"kv_gb_per_s", 900},
                   {"product_tflop_per_s", 140},
                   {"attention_tflop_per_s", 80},
                   {"queries_tflop_per_s", 70}}}})
        .dump();
  }
  TemporaryFolder home_;
};

TEST_F(PlanProgram, SaysWhereAllLiesAndWhatItTakes) {
  const Finished table = plan_8b({"-c", "80K", "--verify", "full", "--details"});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  for (const char* part : {"llama-3.1-8b with random weights, bf16, on NVIDIA GeForce RTX 4090", "81,920 tokens",
                           "13.98 GiB  weights", "embeddings", "KV cache, ", "prefill", "to device", "bound by", "link",
                           "tokens/s", "by the data sheet of NVIDIA GeForce RTX 4090"}) {
    EXPECT_NE(table.out.find(part), std::string::npos) << part << "\n" << table.out;
  }
  const std::string answer = plan_8b({"-c", "80K", "--verify", "full"}).out;
  EXPECT_EQ(table.out.find(answer), 0u) << "the details follow the answer";
  EXPECT_EQ(answer.find("KV cache, "), std::string::npos) << answer;
  const Finished finished = plan_8b({"-c", "80K", "--verify", "full", "--json"});
  const json report = json::parse(finished.out);
  EXPECT_EQ(report["fits"], true);
  EXPECT_LE(report["memory"]["vram_bytes"], report["vram_limit_bytes"]);
  EXPECT_LE(report["memory"]["host_bytes"], report["host_limit_bytes"]);
  EXPECT_GT(report["predicted"]["full"]["link_bytes"], 0);
  EXPECT_EQ(report["predicted"]["full"]["bound_by"], "link");
  EXPECT_EQ(report["predicted"]["full"]["disk_bytes"], 0);
  EXPECT_GT(report["predicted"]["tokens_per_s"], 1);
  EXPECT_GT(report["predicted"]["prefill"]["ms"], 1000);
  uint64_t weights = 0;
  for (const json& line : report["memory"]["lines"]) {
    if (line["what"] == "weights") weights = line["bytes"];
  }
  EXPECT_EQ(weights, 15009849344u) << "the embeddings are in host memory";
}

// Weights, cache and verification side by side, the run first; and each is what a plan of its own says.
TEST_F(PlanProgram, ComparesTheSettingsThatMatter) {
  const json report = json::parse(plan_8b({"-c", "61440", "--json"}).out);
  EXPECT_EQ(report["verify"], "lossless");
  const json& settings = report["settings"];
  ASSERT_EQ(settings.size(), 5u) << settings.dump(1);
  EXPECT_EQ(settings[0]["flags"], "");
  EXPECT_EQ(settings[0]["tokens_per_s"], report["predicted"]["tokens_per_s"]);
  std::vector<std::string> flags;
  for (const json& setting : settings) {
    flags.push_back(setting["flags"]);
    std::vector<std::string> args = {"-c", "61440", "--json"};
    std::istringstream words(flags.back());
    for (std::string word; words >> word;) args.push_back(word);
    const json alone = json::parse(plan_8b(args).out);
    EXPECT_EQ(alone["predicted"]["tokens_per_s"], setting["tokens_per_s"]) << flags.back();
    EXPECT_EQ(alone["predicted"]["prefill"]["ms"], setting["first_token_ms"]) << flags.back();
    EXPECT_EQ(alone["verify"], setting["verify"]) << flags.back();
  }
  EXPECT_EQ(flags, (std::vector<std::string>{"", "--verify full", "--weights q4_k_m", "-ctk int8 -ctv int8",
                                             "--weights q4_k_m -ctk int8 -ctv int8"}));
  EXPECT_GT(settings[2]["tokens_per_s"], settings[1]["tokens_per_s"]);
  // Where nothing streams, partial steps are no setting; what is small already has none that is smaller.
  const json small =
      json::parse(plan_8b({"-c", "8K", "--json", "--weights", "q4_k_m", "-ctk", "int8", "-ctv", "int8"}).out);
  EXPECT_EQ(small["verify"], "full");
  EXPECT_EQ(small["verify_note"], "nothing streams");
  EXPECT_EQ(small["settings"].size(), 1u) << small["settings"].dump(1);
  const json full = json::parse(plan_8b({"-c", "61440", "--verify", "full", "--json"}).out);
  EXPECT_EQ(full["settings"][1]["flags"], "--verify auto");
  // Of what does not fit, those that do.
  const json refused = json::parse(plan({"qwen3-14b", "rtx4090", "16K", "--weights-place", "device", "--json"}).out);
  EXPECT_EQ(refused["fits"], false);
  EXPECT_EQ(refused["settings"][0]["fits"], false);
  EXPECT_EQ(refused["settings"][1]["flags"], "--weights q4_k_m");
  EXPECT_EQ(refused["settings"][1]["fits"], true);
}

// With its embeddings on the card a 27B has room for a copy in int4, or for one in int8 whose refreshes stream whole
// rows.
TEST_F(PlanProgram, SavesMemoryForASmallerRefresh) {
  const json report =
      json::parse(plan({"qwen3.6-27b", "rtx4090", "128K", "--weights", "q4_k_m", "--host-mem", "32GiB", "--json"}).out);
  EXPECT_EQ(report["partial_kv"], "int8");
  std::vector<std::string> in_host_memory;
  for (const json& line : report["memory"]["lines"]) {
    if (line["tier"] == "host" && line["bytes"] > 0) in_host_memory.push_back(line["what"]);
  }
  for (const char* what : {"embeddings", "what the int8 copy lacks of these rows"}) {
    EXPECT_EQ(std::count(in_host_memory.begin(), in_host_memory.end(), what), 1) << what;
  }
}

// A layer that stays is worth more than the time that prefill takes for the prompt's states to come and go.
TEST_F(PlanProgram, SavesForWeightsThatStream) {
  const Finished planned = plan({"qwen3.6-27b", "rtx4090", "256K", "--weights", "q3_k", "--vram", "14.5GiB",
                                 "--host-mem", "64GiB", "--partial-kv", "blocks", "--details"});
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_NE(planned.out.find("weights of 8 of 64 layers"), std::string::npos) << planned.out;
  EXPECT_NE(planned.out.find("the prompt's states, while prefill runs"), std::string::npos) << planned.out;
}

// Of 262,144 tokens, 256 values for each of 42 layers in Q4_K, which no plan has on the device.
TEST_F(PlanProgram, HasTheTableOfTokensInHostMemory) {
  const json report = json::parse(plan({"gemma-4-e4b", "rtx4090", "16K", "--weights", "q4_k", "--json"}).out);
  uint64_t table = 0, host = 0;
  for (const json& line : report["memory"]["lines"]) {
    if (line["tier"] != "host") continue;
    host += line["bytes"].get<uint64_t>();
    if (line["what"] == "table of what tokens add to the layers") table = line["bytes"];
  }
  EXPECT_GE(table, 262144u * 42 * 144);
  EXPECT_LE(table, 262144u * 42 * 150);
  EXPECT_EQ(report["memory"]["host_bytes"], host);
}

// Substitutes are on the device beside the weights that stay, and are counted once.
TEST_F(PlanProgram, CountsSubstitutesOnce) {
  const json report =
      json::parse(plan({"llama-3.1-8b", "rtx4090", "8K", "--vram", "8GiB", "--host-mem", "64GiB", "--json"}).out);
  EXPECT_GT(report["memory"]["substitute_bytes"], 0u);
  EXPECT_LE(report["memory"]["vram_bytes"], 8 * kGiB);
  EXPECT_GT(report["memory"]["vram_bytes"], 8 * kGiB - 512 * kMiB);
  const std::string table =
      plan({"llama-3.1-8b", "rtx4090", "8K", "--vram", "8GiB", "--host-mem", "64GiB", "--details"}).out;
  for (const char* part : {"in every pass but partial steps", "of each refresh, and beside a prefill's, ",
                           "  weights that stay\n", " layers, with substitutes on the device)\n",
                           "  crosses the link: nothing in a partial step (", " in a refresh ("}) {
    EXPECT_NE(table.find(part), std::string::npos) << part << "\n" << table;
  }
}

TEST_F(PlanProgram, KnowsTheModelsContextAndWhatItsCardExtends) {
  const std::vector<std::string> words = {"qwen3-14b", "rtx4090", "128K", "--weights", "q4_k_m", "--host-mem", "32GiB"};
  const Finished finished = plan(words);
  EXPECT_EQ(finished.exit_code, 0) << finished.out << finished.err;
  const std::string line =
      "\n  the model was made for 40,960 tokens; its card extends it: --rope-scaling yarn --rope-scale 4 "
      "--yarn-orig-ctx 32768\n";
  EXPECT_NE(finished.out.find(line), std::string::npos) << finished.out;
  std::vector<std::string> extended = words;
  extended.insert(extended.end(), {"--rope-scaling", "yarn", "--rope-scale", "4", "--yarn-orig-ctx", "32768"});
  EXPECT_EQ(plan(extended).out.find("its card"), std::string::npos) << plan(extended).out;
  const json own = json::parse(plan({"qwen3-14b", "h200", "--json"}).out);
  EXPECT_EQ(own["context_tokens"], 40960);
  EXPECT_EQ(own["own_context_tokens"], 40960);
  EXPECT_EQ(plan({"qwen3-14b", "h200"}).out.find("was made for"), std::string::npos);
  const Finished none = plan({"llama-2-7b", "h200", "16K"});
  EXPECT_NE(none.out.find("\n  the model was made for 4,096 tokens\n"), std::string::npos) << none.out;
}

// Exit code 4, and what it advises fits.
TEST_F(PlanProgram, SaysWhatWouldFit) {
  const Finished refused = plan_8b({"-c", "100000", "--vram", "20GiB"}, "2GiB");
  EXPECT_EQ(refused.exit_code, 4);
  for (const char* part : {"does not fit: --host-mem: needs ", "what would fit:", "    -c ", "    --host-mem ",
                           "    --spill DIR:", "--kv device, with all of it on the device, on another card"}) {
    EXPECT_NE(refused.out.find(part), std::string::npos) << part << "\n" << refused.out;
  }
  const Finished finished = plan_8b({"-c", "100000", "--vram", "20GiB", "--json"}, "2GiB");
  EXPECT_EQ(finished.exit_code, 4);
  const json report = json::parse(finished.out);
  EXPECT_EQ(report["fits"], false);
  const json& would = report["would_fit"];
  const auto budgets = [&](const char* kv, int64_t less) {
    const std::string vram = std::to_string(would[kv]["vram_bytes"].get<int64_t>() - less);
    const std::string host = std::to_string(would[kv]["host_bytes"].get<int64_t>());
    return plan({"--shape", "llama-3.1-8b", "--gpu", "h200", "-c", "100000", "--vram", vram, "--host-mem", host, "--kv",
                 std::string(kv) == "kv_host" ? "host" : "device"});
  };
  for (const char* kv : {"kv_host", "kv_device"}) {
    EXPECT_EQ(budgets(kv, 0).exit_code, 0) << kv << budgets(kv, 0).out;
    EXPECT_EQ(budgets(kv, 4096).exit_code, 4) << kv;
  }
}

// Flags and their values, so that one of them can be another.
using Flags = std::map<std::string, std::string>;
std::vector<std::string> arguments(const Flags& flags) {
  std::vector<std::string> all = {"--json"};
  for (const auto& [flag, value] : flags) all.insert(all.end(), {flag, value});
  return all;
}

// Whoever does what is offered has it, and whoever gives a page less is refused: of each budget alone, in every shape.
TEST_F(PlanProgram, WhatItOffersIsTheLeastThatFits) {
  const std::string folder = home_.path();
  const Flags card = {
      {"--shape", "llama-3.1-8b"}, {"--gpu", "h200"}, {"--vram", "23GiB"}, {"--weights-place", "device"}};
  const Flags cpu = {{"--shape", "smollm2-135m"}, {"--device", "cpu"}};
  const auto with = [](Flags flags, const Flags& more) {
    for (const auto& [flag, value] : more) flags[flag] = value;
    return flags;
  };
  int offered = 0, turn = 0;
  for (const Flags& asked :
       {with(card, {{"-c", "128K"}, {"--host-mem", "10GiB"}}), with(card, {{"-c", "100001"}, {"--host-mem", "2GiB"}}),
        with(card, {{"-c", "128K"}, {"--host-mem", "4GiB"}, {"--spill", folder + ":700MiB"}}),
        with(card, {{"-c", "128K"}, {"--host-mem", "4GiB"}, {"--kv", "host"}}),
        with(card, {{"-c", "128K"}, {"--host-mem", "4GiB"}, {"--kv", "device"}}),
        with(card, {{"-c", "90000"}, {"--host-mem", "3GiB"}, {"--verify", "lossless"}}),
        with(card, {{"-c", "70000"}, {"--vram", "16GiB"}, {"--verify", "lossless"}}),
        with(card, {{"-c", "8K"}, {"--vram", "12GiB"}}),  // its weights are more
        with(card, {{"-c", "8K"}, {"--vram", "12GiB"}, {"--host-mem", "3GiB"}, {"--weights-place", "auto"}}),
        with(card, {{"-c", "8K"}, {"--vram", "3GiB"}, {"--host-mem", "30GiB"}, {"--weights-place", "host"}}),
        with(cpu, {{"-c", "60000"}, {"--host-mem", "1GiB"}}),
        with(cpu, {{"-c", "20000"}, {"--host-mem", "600MiB"}, {"--kv", "host"}})}) {
    if (testing::kSanitized && ++turn % 3 != 0) continue;
    const Finished finished = plan(arguments(asked));
    const std::string name = json(asked).dump();
    ASSERT_EQ(finished.exit_code, 4) << name << finished.err;
    const json would = json::parse(finished.out)["would_fit"];
    const auto code = [&](const char* flag, const std::string& value) {
      return plan(arguments(with(asked, {{flag, value}}))).exit_code;
    };
    const int64_t context = would["context_tokens"];
    if (context > 0) {
      EXPECT_EQ(code("-c", std::to_string(context)), 0) << name << context;
      EXPECT_EQ(code("-c", std::to_string(context + 1)), 4) << name << context;
    }
    const std::vector<std::array<const char*, 3>> budgets = {
        {"host_bytes", "--host-mem", ""}, {"vram_bytes", "--vram", ""}, {"spill_bytes", "--spill", ":"}};
    for (const auto& [key, flag, before] : budgets) {
      if (!would.contains(key)) continue;
      const int64_t bytes = would[key];
      const std::string start = *before ? folder + before : "";
      if (*before && bytes > int64_t{2} << 30) continue;  // more than a small machine's disk may have free
      ++offered;
      EXPECT_EQ(code(flag, start + std::to_string(bytes)), 0) << name << flag << bytes;
      EXPECT_EQ(code(flag, start + std::to_string(bytes - 4096)), 4) << name << flag << bytes;
    }
  }
  EXPECT_GT(offered, testing::kSanitized ? 3 : 12);
}

// A card has what it has: more of it is another card, and with --kv as narrow as asked, a wider one may do.
TEST_F(PlanProgram, OffersNoMoreThanTheCardHas) {
  // The least host memory has 10 GiB of rows and the embeddings (1,002 MiB), in whose place the device has more rows.
  const Finished near = plan_8b({"-c", "128K"}, "11200MiB"), far = plan_8b({"-c", "128K"}, "4GiB");
  EXPECT_NE(near.out.find("    --host-mem 11242MiB\n"), std::string::npos) << near.out;
  EXPECT_NE(near.out.find("    --vram 23733MiB\n"), std::string::npos) << near.out;
  EXPECT_NE(far.out.find("    --vram 30667MiB, on another card: this one has 23.52 GiB\n"), std::string::npos)
      << far.out;
  const Finished narrow = plan_8b({"-c", "128K", "--kv", "device"}, "12GiB");
  EXPECT_EQ(narrow.exit_code, 4);
  EXPECT_NE(narrow.out.find("    --kv auto in these budgets\n"), std::string::npos) << narrow.out;
  // Both are too small with --kv host: no one of them helps.
  const Finished both = plan_8b({"-c", "128K", "--kv", "host", "--vram", "16GiB"}, "2GiB");
  EXPECT_NE(both.out.find("    --vram 18357MiB --host-mem 16386MiB --kv host\n"), std::string::npos) << both.out;
  EXPECT_EQ(plan_8b({"-c", "128K", "--kv", "host", "--vram", "18357MiB"}, "16386MiB").exit_code, 0);
}

// A layer has thousands of segments then, and each refusal asks what would fit.
TEST_F(PlanProgram, AContextOfMillionsIsPlannedAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(plan_8b({"-c", testing::kSanitized ? "2M" : "16M"}).exit_code, 4);
  EXPECT_EQ(plan_8b({"-c", "16M"}, "4TiB").exit_code, 4);  // its prefill buffer is larger than the card
  EXPECT_EQ(plan_8b({"-c", testing::kSanitized ? "2M" : "16M", "--spill", home_.path() + ":64GiB"}).exit_code, 4);
  const std::chrono::seconds most(testing::kSanitized ? 100 : 20);  // by trying all: minutes
  EXPECT_LT(std::chrono::steady_clock::now() - start, most);
}

TEST_F(PlanProgram, WeightsThatAreTooLargeAreAnAnswerToo) {
  const Finished finished =
      plan({"--shape", "llama-3.1-70b", "--gpu", "rtx4090", "-c", "8K", "--weights-place", "device"});
  EXPECT_EQ(finished.exit_code, 4);
  EXPECT_NE(finished.out.find("for weights"), std::string::npos) << finished.out;
  EXPECT_NE(finished.out.find("--vram "), std::string::npos) << finished.out;
  EXPECT_EQ(finished.out.find("-c "), std::string::npos) << finished.out;
}

TEST_F(PlanProgram, TakesTheSameOptionsAsGenerate) {
  const json lossless = json::parse(plan_8b({"-c", "61440", "--verify", "lossless", "--json"}).out);
  EXPECT_EQ(lossless["verify"], "lossless");
  EXPECT_LT(lossless["predicted"]["partial"]["ms"], lossless["predicted"]["refresh"]["ms"]);
  EXPECT_EQ(lossless["predicted"]["partial"]["link_bytes"], 0);
  EXPECT_EQ(lossless["partial_kv"], "int8");
  double fastest = 0;
  for (const std::string kind : {"int8", "int4", "blocks"}) {
    const json named =
        json::parse(plan_8b({"-c", "61440", "--verify", "lossless", "--partial-kv", kind, "--json"}).out);
    EXPECT_EQ(named["partial_kv"], kind);
    const json& estimate = named["predicted"]["estimate"];
    if (fastest == 0) fastest = estimate["tokens_per_s"];
    EXPECT_LE(estimate["tokens_per_s"], fastest) << kind;
    EXPECT_LE(estimate["tokens_per_refresh"], estimate["pending"].get<int64_t>() + 1) << kind;
  }
  const json draft = json::parse(plan_8b({"-c", "61440", "--spec-type", "ngram-simple", "--json"}).out);
  EXPECT_EQ(draft["draft"], "ngram-simple");
  const json wide = json::parse(plan_8b({"-c", "61440", "--json", "-ctk", "f32", "-ctv", "f32"}).out);
  EXPECT_GT(wide["predicted"]["full"]["kv_bytes"], draft["predicted"]["refresh"]["kv_bytes"]);
  EXPECT_EQ(wide["cache_type_k"], "f32");
  const json int8 = json::parse(plan_8b({"-c", "61440", "--json", "-ctk", "int8", "-ctv", "q8_0"}).out);
  EXPECT_EQ(int8["cache_type_v"], "int8");  // 130 bytes for 128 values of 4
  EXPECT_EQ(int8["predicted"]["full"]["kv_bytes"].get<uint64_t>() * 512,
            wide["predicted"]["full"]["kv_bytes"].get<uint64_t>() * 130);
}

TEST_F(PlanProgram, ADiskIsATierToo) {
  const Finished refused = plan_8b({"-c", "61440", "--vram", "20GiB"}, "3GiB");
  EXPECT_EQ(refused.exit_code, 4);
  EXPECT_NE(refused.out.find("    --spill DIR:"), std::string::npos) << refused.out;
  const std::vector<std::string> spilled = {"-c", "61440", "--vram", "20GiB", "--spill", home_.path() + ":8GiB"};
  std::vector<std::string> in_full = spilled;
  in_full.insert(in_full.end(), {"--details", "--verify", "full"});
  Finished table = plan_8b(in_full, "3GiB");
  EXPECT_EQ(table.exit_code, 0) << table.out;
  const size_t settings = table.out.find("\n  weights "), details = table.out.find("\n  the prompt is read");
  ASSERT_LT(settings, details) << table.out;
  table.out.erase(settings, details - settings);  // some of which need no disk
  EXPECT_NE(table.out.find("  disk "), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("from disk, whose rate is unknown"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("\n  times that depend on the disk are unknown (headrace profile --disk DIR measures it)\n"),
            std::string::npos)
      << table.out;
  for (const char* predicted : {"tokens/s", "first token", " ms", "  link\n", "by the data sheet"}) {
    EXPECT_EQ(table.out.find(predicted), std::string::npos) << predicted << "\n" << table.out;
  }
  std::vector<std::string> as_json = spilled;
  as_json.insert(as_json.end(), {"--verify", "full", "--json"});
  const json report = json::parse(plan_8b(as_json, "3GiB").out);
  EXPECT_GT(report["predicted"]["full"]["disk_bytes"], 1 << 30);
  EXPECT_LT(report["predicted"]["full"]["disk_bytes"], report["predicted"]["full"]["link_bytes"]);
  for (const char* pass : {"prefill", "full"}) {
    for (const char* field : {"ms", "disk_ms", "bound_by", "tokens_per_s"}) {
      EXPECT_FALSE(report["predicted"][pass].contains(field)) << pass << field;
    }
  }
  EXPECT_FALSE(report["predicted"].contains("tokens_per_s"));
}

// A partial step reads nothing of the disk: its time stays known.
TEST_F(PlanProgram, WhatNeedsNoDiskIsForetold) {
  std::vector<std::string> args = {"-c",       "61440",   "--vram", "20GiB", "--spill", home_.path() + ":8GiB",
                                   "--verify", "lossless"};
  std::vector<std::string> in_full = args;
  in_full.push_back("--details");
  const Finished table = plan_8b(in_full, "3GiB");
  EXPECT_EQ(table.exit_code, 0) << table.out;
  for (const char* part : {"\n  then ", " partial steps/s and refreshes between them\n  by the data sheet of ",
                           "\n  times that depend on the disk are unknown ("}) {
    EXPECT_NE(table.out.find(part), std::string::npos) << part << "\n" << table.out;
  }
  args.push_back("--json");
  const json report = json::parse(plan_8b(args, "3GiB").out);
  EXPECT_GT(report["predicted"]["partial"]["ms"], 1);
  EXPECT_FALSE(report["predicted"]["refresh"].contains("ms"));
}

TEST_F(PlanProgram, IsForModelsToo) {
  write_tiny_model(home_ / "model");
  const Finished finished = plan({"-m", home_ / "model", "--device", "cpu", "-c", "200", "-n", "20"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_NE(finished.out.find("a prompt of 180 and 20 after it"), std::string::npos) << finished.out;
  EXPECT_NE(finished.out.find("\n  fits; no times: this device has not been measured"), std::string::npos)
      << finished.out;
}

TEST_F(PlanProgram, UsesAProfile) {
  home_.write("p.json", kept("NVIDIA GeForce RTX 4090", "550.1"));
  const Finished finished = plan_8b({"-c", "61440", "--profile", home_ / "p.json"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_NE(
      finished.out.find(
          "by what headrace profile measured on 2026-11-21T20:15:00Z, of NVIDIA GeForce RTX 4090, driver 550.1\n"),
      std::string::npos)
      << finished.out;
  // A torn file that is kept is a line, one that was asked for an error.
  home_.write(".cache/headrace/profile.json", kept("NVIDIA GeForce RTX 4090", "550.1").substr(0, 80));
  const Finished torn = plan({"--shape", "smollm2-135m", "--device", "cpu", "-c", "512"});
  EXPECT_EQ(torn.exit_code, 0) << torn.err;
  EXPECT_NE(torn.err.find("profile.json: is not valid JSON"), std::string::npos) << torn.err;
  EXPECT_EQ(plan_8b({"--profile", home_ / ".cache/headrace/profile.json"}).exit_code, 3);
}

// The same card in another machine may lend its rates, whatever its driver; another device may not, and no flag hides
// whose they are.
TEST_F(PlanProgram, AProfileIsOfTheDeviceThatIsPlannedFor) {
  json cpu = json::parse(kept("CPU, 16 threads", "A processor"));
  cpu["rates"]["gpu"] = false;
  home_.write("cpu.json", cpu.dump());
  home_.write("other.json", kept("NVIDIA GeForce RTX 3090", "550.1"));
  home_.write("laptop.json", kept("NVIDIA GeForce RTX 4090 Laptop GPU", "550.1"));
  for (const char* name : {"cpu.json", "other.json", "laptop.json"}) {
    for (const char* flag : {"-q", "--json"}) {
      const Finished finished = plan_8b({"-c", "8K", "--profile", home_ / name, flag});
      EXPECT_EQ(finished.exit_code, 3) << name << finished.err;
      EXPECT_EQ(finished.out, "");
      EXPECT_NE(finished.err.find(std::string(name) + ": has no profile of NVIDIA GeForce RTX 4090: it is of "),
                std::string::npos)
          << finished.err;
    }
  }
  EXPECT_NE(plan_8b({"--profile", home_ / "cpu.json"}).err.find("it is of CPU, 16 threads, A processor"),
            std::string::npos);
  EXPECT_EQ(
      plan({"--shape", "smollm2-135m", "--device", "cpu", "-c", "512", "--profile", home_ / "cpu.json"}).exit_code, 3);
  home_.write("same.json", kept("NVIDIA GeForce RTX 4090", "550.1"));
  const Finished quiet = plan_8b({"-c", "8K", "-q", "--profile", home_ / "same.json"});
  EXPECT_EQ(quiet.exit_code, 0) << quiet.err;
  EXPECT_NE(quiet.out.find(", of NVIDIA GeForce RTX 4090, driver 550.1\n"), std::string::npos) << quiet.out;
  const json report = json::parse(plan_8b({"-c", "8K", "--json", "--profile", home_ / "same.json"}).out);
  EXPECT_NE(report["rates_from"].get<std::string>().find("of NVIDIA GeForce RTX 4090, driver 550.1"), std::string::npos)
      << report["rates_from"];
}

TEST_F(PlanProgram, ADisksSpeedIsOfTheDiskThatWasMeasured) {
  struct stat here {};
  ASSERT_EQ(::stat(home_.path().c_str(), &here), 0);
  json profile = json::parse(kept("NVIDIA GeForce RTX 4090", "550.1"));
  profile["rates"]["disk_read_gb_per_s"] = profile["rates"]["disk_write_gb_per_s"] = 5;
  const auto planned = [&](uint64_t file_system) {
    profile["disk"] = {{"folder", "/measured"}, {"file_system", file_system}};
    home_.write("p.json", profile.dump());
    return plan_8b({"-c", "61440", "--vram", "20GiB", "--spill", home_.path() + ":8GiB", "--profile", home_ / "p.json",
                    "--details", "--verify", "full"},
                   "3GiB");
  };
  const Finished same = planned(here.st_dev), other = planned(here.st_dev + 1);
  EXPECT_EQ(same.exit_code, 0) << same.err;
  EXPECT_EQ(same.out.find("whose rate is unknown"), std::string::npos) << same.out;
  EXPECT_NE(same.out.find("tokens/s"), std::string::npos) << same.out;
  EXPECT_NE(same.out.find("disk\n"), std::string::npos) << same.out;
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_NE(other.out.find("from disk, whose rate is unknown"), std::string::npos) << other.out;
  EXPECT_NE(other.err.find("the disk that was measured, of /measured, is not known to be that of --spill "),
            std::string::npos)
      << other.err;
}

TEST_F(PlanProgram, RefusesWhatMeansNothing) {
  struct Case {
    std::vector<std::string> args;
    int code;
    const char* part;
  };
  home_.write("other.json", "{\"program\": \"another\"}");
  home_.write("newer.json", "{\"program\": \"headrace profile\", \"version\": 9}");
  home_.write("odd.json", "{\"program\": \"headrace profile\", \"version\": 1, \"device\": 7}");
  for (const Case& c :
       {Case{{}, 2, "-m/--model or --shape"}, Case{{"--shape", "llama-9b"}, 2, "llama-9b"},
        Case{{"--shape", "llama-3.1-8b", "--gpu", "rtx9090"}, 2, "rtx4090"},
        Case{{"--shape", "llama-3.1-8b", "--gpu", "rtx4090", "--device", "cpu"}, 2, "--gpu"},
        Case{{"--shape", "llama-3.1-8b", "--gpu", "rtx4090", "--vram", "30GiB"}, 4, "30.00 GiB"},
        Case{{"--shape", "smollm2-135m", "-c", "100", "-n", "100"}, 2, "leave no room"},
        Case{{"--shape", "smollm2-135m", "-c", "1000000000"}, 2, "--ctx-size: 1000000000 tokens"},
        Case{{"--shape", "smollm2-135m", "--verify", "full", "--partial-budget", "1K"}, 2, "--verify full"},
        Case{{"--shape", "smollm2-135m", "--profile", home_ / "gone.json"}, 3, "gone.json"},
        Case{{"--shape", "smollm2-135m", "--profile", home_ / "other.json"}, 3, "is not a profile"},
        Case{{"--shape", "smollm2-135m", "--profile", home_ / "newer.json"}, 3, "has version 9"},
        Case{{"--shape", "smollm2-135m", "--profile", home_ / "odd.json"}, 3, "is not a profile"}}) {
    const Finished finished = plan(c.args);
    EXPECT_EQ(finished.exit_code, c.code) << json(c.args).dump() << finished.err;
    EXPECT_NE(finished.err.find(c.part), std::string::npos) << json(c.args).dump() << finished.err;
    EXPECT_EQ(finished.out, "");
  }
}

}  // namespace
}  // namespace headrace
