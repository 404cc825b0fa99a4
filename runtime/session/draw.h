// From the states of a pass's rows to logits, and from them to samples, ranked tokens and log-probabilities. Owns
// nothing. Thread: the executor's; all work is enqueued on its compute stream.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/session/buffers.h"
#include "runtime/session/node_rules.h"
#include "runtime/speculation/pending_tree.h"

namespace headrace {

class PassDraw {
 public:
  // All references must outlive this.
  PassDraw(const SessionLayout& layout, const SessionBuffers& buffers, const NodeRules& rules);

  // Logits and samples of the pass's rows; `scored`: also the samples' log-probabilities, and the likeliest tokens.
  void samples(const Pass& pass, bool scored) const;
  // The likeliest tokens after the pass's rows, by the logits that samples() left.
  void rank(const Pass& pass) const;

  // Once the results are on the host: views of them, valid until the next pass. The samples of ranked rows are
  // provisional: if there is no token, token 0 replaces it until the refresh.
  Ranked ranked(int64_t rows) const;
  RowLogProbs log_probs(int64_t row) const;
  // Copies the logits of the last pass to the host. Waits for the stream.
  std::vector<float> logits(int64_t rows) const;

 private:
  void score(int64_t first, int64_t rows) const;

  const SessionLayout& layout_;
  const SessionOptions& options_;
  const int64_t vocab_;
  Stream& compute_;
  const SessionBuffers& buffers_;
  const NodeRules& rules_;
};

}  // namespace headrace
