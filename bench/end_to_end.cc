// Prefill and decode of a whole document, as a user meets them: tokens a second, resident memory, bytes over the link.
//
//   end_to_end MODEL DOCUMENT [--kv auto|device|host] [--dtype bf16|f32] [--threads N] [--new-tokens N] [--repeat N]
//
// Prints one JSON object with the machine named: every repeat, and the best and the median of them. The prompt is
// headrace summarize's. Beside it: transformers_baseline.py.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/machine.h"
#include "runtime/document.h"
#include "runtime/engine.h"

namespace headrace {
namespace {

struct Settings {
  std::string model, document, kv = "auto", dtype;
  int threads = 0, repeat = 3;
  int64_t new_tokens = 64;
};

EngineOptions engine_options(const Settings& s) {
  EngineOptions options;
  options.model = s.model;
  options.device.threads = s.threads;
  options.kv = s.kv == "host" ? KvMode::kHost : s.kv == "device" ? KvMode::kDevice : KvMode::kAuto;
  DType type;
  if (!s.dtype.empty() && parse_dtype(s.dtype, &type)) options.dtype = type;
  return options;
}

nlohmann::json one_run(Engine& engine, const std::vector<int32_t>& prompt, const Settings& s) {
  const GenerateResult r = engine.generate(prompt, {.max_tokens = s.new_tokens + 1, .ignore_eos = true}, nullptr);
  return {{"prefill_tokens_per_s", r.timings.prefill_tokens_per_s},
          {"decode_tokens_per_s", r.timings.decode_tokens_per_s},
          {"load_ms", r.timings.load_ms},
          {"ttft_ms", r.timings.ttft_ms},
          {"decode_h2d_bytes_per_token",
           static_cast<double>(r.transfers.decode_h2d_bytes) / static_cast<double>(r.timings.decode_steps)},
          {"weights_bytes", r.memory.weights_bytes},
          {"kv_bytes", r.memory.kv_bytes},
          {"rss_peak_bytes", r.memory.rss_peak_bytes},
          {"text", r.text}};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void run(const Settings& s) {
  Engine engine(engine_options(s));
  PromptRules rules{.instruction = "\n\nWrite a short summary of the text above."};
  rules.context_tokens = engine.context_limit();
  rules.answer_tokens = s.new_tokens + 1;
  const std::vector<int32_t> prompt =
      document_prompt(s.document, read_document(s.document), rules,
                      [&](std::string_view t) { return engine.encode({.system = "", .user = std::string(t)}); });
  nlohmann::json out = {{"program", "headrace end_to_end"},
                        {"machine", bench::machine()},
                        {"runs_on", engine.describe()},
                        {"document", s.document},
                        {"kv", s.kv},
                        {"dtype", dtype_name(engine.dtype())},
                        {"prompt_tokens", prompt.size()},
                        {"new_tokens", s.new_tokens}};
  std::vector<double> prefill, decode;
  for (int i = 0; i < s.repeat; ++i) {
    out["runs"].push_back(one_run(engine, prompt, s));
    prefill.push_back(out["runs"].back()["prefill_tokens_per_s"]);
    decode.push_back(out["runs"].back()["decode_tokens_per_s"]);
  }
  out["median"] = {{"prefill_tokens_per_s", median(prefill)}, {"decode_tokens_per_s", median(decode)}};
  std::printf("%s\n", out.dump(1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  headrace::Settings settings;
  CLI::App app("Measures prefill and decode of a whole document");
  app.add_option("model", settings.model)->required();
  app.add_option("document", settings.document)->required();
  app.add_option("--kv", settings.kv)->check(CLI::IsMember({"auto", "device", "host"}));
  app.add_option("--dtype", settings.dtype)->check(CLI::IsMember({"bf16", "f16", "f32"}));
  app.add_option("--threads", settings.threads);
  app.add_option("--new-tokens", settings.new_tokens)->check(CLI::PositiveNumber);
  app.add_option("--repeat", settings.repeat)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    headrace::run(settings);
  } catch (const headrace::Error& error) {
    std::fprintf(stderr, "end_to_end: %s\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
