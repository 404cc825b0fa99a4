// How much of the KV cache target passes read (--verify), and the outcome (docs/design.md, section 8). Plain values.
#pragma once

#include <cstdint>
#include <optional>

#include "cache/partial.h"
#include "kernels/blocks/op.h"

namespace headrace {

enum class VerifyMode : uint8_t {
  kFull,         // every pass reads the full KV
  kLossless,     // partial steps are provisional: a refresh judges each token, and the text equals that of the full KV
  kApproximate,  // partial steps are final, as in SpecPV: a refresh corrects the KV, not the text
  kAuto,         // an option alone: a run is lossless where passes over the full KV would stream, else full
};
inline const char* verify_mode_name(VerifyMode mode) {  // the value of --verify
  constexpr const char* kNames[] = {"full", "lossless", "approximate", "auto"};
  return kNames[static_cast<size_t>(mode)];
}

constexpr int64_t kAutoInterval = -1, kPublishedInterval = 20;
constexpr int64_t kUsualBudget = 4096;

constexpr bool partial_budget_fits(int64_t tokens) {
  return tokens > 0 && tokens % kPrefixTile == 0 && tokens <= kMaxKeptBlocks * kBlockRows;
}

struct VerifyOptions {
  // --verify, whose default is kAuto; options of partial steps beside that ask for a lossless run. None (of tests and
  // benches): lossless with a draft, else full.
  std::optional<VerifyMode> mode{};
  PartialKind partial = PartialKind::kAuto;  // --partial-kv
  // --partial-budget: retrieved tokens of blocks, a multiple of 64; none: kUsualBudget. With a budget, kAuto is
  // kBlocks.
  std::optional<int64_t> budget{};
  // --refresh-interval: tokens between two refreshes. Auto adapts to the costs if refreshes judge; otherwise the text
  // depends on the interval, and auto is the published one.
  int64_t interval = kAutoInterval;
  BlockScore score = BlockScore::kQuest;
  BlockReduce reduce = BlockReduce::kMean;
  BlockQueries queries = BlockQueries::kRecent;
  int64_t window = kTailWindow;  // --block-window
  // --max-overturned, of approximate runs: the share of pending tokens that refreshes may overturn; 1: any.
  double max_overturned = 1;
  bool operator==(const VerifyOptions&) const = default;

  // kAuto only where what fits may decide: not in an approximate run, whose text depends on what partial steps read.
  PartialKind partial_kind() const {
    if (partial != PartialKind::kAuto) return partial;
    return budget || mode == VerifyMode::kApproximate ? PartialKind::kBlocks : PartialKind::kAuto;
  }
  // Whether something is said that a run without partial steps ignores.
  bool names_partial() const { return *this != VerifyOptions{.mode = mode}; }
  bool names_mode() const { return mode && *mode != VerifyMode::kAuto; }
  int64_t blocks() const { return budget.value_or(kUsualBudget) / kBlockRows; }
};

constexpr const char* kNoPartialSteps =
    "--partial-kv, --partial-budget, --refresh-interval and --block-* have no effect with --verify full";

// Pending tokens that refreshes verified; in a tree, the first choices.
struct VerifyOutcome {
  int64_t judged = 0;     // each after correct tokens
  int64_t rejected = 0;   // of them
  int64_t discarded = 0;  // after a rejected token; approximate mode discards none
  int64_t recovered = 0;  // tokens committed after a rejected one, from its alternatives
  double predicted = 0;   // tokens that the refreshes of a tree were expected to confirm
  // Committed by the refreshes of an approximate run while --max-overturned made it lossless.
  int64_t lossless_tokens = 0;
  void add(const VerifyOutcome& more) {
    judged += more.judged;
    rejected += more.rejected;
    discarded += more.discarded;
    recovered += more.recovered;
    predicted += more.predicted;
    lossless_tokens += more.lossless_tokens;
  }
  double overturn_rate() const { return judged > 0 ? static_cast<double>(rejected) / static_cast<double>(judged) : 0; }
};

}  // namespace headrace
