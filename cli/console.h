// The program's two streams, shared by the commands: text or JSON on stdout; progress, errors and the report on stderr,
// coordinated so that they do not overwrite each other on one terminal. Owns the progress bar. Thread: one.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/flags/args.h"
#include "cli/print/progress_bar.h"
#include "runtime/engine/engine.h"

namespace headrace {

class Console {
 public:
  // `streams_text`: prints generated text to stdout immediately.
  Console(const OutputArgs& output, bool streams_text);

  ProgressBar& progress() { return progress_; }
  // For GenerateOptions::on_text; empty if text is not streamed.
  // Thinking is printed between its marks, also where the prompt has the opening one, or hidden (--hide-thinking).
  // `prompt`: the ids of a prompt that ends as those of the answers do.
  std::function<void(std::string_view)> text_sink(const Engine& engine, const std::vector<int32_t>& prompt);
  void print(std::string_view text);           // stdout, flushed
  void end_text();                             // prints a newline if the text did not end with one
  void note_device(const Device& device);      // a line on stderr if --device auto fell back to the CPU
  void note_weights(const std::string& note);  // Engine::weights_note() or cache_note(), a line on stderr
  // All of them, and a line each if the model takes images, which are not read, and for what differs from the paper of
  // --preset.
  void note_engine(const Engine& engine);
  // Prints notes about a run to stderr, one line each: about saved prefixes, and once per process about damaged weights
  // and about figures that contradict the kept profile.
  void note_result(const GenerateResult& result);
  // Adds the rates that headrace profile kept for the device; prints a line if the file is not a valid profile.
  EngineOptions with_rates(EngineOptions options);
  void report(const GenerateResult& result, const std::string& engine, int64_t most_tokens);  // format_report
  // A line on stderr, even with --quiet, for an answer that -n or the context cut; not if --ignore-eos asked for it.
  // `name`: of its document; empty: it is the only one.
  void note_cut(const GenerateResult& result, const GenerateOptions& options, const std::string& name = "");
  // A line on stderr with the setting that would be faster on a GPU, if one would be by much.
  void report_faster(const Engine& engine, const EngineOptions& options, const GenerateResult& result,
                     int64_t most_tokens);
  void report_trace(const TraceSummary& trace);
  // To stderr, even with --quiet.
  void error(const std::string& message);
  void warn(const std::string& message);
  void finish();  // finish_stdout(), below

 private:
  void show(const ThinkingPlace::Parts& parts);

  OutputArgs output_;
  bool streams_text_;
  ProgressBar progress_;
  std::optional<ThinkingPlace> shown_{};  // of the answer that is printed without its thinking, or without its marks
  bool thought_ = false;                  // thinking was printed, and no answer since
  bool at_line_start_ = true;
  std::string rates_measured_;  // date; empty: no rates are known
  bool contradicted_ = false, damage_reported_ = false;
  std::string memory_note_;  // the last one that was printed
};

// Throws Error(kStorage) if stdout could not be written (a full disk behind a redirect).
void finish_stdout();

}  // namespace headrace
