#include "runtime/session/draw.h"

#include <algorithm>

#include "offload/device/trace.h"

namespace headrace {

PassDraw::PassDraw(const SessionLayout& layout, const SessionBuffers& buffers, const NodeRules& rules)
    : layout_(layout),
      options_(layout.options()),
      vocab_(layout.config().vocab),
      compute_(layout.compute()),
      buffers_(buffers),
      rules_(rules) {}

void PassDraw::samples(const Pass& pass, bool scored) const {
  const StepWork& step = buffers_.step();
  for (int64_t first = 0; first < pass.rows; first += layout_.drawn_rows()) {
    Pass some = pass;
    some.rows = std::min(layout_.drawn_rows(), pass.rows - first);
    output_logits(some, layout_.weights(), step.hidden + first * layout_.config().hidden, step.logits);
    rules_.apply(first, some.rows);
    const TraceSpan span(compute_, "sample");
    sample({.logits = step.logits,
            .positions = step.inputs.draw_positions + first,
            .tokens = step.result.samples + first,
            .workspace = step.sample_workspace,
            .rows = some.rows,
            .vocab = vocab_,
            .settings = options_.sampling},
           compute_);
    if (scored) score(first, some.rows);
  }
}

void PassDraw::score(int64_t first, int64_t rows) const {
  const StepWork& step = buffers_.step();
  const StepLogProbs& out = step.log_probs;
  const int64_t tops = layout_.top_tokens();
  token_log_probs({.logits = step.logits,
                   .tokens = step.result.samples + first,
                   .log_probs = out.samples + first,
                   .rows = rows,
                   .vocab = vocab_},
                  compute_);
  top_log_probs({.logits = step.logits,
                 .log_probs = out.top + first * tops,
                 .tokens = out.tokens + first * tops,
                 .workspace = step.rank_workspace,
                 .rows = rows,
                 .vocab = vocab_,
                 .stride = vocab_,
                 .k = tops},
                compute_);
}

void PassDraw::rank(const Pass& pass) const {
  const StepWork& step = buffers_.step();
  auto* const log_probs = reinterpret_cast<float*>(step.ranked);
  top_log_probs({.logits = step.logits,
                 .positions = step.inputs.positions,
                 .log_probs = log_probs,
                 .tokens = reinterpret_cast<int32_t*>(log_probs + options_.grow_rows * kRankedTokens),
                 .workspace = step.rank_workspace,
                 .rows = pass.rows,
                 .vocab = vocab_,
                 .stride = vocab_,
                 .k = kRankedTokens,
                 .position_offset = 1,
                 .temperature = options_.sampling.temperature,
                 .seed = options_.sampling.seed},
                compute_);
}

Ranked PassDraw::ranked(int64_t rows) const {
  int32_t* const samples = buffers_.host_result().samples;
  for (int64_t i = 0; i < rows; ++i) samples[i] = std::max(samples[i], 0);
  const size_t count = static_cast<size_t>(rows), ranked = count * kRankedTokens;
  const auto* const log_probs = reinterpret_cast<const float*>(buffers_.host_ranked());
  const auto* const tokens = reinterpret_cast<const int32_t*>(log_probs + options_.grow_rows * kRankedTokens);
  return {.samples = {samples, count}, .tokens = {tokens, ranked}, .log_probs = {log_probs, ranked}};
}

RowLogProbs PassDraw::log_probs(int64_t row) const {
  const StepLogProbs& host = buffers_.host_log_probs();
  const auto tops = static_cast<size_t>(layout_.top_tokens());
  const int64_t first = row * layout_.top_tokens();
  return {.sample = host.samples[row], .tokens = {host.tokens + first, tops}, .log_probs = {host.top + first, tops}};
}

std::vector<float> PassDraw::logits(int64_t rows) const {
  const uint64_t bytes = static_cast<uint64_t>(rows * vocab_) * sizeof(float);
  PinnedBuffer host = layout_.device().allocate_pinned(bytes, "logits for the host");
  compute_.copy(host.data(), buffers_.step().logits, bytes, Link::kDeviceToHost, "logits");
  compute_.synchronize();
  return {host.as<float>(), host.as<float>() + rows * vocab_};
}

}  // namespace headrace
