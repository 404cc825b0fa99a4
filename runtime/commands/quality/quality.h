// headrace bench quality: what the partial KV gets wrong (as SpecPV's Table 2). For each document, temperature, kind
// and budget of the partial KV, and interval: the share of a lossless run's pending tokens that its refreshes reject,
// and how much of the full KV's text an approximate run keeps. Also whether a sentence hidden in the document is found.
// Thread: one, except for `interrupt`.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "offload/host/machine.h"
#include "runtime/engine/engine.h"

namespace headrace {

// What partial steps read.
struct PartialReading {
  PartialKind kind = PartialKind::kBlocks;
  int64_t budget = 0;  // tokens of blocks; 0: the kind is a copy of all rows
  bool operator==(const PartialReading&) const = default;
};

struct QualityOptions {
  EngineOptions engine;  // of its verify options only score and reduce are used
  std::vector<std::string> documents;
  std::string instruction = "Write a short summary of the text above.";
  int64_t prompt_tokens = 4096;  // a longer document is truncated at its end
  int64_t decode_tokens = 256;
  std::vector<PartialKind> partial = {PartialKind::kBlocks};  // not kAuto
  std::vector<int64_t> budgets = {512, 1024, 2048, 4096};     // of blocks
  std::vector<int64_t> intervals = {20, 64};                  // or kAutoInterval
  std::vector<float> temperatures = {0.0f, 0.8f};
  bool ignore_eos = false;
  uint64_t seed = 0;
  const std::atomic<bool>* interrupt = nullptr;
  std::vector<std::string>
      outputs{};  // files that the run writes to: no documents, though they are in a folder of them

  std::vector<PartialReading> readings() const;  // each kind, blocks with each budget
};

// One document, or all, with one temperature, reading and interval.
struct QualityRow {
  std::string document;  // empty: all
  float temperature = 0;
  PartialReading reading{};
  int64_t interval = 0;
  int64_t runs = 0, prompt_tokens = 0, decode_tokens = 0;  // sums over the runs; decode_tokens: of the full KV's text
  Speculation lossless{}, approximate{};
  int64_t lossless_same = 0, approximate_same = 0;  // runs with the full KV's answer: same_answer(); the first: all
  double rouge_l_sum = 0;                           // of the approximate texts compared with the full KV's

  bool holds_all = false;  // the partial KV would hold the whole context, so none was used

  bool compared() const { return lossless.of(StepMode::kPartial).steps > 0; }
  double rouge_l() const { return runs > 0 ? rouge_l_sum / static_cast<double>(runs) : 0; }
  void add(const QualityRow& more);
};

// A sentence with a generated number, hidden at a depth of a document; the prompt asks for the number at its end.
struct NeedleRow {
  std::string document;
  double depth = 0;
  float temperature = 0;
  std::optional<PartialReading> reading{};  // of an approximate run; none: the full KV
  int64_t interval = 0, prompt_tokens = 0;
  bool found = false;
  std::string number, answer;
  Speculation speculation{};  // of the run, draft included
};

struct QualityReport {
  Machine machine;
  std::string device, model, draft;
  const char* prefill_type = "";  // "int8", "bf16"
  DType dtype = DType::kBF16;
  QualityOptions options;
  std::vector<QualityRow> rows;
  std::vector<NeedleRow> needles;
  double seconds = 0;
  bool interrupted = false;

  // Over all documents, by temperature, reading and interval.
  std::vector<QualityRow> means() const;
  bool lossless() const;  // every lossless run gave the full KV's text
};

struct QualityHooks {
  Progress* progress = nullptr;
  std::function<void(const Engine& engine)> on_engine{};
  std::function<void(const std::string& label)> on_begin{};      // of each run: "[3/40] a.txt, T 0.8, 1024 by 20"
  std::function<void(const QualityReport& so_far)> on_row{};     // the last row is new
  std::function<void(const QualityReport& so_far)> on_needle{};  // the last needle is new
};

// Throws Error: unreadable documents (each is named), a model that cannot be opened, a context that is too short.
QualityReport run_quality(const QualityOptions& options, const QualityHooks& hooks);

// The report as one JSON object, indented, with a newline.
std::string quality_json(const QualityReport& report);

}  // namespace headrace
