#include "runtime/engine/kept_run.h"

#include <algorithm>
#include <utility>

namespace headrace {
namespace {

KeptOptions kept_options(const GenerateOptions& run) {
  return {.keep = run.keep,
          .kv = run.kv,
          .speculate = run.speculate,
          .verify = run.verify,
          .tree_limits = run.tree_limits,
          .pending = run.pending,
          .log_probs = run.log_probs != LogProbs::kNone,
          .rules = run.rules()};
}

int64_t common_beginning(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

// Rows with the bits of a fresh run are kept in multiples of this unit, as in saved prefixes.
int64_t kept_unit(const RunSetup& setup, KeepRows keep, Backend backend) {
  return keep == KeepRows::kAll ? 1 : setup.session.cut_unit(backend, setup.model != nullptr);
}

// Rows with recurrent states or windows beside them are of use up to a snapshot of these alone.
int64_t resumable(const StateSnapshots* snapshots, int64_t rows) {
  return snapshots != nullptr ? snapshots->last(rows) : rows;
}

}  // namespace

// Plain decoding has the rows of all tokens but the last, and so has every lossless run. A run with a draft may have
// computed rows beyond them.
std::unique_ptr<KeptRun> keep_run(const std::vector<int32_t>& prompt, const GenerateOptions& run, const Output& output,
                                  Sequence* sequence, PreparedRun* prepared) {
  RunSetup* const setup = &prepared->setup;
  std::vector<int32_t> ids = prompt;
  ids.insert(ids.end(), output.ids().begin(), output.ids().end());
  if (output.taken() > output.tokens()) ids.push_back(output.last());
  const int64_t unit = kept_unit(*setup, run.keep, prepared->plan.layout.device().backend());
  const int64_t prompt_tokens = static_cast<int64_t>(prompt.size());
  const int64_t most = run.keep == KeepRows::kPrompt ? prompt_tokens : static_cast<int64_t>(ids.size()) - 1;
  const int64_t rows = resumable(
      sequence->snapshots(), std::min({sequence->rows(), most, static_cast<int64_t>(ids.size()) - 1}) / unit * unit);
  if (rows < kMinSavedRows) return nullptr;
  auto left = std::make_unique<KeptRun>();
  if (setup->draft) left->draft = setup->draft->keep(ids[static_cast<size_t>(rows)], rows);
  left->memory = prepared->plan.memory;
  left->state = sequence->release();
  left->options = kept_options(run);
  ids.resize(static_cast<size_t>(rows));
  left->ids = std::move(ids);
  left->setup = std::move(*setup);
  left->setup.draft.reset();
  left->setup.session.draft = nullptr;
  left->setup.session.prefix = nullptr;
  left->setup.session.scores = nullptr;
  return left;
}

// The last rows of a prompt are always computed: their queries choose the first blocks of a partial KV, and a run
// without a partial KV must have the same rows.
int64_t usable_rows(const RunContext& context, const KeptRun& before, const std::vector<int32_t>& prompt,
                    const GenerateOptions& run) {
  const int64_t tokens = static_cast<int64_t>(prompt.size());
  const int64_t longest = tokens + most_answer_tokens(context, tokens, run);
  if (before.options != kept_options(run) || !run.score_next.empty()) return 0;
  if (longest > before.setup.session.most_prompt_tokens) return 0;
  const Backend backend = context.device.backend();
  const int64_t unit = kept_unit(before.setup, run.keep, backend);
  const int64_t most = tokens - prompt_scoring_rows(tokens, before.setup.session.prefill_rows(backend));
  const int64_t rows =
      resumable(before.state.snapshots.get(), std::min(common_beginning(before.ids, prompt), most) / unit * unit);
  return rows < kMinSavedRows ? 0 : rows;
}

PreparedRun follow_run(const RunContext& context, std::unique_ptr<KeptRun> before, const PromptShape& prompt,
                       const GenerateOptions& run) {
  RunSetup setup = following_setup(context, before->setup, prompt, run);
  if (before->draft) setup.draft->resume(std::move(before->draft), prompt.saved);
  SessionPlan plan{
      .layout = SessionLayout(context.device, context.compute, context.config, context.weights, setup.session),
      .memory = std::move(before->memory)};
  return {.setup = std::move(setup), .plan = std::move(plan), .kept = std::move(before->state)};
}

}  // namespace headrace
