// How much of the KV cache a target pass reads (--verify), and what came of it (docs/design.md, section 8). Plain
// values.
#pragma once

#include <cstdint>
#include <optional>

#include "cache/partial.h"
#include "kernels/blocks/op.h"

namespace headrace {

enum class VerifyMode : uint8_t {
  kFull,         // every pass reads the full KV
  kLossless,     // partial steps are provisional: a refresh judges each of their tokens, and the text is the full KV's
  kApproximate,  // partial steps are final, as SpecPV has it: a refresh mends the KV, not the text
};
const char* verify_mode_name(VerifyMode mode);  // as --verify has it: "lossless"

constexpr int64_t kAutoInterval = -1, kPublishedInterval = 20;

constexpr bool partial_budget_fits(int64_t tokens) {
  return tokens > 0 && tokens % kPrefixTile == 0 && tokens <= kMaxKeptBlocks * kBlockRows;
}

struct VerifyOptions {
  // --verify; none: lossless where there is a draft. Without one, plain decoding reads the full KV.
  std::optional<VerifyMode> mode{};
  int64_t budget = 4096;  // --partial-budget: retrieved tokens, a multiple of 64
  // --refresh-interval: tokens from one refresh to the next. Auto is what pays where a refresh judges; where it does
  // not, the text depends on it, and it is the published one.
  int64_t interval = kAutoInterval;
  BlockScore score = BlockScore::kQuest;
  BlockReduce reduce = BlockReduce::kMean;
  bool operator==(const VerifyOptions&) const = default;
};

// Pending tokens that refreshes looked at again: of a tree the first choices.
struct VerifyOutcome {
  int64_t judged = 0;     // each behind tokens that were right
  int64_t rejected = 0;   // of them
  int64_t discarded = 0;  // behind one that was rejected; the approximate mode discards none
  int64_t recovered = 0;  // tokens that were committed behind one that was, by what had been guessed beside it
  double predicted = 0;   // that the refreshes of a tree were expected to confirm
  void add(const VerifyOutcome& more) {
    judged += more.judged;
    rejected += more.rejected;
    discarded += more.discarded;
    recovered += more.recovered;
    predicted += more.predicted;
  }
  double overturn_rate() const { return judged > 0 ? static_cast<double>(rejected) / static_cast<double>(judged) : 0; }
};

}  // namespace headrace
