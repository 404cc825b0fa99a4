// headrace bench quality --draft-needle: whether a draft finds a number that is hidden in a document (SpecExtend, Table
// 1). The prompt asks for the number, the answer is given (teacher forcing), and the draft ranks each token of the
// number before it sees it. So the figures do not depend on what the target would have answered. Thread: one, except
// for `interrupt`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/commands/quality/quality.h"

namespace headrace {

// The figures of one needle, or of all.
struct DraftNeedleRow {
  std::string document;  // empty: all
  double depth = 0;
  std::string number;
  int64_t prompt_tokens = 0;
  int64_t tokens = 0;        // of the number
  int64_t first = 0;         // those that the draft ranks first
  int64_t target_first = 0;  // those that the target would have sampled
  int64_t absent = 0;        // those that the draft's vocabulary lacks; they have no log-probability
  double nats_sum = 0;       // of the others' negative log-probabilities by the draft

  double perplexity() const;  // by the draft; 0: all are absent
  void add(const DraftNeedleRow& more);
};

struct DraftNeedleReport {
  Machine machine;
  std::string device, model, draft, draft_model;
  const char* prefill_type = "";  // "int8", "bf16"
  DType dtype = DType::kBF16;
  int64_t prompt_tokens = 0;  // the limit
  uint64_t seed = 0;
  DraftWindow window{};  // of the draft
  std::vector<DraftNeedleRow> rows;
  double seconds = 0;
  bool interrupted = false;

  DraftNeedleRow all() const;
};

struct DraftNeedleHooks {
  Progress* progress = nullptr;
  std::function<void(const Engine& engine)> on_engine{};
  std::function<void(const std::string& label)> on_begin{};       // of each run
  std::function<void(const DraftNeedleReport& so_far)> on_row{};  // the last row is new
};

// Of the options only engine, documents, prompt_tokens, seed, interrupt and outputs are used. REQUIRES: a draft that
// ranks a vocabulary, without look-up beside it. Throws Error as run_quality() does.
DraftNeedleReport run_draft_needle(const QualityOptions& options, const DraftNeedleHooks& hooks);

// The report as one JSON object, indented, with a newline.
std::string draft_needle_json(const DraftNeedleReport& report);

}  // namespace headrace
