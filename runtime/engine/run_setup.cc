#include "runtime/engine/run_setup.h"

#include <algorithm>

#include "cache/minimum_budgets.h"

namespace headrace {
namespace {

constexpr int64_t kMaxUnhidden = 64;  // nodes of a refresh that does not stream: up to here it takes as long as for one

// The verify mode: the flag's, else lossless if there is a draft.
VerifyOptions verify_of(const RunContext& context, const GenerateOptions& run) {
  VerifyOptions verify = run.verify.value_or(context.options.verify);
  const bool drafts = context.draft_model != nullptr && run.speculate;
  if (!verify.mode) verify.mode = drafts ? VerifyMode::kLossless : VerifyMode::kFull;
  if (*verify.mode == VerifyMode::kApproximate && verify.interval == kAutoInterval)
    verify.interval = kPublishedInterval;
  CHECK(!verify.budget || partial_budget_fits(*verify.budget), "budget=", *verify.budget);  // the flag has checked it
  const std::optional<DType> copy = copy_type(verify.partial_kind());
  if (*verify.mode != VerifyMode::kFull && copy && !copy_type_fits(*copy, context.config.head_dim)) {
    throw_error(ExitCode::kUsage, "--partial-kv",
                str(dtype_name(*copy), " needs heads whose size is a power of two of at least ", kInt4Group,
                    ", this model's have ", context.config.head_dim),
                "Use int8, blocks or auto.");
  }
  return verify;
}

// The tree of a run's pending tokens; no width: they are a chain. They are a tree on a GPU whose refreshes stream: its
// pass costs little more for a group of rows than for one, and such a refresh hides some hundred. A CPU's pass costs
// more with each row. Elsewhere only blocks have a tree, where no draft guesses ahead. LongSpec reads the target's own
// rows, which must be a chain.
PendingTreeLimits pending_limits(const RunContext& context, const GenerateOptions& run, const RunSetup& setup,
                                 bool streams) {
  const DraftModel* const model = setup.model;
  const bool chain = !setup.session.partial_on() || *setup.verify.mode != VerifyMode::kLossless ||
                     context.config.vocab < kRankedTokens || context.config.vocab > kMaxTopVocab ||
                     (model != nullptr && model->type() == SpecType::kLongSpec);
  if (chain) return {.width = 0};
  if (run.pending) return *run.pending;
  const bool cuda = context.device.backend() == Backend::kCuda;
  if (const std::optional<DType> copy = setup.session.partial.shape.copy) {
    if (!cuda || !streams) return {.width = 0};
    // A copy errs where two tokens are nearly equally likely; then keep the second. A draft's guesses take rows, too.
    return {.width = model != nullptr ? 8 : 4,
            .grown = kMaxPassNodes,
            .nodes = kMaxPassNodes,
            .least = 0.01,
            .sharpness = *copy == DType::kInt4 ? 12.0 : 32.0,
            .unranked = 0.0005};
  }
  if (model != nullptr && !(cuda && streams)) return {.width = 0};
  // Blocks are wrong anywhere, so unlikely tokens are kept; but wider steps cost more than they confirm
  // (docs/measuring.md, "Lossless partial verification").
  PendingTreeLimits limits{.width = 8, .grown = 384, .nodes = 384};
  if (!cuda) limits = {.width = 2, .grown = kMaxPending + 16, .nodes = kMaxPending + 16, .least = 0.2};
  if (!streams) limits.nodes = kMaxUnhidden, limits.grown = kMaxPending;
  return limits;
}

// Sizes the run's passes for its trees.
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

// A larger vocabulary cannot be ranked; check_prompt() has rejected runs that ask for it.
LogProbs log_probs_of(const RunContext& context, const GenerateOptions& run) {
  return context.config.vocab > kMaxTopVocab ? LogProbs::kNone : run.log_probs;
}

SessionOptions session_options(const RunContext& context, const GenerateOptions& run, int64_t prompt_tokens,
                               int64_t max_tokens) {
  const EngineOptions& options = context.options;
  SessionOptions session;
  session.prompt_tokens = prompt_tokens;
  const bool keeps = run.keep != KeepRows::kNone;
  session.context_tokens = keeps ? most_run_tokens(context, run) : prompt_tokens + max_tokens;
  session.most_prompt_tokens = keeps ? session.context_tokens : 0;
  session.kv = run.kv.value_or(options.kv);
  session.k_type = options.cache_type_k.value_or(context.weights.dtype());
  session.v_type = options.cache_type_v.value_or(context.weights.dtype());
  session.sampling = run.sampling;
  session.spill = options.spill;
  session.ring = options.ring;
  session.prefill_group = options.prefill_group;
  session.log_probs = log_probs_of(context, run);
  session.remainders = options.remainders;
  return session;
}

SessionPlan session_plan(const RunContext& context, const RunSetup& setup) {
  return plan_session(context.device, context.compute, context.config, context.weights, setup.session);
}

// Sets what partial steps read, and the options that depend on it.
void set_partial(PartialKind kind, const RunContext& context, const GenerateOptions& run, RunSetup* setup) {
  setup->session.partial = {};
  if (*setup->verify.mode != VerifyMode::kFull) {
    const std::optional<DType> copy = copy_type(kind);
    setup->session.partial = {.shape = {.blocks = copy ? 0 : setup->verify.blocks(), .copy = copy},
                              .score = setup->verify.score,
                              .reduce = setup->verify.reduce};
  }
  setup->draft_run.most_pending = setup->session.partial_on() ? kMaxPending : 0;
  set_pending(pending_limits(context, run, *setup, false), setup);
}

std::optional<SessionPlan> try_session_plan(const RunContext& context, const RunSetup& setup) {
  const SessionLayout layout(context.device, context.compute, context.config, context.weights, setup.session);
  std::optional<MemoryPlan> memory = layout.try_plan();
  if (!memory) return std::nullopt;
  return SessionPlan{.layout = layout, .memory = *std::move(memory)};
}

void take_pending(const PendingTreeLimits& limits, RunSetup* setup) {
  set_pending(limits, setup);
  start_draft(setup);
}

// Plans a run; if it streams, with larger passes if they fit. An error is that of the small passes, so the alternatives
// that it offers fit.
SessionPlan plan_pending(const RunContext& context, const GenerateOptions& run, RunSetup* setup) {
  const PendingTreeLimits small = setup->pending, streaming = pending_limits(context, run, *setup, true);
  take_pending(small, setup);
  SessionPlan plan = session_plan(context, *setup);
  if (streaming == small || plan.memory.ring_slots == 0) return plan;
  take_pending(streaming, setup);
  if (std::optional<SessionPlan> larger = try_session_plan(context, *setup)) return *std::move(larger);
  take_pending(small, setup);
  return session_plan(context, *setup);
}

// Plans a run that streams, with this kind of partial KV. None: it does not fit.
std::optional<SessionPlan> try_plan_with(PartialKind kind, const RunContext& context, const GenerateOptions& run,
                                         RunSetup* setup) {
  set_partial(kind, context, run, setup);
  if (!setup->session.partial_on()) return std::nullopt;
  const PendingTreeLimits larger = pending_limits(context, run, *setup, true);
  const PendingTreeLimits small = pending_limits(context, run, *setup, false);
  take_pending(larger, setup);
  if (std::optional<SessionPlan> plan = try_session_plan(context, *setup)) return plan;
  if (small == larger) return std::nullopt;
  take_pending(small, setup);
  return try_session_plan(context, *setup);
}

// The copies that --partial-kv auto may choose, the most exact first.
std::vector<PartialKind> kinds_of_copies(const RunContext& context, const RunSetup& setup) {
  std::vector<PartialKind> kinds;
  if (setup.session.kv == KvMode::kDevice) return kinds;
  for (const PartialKind kind : {PartialKind::kInt8, PartialKind::kInt4}) {
    const DType type = *copy_type(kind);
    const bool same_rows = setup.session.k_type == type && setup.session.v_type == type;
    if (!same_rows && copy_type_fits(type, context.config.head_dim)) kinds.push_back(kind);
  }
  return kinds;
}

// --partial-kv auto: plans with the most exact copy that fits. None: the whole KV cache stays on the device, or no copy
// fits; the setup is then that of blocks.
std::optional<SessionPlan> plan_with_copy(const RunContext& context, const GenerateOptions& run, RunSetup* setup) {
  start_draft(setup);
  const std::optional<SessionPlan> whole = try_session_plan(context, *setup);
  if (whole && whole->memory.ring_slots == 0) return std::nullopt;
  for (const PartialKind kind : kinds_of_copies(context, *setup)) {
    if (std::optional<SessionPlan> plan = try_plan_with(kind, context, run, setup)) return plan;
  }
  set_partial(PartialKind::kBlocks, context, run, setup);
  return std::nullopt;
}

// The error of --partial-kv auto, with the least budgets of all kinds: a copy may need less of one budget than blocks,
// whose error is `refused`.
DoesNotFit refusal_of_all(const DoesNotFit& refused, const RunContext& context, const GenerateOptions& run,
                          RunSetup* setup) {
  MinimumBudgets least = refused.minimum();
  for (const PartialKind kind : kinds_of_copies(context, *setup)) {
    set_partial(kind, context, run, setup);
    if (!setup->session.partial_on()) continue;
    try {
      plan_pending(context, run, setup);
    } catch (const DoesNotFit& copy) {
      least = least_of(least, copy.minimum());
    }
  }
  return {refused.input(), least};
}

// The most exact kind that is smaller than the requested one and fits.
std::optional<PartialKind> smaller_kind(const RunContext& context, const GenerateOptions& run,
                                        const RunSetup& refused) {
  for (const PartialKind kind : {PartialKind::kInt4, PartialKind::kBlocks}) {
    const std::optional<DType> copy = copy_type(kind);
    if (copy && (copy == refused.session.partial.shape.copy || !copy_type_fits(*copy, context.config.head_dim)))
      continue;
    RunSetup other = resolve_options(context, refused.session.prompt_tokens, run);
    other.session.prefix = refused.session.prefix;
    other.session.scores = refused.session.scores;
    other.session.lean_prefill = refused.session.lean_prefill;
    if (try_plan_with(kind, context, run, &other)) return kind;
  }
  return std::nullopt;
}

// The kind that a run's setup begins with.
PartialKind first_kind(const RunSetup& setup) {
  const PartialKind kind = setup.verify.partial_kind();
  return kind == PartialKind::kAuto ? PartialKind::kBlocks : kind;
}

// Whether a lean prefill takes less.
bool prefill_dequantises(const RunContext& context) {
  return context.device.backend() == Backend::kCuda && context.weights.keeps_blocks();
}

// Plans a run with the kind of partial KV that it is to have.
SessionPlan plan_run(const RunContext& context, const GenerateOptions& run, RunSetup* setup) {
  const PartialKind kind = setup->verify.partial_kind();
  const bool partial = *setup->verify.mode != VerifyMode::kFull;
  if (partial && kind == PartialKind::kAuto) {
    if (std::optional<SessionPlan> plan = plan_with_copy(context, run, setup)) return *std::move(plan);
  }
  try {
    return plan_pending(context, run, setup);
  } catch (const DoesNotFit& refused) {
    if (partial && kind == PartialKind::kAuto) throw refusal_of_all(refused, context, run, setup);
    if (!refused.input().partial.copy) throw;
    const std::optional<PartialKind> other = smaller_kind(context, run, *setup);
    if (!other) throw;
    throw DoesNotFit(refused, *other);
  }
}

}  // namespace

int64_t most_run_tokens(const RunContext& context, const GenerateOptions& run) {
  const int64_t limit = context.context_limit();
  return run.keep != KeepRows::kNone && run.keep_tokens > 0 ? std::min(run.keep_tokens, limit) : limit;
}

int64_t most_answer_tokens(const RunContext& context, int64_t prompt_tokens, const GenerateOptions& run) {
  const int64_t room = most_run_tokens(context, run) - prompt_tokens;
  return run.max_tokens < 0 ? room : std::min(run.max_tokens, room);
}

void check_ids(const ModelConfig& config, const std::vector<int32_t>& ids) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= config.vocab) {
      throw_error(ExitCode::kBadInput, "prompt",
                  str("has token id ", id, ", the model's vocabulary is 0 to ", config.vocab - 1));
    }
  }
}

void check_prompt(const RunContext& context, const std::vector<int32_t>& prompt, const GenerateOptions& run) {
  const ModelConfig& config = context.config;
  const int64_t tokens = static_cast<int64_t>(prompt.size()), limit = most_run_tokens(context, run);
  if (tokens == 0) throw_error(ExitCode::kBadInput, "prompt", "is empty: there is no token to start from");
  if (tokens + 1 > limit) {
    throw_error(ExitCode::kBadInput, "prompt",
                str("has ", tokens, " tokens, the context holds ", limit, " with the answer"),
                context.context_limit() < config.max_positions
                    ? str("Shorten it (headrace summarize --long split or --truncate middle does), or raise -c: the "
                          "model takes ",
                          config.max_positions, ".")
                    : "Shorten it (headrace summarize --long split or --truncate middle does), or use a model with a "
                      "longer context.");
  }
  check_ids(config, prompt);
  if (run.log_probs == LogProbs::kComputed && config.vocab > kMaxTopVocab) {
    throw_error(ExitCode::kBadInput, "logprobs",
                str("need a vocabulary of at most ", kMaxTopVocab, " tokens, ", context.model, " has ", config.vocab));
  }
}

RunSetup resolve_options(const RunContext& context, int64_t prompt_tokens, const GenerateOptions& run) {
  RunSetup setup;
  setup.max_tokens = most_answer_tokens(context, prompt_tokens, run);
  setup.verify = verify_of(context, run);
  setup.model = run.speculate ? context.draft_model : nullptr;
  SessionOptions& session = setup.session = session_options(context, run, prompt_tokens, setup.max_tokens);
  if (setup.model != nullptr) {  // the last step's tree may extend beyond the last token
    session.context_tokens += setup.model->tree().levels;
  }
  setup.draft_run = {.prompt_tokens = prompt_tokens,
                     .context_tokens = session.context_tokens,
                     .most_prompt_tokens = session.most_prompt_tokens,
                     .sampling = run.sampling,
                     .tree_limits = run.tree_limits,
                     .saves = !context.options.prefix_cache.folder.empty(),
                     .earlier_answers = run.earlier_answers && *setup.verify.mode != VerifyMode::kApproximate};
  set_partial(first_kind(setup), context, run, &setup);
  return setup;
}

SessionPlan finalize(const RunContext& context, const GenerateOptions& run, RunSetup* setup) {
  try {
    return plan_run(context, run, setup);
  } catch (const DoesNotFit&) {
    if (!prefill_dequantises(context)) throw;
  }
  setup->session.lean_prefill = true;
  set_partial(first_kind(*setup), context, run, setup);
  return plan_run(context, run, setup);
}

RunSetup following_setup(const RunContext& context, const RunSetup& before, const PromptShape& prompt,
                         const GenerateOptions& run) {
  RunSetup setup;
  setup.max_tokens = most_answer_tokens(context, prompt.tokens, run);
  setup.verify = before.verify;
  setup.pending = before.pending;
  setup.model = before.model;
  setup.draft_run = before.draft_run;
  setup.draft_run.prompt_tokens = prompt.tokens;
  setup.draft_run.sampling = run.sampling;
  setup.session = before.session;
  setup.session.prompt_tokens = prompt.tokens;
  setup.session.kept_rows = prompt.saved;
  setup.session.sampling = run.sampling;
  setup.session.log_probs = log_probs_of(context, run);
  start_draft(&setup);
  return setup;
}

RunPlan run_plan(const RunContext& context, const RunSetup& setup, const MemoryPlan& memory) {
  const SessionOptions& session = setup.session;
  RunPlan plan{.prompt_tokens = session.prompt_tokens,
               .context_tokens = session.context_tokens,
               .verify = *setup.verify.mode,
               .interval = setup.verify.interval,
               .partial = session.partial_on() ? session.partial.shape : PartialShape{},
               .pass_rows = session.pass_rows,
               .grow_rows = session.grow_rows,
               .weights_bytes = context.weights.bytes(),
               .weight_types = context.weights.types(),
               .sizes = model_sizes(context.config, context.weights,
                                    row_shape(context.config, session.k_type, session.v_type, context.weights.dtype())),
               .memory = memory};
  if (setup.model != nullptr) {
    plan.draft = setup.model->name();
    plan.draft_levels = setup.model->tree().levels;
    plan.draft_window = setup.model->window(setup.draft_run);
    plan.tunes_trees = setup.model->tunes_trees();
    plan.draft_weights_bytes = setup.model->weights_bytes();
  }
  return plan;
}

}  // namespace headrace
