#include "cli/report.h"

#include <algorithm>

#include "cache/base.h"
#include "cli/format.h"

namespace headrace {
namespace {

double decode_seconds(const GenerateResult& result) {
  const Timings& t = result.timings;
  return t.decode_tokens_per_s > 0 ? static_cast<double>(t.decode_steps) / t.decode_tokens_per_s : 0;
}

std::string per_token(uint64_t bytes, int64_t tokens) {
  return format_bytes(bytes / static_cast<uint64_t>(std::max<int64_t>(1, tokens)));
}

}  // namespace

std::string format_report(const GenerateResult& result, const std::string& engine) {
  const Timings& t = result.timings;
  const MemoryUse& m = result.memory;
  const Transfers& x = result.transfers;
  const auto tokens = static_cast<int64_t>(result.token_ids.size());
  std::string text = str(engine, ", loaded in ", format_duration(t.load_ms / 1e3), "\n");
  text += str("  prompt    ", format_count(result.prompt_tokens), " tokens, ",
              t.ttft_ms > 0 ? str(format_rate(t.prefill_tokens_per_s), " tokens/s; first token after ",
                                  format_duration(t.ttft_ms / 1e3))
                            : std::string("interrupted before the first token"),
              "\n");
  text += str("  output    ", format_count(tokens), " tokens, ", format_rate(t.decode_tokens_per_s), " tokens/s (",
              finish_reason_name(result.finish_reason), ")\n");
  text +=
      str("  moved     prefill: ", format_bytes(x.prefill_d2h_bytes), " to host, ", format_bytes(x.prefill_h2d_bytes),
          " to device; decode, per token: ", per_token(x.decode_d2h_bytes, t.decode_steps), " to host, ",
          per_token(x.decode_h2d_bytes, t.decode_steps), " to device\n");
  text += str("  memory    device ", format_bytes(m.vram_peak_bytes), ", host ", format_bytes(m.host_peak_bytes),
              m.disk_peak_bytes > 0 ? ", disk " + format_bytes(m.disk_peak_bytes) : "", " (weights ",
              format_bytes(m.weights_bytes), ", KV cache ", format_bytes(m.kv_bytes), "); process ",
              format_bytes(m.rss_peak_bytes), "\n");
  return text;
}

std::string format_summary_line(const GenerateResult& result) {
  return str(format_count(result.prompt_tokens), " tokens in, ",
             format_count(static_cast<int64_t>(result.token_ids.size())), " out, ",
             format_duration(result.timings.ttft_ms / 1e3 + decode_seconds(result)),
             result.finish_reason == FinishReason::kInterrupted ? ", interrupted" : "");
}

}  // namespace headrace
