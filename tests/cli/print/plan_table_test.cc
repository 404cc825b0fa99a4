// What a plan says of the profile that its times are by: made-up profiles and a made-up clock.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "cli/print/tables.h"
#include "runtime/commands/plan.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using nlohmann::json;

constexpr int64_t kNow = 1795291200;  // 2026-11-21T20:00:00Z

class PlanOfAProfile : public ::testing::Test {
 protected:
  // `spread` of prefill attention; null: the profile is of a program that kept none.
  PlanReport plan(const std::string& measured, const json& spread) {
    json profile = {{"program", "headrace profile"},
                    {"version", 1},
                    {"device", "NVIDIA GeForce RTX 4090"},
                    {"driver", "550.1"},
                    {"measured", measured},
                    {"rates",
                     {{"gpu", true},
                      {"to_device_gb_per_s", 25},
                      {"to_host_gb_per_s", 25},
                      {"weights_gb_per_s", 900},
                      {"kv_gb_per_s", 900},
                      {"product_tflop_per_s", 140},
                      {"attention_tflop_per_s", 80},
                      {"queries_tflop_per_s", 70}}}};
    if (!spread.is_null()) {
      profile["spread"] = {{"to_device_gb_per_s", 0.01}, {"attention_tflop_per_s", spread}};
    }
    folder_.write("p.json", profile.dump());
    return plan_by(folder_ / "p.json");
  }
  static PlanReport plan_by(const std::string& profile) {
    PlanOptions options;
    options.shape = "smollm2-135m";
    options.gpu = "rtx4090";
    options.profile = profile;
    options.now = kNow;
    options.engine.ctx_size = 4096;
    return make_plan_report(options);
  }
  static void expect_line(const PlanReport& report, const std::string& line) {
    const std::string all = format_plan(report) + format_plan_details(report);
    EXPECT_NE(all.find("\n" + line + "\n"), std::string::npos) << all;
  }
  TemporaryFolder folder_;
};

TEST_F(PlanOfAProfile, SaysWhyADraftHasAWindow) {
  PlanReport report = plan("2026-11-09T19:59:00Z", 0.031);
  report.run->draft = "draft-eagle3";
  report.run->draft_window.rows = 1973;
  expect_line(report, "  draft: draft-eagle3");
  EXPECT_EQ(format_plan_details(report).find("the draft attends"), std::string::npos);
  EXPECT_FALSE(json::parse(plan_json(report)).contains("draft_trained_positions"));
  report.run->draft_window.trained_positions = 2048;
  expect_line(report,
              "  the draft attends to the first 4 and the last 1,973 tokens: it was trained with 2,048 positions "
              "(--draft-window 0: all tokens)");
  const json said = json::parse(plan_json(report));
  EXPECT_EQ(said["draft_window"], 1973);
  EXPECT_EQ(said["draft_trained_positions"], 2048);
  report.run->draft_window = {.rows = 512, .retrieval = {.chunks = 32}};
  expect_line(report,
              "  the draft attends to the first 32 and the last 512 tokens and to 32 chunks of 32 tokens, chosen every "
              "4 steps");
  EXPECT_EQ(json::parse(plan_json(report))["draft_cache"]["chunks"], 32);
}

TEST_F(PlanOfAProfile, SaysHowOldAndHowSteadyItIs) {
  const PlanReport steady = plan("2026-11-09T19:59:00Z", 0.031);
  expect_line(steady, "  the profile is 12 days old; its rounds differ by at most 3.1% (prefill attention)");
  const json said = json::parse(plan_json(steady))["profile"];
  EXPECT_EQ(said["measured"], "2026-11-09T19:59:00Z");
  EXPECT_EQ(said["age_s"], 12 * 86400 + 60);
  EXPECT_EQ(said["spread"], json({{"to_device_gb_per_s", 0.01}, {"attention_tflop_per_s", 0.031}}));
  expect_line(
      plan("2026-11-21T19:15:00Z", 0.34),
      "  the profile is 45 minutes old; its rounds differ by at most 34.0% (prefill attention): the machine was "
      "busy. Measure again while it is idle: headrace profile");
}

TEST_F(PlanOfAProfile, SaysWhatAnOlderProfileDoesNotSay) {
  const PlanReport old = plan("2026-11-20T20:00:00Z", nullptr);
  expect_line(old, "  the profile is 1 day old; the spread of its rounds is unknown");
  EXPECT_EQ(json::parse(plan_json(old))["profile"]["spread"], json::object());
  const PlanReport ahead = plan("2027-01-01T00:00:00Z", 0.01);
  expect_line(ahead, "  the profile is of an unknown age; its rounds differ by at most 1.0% (copies to the device)");
  EXPECT_FALSE(json::parse(plan_json(ahead))["profile"].contains("age_s"));
}

// Of prefill in 8 bits: a sheet's shares are assumed where no such card was measured, and an older profile has none.
TEST_F(PlanOfAProfile, SaysHowThePromptIsReadAndWhatIsAssumed) {
  const auto plan_in = [](PrefillType type, const std::string& gpu, const std::string& profile) {
    PlanOptions options;
    options.shape = "smollm2-135m";
    options.gpu = gpu;
    options.profile = profile;
    options.now = kNow;
    options.engine.ctx_size = 4096;
    options.engine.prefill = type;
    return make_plan_report(options);
  };
  const PlanReport plain = plan_in(PrefillType::kAuto, "rtx4090", ""),
                   int8 = plan_in(PrefillType::kInt8, "rtx4090", "");
  expect_line(plain, "  the prompt is read in bf16");
  EXPECT_EQ(json::parse(plan_json(plain))["prefill_type"], "bf16");
  EXPECT_EQ(format_plan_details(plain).find("assumed"), std::string::npos) << format_plan_details(plain);
  EXPECT_FALSE(json::parse(plan_json(plain)).contains("assumed"));
  expect_line(int8, "  the prompt is read in int8");
  expect_line(int8, "  assumed: products reach 75% and attention 65% of its 660.6 T operations/s in int8");
  EXPECT_EQ(json::parse(plan_json(int8))["prefill_type"], "int8");
  EXPECT_EQ(json::parse(plan_json(int8))["assumed"], int8.assumed);
  ASSERT_TRUE(plain.predicted && int8.predicted);
  EXPECT_LT(int8.predicted->prefill.ms(), plain.predicted->prefill.ms());
  EXPECT_EQ(int8.predicted->full.ms(), plain.predicted->full.ms());
  EXPECT_EQ(plan_in(PrefillType::kInt8, "h200", "").assumed, "");  // measured
  plan("2026-11-20T20:00:00Z", 0.01);
  const PlanReport old = plan_in(PrefillType::kInt8, "rtx4090", folder_ / "p.json");
  expect_line(
      old, "  assumed: prefill in 8 bits is as slow as in the type of the computation: the profile is older than it");
}

TEST_F(PlanOfAProfile, ADataSheetHasNeither) {
  const PlanReport report = plan_by("");
  ASSERT_TRUE(report.predicted);
  EXPECT_EQ(format_plan_details(report).find("the profile"), std::string::npos) << format_plan_details(report);
  EXPECT_FALSE(json::parse(plan_json(report)).contains("profile"));
}

PlanSetting setting(const char* flags, std::optional<double> tokens_per_s) {
  PlanSetting setting{.flags = flags, .weights = "bf16", .cache = "bf16", .verify = "full", .fits = true};
  setting.first_token_ms = 1500;
  setting.tokens_per_s = tokens_per_s;
  return setting;
}

TEST_F(PlanOfAProfile, AnswersFirst) {
  PlanReport report = plan_by("");
  report.predicted->tokens_per_s = 123;
  report.settings = {setting("", 123),
                     setting("-ctk int8 -ctv int8", 140),
                     {.flags = "--weights q4_k_m", .weights = "q4_k_m", .cache = "bf16"}};
  const std::string text = format_plan(report);
  EXPECT_NE(text.find("RTX 4090\n  fits: first token after "), std::string::npos) << text;
  EXPECT_NE(text.find(", then about 123 tokens/s, by the data sheet of NVIDIA GeForce RTX 4090\n"), std::string::npos)
      << text;
  expect_line(report, "  weights    cache   verify         first token       tokens/s");
  expect_line(report, "  bf16       bf16    full                 1.5 s            123  as asked");
  expect_line(report, "  bf16       bf16    full                 1.5 s            140  -ctk int8 -ctv int8");
  expect_line(report, "  q4_k_m     bf16    does not fit                               --weights q4_k_m");
  EXPECT_NE(text.find("  device  [#"), std::string::npos) << text;
  EXPECT_NE(text.find("  host    [.............................."), std::string::npos) << text;
  EXPECT_EQ(text.find("weights: "), std::string::npos) << "details";
  report.settings = {setting("", std::nullopt)};
  report.settings[0].first_token_ms.reset();
  expect_line(report, "  weights    cache   verify        ");
  report.predicted->at_least = true;
  EXPECT_NE(format_plan(report).find(", then at least 123 tokens/s, by "), std::string::npos) << format_plan(report);
  report.predicted.reset();
  expect_line(report, "  fits; no times: this device has not been measured (run headrace profile)");
}

// A CPU has no device memory and no link: what is planned lies in one memory.
TEST(PlanTable, ACpuHasOneMemory) {
  const auto text_of = [](DeviceChoice choice) {
    PlanOptions options;
    options.shape = "smollm2-135m";
    options.engine.ctx_size = 4096;
    options.engine.kv = KvMode::kHost;
    options.engine.device.choice = choice;
    options.engine.device.host_mem_bytes = 4 * kGiB;
    if (choice != DeviceChoice::kCpu) options.gpu = "rtx4090";
    PlanReport report = make_plan_report(options);
    if (choice == DeviceChoice::kCpu) {  // by what was measured here, if anything
      report.predicted = Prediction{};
      report.predicted->prefill = {.link_bytes = kMiB, .link_ms = 1, .device_ms = 9};
      report.predicted->full = {.link_bytes = kMiB, .link_ms = 9, .device_ms = 1};
    }
    return format_plan(report) + format_plan_details(report);
  };
  const std::string cpu = text_of(DeviceChoice::kCpu);
  for (const char* none : {"  device ", "  host ", " to device", " to host"})
    EXPECT_EQ(cpu.find(none), std::string::npos) << none << "\n" << cpu;
  EXPECT_NE(cpu.find("  memory  "), std::string::npos) << cpu;
  EXPECT_NE(cpu.find("  at the peak of 4.00 GiB\n"), std::string::npos) << cpu;
  EXPECT_NE(cpu.find(" processor\n"), std::string::npos) << cpu;
  EXPECT_NE(cpu.find(" copies\n"), std::string::npos) << cpu;
  const std::string gpu = text_of(DeviceChoice::kAuto);
  for (const char* part : {"  device ", "  host ", " to device", " to host"})
    EXPECT_NE(gpu.find(part), std::string::npos) << part << "\n" << gpu;
}

TEST(PlanTable, AHybridHasTimes) {
  PlanOptions options;
  options.engine.model = HEADRACE_TEST_DATA "/tiny/qwen35";
  options.gpu = "rtx4090";
  const PlanReport report = make_plan_report(options);
  ASSERT_TRUE(report.run) << report.refusal;
  ASSERT_TRUE(report.predicted);
  EXPECT_GT(report.predicted->tokens_per_s.value_or(0), 0);
}

}  // namespace
}  // namespace headrace
