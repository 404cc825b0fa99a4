// headrace bench without its command line: rows, their counts, what does not fit, and the JSON that is kept.
#include "runtime/commands/bench.h"

#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace headrace {
namespace {

using nlohmann::json;

const std::string kTiny = HEADRACE_TEST_DATA "/tiny/llama2";  // 2,048 positions

BenchOptions tiny_options() {
  BenchOptions options;
  options.engine.device = {
      .choice = DeviceChoice::kCpu, .vram_bytes = 64 * kMiB, .host_mem_bytes = 160 * kMiB, .threads = 2};
  options.shape = kTiny + "/config.json";
  options.prompt_tokens = {40, 700};
  options.kv = {KvMode::kDevice, KvMode::kHost};
  options.decode_tokens = 5;
  options.repeat = 2;
  return options;
}

TEST(Bench, MeasuresEveryLengthInEveryMode) {
  std::vector<std::string> labels;
  std::vector<size_t> rows_seen;
  BenchHooks hooks;
  hooks.on_begin = [&](const std::string& label) { labels.push_back(label); };
  hooks.on_row = [&](const BenchReport& report) { rows_seen.push_back(report.rows.size()); };
  const BenchReport report = run_bench(tiny_options(), hooks);
  EXPECT_EQ(labels, (std::vector<std::string>{"warm-up", "[1/4] 40 device", "[2/4] 40 host", "warm-up",
                                              "[3/4] 700 device", "[4/4] 700 host"}));
  EXPECT_EQ(rows_seen, (std::vector<size_t>{1, 2, 3, 4}));
  ASSERT_EQ(report.rows.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const BenchRow& row = report.rows[i];
    EXPECT_EQ(row.prompt_tokens, i < 2 ? 40 : 700);
    EXPECT_EQ(row.kv, i % 2 == 0 ? KvMode::kDevice : KvMode::kHost);
    EXPECT_EQ(row.error, "");
    EXPECT_EQ(row.prefill_ms.size(), 2u);
    EXPECT_EQ(row.step_ms.size(), 10u);
    EXPECT_GT(row.prefill_tokens_per_s(), 0);
    EXPECT_GT(row.decode_tokens_per_s(), 0);
    EXPECT_LE(row.step_ms_at(0.1), row.step_ms_at(0.5));
    EXPECT_LE(row.step_ms_at(0.5), row.step_ms_at(0.9));
    EXPECT_GT(row.memory.vram_peak_bytes, row.memory.weights_bytes);
  }
  // 700 rows: one full segment of 512 rows of each layer is streamed a step, and nothing of it in the other mode.
  const ModelConfig& c = report.config;
  const double segment = 512.0 * static_cast<double>(c.kv_values() * 2);
  EXPECT_GE(report.rows[3].h2d_bytes_per_step, segment);
  EXPECT_LT(report.rows[3].h2d_bytes_per_step, 1.5 * segment);  // and what is fetched ahead of a step that never comes
  EXPECT_LT(report.rows[2].h2d_bytes_per_step, 0.1 * segment);
  EXPECT_GT(report.rows[3].link_gb_per_s(), 0);
  ASSERT_EQ(report.link.size(), kLinkUses.size());
  for (const LinkUse use : kLinkUses) EXPECT_GT(report.link_peak_gb_per_s(use), 0) << link_use_name(use);
}

TEST(Bench, MeasuresAShapeWithQuantisedWeights) {
  BenchOptions options = tiny_options();
  options.shape_weights = find_weight_mixture("q8_0");
  options.prompt_tokens = {33};
  options.kv = {KvMode::kAuto};
  const BenchReport report = run_bench(options, {});
  ASSERT_EQ(report.rows.size(), 1u);
  EXPECT_EQ(report.rows[0].error, "");
  EXPECT_NE(report.model.find("with random q8_0 weights"), std::string::npos) << report.model;
  const json weights = json::parse(bench_json(report))["weights"];
  ASSERT_EQ(weights.size(), 2u) << weights;
  EXPECT_EQ(weights[0]["stored"], "Q8_0");
  EXPECT_EQ(weights[0]["loaded"], "Q8_0");
  EXPECT_EQ(weights[0]["tensors"], 4 * 7 + 2);  // matrices of four layers, embedding and head
  EXPECT_EQ(weights[0]["bytes"], weights[0]["stored_bytes"]);
  EXPECT_EQ(weights[1]["loaded"], "BF16");  // norms
  EXPECT_LT(report.rows[0].memory.weights_bytes, weights[0]["bytes"].get<uint64_t>() * 11 / 10);
}

TEST(Bench, TakesARealModel) {
  BenchOptions options = tiny_options();
  options.shape = "";
  options.engine.model = kTiny;
  options.prompt_tokens = {33};
  options.kv = {KvMode::kAuto};
  options.repeat = 1;
  const BenchReport report = run_bench(options, {});
  EXPECT_EQ(report.model, kTiny);
  EXPECT_EQ(report.dtype, DType::kF32);
  ASSERT_EQ(report.rows.size(), 1u);
  EXPECT_EQ(report.rows[0].step_ms.size(), 5u);
}

TEST(Bench, AModelHasItsContextAndAShapeHasNone) {
  BenchOptions options = tiny_options();
  options.prompt_tokens = {2043};  // and 6 more: one above the model's 2,048
  options.kv = {KvMode::kAuto};
  options.repeat = 1;
  EXPECT_EQ(run_bench(options, {}).rows.at(0).step_ms.size(), 5u);
  options.shape = "";
  options.engine.model = kTiny;
  try {
    run_bench(options, {});
    ADD_FAILURE() << "longer than the context";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    for (const char* part : {"--prompt-tokens", "2043", "2048", "--rope-scale"}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
  options.prompt_tokens = {2042};
  EXPECT_EQ(run_bench(options, {}).rows.at(0).error, "");
}

TEST(Bench, ARowThatDoesNotFitSaysSoAndTheOthersGoOn) {
  BenchOptions options = tiny_options();
  options.prompt_tokens = {40, 400000};
  options.kv = {KvMode::kDevice};
  options.repeat = 1;
  const BenchReport report = run_bench(options, {});
  ASSERT_EQ(report.rows.size(), 2u);
  EXPECT_EQ(report.rows[0].error, "");
  EXPECT_NE(report.rows[1].error.find("--vram"), std::string::npos) << report.rows[1].error;
  EXPECT_TRUE(report.rows[1].step_ms.empty());
  const json row = json::parse(bench_json(report))["rows"][1];
  EXPECT_EQ(row["prompt_tokens"], 400000);
  EXPECT_EQ(row["error"], report.rows[1].error);
  EXPECT_FALSE(row.contains("decode"));
}

TEST(Bench, WeightsThatDoNotFitEndIt) {
  BenchOptions options = tiny_options();
  options.engine.device.vram_bytes = 256 * kKiB;
  try {
    run_bench(options, {});
    ADD_FAILURE() << "they fit";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDoesNotFit);
    EXPECT_NE(std::string(error.what()).find("weights"), std::string::npos) << error.what();
  }
}

TEST(Bench, StopsWhenInterrupted) {
  std::atomic<bool> interrupt = false;
  BenchOptions options = tiny_options();
  options.interrupt = &interrupt;
  BenchHooks hooks;
  hooks.on_row = [&](const BenchReport&) { interrupt = true; };
  const BenchReport report = run_bench(options, hooks);
  EXPECT_TRUE(report.interrupted);
  EXPECT_EQ(report.rows.size(), 1u);
}

TEST(BenchRow, StatisticsAreOfTheNearestRank) {
  BenchRow row;
  EXPECT_EQ(row.step_ms_at(0.5), 0);
  EXPECT_EQ(row.decode_tokens_per_s(), 0);
  row.prompt_tokens = 1000;
  row.prefill_ms = {400, 100, 200};
  for (int i = 10; i >= 1; --i) row.step_ms.push_back(static_cast<float>(i));
  row.h2d_bytes_per_step = 5e9;
  EXPECT_EQ(row.median_prefill_ms(), 200);
  EXPECT_EQ(row.prefill_tokens_per_s(), 5000);
  EXPECT_EQ(row.step_ms_at(0.1), 1);
  EXPECT_EQ(row.step_ms_at(0.5), 5);
  EXPECT_EQ(row.step_ms_at(0.9), 9);
  EXPECT_EQ(row.step_ms_at(1), 10);
  EXPECT_EQ(row.decode_tokens_per_s(), 200);
  EXPECT_DOUBLE_EQ(row.link_gb_per_s(), 1000);
}

TEST(BenchJson, HoldsWhatIsKept) {
  BenchReport report;
  report.machine = {.cpu = "Some CPU", .cores = 8, .memory_bytes = 1 << 30};
  report.device = "A GPU";
  report.model = "llama-3.1-8b with random weights";
  report.config.layers.resize(32);
  report.decode_tokens = 2;
  report.repeat = 1;
  report.load_ms = 12.3456789;
  report.link = {{.use = LinkUse::kToDevice, .copy_bytes = 64, .gb_per_s = 50},
                 {.use = LinkUse::kToHost, .copy_bytes = 64, .gb_per_s = 40}};
  BenchRow row{.prompt_tokens = 61440, .kv = KvMode::kHost};
  row.prefill_ms = {4000};
  row.step_ms = {100, 100};
  row.h2d_bytes_per_step = 4.8e9;
  row.memory.vram_peak_bytes = 17;
  row.plan.host_bytes = 99;
  row.host_memory_ms = 7.5;
  row.host_wait_ms = 1.5;
  report.rows = {row};
  const std::string text = bench_json(report);
  EXPECT_TRUE(text.ends_with("}\n"));
  const json out = json::parse(text);
  EXPECT_EQ(out["program"], "headrace bench");
  EXPECT_EQ(out["machine"], json({{"cpu", "Some CPU"}, {"cores", 8}, {"memory_bytes", 1 << 30}, {"device", "A GPU"}}));
  EXPECT_EQ(out["model"], report.model);
  EXPECT_EQ(out["shape"]["layers"], 32);
  EXPECT_EQ(out["dtype"], "bf16");
  EXPECT_EQ(out["load_ms"], 12.3457);
  EXPECT_EQ(out["link"], json({{"copy_bytes", 64}, {"to_device_gb_per_s", 50.0}, {"to_host_gb_per_s", 40.0}}));
  EXPECT_EQ(out["interrupted"], false);
  const json& first = out["rows"].at(0);
  EXPECT_EQ(first["kv"], "host");
  EXPECT_EQ(first["prefill"], json({{"ms", 4000.0},
                                    {"tokens_per_s", 15360.0},
                                    {"runs_ms", {4000.0}},
                                    {"host_memory_ms", 7.5},
                                    {"host_wait_ms", 1.5}}));
  const json& decode = first["decode"];
  EXPECT_EQ(decode["steps"], 2);
  EXPECT_EQ(decode["ms_median"], 100.0);
  EXPECT_EQ(decode["tokens_per_s"], 10.0);
  EXPECT_EQ(decode["h2d_bytes_per_step"], 4.8e9);
  EXPECT_EQ(decode["link_gb_per_s"], 48.0);
  EXPECT_EQ(decode["link_share_of_peak"], 0.96);
  EXPECT_EQ(decode["step_ms"], json({100.0, 100.0}));
  EXPECT_EQ(first["memory"]["vram_peak_bytes"], 17);
  EXPECT_EQ(first["memory"]["kv_host_bytes"], 99);
  EXPECT_FALSE(first.contains("disk"));
  EXPECT_FALSE(decode.contains("disk_gb_per_s"));
  BenchRow& spilled = report.rows[0];
  spilled.spill = {.file = {.file_bytes = 77, .checksum_ms = 3, .how = "io_uring, O_DIRECT", .reads_at_once = 48},
                   .prefill_written_bytes = 70,
                   .folder = "/mnt"};
  spilled.plan.disk_bytes = 77;
  spilled.disk_bytes_per_step = 2.5e8;
  spilled.decode_ms = 200;
  const json on_disk = json::parse(bench_json(report))["rows"].at(0);
  EXPECT_EQ(on_disk["disk"], json({{"how", "io_uring, O_DIRECT"}, {"prefill_written_bytes", 70}, {"read_depth", 48}}));
  EXPECT_EQ(on_disk["memory"]["kv_disk_bytes"], 77);
  EXPECT_EQ(on_disk["decode"]["disk_bytes_per_step"], 2.5e8);
  EXPECT_EQ(on_disk["decode"]["disk_gb_per_s"], 2.5);
  EXPECT_EQ(on_disk["decode"]["checksum_share_of_a_core"], 0.015);
}

}  // namespace
}  // namespace headrace
