// A run as one line of JSON, for machines: what `--json` prints and what a batch writes. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/base.h"
#include "runtime/engine/engine.h"

namespace headrace {

// Which document a line is about. Both may be empty: then the line does not say.
struct LineLabel {
  std::string_view file;
  std::string_view key;  // names content and options together, so that a rerun finds its line again
};

// What was predicted of a run beside what it took: prefill, and each kind of step that it had.
struct Compared {
  const char* what;  // "prefill", "full", "partial", "refresh"
  double predicted_ms, measured_ms;
  int64_t count = 1;  // steps; the times are of one
};
std::vector<Compared> compare(const GenerateResult& result);  // empty: nothing is known

// The figure that is furthest from its prediction; none: all are within a quarter of it, or too short to count.
std::optional<Compared> contradiction(const GenerateResult& result);

// What the link to the device carried over the decode steps, beside its measured peak.
struct LinkShare {
  double gb_per_s, peak_gb_per_s;
  double share() const { return gb_per_s / peak_gb_per_s; }
};
// None: no pass streams the KV cache, so the link carries next to nothing, or nobody measured the link.
std::optional<LinkShare> link_share(const GenerateResult& result);

// {"file", "key", "text", "token_ids", "prompt_tokens", "finish_reason", "timings", "memory", "transfers"}, the latter
// with the link_share(),
// and, where there are, "truncated" (a document that --truncate has cut: "whole_tokens" of the prompt with all of it,
// "left_out_tokens" that are missing from "prompt_tokens"), "prefix", "spill", "speculation" and "predicted"; no
// newline. Bytes that are not UTF-8 become U+FFFD.
std::string result_json(const GenerateResult& result, const LineLabel& label = {});

// {"file", "key", "error", "exit_code"}, no newline.
std::string error_json(const Error& error, const LineLabel& label = {});

}  // namespace headrace
