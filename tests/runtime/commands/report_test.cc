#include "runtime/commands/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <span>
#include <string>

namespace headrace {
namespace {

using nlohmann::json;

GenerateResult some_result() {
  GenerateResult result;
  result.text = "caf\xc3\xa9 \"x\"\n";
  result.token_ids = {5, 6, 7};
  result.prompt_tokens = 42;
  result.finish_reason = FinishReason::kStop;
  result.timings = {.load_ms = 10,
                    .ttft_ms = 123.45678,
                    .prefill_tokens_per_s = 162.5,
                    .decode_tokens_per_s = 20.25,
                    .decode_steps = 2,
                    .decode_tokens = 3};
  result.prefill_type = "int8";
  result.memory.vram_peak_bytes = 1000;
  result.memory.host_peak_bytes = 2000;
  result.transfers.decode_h2d_bytes = uint64_t{1} << 40;
  return result;
}

TEST(ResultJson, HoldsWhatARunCameTo) {
  const std::string line = result_json(some_result(), {"a.txt", "k1"});
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_TRUE(line.starts_with(R"({"file":"a.txt","key":"k1","text":"caf)")) << line;
  const json parsed = json::parse(line);
  EXPECT_EQ(parsed["text"], "caf\xc3\xa9 \"x\"\n");
  EXPECT_EQ(parsed["token_ids"], json({5, 6, 7}));
  EXPECT_EQ(parsed["prompt_tokens"], 42);
  EXPECT_EQ(parsed["finish_reason"], "stop");
  EXPECT_EQ(parsed["prefill_type"], "int8");
  EXPECT_EQ(parsed["timings"]["ttft_ms"], 123.457);
  EXPECT_EQ(parsed["timings"]["prefill_tokens_per_s"], 162.5);
  EXPECT_EQ(parsed["timings"]["decode_tokens_per_s"], 20.25);
  EXPECT_EQ(parsed["timings"]["decode_steps"], 2);
  EXPECT_EQ(parsed["timings"]["decode_tokens"], 3);
  EXPECT_EQ(parsed["memory"]["vram_peak_bytes"], 1000);
  EXPECT_EQ(parsed["memory"]["host_peak_bytes"], 2000);
  EXPECT_EQ(parsed["memory"]["disk_peak_bytes"], 0);
  EXPECT_EQ(parsed["transfers"]["decode_h2d_bytes"], uint64_t{1} << 40);
}

TEST(ResultJson, SaysWhatWasLeftOutOfADocument) {
  GenerateResult result = some_result();
  EXPECT_FALSE(json::parse(result_json(result)).contains("truncated"));
  result.left_out = {.whole_tokens = 100, .tokens = 58};
  EXPECT_EQ(json::parse(result_json(result))["truncated"], json({{"whole_tokens", 100}, {"left_out_tokens", 58}}));
}

TEST(ResultJson, SaysWhatSavedPrefixesGave) {
  GenerateResult result = some_result();
  EXPECT_FALSE(json::parse(result_json(result)).contains("prefix"));
  result.prefix = {.asked = true,
                   .rows = 40,
                   .saved_rows = 42,
                   .read_bytes = 100,
                   .saved_bytes = 50,
                   .save_wait_ms = 1.25,
                   .notes = {"a note"}};
  const json prefix = json::parse(result_json(result))["prefix"];
  EXPECT_EQ(prefix["cached_tokens"], 40);
  EXPECT_EQ(prefix["saved_tokens"], 42);
  EXPECT_EQ(prefix["read_bytes"], 100);
  EXPECT_EQ(prefix["saved_bytes"], 50);
  EXPECT_EQ(prefix["save_ms"], 1.25);
  EXPECT_EQ(prefix["notes"], json({"a note"}));
}

TEST(ResultJson, SaysWhatWasOnDisk) {
  GenerateResult result = some_result();
  EXPECT_FALSE(json::parse(result_json(result)).contains("spill"));
  result.spill = {.file = {.file_bytes = 100,
                           .written_bytes = 100,
                           .read_bytes = 900,
                           .checksum_ms = 1.5,
                           .verify_wait_ms = 0.25,
                           .how = "io_uring, O_DIRECT",
                           .reads_at_once = 16},
                  .prefill_written_bytes = 90,
                  .folder = "/mnt/nvme"};
  const json spill = json::parse(result_json(result))["spill"];
  EXPECT_EQ(spill["folder"], "/mnt/nvme");
  EXPECT_EQ(spill["how"], "io_uring, O_DIRECT");
  EXPECT_EQ(spill["file_bytes"], 100);
  EXPECT_EQ(spill["prefill_written_bytes"], 90);
  EXPECT_EQ(spill["decode_written_bytes"], 10);
  EXPECT_EQ(spill["decode_read_bytes"], 900);
  EXPECT_EQ(spill["checksum_ms"], 1.5);
  EXPECT_EQ(spill["verify_wait_ms"], 0.25);
  EXPECT_EQ(spill["read_depth"], 16);
}

TEST(ResultJson, SaysWhatADraftGave) {
  GenerateResult result = some_result();
  result.speculation = {.type = "draft-eagle3",
                        .steps = 10,
                        .proposed = 590,
                        .accepted = 14,
                        .committed = 24,
                        .offered_by_depth = {10, 10, 9},
                        .accepted_by_depth = {8, 4, 2},
                        .draft_ms = 35,
                        .verify_ms = 125};
  const json speculation = json::parse(result_json(result))["speculation"];
  EXPECT_EQ(speculation["type"], "draft-eagle3");
  EXPECT_EQ(speculation["verify"], "full");
  EXPECT_EQ(speculation["tau"], 1.4);
  EXPECT_EQ(speculation["tokens_per_step"], 2.4);
  EXPECT_EQ(speculation["steps"], 10);
  EXPECT_EQ(speculation["proposed"], 590);
  EXPECT_EQ(speculation["accepted"], 14);
  EXPECT_EQ(speculation["confirmed"], 24);
  EXPECT_EQ(speculation["offered_by_depth"], json({10, 10, 9}));
  EXPECT_EQ(speculation["accepted_by_depth"], json({8, 4, 2}));
  EXPECT_EQ(speculation["draft_ms_per_step"], 3.5);
  EXPECT_EQ(speculation["verify_ms_per_step"], 12.5);
  EXPECT_EQ(speculation["draft_window"], 0);
  EXPECT_FALSE(speculation.contains("draft_trained_positions"));
  result.draft_window = {.rows = 1973, .trained_positions = 2048};
  const json windowed = json::parse(result_json(result))["speculation"];
  EXPECT_EQ(windowed["draft_window"], 1973);
  EXPECT_EQ(windowed["draft_trained_positions"], 2048);
  EXPECT_FALSE(windowed.contains("draft_cache"));
  result.draft_window = {.rows = 512, .retrieval = {.chunks = 45, .rows = 16, .every = 2}};
  EXPECT_EQ(json::parse(result_json(result))["speculation"]["draft_cache"],
            json({{"chunks", 45}, {"rows", 16}, {"every", 2}}));
}

TEST(ResultJson, SaysWhatPartialVerificationGave) {
  GenerateResult result = some_result();
  result.speculation.verify = VerifyMode::kLossless;
  constexpr int32_t kDepths[] = {1, 2, 3};
  const auto record = [&](StepMode mode, int64_t nodes, size_t accepted, int64_t committed, double verify_ms,
                          int64_t age) {
    result.speculation.record(mode, {.nodes = nodes,
                                     .proposed = 7,
                                     .committed = committed,
                                     .levels = 4,
                                     .age = age,
                                     .accepted_depths = std::span(kDepths).first(accepted),
                                     .draft_ms = 2,
                                     .verify_ms = verify_ms});
  };
  record(StepMode::kPartial, 8, 2, 0, 6, 0);
  record(StepMode::kPartial, 8, 0, 0, 6, 7);
  record(StepMode::kRefresh, 12, 3, 9, 148, 8);
  constexpr int32_t kWrong[] = {8};
  result.speculation.judge({.judged = 9, .rejected = 1, .discarded = 2, .recovered = 3, .predicted = 8.25}, kWrong);
  const json speculation = json::parse(result_json(result))["speculation"];
  EXPECT_EQ(speculation["type"], "none");
  EXPECT_EQ(speculation["verify"], "lossless");
  EXPECT_FALSE(speculation["modes"].contains("full"));
  EXPECT_EQ(speculation["modes"]["partial"], json({{"steps", 2},
                                                   {"nodes", 16},
                                                   {"tau", 1.0},
                                                   {"confirmed", 0},
                                                   {"draft_ms_per_step", 2.0},
                                                   {"verify_ms_per_step", 6.0}}));
  EXPECT_EQ(speculation["modes"]["refresh"]["nodes"], 12);
  EXPECT_EQ(speculation["modes"]["refresh"]["confirmed"], 9);
  EXPECT_EQ(speculation["tokens_per_step"], 3.0);
  EXPECT_EQ(speculation["proposed"], 21);
  EXPECT_EQ(speculation["modes"]["refresh"]["verify_ms_per_step"], 148.0);
  EXPECT_EQ(speculation["pending"], json({{"judged", 9},
                                          {"overturned", 1},
                                          {"discarded", 2},
                                          {"rescued", 3},
                                          {"foretold", 8.25},
                                          {"overturn_rate", 0.111}}));
  EXPECT_EQ(speculation["by_age"],
            json({{"tokens", 8}, {"steps", {2, 1}}, {"accepted", {2, 3}}, {"judged", {8, 1}}, {"overturned", {0, 1}}}));
  Speculation twice = result.speculation;
  twice.verify_outcome.lossless_tokens = 5;
  twice.add(result.speculation);
  result.speculation = twice;
  const json both = json::parse(result_json(result))["speculation"];
  EXPECT_EQ(both["by_age"]["judged"], json({16, 2}));
  EXPECT_EQ(both["by_age"]["accepted"], json({4, 6}));
  EXPECT_EQ(both["pending"]["lossless_tokens"], 5);
  EXPECT_EQ(speculation["offered_by_depth"], json({3, 3, 3, 3}));
  EXPECT_EQ(speculation["accepted_by_depth"], json({2, 2, 1}));
}

TEST(ResultJson, SaysNothingOfAFileOrADraftThatThereIsNot) {
  const json parsed = json::parse(result_json(some_result()));
  EXPECT_FALSE(parsed.contains("speculation"));
  EXPECT_FALSE(parsed.contains("file"));
  EXPECT_FALSE(parsed.contains("key"));
}

TEST(ResultJson, SaysWhichProductsASlowerKernelRuns) {
  GenerateResult result = some_result();
  EXPECT_FALSE(json::parse(result_json(result)).contains("plain_products"));
  result.plain_products = {"64 x 576 x 1536 bf16 to bf16"};
  EXPECT_EQ(json::parse(result_json(result))["plain_products"], json::array({"64 x 576 x 1536 bf16 to bf16"}));
}

TEST(ResultJson, IsValidWhateverTheBytesAndNumbers) {
  GenerateResult result = some_result();
  result.text = "half \xe2\x82";
  result.timings.decode_tokens_per_s = 1.0 / 0.0;
  const json parsed = json::parse(result_json(result, {"f\xff", ""}));
  EXPECT_EQ(parsed["text"], "half \xef\xbf\xbd");
  EXPECT_EQ(parsed["file"], "f\xef\xbf\xbd");
  EXPECT_EQ(parsed["timings"]["decode_tokens_per_s"], 0);
}

// A text of the same tokens that ends because of -n is not one that the model ended.
TEST(SameAnswer, IsTokensAndTheReasonForTheirEnd) {
  const GenerateResult one = some_result();
  GenerateResult other = one;
  other.timings.ttft_ms = 1;
  EXPECT_TRUE(same_answer(one, other));
  other.finish_reason = FinishReason::kLength;
  EXPECT_FALSE(same_answer(one, other));
  other.finish_reason = one.finish_reason;
  other.token_ids.back() = 8;
  EXPECT_FALSE(same_answer(one, other));
}

TEST(ErrorJson, HoldsMessageAndCode) {
  const Error error({ExitCode::kBadInput, "a.txt", "is empty", ""});
  const json parsed = json::parse(error_json(error, {"a.txt", "k"}));
  EXPECT_EQ(parsed["error"], "a.txt: is empty");
  EXPECT_EQ(parsed["exit_code"], 3);
  EXPECT_EQ(parsed["key"], "k");
}

}  // namespace
}  // namespace headrace
