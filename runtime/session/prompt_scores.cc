#include "runtime/session/prompt_scores.h"

#include <algorithm>
#include <optional>

#include "offload/host/thread_pool.h"

namespace headrace {
namespace {

// Leaves the final states for another run, or compares its logits with those that another run's states give.
class Comparison {
 public:
  Comparison(const SessionLayout& layout, const PrefillWork& work)
      : layout_(layout), work_(work), compute_(layout.compute()), to_(layout.options().scores->compare) {
    if (to_ == nullptr) return;
    leaves_ = to_->states.empty();
    const auto prompt = static_cast<size_t>(layout.options().prompt_tokens);
    const uint64_t row = layout.hidden_row_bytes();
    if (leaves_) {
      to_->states.resize(prompt * row);
    } else {
      CHECK(to_->states.size() == prompt * row, "states of another prompt: ", to_->states.size(), " bytes");
      to_->kl.assign(prompt, 0.0f);
      to_->same_first.assign(prompt, 0);
      pool_.emplace(layout.device().threads());
    }
    host_ = layout.device().allocate_pinned(layout.comparison_bytes(), "the states of another run");
  }

  // The rows' logits are in work.logits. `pass` made them of `hidden`.
  void add(const Pass& pass, const void* hidden, int64_t first) {
    if (to_ == nullptr) return;
    const uint64_t bytes = static_cast<uint64_t>(pass.rows) * layout_.hidden_row_bytes();
    std::byte* const kept = to_->states.data() + static_cast<uint64_t>(first) * layout_.hidden_row_bytes();
    if (leaves_) {
      compute_.copy(host_.data(), hidden, bytes, Link::kDeviceToHost, "states");
      compute_.synchronize();
      std::copy_n(host_.data(), bytes, kept);
      return;
    }
    std::copy_n(kept, bytes, host_.data());
    compute_.copy(work_.reference, host_.data(), bytes, Link::kHostToDevice, "states");
    output_logits(pass, layout_.weights(), work_.reference, work_.reference_logits);
    const int64_t vocab = layout_.config().vocab;
    const auto size = static_cast<size_t>(vocab);
    const uint64_t logit_bytes = static_cast<uint64_t>(pass.rows * vocab) * sizeof(float);
    auto* const logits =
        reinterpret_cast<float*>(host_.data() + static_cast<uint64_t>(kDrawnRows) * layout_.hidden_row_bytes());
    float* const reference = logits + kDrawnRows * vocab;
    compute_.copy(logits, work_.logits, logit_bytes, Link::kDeviceToHost, "logits");
    compute_.copy(reference, work_.reference_logits, logit_bytes, Link::kDeviceToHost, "logits");
    compute_.synchronize();
    pool_->parallel_for(pass.rows, [&](int64_t row, int) {
      const Divergence found = divergence({reference + row * vocab, size}, {logits + row * vocab, size});
      to_->kl[static_cast<size_t>(first + row)] = found.kl;
      to_->same_first[static_cast<size_t>(first + row)] = found.same_first ? 1 : 0;
    });
  }

 private:
  const SessionLayout& layout_;
  const PrefillWork& work_;
  Stream& compute_;
  StateComparison* const to_;  // null: nothing is compared
  bool leaves_ = false;
  PinnedBuffer host_;
  std::optional<ThreadPool> pool_;
};

}  // namespace

// The head reads the final states of kDrawnRows tokens at a time, so that their logits need little memory.
bool score_prompt(const SessionLayout& layout, const SessionBuffers& buffers, const PrefillWork& work,
                  const PrefillStaging& host, const Watcher& watcher) {
  PromptScores& scores = *layout.options().scores;
  Stream& compute = layout.compute();
  const int64_t prompt = layout.options().prompt_tokens;
  std::copy(scores.next.begin(), scores.next.end(), host.next);
  compute.copy(work.next, host.next, scores.next.size() * sizeof(int32_t), Link::kHostToDevice, "next tokens");
  // Multiplies as prefill does where the head allows it: kept weights then give the bits of dequantised ones.
  const ProductPath path = layout.device().backend() == Backend::kCpu ? ProductPath::kPrefill : ProductPath::kDecode;
  GroupProgress groups(layout.device(), compute, watcher);
  Comparison comparison(layout, work);
  if (watcher.progress) watcher.progress->begin("score", "tokens", prompt);
  bool go_on = true;
  for (int64_t first = 0; first < prompt && go_on; first += kDrawnRows) {
    const int64_t rows = std::min(kDrawnRows, prompt - first);
    Pass pass = buffers.make_pass(work.layer, work.positions + first, rows, path);
    pass.hidden_type = layout.weights().dtype();  // the states are prefill's
    const std::byte* const hidden =
        static_cast<std::byte*>(work.hidden) + static_cast<uint64_t>(first) * layout.hidden_row_bytes();
    output_logits(pass, layout.weights(), hidden, work.logits);
    token_log_probs({.logits = work.logits,
                     .tokens = work.next + first,
                     .log_probs = work.log_probs + first,
                     .rows = rows,
                     .vocab = layout.config().vocab},
                    compute);
    comparison.add(pass, hidden, first);
    go_on = groups.enqueued(first + rows);
  }
  compute.copy(host.log_probs, work.log_probs, scores.next.size() * sizeof(float), Link::kDeviceToHost, "scores");
  compute.synchronize();
  if (go_on) scores.log_probs.assign(host.log_probs, host.log_probs + prompt);
  if (watcher.progress) watcher.progress->end();
  return go_on;
}

}  // namespace headrace
