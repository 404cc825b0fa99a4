#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "kernels/product/op.h"
#include "offload/device/trace.h"
#include "runtime/draft/open/open_draft.h"
#include "runtime/engine/attempt.h"
#include "runtime/engine/savings.h"
#include "runtime/model/card_rope.h"
#include "runtime/model/files/open_checkpoint.h"
#include "runtime/prefix/cache_key.h"
#include "runtime/prefix/fingerprint_cache.h"

namespace headrace {
namespace {

uint64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * kKiB;
}

void append_unique(const std::vector<int32_t>& more, std::vector<int32_t>* ids) {
  for (const int32_t id : more) {
    if (id >= 0 && std::find(ids->begin(), ids->end(), id) == ids->end()) ids->push_back(id);
  }
}

// What allows more tokens than a model has positions.
std::string extend_hint(const ModelConfig& own, int64_t tokens) {
  const std::optional<RopeOverrides> card = card_rope(own);
  const bool enough = card && tokens <= with_rope(own, *card).max_positions;
  return str("Leave -c out to use them all",
             enough ? ", or extend them as the model's card does: " + rope_flags_text(*card) : ".");
}

// Where K is made of V, both have one type.
void check_cache_types(const ModelConfig& config, DType k_type, DType v_type) {
  const bool one = std::any_of(config.layers.begin(), config.layers.end(), [](const LayerSpec& layer) {
    return layer.has_attention() && layer.attention().k_is_v;
  });
  if (!one || k_type == v_type) return;
  throw_error(ExitCode::kUsage, "--cache-type-k",
              str("is ", dtype_name(k_type), " and --cache-type-v is ", dtype_name(v_type),
                  ", but this model's keys are made of its values"),
              "Give both the same type.");
}

}  // namespace

void Engine::Impl::open() {
  const HostClock::time_point start = HostClock::now();
  if (!device) device = open_device(options.device);
  limits = dry_run_of(*device);
  if (options.rates_of) rates = options.rates_of(*device);
  if (!checkpoint) checkpoint = open_checkpoint(options.model);
  if (options.want_tokenizer) {
    tokenizer = checkpoint->load_tokenizer();
    choose_chat();
  }
  config = with_rope(checkpoint->config(), options.rope);
  if (options.ctx_size > config.max_positions) {
    throw_error(ExitCode::kUsage, "--ctx-size",
                str(options.ctx_size, " is more than the ", config.max_positions, " positions that ",
                    checkpoint->path(), " has"),
                extend_hint(checkpoint->config(), options.ctx_size));
  }
  end_ids = config.end_ids;
  if (tokenizer) append_unique({tokenizer->eos()}, &end_ids);
  append_unique(turn_ends, &end_ids);
  if (thinking && thinking->channels) std::erase(end_ids, tokenizer->find(kChannelMessageEnd));
  weights =
      Weights::place(*checkpoint, device->backend(),
                     weight_options(options.weights, options.dtype, checkpoint->natural_dtype(), device->backend()));
  check_substitute(options, *weights, device->backend(), checkpoint->path());
  check_cache_types(config, options.cache_type_k.value_or(weights->dtype()),
                    options.cache_type_v.value_or(weights->dtype()));
  reserve_weights();
  use_first_draft();
  compute = device->make_stream("compute", StreamRole::kCompute);
  open_prefixes();
  load_ms = ms_since(start);
}

void Engine::Impl::use_draft(const DraftOptions& draft) {
  kept.reset();  // may hold rows of the draft
  draft_model.reset();
  draft_is_usual = draft.type == SpecType::kAuto;
  options.draft = draft;
  options.draft.type = chosen_type(draft, config, checkpoint->path());
  weights_stand = false;
  draft_model = open_draft(options.draft, *device, config, *weights, tokenizer ? &*tokenizer : nullptr);
}

void Engine::Impl::open_prefixes() {
  if (options.prefix_cache.folder.empty()) return;
  const HostSpan span(device->trace(), "read weights");
  prefixes = std::make_unique<PrefixStore>(options.prefix_cache);
  RowsKeyInput rows{.weights = cached_fingerprint(*checkpoint, device->threads(), *prefixes),
                    .config = &config,
                    .dtype = weights->dtype(),
                    .k_type = options.cache_type_k.value_or(weights->dtype()),
                    .v_type = options.cache_type_v.value_or(weights->dtype()),
                    .quantised = weights->quantises_to(),
                    .prefill_group = options.prefill_group,
                    .prefill_int8 = context().prefills_in_int8(),
                    .keeps_blocks = weights->keeps_blocks()};
  prefix_identity = rows_cache_key(rows, *device);
  rows.prefill_int8 = !rows.prefill_int8;
  other_prefill = {.identity = rows_cache_key(rows, *device), .type = rows.prefill_int8 ? "int8" : "bf16"};
}

std::unique_ptr<PrefixRun> Engine::Impl::find_prefix(const std::vector<int32_t>& prompt, const RunSetup& setup) {
  if (!prefixes) return nullptr;
  const Backend backend = device->backend();
  const int64_t group = setup.session.prefill_rows(backend);
  const int64_t prompt_tokens = static_cast<int64_t>(prompt.size());
  const auto known = [this](const TensorSource& source) {
    return cached_fingerprint(source, device->threads(), *prefixes);
  };
  const bool drafts = setup.model != nullptr;
  const SnapshotShape states = snapshot_shape(config, weights->dtype(), setup.session.k_type, setup.session.v_type);
  const bool snapshots = states.layers > 0;
  const int64_t unit = snapshots ? setup.session.states_unit(backend, drafts) : setup.session.cut_unit(backend, drafts);
  return std::make_unique<PrefixRun>(
      *prefixes,
      PrefixRunSetup{.shape = row_shape(config, setup.session.k_type, setup.session.v_type, weights->dtype()),
                     .identity = prefix_identity,
                     .other = other_prefill,
                     .model = std::filesystem::path(checkpoint->path()).filename().string(),
                     .unit = unit,
                     .computed = setup.session.partial_on() ? prompt_scoring_rows(prompt_tokens, group) : 1,
                     .draft = setup.model != nullptr ? setup.model->needs(setup.draft_run(), known) : DraftNeeds{},
                     .states = states,
                     .states_at = snapshots ? snapshot_positions(prompt_tokens, unit) : std::vector<int64_t>(),
                     .prompt = prompt});
}

// Saved prefixes must not make a run impossible: if there is no room for the memory that they need, the run proceeds
// without them. They were asked for, so a draft that nobody named is left out first.
std::optional<PreparedRun> Engine::Impl::plan_with_prefix(const RunContext& context, const std::vector<int32_t>& prompt,
                                                          const GenerateOptions& run, RunSetup setup, PrefixUse* use) {
  const int64_t prompt_tokens = static_cast<int64_t>(prompt.size());
  std::unique_ptr<PrefixRun> prefix;
  const auto prepared = [&](const RunContext& with) -> std::optional<PreparedRun> {
    setup.session.prefix = prefix.get();
    std::optional<SessionPlan> plan = try_finalize(with, run, &setup);
    if (!plan) return std::nullopt;
    return PreparedRun{.setup = std::move(setup), .plan = *std::move(plan), .prefix = std::move(prefix)};
  };
  if (setup.session.scores == nullptr) prefix = find_prefix(prompt, setup);
  if (std::optional<PreparedRun> whole = prepared(context)) return whole;
  if (!prefix) return std::nullopt;
  const bool drafts = setup.model != nullptr;
  if (draft_may_shrink(setup)) {  // then it needs other saved rows
    setup = resolve_options(context, prompt_tokens, run);
    setup.windowed = true;
    prefix = find_prefix(prompt, setup);
    if (std::optional<PreparedRun> windowed = prepared(context)) return windowed;
  }
  if (const std::optional<RunContext> plain = without_draft(context, setup)) {
    setup = resolve_options(*plain, prompt_tokens, run);
    prefix = find_prefix(prompt, setup);
    if (std::optional<PreparedRun> saving = prepared(*plain)) return saving;
  }
  const std::unique_ptr<PrefixRun> without = std::move(prefix);
  RunContext unsaved = context;
  unsaved.saves = false;
  setup = resolve_options(unsaved, prompt_tokens, run);
  std::optional<PreparedRun> rest = prepared(unsaved);
  if (rest) note_no_room(*without, drafts, use);
  return rest;
}

void Engine::Impl::note_no_room(const PrefixRun& prefix, bool drafts, PrefixUse* use) const {
  const SnapshotShape shape = snapshot_shape(config, weights->dtype(), options.cache_type_k.value_or(weights->dtype()),
                                             options.cache_type_v.value_or(weights->dtype()));
  const uint64_t states = prefix.states_to_save().size() * StateSnapshots::bytes(shape);
  use->asked = true;
  use->notes.insert(use->notes.end(), prefix.notes().begin(), prefix.notes().end());
  use->notes.push_back(str("prefix cache: ", drafts ? "memory" : "--host-mem", " has no room for the ",
                           format_bytes(prefix.pinned_bytes(device->backend()) + states),
                           drafts ? " of host memory, and for a draft's states of the prompt," : "",
                           " that loading and saving rows needs; this run does not use it"));
}

bool Engine::Impl::load_weights(Progress* progress, const std::atomic<bool>* interrupt) {
  if (!weights->loaded() || (draft_model && !draft_model->loaded())) {
    const HostClock::time_point start = HostClock::now();
    const HostSpan span(device->trace(), "load weights");
    const bool loaded = weights->load(*checkpoint, *device, progress, interrupt) &&
                        (!draft_model || draft_model->load(progress, interrupt));
    load_ms += ms_since(start);
    if (!loaded) return false;
  }
  if (!options.allow_damaged_weights) {
    refuse_damage(checkpoint->path(), weights->damage());
    if (draft_model) refuse_damage(options.draft.model, draft_model->damage());
  }
  return true;
}

// Rejects weights that were overwritten between their fingerprint and their loading, since rows would be saved under
// the wrong identity. Checked before each run until the check has passed once.
void Engine::Impl::check_weights() {
  if (!prefixes || weights_stand) return;
  refuse_changed(checkpoint->files());
  if (draft_model) refuse_changed(draft_model->files());
  weights_stand = true;
}

void Engine::Impl::choose_chat() {
  thinking = thinking_marks(*tokenizer, "");
  if (!options.use_chat_template) return;
  const std::string &name = options.chat_template, &file = options.chat_template_file;
  const std::string source = !name.empty()   ? chat_template_by_name(name, *tokenizer)
                             : !file.empty() ? read_document(file)
                                             : checkpoint->chat_template();
  if (!options.reasoning_effort.empty() && !template_traits(source).effort)
    refuse_effort(ExitCode::kUsage, "--reasoning-effort", options.reasoning_effort);
  if (source.empty()) return;
  chat_name = !name.empty() ? name : !file.empty() ? file : "model";
  chat = jinja::Template(source, name.empty() && file.empty() ? checkpoint->path() + ", chat template" : chat_name);
  chat_traits = template_traits(source);
  turn_ends = end_tokens(*tokenizer, source);
  thinking = thinking_marks(*tokenizer, source);
}

Thinking Engine::Impl::thinking_after(const std::vector<int32_t>& prompt) const {
  return {.marks = thinking, .inside = thinking && ends_with_open_mark(*tokenizer, *thinking, prompt)};
}

ThinkingBudget Engine::Impl::thinking_budget(const std::vector<int32_t>& prompt, int64_t tokens) const {
  if (!thinking) return {};
  return {*tokenizer, *thinking, thinking_after(prompt).inside, tokens};
}

// The grammar holds behind the thinking: where the prompt has opened it, or the answer may.
std::unique_ptr<TokenMasks> Engine::Impl::answer_masks(const std::vector<int32_t>& prompt, const GenerateOptions& run) {
  if (run.grammar == nullptr) return nullptr;
  CHECK(tokenizer.has_value());
  if (token_trie == nullptr) token_trie = std::make_unique<TokenTrie>(*tokenizer, config.vocab);
  const Thinking place = thinking_after(prompt);
  Grammar grammar = *run.grammar;
  if (place.marks && (place.inside || options.thinking)) {
    grammar = behind_thinking(grammar, place.inside ? "" : place.marks->open, place.marks->close);
  }
  return std::make_unique<TokenMasks>(std::move(grammar), *token_trie, end_ids);
}

void Engine::Impl::check_run(const std::vector<int32_t>& prompt, const GenerateOptions& run) const {
  headrace::check_prompt(context(), prompt, run);
  check_ids(config, run.score_next);
  CHECK(run.score_next.empty() || run.score_next.size() == prompt.size());
  check_ids(config, run.forced);
  CHECK(!run.score_next.empty() || (!run.prefill && run.compare == nullptr));
  CHECK(run.forced.empty() ||
        (static_cast<int64_t>(run.forced.size()) == run.max_tokens && run.sampling.temperature == 0));
}

std::optional<GenerateResult> Engine::try_generate(const std::vector<int32_t>& prompt, const GenerateOptions& options,
                                                   Progress* progress) {
  Impl& engine = *impl_;
  engine.check_run(prompt, options);
  Trace* const trace = engine.device->trace();
  if (trace) options.label.empty() ? trace->skip_run() : trace->begin_run();
  const HostSpan span(trace, trace ? trace->keep(options.label) : nullptr);
  GenerateResult result;
  result.prompt_tokens = static_cast<int64_t>(prompt.size());
  engine.device->vram().reset_peak();
  engine.device->host_mem().reset_peak();
  if (engine.prefixes) engine.prefixes->refresh();
  PromptScores scores{.next = options.score_next, .log_probs = {}, .compare = options.compare};
  Attempted run{.engine = engine, .prompt = prompt, .options = options, .progress = progress, .result = result};
  for (bool finished = false; !finished;) {  // again if a saved prefix is damaged
    std::optional<PreparedRun> prepared = engine.prepare(prompt, options, &scores, &result);
    if (!prepared) return std::nullopt;
    Attempt attempt(run, *std::move(prepared));
    const std::optional<int32_t> first = attempt.prefill();
    if (first) attempt.decode(*first);
    finished = attempt.finish();
  }
  engine.report(&result);
  return result;
}

void Engine::Impl::report(GenerateResult* result) {
  if (prefixes && prefixes->note() != prefix_note) {  // describes a lasting state: reported once
    prefix_note = prefixes->note();
    if (!prefix_note.empty()) result->prefix.notes.push_back(prefix_note);
  }
  result->timings.load_ms = load_ms;
  result->chat_template = chat_name;
  result->weight_types = weights->types();
  result->prefill_type = prefill_type_name(result->plan.prefill_int8, weights->dtype());
  result->plain_products = plain_products(*compute);
  result->damage = weights->damage().lines;
  const std::vector<std::string> drafts = draft_model ? draft_model->damage().lines : std::vector<std::string>();
  result->damage.insert(result->damage.end(), drafts.begin(), drafts.end());
  result->memory = {.vram_peak_bytes = device->vram().peak_bytes(),
                    .host_peak_bytes = device->host_mem().own_peak_bytes(),
                    .disk_peak_bytes = result->plan.disk_bytes,
                    .rss_peak_bytes = peak_rss_bytes(),
                    .weights_bytes = weights->bytes() + (draft_model ? draft_model->weights_bytes() : 0),
                    .kv_bytes = result->plan.kv_bytes()};
}

// A run on the previous run's rows executes that run's plan; any other run frees the rows and has its own plan.
std::optional<PreparedRun> Engine::Impl::prepare(const std::vector<int32_t>& prompt, const GenerateOptions& run,
                                                 PromptScores* scores, GenerateResult* result) {
  const int64_t rows = result->kept_tokens = kept ? usable_rows(context(), *kept, prompt, run) : 0;
  if (rows > 0) return follow_run(context(), std::move(kept), {.tokens = result->prompt_tokens, .saved = rows}, run);
  kept.reset();
  for (const RunContext& context : contexts(result->prompt_tokens, run)) {
    RunSetup setup = resolve_options(context, result->prompt_tokens, run);
    if (!scores->next.empty()) setup.session.scores = scores;
    std::optional<PreparedRun> run_of = plan_with_prefix(context, prompt, run, std::move(setup), &result->prefix);
    if (run_of) return run_of;
  }
  return std::nullopt;
}

// Of a run without a saved prefix, which needs the least.
DoesNotFit Engine::Impl::refusal(const std::vector<int32_t>& prompt, const GenerateOptions& run) const {
  PromptScores scores{.next = run.score_next, .log_probs = {}, .compare = run.compare};
  return refusal(static_cast<int64_t>(prompt.size()), run, scores.next.empty() ? nullptr : &scores);
}

}  // namespace headrace
