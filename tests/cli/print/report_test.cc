#include "cli/print/report.h"

#include <gtest/gtest.h>

#include "runtime/commands/report.h"

namespace headrace {
namespace {

TEST(Report, NamesTheSettingThatIsFasterByAQuarter) {
  const auto setting = [](const char* flags, std::optional<double> rate) {
    PlanSetting setting{.flags = flags};
    setting.tokens_per_s = rate;
    return setting;
  };
  const PlanSetting own = setting("", 10), cache = setting("-ctk int8 -ctv int8", 12.4), unknown = setting("x", {}),
                    weights = setting("--weights q4_k", 30);
  EXPECT_EQ(format_faster({}, 9), "");
  EXPECT_EQ(format_faster({own, cache, unknown}, 9), "");
  EXPECT_EQ(format_faster({own, cache, weights, unknown}, 9), "faster: --weights q4_k, about 27.0 tokens/s");
  EXPECT_EQ(format_faster({setting("", {}), weights}, 9), "");
}

TEST(Report, SaysWhatTheIssueAsksFor) {
  GenerateResult result;
  result.token_ids.resize(92);
  result.prompt_tokens = 7713;
  result.prefill_type = "int8";
  result.finish_reason = FinishReason::kStop;
  result.timings.load_ms = 1234;
  result.timings.ttft_ms = 47500;
  result.timings.prefill_tokens_per_s = 162.4;
  result.timings.decode_tokens_per_s = 29.72;
  result.timings.decode_steps = result.timings.decode_tokens = 92;
  result.timings.decode_ms = 3096;
  result.memory.vram_peak_bytes = 300 * kMiB;
  result.memory.host_peak_bytes = 180 * kMiB;
  result.memory.rss_peak_bytes = 512 * kMiB;
  result.memory.weights_bytes = 257 * kMiB;
  result.memory.kv_bytes = 173 * kMiB;
  result.transfers.prefill_d2h_bytes = 173 * kMiB;
  result.transfers.decode_h2d_bytes = 92 * 173 * kMiB;
  result.transfers.decode_d2h_bytes = 92 * 22 * kKiB;
  EXPECT_EQ(
      format_report(result, "SmolLM2, bf16 on CPU, 2 threads"),
      "SmolLM2, bf16 on CPU, 2 threads, loaded in 1.2 s\n"
      "  prompt    7,713 tokens, 162 tokens/s; first token after 47.5 s; read in int8\n"
      "  output    92 tokens, 29.7 tokens/s (stop)\n"
      "  moved     prefill: 173.00 MiB to host, 0 B to device; decode, per token: 22.00 KiB to host, 173.00 MiB to "
      "device\n"
      "  memory    device 300.00 MiB, host 180.00 MiB (weights 257.00 MiB, KV cache 173.00 MiB); process 512.00 "
      "MiB\n");
  EXPECT_EQ(format_summary_line(result), "7,713 tokens in, 92 out, 50.6 s");
  GenerateResult followed = result;
  followed.kept_tokens = 7000;
  EXPECT_EQ(format_summary_line(followed), "7,713 tokens in (7,000 reused), 92 out, 50.6 s");
  result.spill = {.file = {.file_bytes = 87 * kMiB,
                           .read_bytes = 92 * 80 * kMiB,
                           .how = "16 threads (io_uring: Operation not permitted), O_DIRECT",
                           .reads_at_once = 16},
                  .prefill_written_bytes = 86 * kMiB,
                  .folder = "/mnt/nvme"};
  result.memory.disk_peak_bytes = 87 * kMiB;
  const std::string spilled = format_report(result, "engine");
  EXPECT_NE(
      spilled.find("  disk      87.00 MiB in /mnt/nvme (16 threads (io_uring: Operation not permitted), O_DIRECT); "
                   "prefill: 86.00 MiB written; decode, per token: 80.00 MiB read, up to 16 reads at once\n"),
      std::string::npos)
      << spilled;
  EXPECT_NE(spilled.find("host 180.00 MiB, disk 87.00 MiB (weights"), std::string::npos) << spilled;
  result.plan.host_bytes = 173 * kMiB;
  result.timings.host_memory_ms = 412;
  EXPECT_NE(
      format_report(result, "engine").find("  pinned    173.00 MiB for the KV cache in 412 ms, in the background\n"),
      std::string::npos);
  result.timings.host_wait_ms = 35;
  EXPECT_NE(format_report(result, "engine").find("in 412 ms, in the background; prefill waited 35 ms for it\n"),
            std::string::npos);
}

// A text that ends for want of context is told from one that has the length that was asked for.
TEST(Report, SaysThatTheContextIsFull) {
  GenerateResult result;
  result.token_ids.resize(2);
  const auto says = [&](int64_t most, const std::string& part) {
    const std::string text = format_report(result, "engine", most);
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  says(0, "tokens/s (length)\n");
  says(2, "tokens/s (length)\n");
  says(8000, "tokens/s (length: the context is full before the 8,000 of -n)\n");
  says(-1, "tokens/s (length: the context is full)\n");
  result.finish_reason = FinishReason::kStop;
  says(8000, "tokens/s (stop)\n");
}

TEST(Report, SaysWhatTruncateLeftOut) {
  GenerateResult result;
  result.prompt_tokens = 975;
  EXPECT_EQ(format_report(result, "engine").find("truncated"), std::string::npos);
  result.left_out = {.whole_tokens = 1698, .tokens = 723};
  EXPECT_NE(format_report(result, "engine").find("\n  truncated 723 of 1,698 tokens left out of the middle\n"),
            std::string::npos);
  EXPECT_TRUE(format_summary_line(result).starts_with("975 tokens in (723 of 1,698 left out of the middle), 0 out"))
      << format_summary_line(result);
}

TEST(Report, SaysWhatSavedPrefixesGave) {
  GenerateResult result;
  result.prompt_tokens = 7678;
  EXPECT_EQ(format_report(result, "engine").find("  prefix"), std::string::npos);
  result.prefix = {.asked = true, .saved_rows = 7678, .saved_bytes = 169 * kMiB, .save_wait_ms = 92, .notes = {}};
  EXPECT_NE(
      format_report(result, "engine")
          .find("  prefix    0 of 7,678 tokens from the cache; 7,678 tokens kept, 169.00 MiB written, 92 ms of it "
                "after the last token\n"),
      std::string::npos)
      << format_report(result, "engine");
  result.prefix = {.asked = true, .rows = 7655, .saved_rows = 7655, .read_bytes = 169 * kMiB, .notes = {}};
  result.timings.ttft_ms = 100;
  result.timings.prefill_tokens_per_s = 230;
  EXPECT_NE(format_report(result, "engine").find("7,678 tokens, 230 tokens/s of those computed; first token after"),
            std::string::npos)
      << format_report(result, "engine");
  EXPECT_NE(format_report(result, "engine")
                .find("  prefix    7,655 of 7,678 tokens from the cache, 169.00 MiB read; 7,655 tokens kept\n"),
            std::string::npos)
      << format_report(result, "engine");
}

TEST(Report, SaysWhichProductsASlowerKernelRuns) {
  GenerateResult result;
  EXPECT_EQ(format_report(result, "engine").find("products"), std::string::npos);
  result.plain_products = {"64 x 576 x 1536 bf16 to bf16"};
  EXPECT_NE(
      format_report(result, "engine")
          .find("  products  no cuBLASLt algorithm passes the check for 1 kind, a slower kernel runs it: 64 x 576 "
                "x 1536 bf16 to bf16\n"),
      std::string::npos)
      << format_report(result, "engine");
  result.plain_products.push_back("64 x 8 x 16 f32 to f32");
  EXPECT_NE(format_report(result, "engine")
                .find("for 2 kinds, a slower kernel runs them: 64 x 576 x 1536 bf16 to bf16; "
                      "64 x 8 x 16 f32 to f32\n"),
            std::string::npos);
}

TEST(Report, SaysWhatWasPredicted) {
  GenerateResult result;
  result.timings.ttft_ms = 6100;
  result.timings.step_ms = {150, 146, 90};
  EXPECT_EQ(format_report(result, "engine").find("predicted"), std::string::npos);
  result.predicted.emplace();
  result.predicted->prefill.device_ms = 5900;
  result.predicted->full = {.link_ms = 147, .device_ms = 7};
  EXPECT_NE(format_report(result, "engine")
                .find("  predicted prefill 5.9 s (took 6.1 s), a full step 147 ms (took 146 ms)\n"),
            std::string::npos)
      << format_report(result, "engine");
  result.prefix.rows = 512;  // a saved prefix: the two are not comparable
  EXPECT_NE(format_report(result, "engine").find("  predicted a full step 147 ms (took 146 ms)\n"), std::string::npos);
  result.predicted->full.known = false;  // it needs a disk whose speed nobody knows
  EXPECT_EQ(format_report(result, "engine").find("predicted"), std::string::npos);
  EXPECT_EQ(result_json(result, {}).find("predicted"), std::string::npos);
  result.predicted->full.known = true;
  EXPECT_NE(result_json(result, {}).find("predicted"), std::string::npos);
  result.speculation.verify = VerifyMode::kLossless;
  result.predicted->has_partial = true;
  result.predicted->partial.device_ms = 5.7;
  result.predicted->refresh = {.link_ms = 147, .device_ms = 20};
  for (int i = 0; i < 4; ++i) result.speculation.record(StepMode::kPartial, {.verify_ms = 6.0});
  result.speculation.record(StepMode::kRefresh, {.verify_ms = 150});
  EXPECT_NE(
      format_report(result, "engine").find("a partial step 5.70 ms (took 6.00 ms), a refresh 147 ms (took 150 ms)\n"),
      std::string::npos)
      << format_report(result, "engine");
}

// As bench does, where passes stream and the link was measured; without a peak nothing is claimed.
TEST(Report, GivesTheShareOfTheLinksPeak) {
  GenerateResult result;
  result.timings.decode_tokens = 2;
  result.timings.step_ms = {100, 300};
  result.transfers.decode_h2d_bytes = 9'600'000'000;
  result.plan.ring_slots = 4;
  const auto claims = [&] {
    const bool text = format_report(result, "engine").find("; link ") != std::string::npos;
    EXPECT_EQ(text, result_json(result).find("link_share_of_peak") != std::string::npos);
    return text;
  };
  EXPECT_FALSE(claims());
  result.link_peak_gb_per_s = 25;
  EXPECT_NE(format_report(result, "engine")
                .find(" to device; link 24.0 GB/s over the decode steps, 96.0% of its measured 25.0\n"),
            std::string::npos)
      << format_report(result, "engine");
  EXPECT_NE(
      result_json(result).find(R"("decode_link_gb_per_s":24.0,"link_peak_gb_per_s":25.0,"link_share_of_peak":0.96)"),
      std::string::npos)
      << result_json(result);
  result.plan.ring_slots = 0;  // nothing streams: some ids a step say nothing about the link
  EXPECT_FALSE(claims());
  result.plan.ring_slots = 4;
  result.timings.step_ms.clear();
  EXPECT_FALSE(claims());
}

// More than a quarter from the prediction, either way, of what takes long enough to be told from noise.
TEST(Report, SaysWhereARunContradictsTheProfile) {
  GenerateResult result;
  const std::string measured = "2026-11-21T20:15:00Z";
  EXPECT_EQ(format_contradiction(result, measured), "");
  result.predicted.emplace();
  result.predicted->prefill.device_ms = 2600;
  result.predicted->full = {.link_ms = 100, .device_ms = 7};
  result.timings.ttft_ms = 2600;
  result.timings.step_ms.assign(50, 100.0f);
  for (const double ms : {1951, 3249}) {
    result.timings.ttft_ms = ms;
    EXPECT_EQ(format_contradiction(result, measured), "") << ms;
  }
  for (const double ms : {1949, 3251}) {
    result.timings.ttft_ms = ms;
    EXPECT_NE(format_contradiction(result, measured), "") << ms;
  }
  result.timings.ttft_ms = 1200;
  EXPECT_EQ(format_contradiction(result, measured),
            "note: prefill took 1.2 s, but the profile of 2026-11-21T20:15:00Z predicts 2.6 s. If the machine was busy "
            "when it was measured, measure again while it is idle: headrace profile");
  result.timings.step_ms.assign(50, 300.0f);  // further from its prediction than the prefill is
  EXPECT_TRUE(format_contradiction(result, measured).starts_with("note: a full step took 300 ms, but "))
      << format_contradiction(result, measured);
  result.timings.step_ms.assign(1, 300.0f);  // one step
  EXPECT_TRUE(format_contradiction(result, measured).starts_with("note: prefill took "));
  result.prefix.restarts = 1;  // the time is that of two attempts
  EXPECT_EQ(format_contradiction(result, measured), "");
}

TEST(Report, SaysWhatADraftGave) {
  GenerateResult result;
  result.timings.decode_steps = 10;
  result.timings.decode_tokens = 24;
  result.transfers.decode_h2d_bytes = 24 * kMiB;
  result.speculation = {.type = "draft-eagle3",
                        .steps = 10,
                        .proposed = 590,
                        .accepted = 14,
                        .committed = 24,
                        .offered_by_depth = {10, 10, 9},
                        .accepted_by_depth = {8, 4, 2},
                        .draft_ms = 35,
                        .verify_ms = 125};
  const std::string report = format_report(result, "engine");
  EXPECT_NE(report.find("  draft     draft-eagle3: tau 1.40 (2.40 tokens a step); a step takes 3.50 ms to draft 59.0 "
                        "tokens and 12.5 ms to verify them\n"),
            std::string::npos)
      << report;
  EXPECT_NE(report.find("1.00 MiB to device"), std::string::npos) << report;  // a token, not a step
}

TEST(Report, SaysWhyADraftHasAWindowThatNobodyAskedFor) {
  GenerateResult result;
  result.speculation.type = "draft-eagle3";
  result.draft_window.rows = 1973;  // by a flag or a config
  EXPECT_EQ(format_report(result, "engine").find("  window "), std::string::npos);
  result.draft_window.trained_positions = 2048;
  const std::string report = format_report(result, "engine");
  EXPECT_NE(report.find("  window    the draft attends to the first 4 and the last 1,973 tokens: it was trained with "
                        "2,048 positions (--draft-window 0: all tokens)\n"),
            std::string::npos)
      << report;
  result.draft_window = {.rows = 512, .retrieval = {.chunks = 32}};
  EXPECT_NE(format_report(result, "engine")
                .find("  window    the draft attends to the first 32 and the last 512 tokens and to 32 chunks of 32 "
                      "tokens, chosen every 4 steps\n"),
            std::string::npos);
}

TEST(Report, SaysWhatPartialVerificationGave) {
  GenerateResult result;
  result.speculation.verify = VerifyMode::kLossless;
  for (int i = 0; i < 130; ++i) {
    result.speculation.record(StepMode::kPartial, {.draft_ms = 2.0, .verify_ms = 6.0});
  }
  for (int i = 0; i < 12; ++i) {
    result.speculation.record(StepMode::kRefresh, {.nodes = 90, .committed = 12, .draft_ms = 2.0, .verify_ms = 148.0});
  }
  result.speculation.verify_outcome = {.judged = 400, .rejected = 13, .discarded = 20, .recovered = 14};
  EXPECT_NE(format_report(result, "engine")
                .find("  verify    lossless: 130 partial steps of 8.00 ms; 12 refreshes of 150 ms, 12.0 tokens each; "
                      "overturned 3.25% of 400 pending tokens, 14 tokens rescued\n"),
            std::string::npos)
      << format_report(result, "engine");
  result.speculation.partial_kv = "int8";
  EXPECT_NE(format_report(result, "engine").find("  verify    lossless, int8: 130 partial"), std::string::npos);
  result.speculation.verify = VerifyMode::kApproximate;
  result.speculation.verify_outcome.lossless_tokens = 1200;
  EXPECT_NE(format_report(result, "engine").find("14 tokens rescued; lossless for 1,200 tokens (--max-overturned)\n"),
            std::string::npos)
      << format_report(result, "engine");
  result.speculation.verify = VerifyMode::kFull;
  EXPECT_EQ(format_report(result, "engine").find("  verify"), std::string::npos);
}

TEST(Report, ARunOfNothingDividesByNothing) {
  GenerateResult result;
  result.finish_reason = FinishReason::kInterrupted;
  EXPECT_NE(format_report(result, "engine").find("(interrupted)"), std::string::npos);
  EXPECT_EQ(format_summary_line(result), "0 tokens in, 0 out, 0 ms, interrupted");
}

TEST(Report, ATraceSaysHowBusyTheLinkWas) {
  TraceSummary trace;
  trace.path = "t.json";
  EXPECT_EQ(format_trace(trace), "  trace     t.json: no decode step\n");
  trace.steps = 32;
  trace.dropped_steps = 15;
  trace.decode_s = 2;
  trace.link_busy_s = 1.95;
  trace.link_bytes = 100'000'000'000;
  EXPECT_EQ(format_trace(trace),
            "  trace     t.json: 32 of 47 decode steps, H2D busy 97.5% of their time, 51.3 GB/s while busy\n");
  trace.link_bytes = 1000;  // a rate of nothing says nothing
  trace.dropped_slices = 7;
  EXPECT_EQ(format_trace(trace),
            "  trace     t.json: 32 of 47 decode steps, H2D busy 97.5% of their time; 7 slices left out\n");
}

}  // namespace
}  // namespace headrace
