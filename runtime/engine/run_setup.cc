#include "runtime/engine/run_setup.h"

#include <algorithm>

#include "cache/minimum_budgets.h"

namespace headrace {
namespace {

constexpr int64_t kMaxUnhidden = 64;  // nodes of a refresh that no link hides: as many cost what one does

// What --verify says, or what goes without saying: partial verification where something guesses ahead.
VerifyOptions verify_of(const RunContext& context, const GenerateOptions& run) {
  VerifyOptions verify = run.verify.value_or(context.options.verify);
  CHECK(partial_budget_fits(verify.budget), "budget=", verify.budget);  // the flag has checked it
  const bool drafts = context.draft_model != nullptr && run.speculate;
  if (!verify.mode) verify.mode = drafts ? VerifyMode::kLossless : VerifyMode::kFull;
  if (*verify.mode == VerifyMode::kApproximate && verify.interval == kAutoInterval)
    verify.interval = kPublishedInterval;
  return verify;
}

// The tree of a run's pending tokens; no width: they are a chain. Without a draft the target guesses for itself. A
// GPU's pass costs little more for a group of rows than for one, and a refresh that streams hides some hundred; a CPU's
// pass costs more with each. LongSpec reads the target's own rows, which must be a chain.
PendingTreeLimits pending_limits(const RunContext& context, const GenerateOptions& run, const RunSetup& setup,
                                 bool streams) {
  const DraftModel* const model = setup.model;
  const bool chain = !setup.session.partial_on() || *setup.verify.mode != VerifyMode::kLossless ||
                     context.config.vocab < kRankedTokens || context.config.vocab > kMaxTopVocab ||
                     (model != nullptr && model->type() == SpecType::kLongSpec);
  if (chain) return {.width = 0};
  if (run.pending) return *run.pending;
  const bool cuda = context.device.backend() == Backend::kCuda;
  if (model != nullptr && !(cuda && streams)) return {.width = 0};
  PendingTreeLimits limits{.width = 48, .grown = 384, .nodes = 384};  // measured: speculation_bench
  if (!cuda) limits = {.width = 2, .grown = kMaxPending + 16, .nodes = kMaxPending + 16, .least = 0.2};
  if (!streams) limits.nodes = kMaxUnhidden, limits.grown = kMaxPending;
  return limits;
}

// The rows of the run's passes are its trees'.
void set_pending(const PendingTreeLimits& limits, RunSetup* setup) {
  SessionOptions& session = setup->session;
  setup->pending = limits;
  session.pass_rows = setup->model != nullptr ? setup->model->tree().nodes : 1;
  session.grow_rows = limits.width;
  if (limits.width > 0) {
    session.pass_rows = std::max(session.pass_rows, std::max(limits.grown, limits.nodes) - kMaxPending);
  }
  setup->draft_run.pass_nodes = setup->session.partial_on() ? session.pass_rows + kMaxPending : 0;
}

void start_draft(RunSetup* setup) {
  if (setup->model == nullptr) return;
  setup->draft = setup->model->start(setup->draft_run);
  setup->session.draft = setup->draft.get();
}

SessionOptions session_options(const RunContext& context, const GenerateOptions& run, int64_t prompt_tokens,
                               int64_t max_tokens) {
  const EngineOptions& options = context.options;
  SessionOptions session;
  session.prompt_tokens = prompt_tokens;
  session.context_tokens = prompt_tokens + max_tokens;
  session.kv = run.kv.value_or(options.kv);
  session.k_type = options.cache_type_k.value_or(context.weights.dtype());
  session.v_type = options.cache_type_v.value_or(context.weights.dtype());
  session.sampling = run.sampling;
  session.spill = options.spill;
  session.ring = options.ring;
  session.prefill_group = options.prefill_group;
  return session;
}

SessionPlan session_plan(const RunContext& context, const RunSetup& setup) {
  return plan_session(context.device, context.compute, context.config, context.weights, setup.session);
}

}  // namespace

RunSetup resolve_options(const RunContext& context, int64_t prompt_tokens, const GenerateOptions& run) {
  RunSetup setup;
  const int64_t room = context.context_limit() - prompt_tokens;
  setup.max_tokens = run.max_tokens < 0 ? room : std::min(run.max_tokens, room);
  setup.verify = verify_of(context, run);
  setup.model = run.speculate ? context.draft_model : nullptr;
  SessionOptions& session = setup.session = session_options(context, run, prompt_tokens, setup.max_tokens);
  if (setup.model != nullptr) {  // the last step's tree may stand beyond the last token
    session.context_tokens += setup.model->tree().levels;
  }
  if (*setup.verify.mode != VerifyMode::kFull) {
    session.partial = {.shape = {.blocks = setup.verify.budget / kBlockRows},
                       .score = setup.verify.score,
                       .reduce = setup.verify.reduce};
  }
  setup.draft_run = {.prompt_tokens = prompt_tokens,
                     .context_tokens = session.context_tokens,
                     .most_pending = setup.session.partial_on() ? kMaxPending : 0,
                     .sampling = run.sampling,
                     .tree_limits = run.tree_limits,
                     .saves = !context.options.prefix_cache.folder.empty()};
  set_pending(pending_limits(context, run, setup, false), &setup);
  return setup;
}

// A run that does not fit with small passes will stream once it fits, unless everything must stay on the device. So the
// error is computed for the streaming run: what it offers then fits.
SessionPlan finalize(const RunContext& context, const GenerateOptions& run, RunSetup* setup) {
  start_draft(setup);
  const PendingTreeLimits streaming = pending_limits(context, run, *setup, true);
  if (streaming == setup->pending) return session_plan(context, *setup);
  try {
    SessionPlan plan = session_plan(context, *setup);
    if (plan.memory.ring_slots == 0) return plan;
  } catch (const DoesNotFit&) {
    if (setup->session.kv == KvMode::kDevice) throw;
  }
  set_pending(streaming, setup);
  start_draft(setup);
  return session_plan(context, *setup);
}

RunPlan run_plan(const RunContext& context, const RunSetup& setup, const MemoryPlan& memory) {
  const SessionOptions& session = setup.session;
  RunPlan plan{
      .prompt_tokens = session.prompt_tokens,
      .context_tokens = session.context_tokens,
      .verify = *setup.verify.mode,
      .interval = setup.verify.interval,
      .partial = session.partial_on() ? session.partial.shape : PartialShape{},
      .pass_rows = session.pass_rows,
      .grow_rows = session.grow_rows,
      .weights_bytes = context.weights.bytes(),
      .weight_types = context.weights.types(),
      .sizes = model_sizes(context.config, context.weights, row_shape(context.config, session.k_type, session.v_type)),
      .memory = memory};
  if (setup.model != nullptr) {
    plan.draft = spec_type_name(setup.model->type());
    plan.draft_levels = setup.model->tree().levels;
    plan.tunes_trees = setup.model->tunes_trees();
    plan.draft_weights_bytes = setup.model->weights_bytes();
  }
  return plan;
}

}  // namespace headrace
