#include "cli/console.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "cache/base.h"
#include "cli/flags/presets.h"
#include "cli/print/format.h"
#include "cli/print/report.h"
#include "cli/unused_gpu.h"
#include "runtime/commands/profile_store.h"

namespace headrace {

Console::Console(const OutputArgs& output, bool streams_text)
    : output_(output),
      streams_text_(streams_text && !output.json),
      progress_(progress_options_for_stderr(output.quiet, streams_text_)) {}

std::function<void(std::string_view)> Console::text_sink(const Engine& engine, const std::vector<int32_t>& prompt) {
  if (!streams_text_) return nullptr;
  const std::optional<ThinkingPlace> place = engine.thinking_after(prompt);
  shown_.reset();
  if (place && (output_.hide_thinking || place->channels())) {
    shown_ = place;
    return [this](std::string_view text) { show(shown_->push(text)); };
  }
  const bool inside = place && place->place() == ThinkingPlace::Place::kInside;
  return [this, open = inside ? place->open_mark() + "\n" : std::string()](std::string_view text) mutable {
    if (!text.empty()) print(std::exchange(open, {}));
    print(text);
  };
}

void Console::show(const ThinkingPlace::Parts& parts) {
  if (!output_.hide_thinking) {
    print(parts.thinking);
    thought_ = thought_ || !parts.thinking.empty();
  }
  if (!parts.answer.empty() && std::exchange(thought_, false)) print("\n\n");
  print(parts.answer);
}

void Console::print(std::string_view text) {
  if (text.empty()) return;
  progress_.clear();
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  at_line_start_ = text.back() == '\n';
}

void Console::end_text() {
  if (shown_) show(shown_->finish());
  shown_.reset();
  thought_ = false;
  if (!at_line_start_) print("\n");
}

void Console::report(const GenerateResult& result, const std::string& engine, int64_t most_tokens) {
  if (output_.quiet) return;
  progress_.clear();
  const std::string text = "\n" + visible(format_report(result, engine, most_tokens));
  std::fputs(text.c_str(), stderr);
}

void Console::note_cut(const GenerateResult& result, const GenerateOptions& options, const std::string& name) {
  const std::string cut = options.ignore_eos ? "" : format_cut(result, options.max_tokens);
  if (cut.empty() || output_.json) return;
  progress_.clear();
  std::fprintf(stderr, "note: %s\n", visible(name.empty() ? cut : name + ": " + cut).c_str());
}

void Console::report_faster(const Engine& engine, const EngineOptions& options, const GenerateResult& result,
                            int64_t most_tokens) {
  constexpr int64_t kEnough = 8;  // steps, for their rate to mean something
  // On a CPU fewer bytes alone do not make products of quantised weights faster, and their rate is not measured.
  if (engine.device().backend() != Backend::kCuda) return;
  if (output_.quiet || output_.json || result.timings.decode_steps < kEnough) return;
  const int64_t tokens = std::max(most_tokens, static_cast<int64_t>(result.token_ids.size()));
  const std::string line =
      format_faster(settings_beside(engine, options, result.prompt_tokens, tokens), result.timings.decode_tokens_per_s);
  if (!line.empty()) progress_.print_line(line);
}

void Console::report_trace(const TraceSummary& trace) {
  if (output_.quiet) return;
  progress_.clear();
  std::fputs(visible(format_trace(trace)).c_str(), stderr);
}

void Console::note_device(const Device& device) {
  if (!output_.quiet && !device.fallback_reason().empty()) {
    const std::string unused = unused_gpu("/dev");
    progress_.print_line(unused.empty() ? "--device auto uses the CPU: " + device.fallback_reason() : unused);
  }
}

void Console::note_weights(const std::string& note) {
  if (!output_.quiet && !note.empty()) progress_.print_line("note: " + note);
}

void Console::note_engine(const Engine& engine) {
  note_device(engine.device());
  note_weights(engine.weights_note());
  note_weights(preset_note(output_.preset));
  note_weights(engine.cache_note());
  if (engine.config().images) note_weights("the model's vision part is not loaded: this program reads only text");
}

void Console::note_result(const GenerateResult& result) {
  if (!std::exchange(damage_reported_, true)) {
    for (const std::string& line : result.damage) warn(line);
  }
  for (const std::string& note : result.prefix.notes) progress_.print_line(note);
  if (memory_note_ != result.memory_note) note_weights(memory_note_ = result.memory_note);
  if (contradicted_) return;
  const std::string note = format_contradiction(result, rates_measured_);
  contradicted_ = !note.empty();
  if (contradicted_) progress_.print_line(note);
}

EngineOptions Console::with_rates(EngineOptions options) {
  options.rates_of = [this, spill = options.spill.folder](const Device& device) -> std::optional<MachineRates> {
    std::string note;
    const std::optional<KeptRates> found = find_kept_rates(device.name(), device.driver(), &note);
    if (!note.empty()) progress_.print_line("note: " + note);
    if (!found) return std::nullopt;
    rates_measured_ = found->measured;
    return rates_with_spill(*found, spill);
  };
  return options;
}

void Console::error(const std::string& message) {
  progress_.clear();
  std::fprintf(stderr, "error: %s\n", visible(message).c_str());
}

void Console::warn(const std::string& message) {
  progress_.clear();
  std::fprintf(stderr, "warning: %s\n", visible(message).c_str());
}

void Console::finish() {
  progress_.clear();
  finish_stdout();
}

void finish_stdout() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw_error(ExitCode::kStorage, "standard output", str("cannot be written: ", std::strerror(errno)));
  }
}

}  // namespace headrace
