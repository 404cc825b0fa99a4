#include "cli/print/report.h"

#include <algorithm>
#include <cstdio>

#include "cache/base.h"
#include "cli/print/format.h"
#include "runtime/commands/report.h"

namespace headrace {
namespace {

std::string per_token(uint64_t bytes, int64_t tokens) {
  return format_bytes(bytes / static_cast<uint64_t>(std::max<int64_t>(1, tokens)));
}

// "draft     tau 1.43: 2.43 tokens a step; a step 12.1 ms to verify 59 guesses, 2.3 ms to draft them"
std::string format_speculation(const Speculation& s) {
  const double steps = static_cast<double>(std::max<int64_t>(1, s.steps));
  return str("  draft     ", s.type, ": tau ", format_rate(s.tau()), " (", format_rate(s.tokens_per_step()),
             " tokens a step); a step takes ", format_rate(s.draft_ms / steps), " ms to draft ",
             format_rate(static_cast<double>(s.proposed) / steps), " tokens and ", format_rate(s.verify_ms / steps),
             " ms to verify them\n");
}

// "prefix    7,655 of 7,678 tokens from the cache, 180.00 MiB read; 7,678 tokens kept, 11.25 MiB written"
std::string format_prefix(const PrefixUse& p, int64_t prompt_tokens) {
  return str("  prefix    ", format_count(p.rows), " of ", format_count(prompt_tokens), " tokens from the cache",
             p.read_bytes > 0 ? ", " + format_bytes(p.read_bytes) + " read" : "", "; ", format_count(p.saved_rows),
             " tokens kept", p.saved_bytes > 0 ? ", " + format_bytes(p.saved_bytes) + " written" : "",
             p.save_wait_ms >= 1 && p.saved_bytes > 0
                 ? ", " + format_duration(p.save_wait_ms / 1e3) + " of it after the last token"
                 : "",
             "\n");
}

std::string format_steps(const Speculation& s, StepMode mode, const char* what) {
  const Speculation::Kind& kind = s.of(mode);
  if (kind.steps == 0) return "";
  const double ms = (kind.draft_ms + kind.verify_ms) / static_cast<double>(kind.steps);
  return str(format_count(kind.steps), what, " of ", format_rate(ms), " ms",
             mode == StepMode::kRefresh ? str(", ", format_rate(kind.a_step(kind.committed)), " tokens each") : "",
             "; ");
}

// "verify    lossless, blocks: 130 partial steps of 8.1 ms; 12 refreshes of 150 ms, 9.6 tokens each; overturned 3.1% of
// 400 pending tokens, 14 tokens rescued"
std::string format_verification(const Speculation& s) {
  std::string text =
      str("  verify    ", verify_mode_name(s.verify), s.partial_kv.empty() ? "" : ", " + s.partial_kv,
          s.substitute.empty() ? "" : ", substitutes in " + s.substitute, ": ",
          format_steps(s, StepMode::kFull, " full steps"), format_steps(s, StepMode::kPartial, " partial steps"),
          format_steps(s, StepMode::kRefresh, " refreshes"));
  if (s.verify_outcome.judged > 0) {
    text += str(
        "overturned ", format_rate(100 * s.verify_outcome.overturn_rate()), "% of ",
        format_count(s.verify_outcome.judged), " pending tokens",
        s.verify_outcome.recovered > 0 ? str(", ", format_count(s.verify_outcome.recovered), " tokens rescued") : "",
        "; ");
  }
  if (s.verify_outcome.lossless_tokens > 0) {
    text += str("lossless for ", format_count(s.verify_outcome.lossless_tokens), " tokens (--max-overturned); ");
  }
  text.resize(text.size() - 2);
  return text + "\n";
}

// "parts     5 answered before: the text was longer than the context; 38,112 tokens in, 1,020 out, 1:31 in all; 2 cut"
std::string format_parts(const std::vector<PartAnswer>& parts) {
  const PartTotals all = totals_of(parts);
  return str("  parts     ", parts.size(), " answered before: the text was longer than the context; ",
             format_count(all.prompt_tokens), " tokens in, ", format_count(all.tokens), " out, ",
             format_duration(all.ms / 1e3), " in all", all.cut > 0 ? str("; ", all.cut, " cut by -n") : "", "\n");
}

bool is_prefill(const Compared& row) { return std::string_view(row.what) == "prefill"; }

// "prefill"; "a full step"; "a refresh"
std::string pass_name(const Compared& row) {
  return is_prefill(row) ? "prefill" : str("a ", row.what, row.what[0] == 'r' ? "" : " step");
}
std::string pass_time(const Compared& row, double ms) {
  return is_prefill(row) ? format_duration(ms / 1e3) : format_rate(ms) + " ms";
}

// "  predicted prefill 5.9 s (took 6.1 s), a full step 147 ms (146 ms)"
std::string format_predicted(const GenerateResult& result) {
  std::string text;
  for (const Compared& row : compare(result)) {
    text += str(text.empty() ? "  predicted " : ", ", pass_name(row), " ", pass_time(row, row.predicted_ms), " (took ",
                pass_time(row, row.measured_ms), ")");
  }
  return text.empty() ? text : text + "\n";
}

// "; link 23.5 GB/s over the decode steps, 94.8% of its measured 24.8"
std::string format_link(const GenerateResult& result) {
  const std::optional<LinkShare> link = link_share(result);
  if (!link) return "";
  return str("; link ", format_rate(link->gb_per_s), " GB/s over the decode steps, ", format_rate(100 * link->share()),
             "% of its measured ", format_rate(link->peak_gb_per_s));
}

// "disk      2.00 GiB in /mnt/nvme (io_uring, O_DIRECT); decode, per token: 1.90 GiB read, up to 32 reads at once"
std::string format_spill(const SpillUse& spill, int64_t tokens) {
  return str("  disk      ", format_bytes(spill.file.file_bytes), " in ", spill.folder, " (", spill.file.how,
             "); prefill: ", format_bytes(spill.prefill_written_bytes),
             " written; decode, per token: ", per_token(spill.file.read_bytes, tokens), " read",
             spill.file.read_bytes > 0 ? str(", up to ", spill.file.reads_at_once, " reads at once") : "", "\n");
}

// "products  no cuBLASLt algorithm passes the check for 2 kinds, a slower kernel runs them: 64 x 576 x 1536 bf16 to …"
std::string format_plain_products(const std::vector<std::string>& kinds) {
  std::string text =
      str("  products  no cuBLASLt algorithm passes the check for ", kinds.size(),
          kinds.size() == 1 ? " kind, a slower kernel runs it: " : " kinds, a slower kernel runs them: ");
  for (const std::string& kind : kinds) text += (&kind == kinds.data() ? "" : "; ") + kind;
  return text + "\n";
}

}  // namespace

std::string format_report(const GenerateResult& result, const std::string& engine, int64_t most_tokens) {
  const Timings& t = result.timings;
  const MemoryUse& m = result.memory;
  const Transfers& x = result.transfers;
  const auto tokens = static_cast<int64_t>(result.token_ids.size());
  const bool full = result.finish_reason == FinishReason::kLength && (most_tokens < 0 || tokens < most_tokens);
  std::string text = str(engine, ", loaded in ", format_duration(t.load_ms / 1e3), "\n");
  if (t.host_memory_ms >= 1) {
    text += str("  pinned    ", format_bytes(result.plan.host_bytes), " for the KV cache in ",
                format_duration(t.host_memory_ms / 1e3), ", in the background",
                t.host_wait_ms >= 1 ? str("; prefill waited ", format_duration(t.host_wait_ms / 1e3), " for it") : "",
                "\n");
  }
  text += str("  prompt    ", format_count(result.prompt_tokens), " tokens, ",
              t.ttft_ms > 0
                  ? str(format_rate(t.prefill_tokens_per_s),
                        result.reused_tokens() > 0 ? " tokens/s of those computed" : " tokens/s",
                        "; first token after ", format_duration(t.ttft_ms / 1e3), "; read in ", result.prefill_type)
                  : std::string("interrupted before the first token"),
              "\n");
  if (!result.parts.empty()) {
    text += format_parts(result.parts);
  }
  if (!result.chat_template.empty()) text += str("  template  ", visible_name(result.chat_template), "\n");
  if (const LeftOut& left = result.left_out; left.tokens > 0) {
    text += str("  truncated ", format_count(left.tokens), " of ", format_count(left.whole_tokens),
                " tokens left out of the middle\n");
  }
  if (result.kept_tokens > 0) {
    text += str("  kept      ", format_count(result.kept_tokens), " of ", format_count(result.prompt_tokens),
                " tokens from the question before\n");
  }
  if (result.prefix.asked) text += format_prefix(result.prefix, result.prompt_tokens);
  text += str("  output    ", format_count(tokens), " tokens, ", format_rate(t.decode_tokens_per_s), " tokens/s (",
              finish_reason_name(result.finish_reason), full ? ": the context is full" : "",
              full && most_tokens > 0 ? " before the " + format_count(most_tokens) + " of -n" : "",
              result.incomplete ? "; incomplete JSON" : "", ")\n");
  if (!result.speculation.type.empty()) {
    text += format_speculation(result.speculation);
    const std::string window = format_draft_window(result.draft_window);
    if (!window.empty()) text += "  window    " + window + "\n";
  }
  if (result.speculation.verify != VerifyMode::kFull && result.speculation.steps > 0) {
    text += format_verification(result.speculation);
  }
  if (*result.verify_note != '\0') text += str("  verify    full: ", result.verify_note, "\n");
  text += format_predicted(result);
  text +=
      str("  moved     prefill: ", format_bytes(x.prefill_d2h_bytes), " to host, ", format_bytes(x.prefill_h2d_bytes),
          " to device; decode, per token: ", per_token(x.decode_d2h_bytes, t.decode_tokens), " to host, ",
          per_token(x.decode_h2d_bytes, t.decode_tokens), " to device", format_link(result), "\n");
  if (result.spill.file.file_bytes > 0) text += format_spill(result.spill, t.decode_tokens);
  if (!result.plain_products.empty()) text += format_plain_products(result.plain_products);
  text += str("  memory    device ", format_bytes(m.vram_peak_bytes), ", host ", format_bytes(m.host_peak_bytes),
              m.disk_peak_bytes > 0 ? ", disk " + format_bytes(m.disk_peak_bytes) : "", " (weights ",
              format_bytes(m.weights_bytes), ", KV cache ", format_bytes(m.kv_bytes), "); process ",
              format_bytes(m.rss_peak_bytes), "\n");
  return text;
}

std::string format_contradiction(const GenerateResult& result, const std::string& measured) {
  const std::optional<Compared> row = contradiction(result);
  if (!row) return "";
  return str("note: ", pass_name(*row), " took ", pass_time(*row, row->measured_ms), ", but the profile of ", measured,
             " predicts ", pass_time(*row, row->predicted_ms),
             ". If the machine was busy when it was measured, measure again while it is idle: headrace profile");
}

std::string format_cut(const GenerateResult& result, int64_t most_tokens) {
  if (result.finish_reason != FinishReason::kLength) return "";
  const auto tokens = static_cast<int64_t>(result.token_ids.size());
  const std::string after = str("the answer was cut after ", format_count(tokens), tokens == 1 ? " token" : " tokens");
  if (most_tokens >= 0 && tokens >= most_tokens) return after + ": -n allows more (-n -1: as many as fit)";
  return after + ": the context is full (-c)";
}

std::string format_faster(const std::vector<PlanSetting>& settings, double tokens_per_s) {
  constexpr double kWorthIt = 1.25;
  if (settings.empty() || !settings.front().tokens_per_s) return "";
  const double own = *settings.front().tokens_per_s;
  const PlanSetting* fastest = &settings.front();
  for (const PlanSetting& setting : settings) {
    if (setting.tokens_per_s.value_or(0) > *fastest->tokens_per_s) fastest = &setting;
  }
  const double times = *fastest->tokens_per_s / own;
  if (times < kWorthIt) return "";
  return str("faster: ", fastest->flags, ", about ", format_rate(times * tokens_per_s), " tokens/s");
}

std::string format_trace(const TraceSummary& trace) {
  std::string text = "  trace     " + trace.path + ": ";
  const int64_t steps = trace.steps + trace.dropped_steps;
  text += steps == 0 ? "no decode step" : str(trace.steps, " of ", steps, " decode steps");
  if (trace.decode_s > 0) {
    char share[64];
    std::snprintf(share, sizeof share, ", H2D busy %.1f%% of their time", 100 * trace.busy_share());
    text += share;
    std::snprintf(share, sizeof share, ", %.1f GB/s while busy", trace.gb_per_s());
    if (trace.link_bytes >= kMiB) text += share;
  }
  if (trace.dropped_slices > 0) text += str("; ", trace.dropped_slices, " slices left out");
  return text + "\n";
}

std::string format_summary_line(const GenerateResult& result) {
  const LeftOut& left = result.left_out;
  const std::string cut = left.tokens > 0 ? str(" (", format_count(left.tokens), " of ",
                                                format_count(left.whole_tokens), " left out of the middle)")
                                          : "";
  const std::string reused =
      result.reused_tokens() > 0 ? str(" (", format_count(result.reused_tokens()), " reused)") : "";
  const PartTotals before = totals_of(result.parts);
  const std::string parts =
      result.parts.empty() ? ""
                           : str(" after ", result.parts.size(), " parts with ", format_count(before.prompt_tokens),
                                 " tokens in ", format_duration(before.ms / 1e3));
  return str(format_count(result.prompt_tokens), " tokens in", cut, reused, parts, ", ",
             format_count(static_cast<int64_t>(result.token_ids.size())), " out, ",
             format_duration((result.timings.ttft_ms + result.timings.decode_ms) / 1e3),
             result.finish_reason == FinishReason::kInterrupted ? ", interrupted"
             : result.finish_reason == FinishReason::kLength    ? ", cut by -n or the context"
                                                                : "");
}

std::string format_chat_line(const GenerateResult& result) {
  const Timings& t = result.timings;
  const auto tokens = static_cast<int64_t>(result.token_ids.size());
  const int64_t read = result.prompt_tokens - result.reused_tokens();
  return str(format_count(tokens), tokens == 1 ? " token" : " tokens",
             t.decode_tokens > 0 ? str(", ", format_rate(t.decode_tokens_per_s), " tokens/s") : "", "; ",
             format_count(read), " of ", format_count(result.prompt_tokens), " tokens read",
             t.ttft_ms > 0 ? str(", first token after ", format_duration(t.ttft_ms / 1e3)) : "",
             result.finish_reason == FinishReason::kInterrupted ? "; interrupted"
             : result.finish_reason == FinishReason::kLength    ? "; cut by -n or the context"
                                                                : "");
}

}  // namespace headrace
