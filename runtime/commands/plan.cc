#include "runtime/commands/plan.h"

#include <algorithm>
#include <ctime>
#include <memory>
#include <utility>

#include "cache/base.h"
#include "cache/gpu_specs.h"
#include "cache/minimum_budgets.h"
#include "offload/device/dry_run_device.h"
#include "offload/host/host_limits.h"
#include "runtime/commands/plan_settings.h"
#include "runtime/commands/profile_store.h"

namespace headrace {
namespace {

constexpr uint64_t kLeftToOthers = 512 * kMiB;  // as on a present GPU (docs/design.md, section 11)
constexpr uint64_t kEndless = uint64_t{1} << 50;

// A card that is not present, with the requested budgets, or a machine like this one.
DryRunCard dry_run_card(const GpuSpec& card, const DeviceOptions& options) {
  if (options.vram_bytes > card.vram_bytes()) {
    throw_error(ExitCode::kDoesNotFit, "--vram",
                str(format_bytes(options.vram_bytes), " is more than the ", format_bytes(card.vram_bytes()), " of ",
                    card.name));
  }
  const HostLimits limits = read_host_limits();
  return {.name = card.name,
          .vram_bytes = options.vram_bytes > 0 ? options.vram_bytes : card.vram_bytes() - kLeftToOthers,
          .host_bytes = options.host_mem_bytes > 0 ? options.host_mem_bytes : limits.default_host_mem(),
          .taken_bytes = kDryRunContextBytes,
          .threads = limits.cores};
}

// Compares names; a card also matches the name of its data sheet.
bool same_device(const std::string& a, const std::string& b) {
  if (a == b) return true;
  const std::optional<GpuSpec> first = gpu_named(a), second = gpu_named(b);
  return first && second && first->id == second->id;
}

// Distinguishes profiles with the same device name. A CPU has no driver.
std::string driver_of(const std::string& driver, bool gpu) {
  return driver.empty() ? "" : (gpu ? ", driver " : ", ") + driver;
}

class Planner {
 public:
  explicit Planner(const PlanOptions& options) : options_(options) {}
  PlanReport run();

 private:
  void choose_device();
  void choose_rates();
  void note_assumed();
  void use_kept_rates();
  std::optional<KeptRates> profile_of(const std::vector<KeptRates>& entries) const;
  std::unique_ptr<Engine> engine_on(const DryRunCard& card) const {
    return open_plan_engine(options_, card, report_.rates);
  }
  GenerateOptions run_options(std::optional<KvMode> kv) const {
    return {.max_tokens = options_.output_tokens, .kv = kv};
  }
  // What needs the least memory of what --verify auto may choose.
  GenerateOptions least_run(std::optional<KvMode> kv) const {
    GenerateOptions run = run_options(kv);
    const VerifyOptions& verify = options_.engine.verify;
    if (verify.mode == VerifyMode::kAuto && !verify.names_partial()) run.verify = {.mode = VerifyMode::kFull};
    return run;
  }
  RunPlan plan_on(const DryRunCard& card, const GenerateOptions& run) const;
  void check_context(const Engine& engine) const;
  void refused(const Error& error);
  void advise(const DoesNotFit& refusal);
  void advise_for_weights();
  bool fits_auto() const;
  int64_t longest_context(const Engine& engine, int64_t guess) const;
  void need(KvMode kv, uint64_t* vram_bytes, uint64_t* host_bytes) const;

  const PlanOptions& options_;
  std::optional<GpuSpec> card_;
  DryRunCard dry_run_;
  PlanReport report_;
};

// Reads the device's properties and releases it: planning uses none of its memory.
void Planner::choose_device() {
  if (options_.card) {
    dry_run_ = *options_.card;
  } else if (!options_.gpu.empty()) {
    card_ = find_gpu(options_.gpu);
    dry_run_ = dry_run_card(*card_, options_.engine.device);
  } else {
    dry_run_ = dry_run_of(*open_device(options_.engine.device));
  }
  report_.device = dry_run_.name;
  report_.one_memory = dry_run_.backend == Backend::kCpu;
  report_.vram_limit_bytes = dry_run_.vram_bytes;
  report_.host_limit_bytes = dry_run_.host_bytes;
  report_.taken_bytes = dry_run_.taken_bytes;
}

// Of the file that the user named: this device, or the same card in another machine or with another driver.
std::optional<KeptRates> Planner::profile_of(const std::vector<KeptRates>& entries) const {
  std::optional<KeptRates> found = find_rates(entries, dry_run_.name, dry_run_.driver);
  if (found) return found;
  for (const KeptRates& entry : entries) {  // the latest
    if (same_device(entry.device, dry_run_.name) && (!found || found->measured < entry.measured)) found = entry;
  }
  if (found) return found;
  std::string known;
  for (const KeptRates& entry : entries)
    known += str(known.empty() ? "" : "; ", entry.device, driver_of(entry.driver, entry.rates.gpu));
  throw_error(ExitCode::kBadInput, options_.profile,
              str("has no profile of ", dry_run_.name, driver_of(dry_run_.driver, dry_run_.backend == Backend::kCuda),
                  ": it is of ", known.empty() ? "nothing" : known),
              str("headrace profile measures a device where it is",
                  card_ ? "; without --profile the data sheet of " : "", card_ ? card_->name + " is taken." : "."));
}

void Planner::use_kept_rates() {
  const std::optional<KeptRates> found = options_.profile.empty()
                                             ? find_kept_rates(dry_run_.name, dry_run_.driver, &report_.note)
                                             : profile_of(read_profiles(options_.profile));
  if (!found) return;
  const std::string& spill = options_.engine.spill.folder;
  report_.rates = rates_with_spill(*found, spill);
  if (found->rates.disk_read_gb_per_s > 0 && report_.rates->disk_read_gb_per_s == 0) {
    report_.note += str(report_.note.empty() ? "" : "; ", "the disk that was measured, of ",
                        found->disk_folder.empty() ? "no folder" : found->disk_folder,
                        ", is not known to be that of --spill ", spill, ": its rate is unknown");
  }
  report_.measured = found->measured;
  report_.age_s = profile_age_s(found->measured, options_.now > 0 ? options_.now : std::time(nullptr));
  report_.spread = found->spread;
  report_.rates_from = "what headrace profile measured on " + found->measured;
  if (found->device != dry_run_.name || found->driver != dry_run_.driver) {
    report_.rates_from += str(", of ", found->device, driver_of(found->driver, found->rates.gpu));
  }
}

void Planner::choose_rates() {
  if (!card_ || !options_.profile.empty()) use_kept_rates();
  if (report_.rates) return;
  if (!card_ && dry_run_.backend == Backend::kCuda) card_ = gpu_named(dry_run_.name);
  if (!card_) return;
  report_.rates = card_->rates();
  report_.rates_from = "the data sheet of " + card_->name;
}

void Planner::note_assumed() {
  if (!report_.predicted || !report_.run->memory.prefill_int8) return;
  if (report_.rates->int8_product_tflop_per_s <= 0 || report_.rates->int8_attention_tflop_per_s <= 0) {
    report_.assumed = "prefill in 8 bits is as slow as in the type of the computation: the profile is older than it";
  } else if (report_.measured.empty() && card_) {
    report_.assumed = card_->assumed();
  }
}

void Planner::check_context(const Engine& engine) const {
  if (options_.output_tokens < engine.context_limit()) return;
  throw_error(
      ExitCode::kUsage, "--predict",
      str(options_.output_tokens, " tokens leave no room for a prompt in a context of ", engine.context_limit()));
}

RunPlan Planner::plan_on(const DryRunCard& card, const GenerateOptions& run) const {
  const std::unique_ptr<Engine> engine = engine_on(card);
  return engine->plan(engine->context_limit() - options_.output_tokens, run);
}

// The memory of this run on a device without limits, weights included.
void Planner::need(KvMode kv, uint64_t* vram_bytes, uint64_t* host_bytes) const {
  DryRunCard endless = dry_run_;
  endless.vram_bytes = endless.host_bytes = kEndless;
  try {
    const RunPlan plan = plan_on(endless, least_run(kv));
    *vram_bytes = plan.memory.vram_bytes + whole_pages(plan.weights_bytes) + whole_pages(plan.draft_weights_bytes) +
                  plan.memory.substitute_bytes + dry_run_.taken_bytes;
    // A run omits these if they do not fit.
    *vram_bytes -= plan.memory.remainder_work_bytes;
    *host_bytes = plan.host_bytes() - plan.memory.remainder_bytes - plan.memory.remainder_lengths_bytes;
  } catch (const Error&) {
  }
}

// `guess` is the planner's result, which knows less about what grows with the context: the search starts there.
int64_t Planner::longest_context(const Engine& engine, int64_t guess) const {
  int64_t low = options_.output_tokens, high = engine.context_limit(), step = 1;
  for (int64_t at = guess; low + 1 < high; step *= 2) {
    if (at <= low || at >= high) at = low + (high - low) / 2;
    const bool fits = engine.try_plan(at - options_.output_tokens, least_run(std::nullopt)).has_value();
    (fits ? low : high) = at;
    at += fits ? step : -step;
  }
  return low > options_.output_tokens ? low : 0;
}

bool Planner::fits_auto() const {
  const std::unique_ptr<Engine> engine = engine_on(dry_run_);
  return engine->try_plan(engine->context_limit() - options_.output_tokens, least_run(KvMode::kAuto)).has_value();
}

// The planner counts free bytes, a flag all bytes: the difference does not depend on the plan.
void Planner::advise(const DoesNotFit& refusal) {
  const PlanInput& in = refusal.input();
  const MinimumBudgets& minimum = refusal.minimum();
  PlanAdvice& advice = report_.advice;
  if (minimum.vram_bytes > 0) advice.vram_bytes = dry_run_.vram_bytes - in.vram_free + minimum.vram_bytes;
  if (minimum.host_bytes > 0) advice.host_bytes = dry_run_.host_bytes - in.host_free + minimum.host_bytes;
  advice.spill_bytes = minimum.disk_bytes;
  advice.partial_kv = refusal.instead();
  if (options_.engine.kv != KvMode::kAuto) advice.kv_auto = fits_auto();
  const int64_t less = in.context_rows - minimum.context_rows;
  advice.context_tokens = longest_context(*engine_on(dry_run_), report_.context_tokens - less);
}

// If the weights alone do not fit, no other budget helps. On a device that holds only the weights the planner reports
// the needed size.
void Planner::advise_for_weights() {
  try {
    DryRunCard larger = dry_run_;
    larger.vram_bytes = larger.host_bytes = kEndless;
    const RunPlan plan = plan_on(larger, least_run(std::nullopt));
    larger = dry_run_;
    larger.vram_bytes =
        dry_run_.taken_bytes + whole_pages(plan.weights_bytes) + whole_pages(plan.draft_weights_bytes) + kPageBytes;
    if (report_.one_memory) larger.host_bytes = larger.vram_bytes;
    try {
      plan_on(larger, least_run(std::nullopt));
    } catch (const DoesNotFit& refusal) {
      const PlanInput& in = refusal.input();
      const MinimumBudgets& minimum = refusal.minimum();
      uint64_t* const flag = report_.one_memory ? &report_.advice.host_bytes : &report_.advice.vram_bytes;
      const uint64_t needed = report_.one_memory ? minimum.host_bytes : minimum.vram_bytes;
      if (needed > 0) *flag = larger.vram_bytes - in.vram_free + needed;
    }
  } catch (const Error&) {
  }
}

void Planner::refused(const Error& error) {
  if (error.code() != ExitCode::kDoesNotFit) throw;
  report_.refusal = first_line(error);
  PlanAdvice& advice = report_.advice;
  if (card_) advice.card_vram_bytes = card_->vram_bytes();
  need(KvMode::kDevice, &advice.device_vram_bytes, &advice.device_host_bytes);
  need(KvMode::kHost, &advice.host_vram_bytes, &advice.host_host_bytes);
  const auto* const refusal = dynamic_cast<const DoesNotFit*>(&error);
  refusal != nullptr ? advise(*refusal) : advise_for_weights();
}

PlanReport Planner::run() {
  choose_device();
  choose_rates();
  DryRunCard endless = dry_run_;
  endless.vram_bytes = endless.host_bytes = kEndless;
  {
    const std::unique_ptr<Engine> any = engine_on(endless);  // errors unrelated to the budgets are thrown here
    check_context(*any);
    report_.model = any->model_path();
    report_.dtype = any->dtype();
    report_.context_tokens = any->context_limit();
    report_.output_tokens = options_.output_tokens;
    report_.weights_note = any->weights_note();
    report_.cache_note = any->cache_note();
    note_context(options_, *any, &report_);
  }
  try {
    report_.run = plan_on(dry_run_, run_options(std::nullopt));
  } catch (const Error& error) {
    refused(error);
  }
  if (report_.run && report_.rates && report_.rates->known()) {
    report_.predicted = predict(*report_.run, *report_.rates);
    note_assumed();
  }
  report_.settings = compare_settings(options_, dry_run_, report_);
  return std::move(report_);
}

}  // namespace

uint64_t PlanReport::device_bytes() const {
  if (!run) return 0;
  return taken_bytes + whole_pages(run->weights_bytes) + whole_pages(run->draft_weights_bytes) +
         run->memory.substitute_bytes + run->memory.vram_bytes;
}

uint64_t PlanReport::host_bytes() const { return run ? run->host_bytes() : 0; }

PlanReport make_plan_report(const PlanOptions& options) { return Planner(options).run(); }

}  // namespace headrace
