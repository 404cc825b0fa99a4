#include "runtime/plan.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "cache/cards.h"
#include "cache/first_line.h"
#include "offload/host_limits.h"
#include "offload/paper_device.h"
#include "runtime/model/random_checkpoint.h"
#include "runtime/model/shapes.h"
#include "runtime/profile_store.h"

namespace headrace {
namespace {

constexpr uint64_t kLeftToOthers = 512 * kMiB;  // of a card, as where it is (DESIGN section 11)
constexpr uint64_t kEndless = uint64_t{1} << 50;
constexpr int64_t kMostOfAShape = int64_t{64} << 20;  // tokens: terabytes with the smallest of them

// A card that is not here, with the budgets that were asked for, or a machine like this one.
PaperCard card_on_paper(const Card& card, const DeviceOptions& options) {
  if (options.vram_bytes > card.vram_bytes()) {
    throw_error(ExitCode::kDoesNotFit, "--vram",
                str(format_bytes(options.vram_bytes), " is more than the ", format_bytes(card.vram_bytes()), " of ",
                    card.name));
  }
  const HostLimits limits = read_host_limits();
  return {.name = card.name,
          .vram_bytes = options.vram_bytes > 0 ? options.vram_bytes : card.vram_bytes() - kLeftToOthers,
          .host_bytes = options.host_mem_bytes > 0 ? options.host_mem_bytes : limits.default_host_mem(),
          .taken_bytes = kPaperContextBytes,
          .threads = limits.cores};
}

class Planner {
 public:
  explicit Planner(const PlanOptions& options) : options_(options) {}
  PlanReport run();

 private:
  void choose_device();
  void choose_rates();
  void use_kept_rates();
  std::unique_ptr<Engine> engine_on(const PaperCard& card, const std::string& spill_folder = "") const;
  RunPlan plan_on(const PaperCard& card, std::optional<KvMode> kv) const;
  void check_context(const Engine& engine) const;
  void refused(const Error& error);
  int64_t longest_context(const Engine& engine) const;
  uint64_t disk_needed() const;
  void need(KvMode kv, uint64_t* vram_bytes, uint64_t* host_bytes) const;

  const PlanOptions& options_;
  std::optional<Card> card_;
  PaperCard paper_;
  PlanReport report_;
};

// The device itself is asked what it is and given back: planning takes none of its memory.
void Planner::choose_device() {
  if (!options_.gpu.empty()) {
    card_ = find_card(options_.gpu);
    paper_ = card_on_paper(*card_, options_.engine.device);
  } else {
    paper_ = paper_of(*open_device(options_.engine.device));
  }
  report_.device = paper_.name;
  report_.one_memory = paper_.backend == Backend::kCpu;
  report_.vram_limit_bytes = paper_.vram_bytes;
  report_.host_limit_bytes = paper_.host_bytes;
  report_.taken_bytes = paper_.taken_bytes;
}

void Planner::use_kept_rates() {
  std::vector<KeptRates> entries;
  if (options_.profile.empty()) {
    KeptProfiles kept = read_kept_profiles(kept_profile_path());
    entries = std::move(kept.entries);
    report_.note = kept.ignored;
  } else {
    entries = read_profiles(options_.profile);
  }
  std::optional<KeptRates> found = find_rates(entries, paper_.name, paper_.driver);
  if (!found && !options_.profile.empty() && entries.size() == 1) {
    found = entries[0];  // of another machine: asked for is asked for
    report_.note =
        str(options_.profile, " is of ", found->device, found->rates.gpu ? ", driver " : ", ", found->driver);
  }
  if (!found && !options_.profile.empty()) {
    throw_error(
        ExitCode::kBadInput, options_.profile,
        str("has no profile of ", paper_.name, paper_.backend == Backend::kCuda ? ", driver " : ", ", paper_.driver),
        "headrace profile measures it.");
  }
  if (!found) return;
  const std::string& spill = options_.engine.spill.folder;
  report_.rates = rates_with_spill(*found, spill);
  if (found->rates.disk_read_gb_per_s > 0 && report_.rates->disk_read_gb_per_s == 0) {
    report_.note += str(report_.note.empty() ? "" : "; ", "the disk that was measured, of ",
                        found->disk_folder.empty() ? "no folder" : found->disk_folder,
                        ", is not known to be that of --spill ", spill, ": its speed is not known");
  }
  report_.rates_from = "what headrace profile measured on " + found->measured;
}

void Planner::choose_rates() {
  if (!card_ || !options_.profile.empty()) use_kept_rates();
  if (report_.rates) return;
  if (!card_ && paper_.backend == Backend::kCuda) card_ = card_named(paper_.name);
  if (!card_) return;
  report_.rates = card_->rates();
  report_.rates_from = "the data sheet of " + card_->name;
}

std::unique_ptr<Engine> Planner::engine_on(const PaperCard& card, const std::string& spill_folder) const {
  EngineOptions engine = options_.engine;
  if (!spill_folder.empty()) engine.spill.folder = spill_folder;
  engine.want_tokenizer = false;
  engine.rates_of = nullptr;
  std::unique_ptr<Checkpoint> checkpoint;
  if (!options_.shape.empty()) {
    if (engine.ctx_size > kMostOfAShape) {
      throw_error(ExitCode::kUsage, "--ctx-size",
                  str(engine.ctx_size, " tokens are more than the ", kMostOfAShape, " that are planned for a shape"));
    }
    Shape shape = find_shape(options_.shape);  // was trained on no context, so that it takes any
    shape.config.max_positions = std::max(shape.config.max_positions, engine.ctx_size);
    checkpoint = make_random_checkpoint(shape.name, shape.config, 0);
  }
  return std::make_unique<Engine>(engine, std::move(checkpoint), open_paper_device(card));
}

void Planner::check_context(const Engine& engine) const {
  if (options_.output_tokens < engine.context_limit()) return;
  throw_error(
      ExitCode::kUsage, "--predict",
      str(options_.output_tokens, " tokens leave no room for a prompt in a context of ", engine.context_limit()));
}

RunPlan Planner::plan_on(const PaperCard& card, std::optional<KvMode> kv) const {
  const std::unique_ptr<Engine> engine = engine_on(card);
  return engine->plan(engine->context_limit() - options_.output_tokens,
                      {.max_tokens = options_.output_tokens, .kv = kv});
}

// Weights and all, on a device without end.
void Planner::need(KvMode kv, uint64_t* vram_bytes, uint64_t* host_bytes) const {
  PaperCard endless = paper_;
  endless.vram_bytes = endless.host_bytes = kEndless;
  try {
    const RunPlan plan = plan_on(endless, kv);
    *vram_bytes = plan.memory.vram_bytes + whole_pages(plan.weights_bytes) + whole_pages(plan.draft_weights_bytes) +
                  paper_.taken_bytes;
    *host_bytes = plan.memory.host_total_bytes;
  } catch (const Error&) {
  }
}

// REQUIRES: the engine's weights fit.
int64_t Planner::longest_context(const Engine& engine) const {
  int64_t low = options_.output_tokens, high = engine.context_limit();
  while (low + 1 < high) {
    const int64_t middle = low + (high - low) / 2;
    try {
      engine.plan(middle - options_.output_tokens, {.max_tokens = options_.output_tokens});
      low = middle;
    } catch (const Error&) {
      high = middle;
    }
  }
  return low > options_.output_tokens ? low : 0;
}

// By what is free where this program stands.
uint64_t Planner::disk_needed() const {
  if (!options_.engine.spill.folder.empty()) return 0;
  try {
    const std::unique_ptr<Engine> engine = engine_on(paper_, ".");
    const int64_t prompt = engine->context_limit() - options_.output_tokens;
    return engine->plan(prompt, {.max_tokens = options_.output_tokens}).memory.disk_bytes;
  } catch (const Error&) {
    return 0;
  }
}

void Planner::refused(const Error& error) {
  if (error.code() != ExitCode::kDoesNotFit) throw;
  report_.refusal = first_line(error);
  PlanAdvice& advice = report_.advice;
  need(KvMode::kDevice, &advice.device_vram_bytes, &advice.device_host_bytes);
  need(KvMode::kHost, &advice.host_vram_bytes, &advice.host_host_bytes);
  advice.spill_bytes = disk_needed();
  try {
    advice.context_tokens = longest_context(*engine_on(paper_));
  } catch (const Error&) {  // the weights alone are too large
  }
}

PlanReport Planner::run() {
  choose_device();
  choose_rates();
  PaperCard endless = paper_;
  endless.vram_bytes = endless.host_bytes = kEndless;
  {
    const std::unique_ptr<Engine> any = engine_on(endless);  // what is no plan's fault is said here
    check_context(*any);
    report_.model = any->model_path();
    report_.dtype = any->dtype();
    report_.context_tokens = any->context_limit();
    report_.output_tokens = options_.output_tokens;
  }
  try {
    report_.run = plan_on(paper_, std::nullopt);
  } catch (const Error& error) {
    refused(error);
  }
  if (report_.run && report_.rates && report_.rates->known()) {
    report_.predicted = predict(*report_.run, *report_.rates);
  }
  return std::move(report_);
}

}  // namespace

uint64_t PlanReport::device_bytes() const {
  if (!run) return 0;
  return taken_bytes + whole_pages(run->weights_bytes) + whole_pages(run->draft_weights_bytes) + run->memory.vram_bytes;
}

PlanReport make_plan_report(const PlanOptions& options) { return Planner(options).run(); }

}  // namespace headrace
