#include "runtime/engine.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include "offload/trace.h"
#include "runtime/decoder.h"
#include "runtime/document.h"
#include "runtime/drafting.h"
#include "runtime/model/weights.h"
#include "runtime/output.h"
#include "runtime/prefix/identity.h"
#include "runtime/prefix/known_weights.h"
#include "runtime/session.h"

namespace headrace {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMostUnhidden = 64;  // nodes of a refresh that no link hides: as many cost what one does

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double per_second(int64_t count, double ms) { return ms > 0 ? static_cast<double>(count) / (ms / 1000) : 0; }

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

SpillUse spill_use(const SpillStats& prefilled, const SpillStats& end, const std::string& folder) {
  return {.file_bytes = end.file_bytes,
          .prefill_written_bytes = prefilled.written_bytes,
          .decode_written_bytes = end.written_bytes - prefilled.written_bytes,
          .decode_read_bytes = end.read_bytes,
          .checksum_ms = end.checksum_ms,
          .verify_wait_ms = end.verify_wait_ms,
          .verify_late_ms = end.verify_late_ms,
          .read_busy_ms = end.read_busy_ms,
          .folder = folder,
          .how = end.how,
          .depth = end.depth,
          .reads_at_once = end.reads_at_once,
          .depth_ms = end.depth_ms};
}

}  // namespace

// What one run asks for, settled before anything is made for it.
struct RunSetup {
  int64_t max_tokens = 0;
  VerifyOptions verify;
  DraftModel* model = nullptr;            // null: plain decoding
  PendingTreeLimits pending{.width = 0};  // no width: pending tokens are a chain, or there are none
  SessionOptions session;                 // without its draft
  DraftRun draft;
};

struct Engine::Impl {
  EngineOptions options;
  std::unique_ptr<Device> device;
  std::unique_ptr<Checkpoint> checkpoint;
  ModelConfig config;  // the checkpoint's, with --rope-* in place
  std::optional<Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat;  // none: --no-chat-template, or a model without one
  std::optional<Weights> weights;
  std::unique_ptr<DraftModel> draft_model;  // null: plain decoding
  std::vector<int32_t> end_ids;
  // Lent to one run after the other: what the kernels keep on a stream (checked products, their workspace) is made
  // once.
  std::unique_ptr<Stream> compute;
  std::unique_ptr<PrefixStore> prefixes;  // null: none are kept
  PrefixKey prefix_identity{};
  std::string prefix_note;     // the last that was told
  bool weights_stand = false;  // the loaded ones are those that the identity is of
  double load_ms = 0;
  std::optional<MachineRates> rates;  // none: nothing is predicted

  explicit Impl(const EngineOptions& o) : options(o) {}
  void open();
  bool load_weights(Progress* progress, const std::atomic<bool>* interrupt);
  void check_weights();
  void choose_chat();
  void check_prompt(const std::vector<int32_t>& prompt) const;
  int64_t context_limit() const;
  SessionOptions options_of(int64_t prompt_tokens, const GenerateOptions& run, int64_t max_tokens) const;
  RunSetup set_up(int64_t prompt_tokens, const GenerateOptions& run) const;
  RunSetup set_up(int64_t prompt_tokens, const GenerateOptions& run, bool streams) const;
  RunPlan plan(int64_t prompt_tokens, const GenerateOptions& run) const;
  RunPlan describe(const RunSetup& setup, const MemoryPlan& memory) const;
  VerifyOptions verify_of(const GenerateOptions& run) const;
  PendingTreeLimits pending_limits(const GenerateOptions& run, const DraftModel* model, bool streams) const;
  void open_prefixes();
  std::unique_ptr<PrefixRun> find_prefix(const std::vector<int32_t>& prompt, const RunSetup& setup);
  GenerateResult generate(const std::vector<int32_t>& prompt, const GenerateOptions& run, Progress* progress);
  // False: a saved prefix is damaged, and nothing came of it.
  bool attempt(const std::vector<int32_t>& prompt, const GenerateOptions& run, GenerateResult* result,
               Progress* progress);
  void answer(const RunSetup& setup, Session& session, Drafting* drafting, const std::vector<int32_t>& prompt,
              const GenerateOptions& run, Output* output, GenerateResult* result, Progress* progress);
};

void Engine::Impl::open() {
  const Clock::time_point start = Clock::now();
  if (!device) device = open_device(options.device);
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
                "Leave -c out to use them all.");
  }
  end_ids = config.end_ids;
  if (tokenizer) append_unique({tokenizer->eos()}, &end_ids);
  if (tokenizer && chat) append_unique(end_tokens(*tokenizer, *chat), &end_ids);
  weights = Weights::reserve(*checkpoint, *device, options.dtype.value_or(checkpoint->natural_dtype()));
  draft_model = open_draft(options.draft, *device, config, *weights, tokenizer ? &*tokenizer : nullptr);
  compute = device->make_stream("compute", StreamRole::kCompute);
  open_prefixes();
  load_ms = ms_since(start);
}

void Engine::Impl::open_prefixes() {
  if (options.prefix_cache.folder.empty()) return;
  const HostSpan span(device->trace(), "read weights");
  prefixes = std::make_unique<PrefixStore>(options.prefix_cache);
  prefix_identity = rows_identity({.weights = known_fingerprint(*checkpoint, device->threads(), *prefixes),
                                   .config = &config,
                                   .dtype = weights->dtype(),
                                   .k_type = options.cache_type_k.value_or(weights->dtype()),
                                   .v_type = options.cache_type_v.value_or(weights->dtype()),
                                   .prefill_group = options.prefill_group},
                                  *device);
}

std::unique_ptr<PrefixRun> Engine::Impl::find_prefix(const std::vector<int32_t>& prompt, const RunSetup& setup) {
  if (!prefixes) return nullptr;
  const int64_t group = options.prefill_group > 0 ? options.prefill_group : kCudaPrefillGroup;
  return std::make_unique<PrefixRun>(
      *prefixes,
      PrefixRunSetup{.shape = row_shape(config, setup.session.k_type, setup.session.v_type),
                     .identity = prefix_identity,
                     .model = std::filesystem::path(checkpoint->path()).filename().string(),
                     .unit = device->backend() == Backend::kCpu ? 1 : group,
                     .draft = setup.model != nullptr ? setup.model->needs(setup.draft, *prefixes) : DraftNeeds{},
                     .prompt = prompt});
}

bool Engine::Impl::load_weights(Progress* progress, const std::atomic<bool>* interrupt) {
  if (weights->loaded() && (!draft_model || draft_model->loaded())) return true;
  const Clock::time_point start = Clock::now();
  const HostSpan span(device->trace(), "load weights");
  const bool loaded = weights->load(*checkpoint, *device, progress, interrupt) &&
                      (!draft_model || draft_model->load(progress, interrupt));
  load_ms += ms_since(start);
  return loaded;
}

// Weights that were written over between their fingerprint and their loading are not what rows would be saved as. They
// stay loaded: asked before each run until they were found as they should be.
void Engine::Impl::check_weights() {
  if (!prefixes || weights_stand) return;
  refuse_changed(checkpoint->files());
  if (draft_model) refuse_changed(draft_model->files());
  weights_stand = true;
}

void Engine::Impl::choose_chat() {
  if (!options.use_chat_template) return;
  if (!options.chat_template.empty()) {
    chat = chat_template_by_name(options.chat_template);
    return;
  }
  const std::string& file = options.chat_template_file;
  const std::string jinja = file.empty() ? checkpoint->chat_template() : read_document(file);
  if (!jinja.empty()) chat = recognise_chat_template(jinja, file.empty() ? checkpoint->path() : file);
}

int64_t Engine::Impl::context_limit() const { return options.ctx_size > 0 ? options.ctx_size : config.max_positions; }

void Engine::Impl::check_prompt(const std::vector<int32_t>& prompt) const {
  const int64_t tokens = static_cast<int64_t>(prompt.size()), limit = context_limit();
  if (tokens == 0) throw_error(ExitCode::kBadInput, "prompt", "is empty: there is no token to start from");
  if (tokens + 1 > limit) {
    throw_error(ExitCode::kBadInput, "prompt",
                str("has ", tokens, " tokens, the context holds ", limit, " with the answer"),
                "Shorten it (headrace summarize --truncate middle does), or use a model with a longer context.");
  }
  for (const int32_t id : prompt) {
    if (id < 0 || id >= config.vocab) {
      throw_error(ExitCode::kBadInput, "prompt",
                  str("has token id ", id, ", the model's vocabulary is 0 to ", config.vocab - 1));
    }
  }
}

SessionOptions Engine::Impl::options_of(int64_t prompt_tokens, const GenerateOptions& run, int64_t max_tokens) const {
  SessionOptions session;
  session.prompt_tokens = prompt_tokens;
  session.context_tokens = session.prompt_tokens + max_tokens;
  session.kv = run.kv.value_or(options.kv);
  session.k_type = options.cache_type_k.value_or(weights->dtype());
  session.v_type = options.cache_type_v.value_or(weights->dtype());
  session.sampling = run.sampling;
  session.spill = options.spill;
  session.ring_slots = options.ring_slots;
  session.ring_slot_bytes = options.ring_slot_bytes;
  session.prefill_group = options.prefill_group;
  return session;
}

// What --verify says, or what goes without saying: partial verification where something guesses ahead.
VerifyOptions Engine::Impl::verify_of(const GenerateOptions& run) const {
  VerifyOptions verify = run.verify.value_or(options.verify);
  if (!partial_budget_fits(verify.budget)) {
    throw_error(ExitCode::kUsage, "--partial-budget", str(verify.budget, " is no multiple of 64 up to 16K"));
  }
  const bool drafts = draft_model != nullptr && run.speculate;
  if (!verify.mode) verify.mode = drafts ? VerifyMode::kLossless : VerifyMode::kFull;
  if (*verify.mode == VerifyMode::kApproximate && verify.interval == kAutoInterval)
    verify.interval = kPublishedInterval;
  return verify;
}

// The tree of a run's pending tokens; no width: they are a chain. Without a draft the target guesses for itself. A
// GPU's pass costs little more for a group of rows than for one, and a refresh that streams hides some hundred; a CPU's
// pass costs more with each. LongSpec reads the target's own rows, which must be a chain.
PendingTreeLimits Engine::Impl::pending_limits(const GenerateOptions& run, const DraftModel* model,
                                               bool streams) const {
  const bool chain = *verify_of(run).mode != VerifyMode::kLossless || config.vocab > kMaxTopVocab ||
                     run.forced_tokens > 0 || (model != nullptr && model->type() == SpecType::kLongSpec);
  if (chain) return {.width = 0};
  if (run.pending) return *run.pending;
  const bool cuda = device->backend() == Backend::kCuda;
  if (model != nullptr && !(cuda && streams)) return {.width = 0};
  PendingTreeLimits limits{.width = 48, .grown = 384, .nodes = 384};  // measured: speculation_bench
  if (!cuda) limits = {.width = 2, .grown = kMostPending + 16, .nodes = kMostPending + 16, .least = 0.2};
  if (!streams) limits.nodes = kMostUnhidden, limits.grown = kMostPending;
  return limits;
}

// By what the plan comes to: where nothing streams, pending tokens are fewer, and so are the rows that passes need.
RunSetup Engine::Impl::set_up(int64_t prompt_tokens, const GenerateOptions& run) const {
  RunSetup resident = set_up(prompt_tokens, run, false), streaming = set_up(prompt_tokens, run, true);
  if (resident.pending.nodes == streaming.pending.nodes && resident.pending.width == streaming.pending.width) {
    return streaming;
  }
  const Drafting drafting(resident.model, resident.draft);
  resident.session.draft = drafting.draft();
  const bool streams = Session(*device, *compute, config, *weights, resident.session).plan().ring_slots > 0;
  resident.session.draft = nullptr;
  return streams ? streaming : resident;
}

RunSetup Engine::Impl::set_up(int64_t prompt_tokens, const GenerateOptions& run, bool streams) const {
  RunSetup setup;
  const int64_t room = context_limit() - prompt_tokens;
  setup.max_tokens = run.max_tokens < 0 ? room : std::min(run.max_tokens, room);
  setup.verify = verify_of(run);
  setup.model = run.speculate ? draft_model.get() : nullptr;
  SessionOptions& session = setup.session = options_of(prompt_tokens, run, setup.max_tokens);
  if (setup.model) {  // the last step's tree may stand beyond the last token
    session.context_tokens += setup.model->tree().levels;
    session.pass_rows = setup.model->tree().nodes;
  }
  const PartialShape shape{.blocks = setup.verify.budget / kBlockRows};
  const bool partial =
      *setup.verify.mode != VerifyMode::kFull && shape.serves(session.context_tokens);  // else it would hold all
  if (partial) session.partial = {.shape = shape, .score = setup.verify.score, .reduce = setup.verify.reduce};
  if (partial) setup.pending = pending_limits(run, setup.model, streams);
  if (setup.pending.width > 0) {
    session.grow_rows = setup.pending.width;
    session.pass_rows = std::max(session.pass_rows, std::max(setup.pending.grown, setup.pending.nodes) - kMostPending);
  }
  setup.draft = {.prompt_tokens = prompt_tokens,
                 .context_tokens = session.context_tokens,
                 .most_pending = partial ? kMostPending : 0,
                 .pass_nodes = partial ? session.pass_rows + kMostPending : 0,
                 .sampling = run.sampling,
                 .tree_limits = run.tree_limits,
                 .saves = prefixes != nullptr};
  return setup;
}

RunPlan Engine::Impl::describe(const RunSetup& setup, const MemoryPlan& memory) const {
  const SessionOptions& session = setup.session;
  RunPlan plan{.prompt_tokens = session.prompt_tokens,
               .context_tokens = session.context_tokens,
               .verify = *setup.verify.mode,
               .interval = setup.verify.interval,
               .partial = session.partial.shape,
               .pass_rows = session.pass_rows,
               .grow_rows = session.grow_rows,
               .weights_bytes = weights->bytes(),
               .sizes = model_sizes(config, weights->dtype(),
                                    {.layers = config.layers,
                                     .kv_heads = config.kv_heads,
                                     .head_dim = config.head_dim,
                                     .k_type = session.k_type,
                                     .v_type = session.v_type}),
               .memory = memory};
  if (setup.model) {
    plan.draft = spec_type_name(setup.model->type());
    plan.draft_levels = setup.model->tree().levels;
    plan.tunes_trees = setup.model->tunes_trees();
    plan.draft_weights_bytes = setup.model->weights_bytes();
  }
  return plan;
}

RunPlan Engine::Impl::plan(int64_t prompt_tokens, const GenerateOptions& run) const {
  RunSetup setup = set_up(prompt_tokens, run);
  const Drafting drafting(setup.model, setup.draft);
  setup.session.draft = drafting.draft();
  const Session session(*device, *compute, config, *weights, setup.session);
  return describe(setup, session.plan());
}

GenerateResult Engine::Impl::generate(const std::vector<int32_t>& prompt, const GenerateOptions& run,
                                      Progress* progress) {
  check_prompt(prompt);
  Trace* const trace = device->trace();
  if (trace) run.label.empty() ? trace->skip_run() : trace->begin_run();
  const HostSpan span(trace, trace ? trace->keep(run.label) : nullptr);
  GenerateResult result;
  result.prompt_tokens = static_cast<int64_t>(prompt.size());
  device->vram().reset_peak();
  device->host_mem().reset_peak();
  if (prefixes) prefixes->refresh();
  while (!attempt(prompt, run, &result, progress)) {
  }
  if (prefixes && prefixes->note() != prefix_note) {  // of a state that lasts: told once
    prefix_note = prefixes->note();
    if (!prefix_note.empty()) result.prefix.notes.push_back(prefix_note);
  }
  result.timings.load_ms = load_ms;
  result.memory = {.vram_peak_bytes = device->vram().peak_bytes(),
                   .host_peak_bytes = device->host_mem().own_peak_bytes(),
                   .disk_peak_bytes = result.plan.disk_bytes,
                   .rss_peak_bytes = peak_rss_bytes(),
                   .weights_bytes = weights->bytes() + (draft_model ? draft_model->weights_bytes() : 0),
                   .kv_bytes = result.plan.kv_bytes()};
  return result;
}

bool Engine::Impl::attempt(const std::vector<int32_t>& prompt, const GenerateOptions& run, GenerateResult* result,
                           Progress* progress) {
  RunSetup setup = set_up(result->prompt_tokens, run);
  Drafting drafting(setup.model, setup.draft);
  const std::unique_ptr<PrefixRun> prefix = find_prefix(prompt, setup);
  setup.session.draft = drafting.draft();
  setup.session.prefix = prefix.get();
  Session session(*device, *compute, config, *weights, setup.session);
  result->plan = session.plan();
  if (rates && rates->known()) result->predicted = predict(describe(setup, result->plan), *rates);
  session.begin_host_memory(weights->staging_bytes() + (draft_model ? draft_model->staging_bytes() : 0));
  Output output(tokenizer ? &*tokenizer : nullptr, end_ids, run, setup.max_tokens);
  if (load_weights(progress, run.interrupt)) {
    check_weights();
    answer(setup, session, &drafting, prompt, run, &output, result, progress);
  } else {
    output.interrupted();
  }
  if (prefix) prefix->finish(progress, run.interrupt, &result->prefix);
  if (prefix && prefix->damaged()) return false;
  output.finish(result);
  return true;
}

// Prefill, then the loop, each timed and its bytes over the link counted.
void Engine::Impl::answer(const RunSetup& setup, Session& session, Drafting* drafting,
                          const std::vector<int32_t>& prompt, const GenerateOptions& run, Output* output,
                          GenerateResult* result, Progress* progress) {
  const Clock::time_point start = Clock::now();
  const uint64_t in = device->bytes_over(Link::kHostToDevice), out = device->bytes_over(Link::kDeviceToHost);
  Timings& timings = result->timings;
  Transfers& moved = result->transfers;
  std::optional<int32_t> first;
  {
    const HostSpan span(device->trace(), "prefill");
    first = session.prefill(prompt, progress, run.interrupt);
  }
  moved.prefill_h2d_bytes = device->bytes_over(Link::kHostToDevice) - in;
  moved.prefill_d2h_bytes = device->bytes_over(Link::kDeviceToHost) - out;
  const SpillStats prefilled = session.spill_stats();
  if (!first) return output->interrupted();
  timings.ttft_ms = ms_since(start);
  timings.host_memory_ms = session.host_memory_ms();
  timings.host_wait_ms = session.host_wait_ms();
  timings.prefill_tokens_per_s = per_second(session.computed_rows(), timings.ttft_ms);
  if (progress) progress->begin("decode", "tokens", output->max_tokens());
  const Clock::time_point decode_start = Clock::now();
  const bool streams = result->plan.ring_slots > 0;
  drafting->planned(*compute, streams, *setup.verify.mode, output->max_tokens());
  {
    const HostSpan span(device->trace(), "decode");
    Decoder(session, *drafting, *output, *compute,
            {.verify = *setup.verify.mode,
             .interval = setup.verify.interval,
             .streams = streams,
             .forced_tokens = run.forced_tokens,
             .step_costs = run.step_costs,
             .pending = setup.pending,
             .interrupt = run.interrupt,
             .progress = progress})
        .run(*first);
  }
  result->speculation = drafting->speculation();
  timings.step_ms = drafting->step_ms();
  timings.decode_steps = static_cast<int64_t>(timings.step_ms.size());
  timings.decode_tokens = output->taken() - 1;  // the first is prefill's
  timings.decode_ms = ms_since(decode_start);
  timings.decode_tokens_per_s = per_second(timings.decode_tokens, timings.decode_ms);
  moved.decode_h2d_bytes = device->bytes_over(Link::kHostToDevice) - in - moved.prefill_h2d_bytes;
  moved.decode_d2h_bytes = device->bytes_over(Link::kDeviceToHost) - out - moved.prefill_d2h_bytes;
  result->spill = spill_use(prefilled, session.spill_stats(), options.spill.folder);
  if (result->spill.depth_ms > 0) options.spill.depth = result->spill.depth;  // of the same disk: measured once
  if (progress) progress->end();
}

Engine::Engine(const EngineOptions& options) : Engine(options, nullptr) {}
Engine::Engine(const EngineOptions& options, std::unique_ptr<Checkpoint> checkpoint, std::unique_ptr<Device> device)
    : impl_(std::make_unique<Impl>(options)) {
  impl_->checkpoint = std::move(checkpoint);
  impl_->device = std::move(device);
  impl_->open();
}
Engine::~Engine() = default;

std::vector<int32_t> Engine::encode(const ChatMessages& messages) const {
  if (impl_->chat) return encode_chat(*impl_->tokenizer, *impl_->chat, messages);
  return encode_plain(messages.system.empty() ? messages.user : messages.system + "\n\n" + messages.user);
}

std::vector<int32_t> Engine::encode_plain(std::string_view text) const {
  return impl_->tokenizer->encode(text, AddBos::kYes, SpecialTokens::kAsText);
}

GenerateResult Engine::generate(const std::vector<int32_t>& prompt, const GenerateOptions& options,
                                Progress* progress) {
  return impl_->generate(prompt, options, progress);
}

RunPlan Engine::plan(int64_t prompt_tokens, const GenerateOptions& options) const {
  CHECK(prompt_tokens > 0 && prompt_tokens < context_limit(), "prompt_tokens=", prompt_tokens);
  return impl_->plan(prompt_tokens, options);
}

std::optional<TraceSummary> Engine::write_trace() {
  Trace* const trace = impl_->device->trace();
  if (trace == nullptr || trace->finished()) return std::nullopt;
  return trace->finish();
}

const ModelConfig& Engine::config() const { return impl_->config; }
const Tokenizer& Engine::tokenizer() const {
  CHECK(impl_->tokenizer.has_value());
  return *impl_->tokenizer;
}
const Device& Engine::device() const { return *impl_->device; }
DType Engine::dtype() const { return impl_->weights->dtype(); }
int64_t Engine::context_limit() const { return impl_->context_limit(); }
const std::string& Engine::model_path() const { return impl_->checkpoint->path(); }

std::string Engine::describe() const {
  return str(impl_->checkpoint->path(), ", ", dtype_name(dtype()), ", on ", impl_->device->name());
}

}  // namespace headrace
