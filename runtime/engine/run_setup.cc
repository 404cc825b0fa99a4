#include "runtime/engine/run_setup.h"

#include <algorithm>

#include "runtime/text/document.h"

namespace headrace {
namespace {

// The verify mode: the flag's, else lossless if partial steps are asked for, else what auto chooses.
// Substitutes are of use in a lossless run alone.
VerifyOptions verify_of(const RunContext& context, int64_t prompt_tokens, const GenerateOptions& run, bool substitutes,
                        const char** note) {
  VerifyOptions verify = run.verify.value_or(context.options.verify);
  if (substitutes) verify.mode = VerifyMode::kLossless;
  const bool drafts = context.draft_model != nullptr && run.speculate;
  const bool asked = verify.names_partial(), left_out = !context.draft_left_out.empty() && asked;
  if (verify.mode == VerifyMode::kAuto && asked) verify.mode = VerifyMode::kLossless;
  if (!verify.mode) verify.mode = drafts || left_out ? VerifyMode::kLossless : VerifyMode::kFull;
  if (*verify.mode == VerifyMode::kAuto) {
    const AutoVerify chosen = auto_verify(context, prompt_tokens, run);
    verify.mode = chosen.mode;
    *note = chosen.note;
  }
  if (*verify.mode == VerifyMode::kApproximate && verify.interval == kAutoInterval)
    verify.interval = kPublishedInterval;
  CHECK(!verify.budget || partial_budget_fits(*verify.budget), "budget=", *verify.budget);  // the flag has checked it
  const std::optional<DType> copy = copy_type(verify.partial_kind());
  if (*verify.mode != VerifyMode::kFull && copy && !copy_type_fits(*copy, context.config.attention().head_dim)) {
    throw_error(ExitCode::kUsage, "--partial-kv",
                str(dtype_name(*copy), " needs heads whose size is a power of two of at least ", kInt4Group,
                    ", this model's have ", context.config.attention().head_dim),
                "Use int8, blocks or auto.");
  }
  return verify;
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
  session.weights = context.weights_place;
  session.k_type = options.cache_type_k.value_or(context.weights.dtype());
  session.v_type = options.cache_type_v.value_or(context.weights.dtype());
  session.sampling = run.sampling;
  session.spill = options.spill;
  session.ring = options.ring;
  session.prefill_group = options.prefill_group;
  session.prefill_int8 = context.prefills_in_int8(run.prefill);
  session.log_probs = log_probs_of(context, run);
  session.rules = run.rules();
  session.penalties = run.penalties;
  session.remainders = options.remainders;
  session.all_window_rows = options.all_window_rows;
  if (run.keep == KeepRows::kPrompt) {  // then a run has the bits of a fresh one
    const bool drafts = context.draft_model != nullptr && run.speculate;
    session.snapshot_unit = session.states_unit(context.device.backend(), drafts);
  }
  return session;
}

// That a run by this plan has on the device, without substitutes.
uint64_t device_weights_bytes(const Weights& weights, const MemoryPlan& memory) {
  uint64_t bytes = weights.all_bytes() - memory.host_weights_bytes;
  if (memory.host_embedding_bytes > 0) bytes -= weights.movable_bytes();
  if (weights.embedding_in_host()) bytes -= weights.embedding_bytes();
  return bytes;
}

}  // namespace

DraftRun RunSetup::draft_run() const {
  const bool partial = session.partial_on();
  return {.prompt_tokens = session.prompt_tokens,
          .context_tokens = session.context_tokens,
          .most_prompt_tokens = session.most_prompt_tokens,
          .most_pending = partial ? session.most_pending : 0,
          .pass_nodes = partial ? session.pass_rows + session.most_pending : 0,
          .sampling = session.sampling,
          .tree_limits = tree_limits,
          .saves = saves,
          .earlier_answers = earlier_answers,
          .windowed = windowed};
}

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
    throw ContextExceeded(
        "prompt", str("has ", tokens, " tokens, the context holds ", limit, " with the answer"),
        context.context_limit() < config.max_positions
            ? str("Shorten it (headrace summarize --long split or --truncate middle does), or raise -c: the model "
                  "takes ",
                  config.max_positions, ".")
            : "Shorten it (headrace summarize --long split or --truncate middle does), or use a model with a longer "
              "context.");
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
  const std::optional<WeightType> substitute = chosen_substitute(context, prompt_tokens, run);
  setup.verify = verify_of(context, prompt_tokens, run, substitute.has_value(), &setup.verify_note);
  setup.model = run.speculate ? context.draft_model : nullptr;
  SessionOptions& session = setup.session = session_options(context, run, prompt_tokens, setup.max_tokens);
  session.substitute = substitute;
  if (!context.draft_left_out.empty() && run.speculate) {
    setup.memory_note = str("memory has no room for the draft ", context.draft_left_out,
                            ", which is left out (--spec-type ", context.draft_left_out, " says what it needs)");
  }
  if (setup.model != nullptr) {  // the last step's tree may extend beyond the last token
    session.context_tokens += setup.model->tree().levels;
  }
  setup.tree_limits = run.tree_limits;
  setup.saves = context.saves && !context.options.prefix_cache.folder.empty();
  setup.earlier_answers = run.earlier_answers && *setup.verify.mode != VerifyMode::kApproximate;
  setup.windowed = context.options.windowed_draft;
  set_first_kind(context, run, &setup);
  return setup;
}

RunSetup following_setup(const RunContext& context, const RunSetup& before, const PromptShape& prompt,
                         const GenerateOptions& run) {
  RunSetup setup;
  setup.max_tokens = most_answer_tokens(context, prompt.tokens, run);
  setup.verify = before.verify;
  setup.verify_note = before.verify_note;
  setup.pending = before.pending;
  setup.most_tree_nodes = before.most_tree_nodes;
  setup.model = before.model;
  setup.tree_limits = before.tree_limits;
  setup.saves = before.saves;
  setup.earlier_answers = before.earlier_answers;
  setup.windowed = before.windowed;
  setup.session = before.session;
  setup.session.prompt_tokens = prompt.tokens;
  setup.session.kept_rows = prompt.saved;
  setup.session.sampling = run.sampling;
  setup.session.log_probs = log_probs_of(context, run);
  setup.session.penalties = run.penalties;
  if (setup.model != nullptr) setup.draft = setup.model->start(setup.draft_run());
  setup.session.draft = setup.draft.get();
  return setup;
}

RunPlan run_plan(const RunContext& context, const RunSetup& setup, const MemoryPlan& memory) {
  const SessionOptions& session = setup.session;
  const RowShape rows = row_shape(context.config, session.k_type, session.v_type, context.weights.dtype());
  RunPlan plan{.prompt_tokens = session.prompt_tokens,
               .context_tokens = session.context_tokens,
               .verify = *setup.verify.mode,
               .interval = setup.verify.interval,
               .partial = session.partial_on() ? session.partial.shape : PartialShape{},
               .pass_rows = session.pass_rows,
               .grow_rows = session.grow_rows,
               .most_pending = session.most_pending,
               .weights_bytes = device_weights_bytes(context.weights, memory),
               .table_bytes = context.weights.host_bytes(),
               .weight_types = context.weights.types(),
               .prefill_type = prefill_type_name(session.prefill_int8, context.weights.dtype()),
               .sizes = model_sizes(context.config, context.weights, rows),
               .memory_note = setup.memory_note,
               .verify_note = setup.verify_note,
               .memory = memory};
  if (memory.substitutes()) {
    plan.substitute = session.substitute;
    plan.partial_sizes =
        substituted_sizes(plan.sizes, context.weights, *session.substitute, memory.host_weights_layers);
  }
  if (setup.model != nullptr) {
    plan.draft = setup.model->name();
    plan.draft_levels = setup.model->tree().levels;
    plan.draft_window = setup.model->window(setup.draft_run());
    plan.tunes_trees = setup.model->tunes_trees();
    plan.draft_weights_bytes = plan.draft_pass.bytes = setup.model->weights_bytes();
    if (setup.model->type() == SpecType::kMtp) {
      const int64_t window = plan.draft_window.rows;
      plan.draft_pass = mtp_pass(context.config, context.weights,
                                 window > 0 ? std::min(window, plan.context_tokens) : plan.context_tokens);
    }
  }
  return plan;
}

std::optional<RunPlan> try_run_plan(const RunContext& context, int64_t prompt_tokens, const GenerateOptions& run) {
  RunSetup setup = resolve_options(context, prompt_tokens, run);
  const std::optional<SessionPlan> plan = try_finalize(context, run, &setup);
  return plan ? std::optional(run_plan(context, setup, plan->memory)) : std::nullopt;
}

}  // namespace headrace
