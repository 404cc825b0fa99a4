#include "runtime/engine/attempt.h"

#include <utility>

#include "offload/device/trace.h"

namespace headrace {
namespace {

double per_second(int64_t count, double ms) { return ms > 0 ? static_cast<double>(count) / (ms / 1000) : 0; }

// Bytes over the link since the device was opened.
struct LinkBytes {
  uint64_t in = 0, out = 0;
};
LinkBytes link_bytes(const Device& device) {
  return {.in = device.bytes_over(Link::kHostToDevice), .out = device.bytes_over(Link::kDeviceToHost)};
}

DraftingOptions drafting_options(const PreparedRun& run, const GenerateOptions& options) {
  const SessionOptions& session = run.setup.session;
  return {.limits = options.tree_limits,
          .most_nodes = run.setup.most_tree_nodes,
          .streams = run.plan.memory.streams(),
          .nodes_cost = run.plan.layout.groups().recurrent_layers() > 0,
          .verify = *run.setup.verify.mode,
          .substitute = run.plan.memory.substitutes() ? weight_type_info(*run.plan.layout.substitute()).name : "",
          .partial = session.partial_on() ? session.partial.shape : PartialShape{},
          .grows = run.setup.pending.width > 0,
          .most_steps = run.setup.max_tokens,
          .step_costs = options.step_costs};
}

}  // namespace

Attempt::Attempt(Attempted& run, PreparedRun prepared)
    : run_(run),
      prepared_(std::move(prepared)),
      drafting_(prepared_.setup.model, prepared_.setup.draft.get(), *run.engine.compute,
                drafting_options(prepared_, run.options)),
      sequence_(prepared_.plan, std::move(prepared_.kept)),
      masks_(run.engine.answer_masks(run.prompt, run.options)),
      executor_(prepared_.plan, sequence_, masks_.get()),
      output_(run.engine.tokenizer ? &*run.engine.tokenizer : nullptr, run.engine.end_ids, run.options,
              prepared_.setup.max_tokens, run.engine.thinking_budget(run.prompt, run.options.reasoning_budget)) {
  report_plan();
}

void Attempt::report_plan() {
  GenerateResult& result = run_.result;
  const RunSetup& setup = prepared_.setup;
  const std::optional<MachineRates>& rates = run_.engine.rates;
  result.plan = prepared_.plan.memory;
  result.memory_note = setup.memory_note;
  result.verify_note = setup.verify_note;
  result.thinking = run_.engine.thinking_after(run_.prompt);
  if (setup.model != nullptr) result.draft_window = setup.model->window(setup.draft_run());
  if (rates) result.link_peak_gb_per_s = rates->to_device_gb_per_s;
  if (!rates || !rates->known() || run_.options.keep != KeepRows::kNone) return;
  result.predicted = predict(run_plan(run_.engine.context(), setup, result.plan), *rates);
}

std::optional<int32_t> Attempt::prefill() {
  Engine::Impl& engine = run_.engine;
  engine.place_weights(prepared_.plan);
  const bool moves = prepared_.plan.memory.host_embedding_bytes > 0 && engine.weights->movable_bytes() > 0;
  sequence_.begin_host_memory(engine.weights->staging_bytes() +
                              (engine.draft_model ? engine.draft_model->staging_bytes() : 0) +
                              (moves ? engine.weights->movable_bytes() : 0));
  std::optional<int32_t> first;
  if (engine.load_weights(run_.progress, run_.options.interrupt)) {
    engine.check_weights();
    if (moves) engine.weights->move_embedding_to_host(*engine.device);
    if (!run_.started) run_.started = HostClock::now();
    first = read_prompt();
  }
  if (!first) output_.interrupted();
  return first;
}

std::optional<int32_t> Attempt::read_prompt() {
  std::optional<int32_t> first;
  const Device& device = *run_.engine.device;
  const LinkBytes before = link_bytes(device);
  {
    const HostSpan span(device.trace(), "prefill");
    first = executor_.prefill(run_.prompt, run_.progress, run_.options.interrupt);
  }
  const LinkBytes after = link_bytes(device);
  run_.result.transfers.prefill_h2d_bytes += after.in - before.in;
  run_.result.transfers.prefill_d2h_bytes += after.out - before.out;
  Timings& timings = run_.result.timings;
  const SequenceStats stats = sequence_.stats();
  timings.host_memory_ms += stats.host_memory_ms;
  timings.host_wait_ms += stats.host_wait_ms;
  if (!first) return first;
  timings.ttft_ms = ms_since(*run_.started);
  timings.prefill_tokens_per_s = per_second(prepared_.plan.layout.computed_rows(), timings.ttft_ms);
  return first;
}

// Where substitutes make a refresh many times dearer than a step.
double Attempt::refresh_steps() const {
  const std::optional<Prediction>& predicted = run_.result.predicted;
  const bool known = predicted && predicted->has_partial && predicted->partial.known && predicted->refresh.known;
  return known && prepared_.plan.memory.substitutes() ? predicted->refresh.ms() / predicted->partial.ms() : 0;
}

void Attempt::decode(int32_t first) {
  if (output_.max_tokens() == 0) return;
  const uint64_t prefill_written = sequence_.stats().spill.written_bytes;
  if (run_.progress) run_.progress->begin("decode", "tokens", output_.max_tokens());
  const HostClock::time_point start = HostClock::now();
  const Device& device = *run_.engine.device;
  const LinkBytes before = link_bytes(device);
  {
    const HostSpan span(device.trace(), "decode");
    DecodeLoop loop({.prepared = prepared_,
                     .options = run_.options,
                     .model = run_.engine.checkpoint->path(),
                     .sequence = sequence_,
                     .executor = executor_,
                     .drafting = drafting_,
                     .output = output_,
                     .progress = run_.progress,
                     .refresh_steps = refresh_steps()});
    run_.options.forced.empty() ? loop.run(first) : loop.follow(&run_.result.forced);
  }
  GenerateResult& result = run_.result;
  Timings& timings = result.timings;
  result.speculation = drafting_.speculation();
  timings.step_ms = drafting_.step_ms();
  timings.decode_steps = static_cast<int64_t>(timings.step_ms.size());
  timings.decode_tokens = output_.taken() - 1;  // the first is prefill's
  timings.decode_ms = ms_since(start);
  timings.decode_tokens_per_s = per_second(timings.decode_tokens, timings.decode_ms);
  const LinkBytes after = link_bytes(device);
  result.experts = executor_.expert_use();
  result.transfers.decode_h2d_bytes = after.in - before.in + result.experts.fetched_bytes;
  result.transfers.decode_d2h_bytes = after.out - before.out;
  result.spill = {sequence_.stats().spill, prefill_written, prepared_.setup.session.spill.folder};
  if (run_.progress) run_.progress->end();
}

// Whether the answer is cut: by its length, a stop text or an interruption.
bool Attempt::incomplete() const {
  if (masks_ == nullptr) return false;
  GrammarState state = masks_->start();
  for (const int32_t token : run_.result.token_ids) state = masks_->after(state, token);
  return !masks_->complete(state);
}

bool Attempt::finish() {
  if (PromptScores* const scores = prepared_.setup.session.scores) run_.result.log_probs = std::move(scores->log_probs);
  if (PrefixRun* const prefix = prepared_.prefix.get()) {
    prefix->finish(run_.progress, run_.options.interrupt, &run_.result.prefix);
    if (prefix->damaged()) return false;
  }
  if (run_.options.keep != KeepRows::kNone) {
    executor_.stop();
    run_.engine.kept = keep_run(run_.prompt, run_.options, output_, &sequence_, &prepared_);
  }
  output_.finish(&run_.result);
  run_.result.incomplete = incomplete();
  return true;
}

}  // namespace headrace
