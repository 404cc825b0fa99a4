// A run as one line of JSON, printed by `--json` and written by a batch. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/base.h"
#include "runtime/engine/engine.h"

namespace headrace {

// Identifies the document of a line. Empty fields are omitted.
struct LineLabel {
  std::string_view file;
  std::string_view key;  // hash of content and options, by which a rerun finds its line
};

// Predicted and measured times: prefill, and each kind of step of the run.
struct Compared {
  const char* what;  // "prefill", "full", "partial", "refresh"
  double predicted_ms, measured_ms;
  int64_t count = 1;  // number of steps; the times are per step
};
std::vector<Compared> compare(const GenerateResult& result);  // empty: no prediction

// The figure furthest from its prediction; none: all are within a quarter of it, or too short to count.
std::optional<Compared> contradiction(const GenerateResult& result);

// The rate of the link to the device over the decode steps, beside its measured peak.
struct LinkShare {
  double gb_per_s, peak_gb_per_s;
  double share() const { return gb_per_s / peak_gb_per_s; }
};
// None: no pass streams the KV cache, so the link is nearly idle, or the link was not measured.
std::optional<LinkShare> link_share(const GenerateResult& result);

// "Q4_K 4.1 GiB, Q6_K as BF16 1.2 GiB": the quantised types with their bytes on the device; empty: there are none.
std::string weights_text(const std::vector<WeightTypeUse>& types);

// {"file", "key", "text", "token_ids", "prompt_tokens", "finish_reason", "timings", "memory", "weights", "transfers"},
// the last with link_share(). If they apply: "truncated" (by --truncate: "whole_tokens" of the prompt with the whole
// document, "left_out_tokens" missing from "prompt_tokens"), "parts" (by --long), "prefix", "spill", "speculation" and
// "predicted". No newline. Bytes that are not UTF-8 become U+FFFD.
std::string result_json(const GenerateResult& result, const LineLabel& label = {});

// {"file", "key", "error", "exit_code"}, no newline.
std::string error_json(const Error& error, const LineLabel& label = {});

}  // namespace headrace
