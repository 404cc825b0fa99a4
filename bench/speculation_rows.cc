#include "bench/speculation_rows.h"

#include <algorithm>

#include "bench/program.h"
#include "runtime/commands/report_json.h"
#include "runtime/text/document.h"

namespace headrace::bench {

void add_text_flags(CLI::App& app, TextArgs& args) {
  app.add_option("texts", args.texts)->required();
  app.add_option("--instruction", args.instruction, "what follows each text");
  app.add_option("--tokens", args.tokens)->delimiter(',');
  app.add_option("--kv", args.kv)->delimiter(',')->check(CLI::IsMember({"auto", "device", "host"}));
  app.add_option("--temp", args.temperatures)->delimiter(',');
  app.add_option("-n", args.new_tokens);
  add_device(app, &args.device);
}

EngineOptions engine_options(const TextArgs& args) {
  EngineOptions options;
  options.model = args.model;
  options.device.choice = args.device;
  options.dtype = DType::kBF16;
  return options;
}

KvMode kv_mode(const std::string& name) {
  return name == "device" ? KvMode::kDevice : name == "host" ? KvMode::kHost : KvMode::kAuto;
}

std::vector<int32_t> prompt_of(const Engine& engine, const std::string& path, int64_t tokens,
                               const std::string& instruction) {
  const std::string text = read_document(path);
  size_t low = 0, high = text.size();
  const auto encoded = [&](size_t bytes) { return engine.encode({"", text.substr(0, bytes) + "\n\n" + instruction}); };
  if (static_cast<int64_t>(encoded(high).size()) <= tokens) return encoded(high);
  while (high - low > 64) {
    const size_t middle = (low + high) / 2;
    (static_cast<int64_t>(encoded(middle).size()) <= tokens ? low : high) = middle;
  }
  while (low > 0 && (static_cast<unsigned char>(text[low]) & 0xc0) == 0x80) --low;  // not inside a character
  return encoded(low);
}

nlohmann::ordered_json row_of(const GenerateResult& result) {
  const Speculation& s = result.speculation;
  nlohmann::ordered_json row = {{"tokens_per_s", result.timings.decode_tokens_per_s},
                                {"decode_tokens", result.timings.decode_tokens},
                                {"ttft_ms", result.timings.ttft_ms}};
  if (!s.happened()) return row;
  const auto steps = static_cast<double>(std::max<int64_t>(1, s.steps));
  const auto tokens = static_cast<double>(std::max<int64_t>(1, result.timings.decode_tokens));
  row["tau"] = s.tau();
  row["steps"] = s.steps;
  row["tokens_per_step"] = s.tokens_per_step();
  row["proposed"] = s.proposed;
  row["draft_ms"] = s.draft_ms / steps;
  row["verify_ms"] = s.verify_ms / steps;
  row["offered_by_depth"] = s.offered_by_depth;
  row["accepted_by_depth"] = s.accepted_by_depth;
  if (s.verify == VerifyMode::kFull) return row;
  row["partial_kv"] = s.partial_kv;
  for (const StepMode mode : {StepMode::kFull, StepMode::kPartial, StepMode::kRefresh}) {
    const Speculation::Kind& kind = s.of(mode);
    const auto count = static_cast<double>(std::max<int64_t>(1, kind.steps));
    row[step_mode_name(mode)] = {{"steps", kind.steps},
                                 {"nodes", kind.nodes},
                                 {"tau", kind.tau()},
                                 {"confirmed", kind.committed},
                                 {"draft_ms", kind.draft_ms / count},
                                 {"verify_ms", kind.verify_ms / count}};
  }
  row["judged"] = s.verify_outcome.judged;
  row["overturned"] = s.verify_outcome.rejected;
  row["discarded"] = s.verify_outcome.discarded;
  row["rescued"] = s.verify_outcome.recovered;
  row["foretold"] = s.verify_outcome.predicted;
  row["overturn_rate"] = s.verify_outcome.overturn_rate();
  if (s.verify_outcome.lossless_tokens > 0) row["lossless_tokens"] = s.verify_outcome.lossless_tokens;
  row["by_age"] = ages_json(s);
  row["link_bytes_per_token"] = static_cast<double>(result.transfers.decode_h2d_bytes) / tokens;
  row["vram_peak_bytes"] = result.memory.vram_peak_bytes;
  return row;
}

}  // namespace headrace::bench
