// The ways to carry out a run, and the first of them that fits.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cache/minimum_budgets.h"
#include "runtime/engine/run_setup.h"
#include "runtime/engine/savings.h"

namespace headrace {
namespace {

constexpr int64_t kMaxUnhidden = 64;  // nodes of a refresh that does not stream: up to here it takes as long as for one

// The tree of a run's pending tokens; no width: they are a chain. They are a tree on a GPU whose refreshes stream: its
// pass costs little more for a group of rows than for one, and such a refresh hides some hundred. A CPU's pass costs
// more with each row. Elsewhere only blocks have a tree, where no draft guesses ahead. LongSpec reads the target's own
// rows, which must be a chain. Recurrent layers replay a chain once, but a node beside a tree's first choices in each
// step.
PendingTreeLimits pending_limits(const RunContext& context, const GenerateOptions& run, const RunSetup& setup,
                                 bool streams) {
  const DraftModel* const model = setup.model;
  const bool chain = !setup.session.partial_on() || *setup.verify.mode != VerifyMode::kLossless ||
                     context.config.vocab < kRankedTokens || context.config.vocab > kMaxTopVocab ||
                     (model != nullptr && model->type() == SpecType::kLongSpec);
  if (chain) return {.width = 0};
  if (run.pending) return *run.pending;
  if (context.recurrent()) return {.width = 0};
  const bool cuda = context.device.backend() == Backend::kCuda;
  const PartialShape& partial = setup.session.partial.shape;
  if (!partial.has_blocks()) {
    if (!cuda || !streams) return {.width = 0};
    // A copy errs where two tokens are nearly equally likely; then keep the second. A draft's guesses take rows, too.
    // Substitutes of weights are taken to err like an int4 copy.
    return {.width = model != nullptr ? 8 : 4,
            .grown = kMaxPassNodes,
            .nodes = kMaxPassNodes,
            .least = 0.01,
            .sharpness = partial.copy == DType::kInt8 && !setup.session.substitute ? 32.0 : 12.0,
            .unranked = 0.0005};
  }
  if (model != nullptr && !(cuda && streams)) return {.width = 0};
  // Blocks are wrong anywhere, so unlikely tokens are kept; but wider steps cost more than they confirm
  // (docs/decisions.md).
  PendingTreeLimits limits{.width = 8, .grown = 384, .nodes = 384};
  if (!cuda) limits = {.width = 2, .grown = kMaxPending + 16, .nodes = kMaxPending + 16, .least = 0.2};
  if (!streams) limits.nodes = kMaxUnhidden, limits.grown = kMaxPending;
  return limits;
}

// Sizes the run's passes for its trees.
void set_pending(const PendingTreeLimits& limits, RunSetup* setup) {
  SessionOptions& session = setup->session;
  setup->pending = limits;
  session.pass_rows = setup->model != nullptr ? std::min(setup->model->tree().nodes, setup->most_tree_nodes) : 1;
  session.grow_rows = limits.width;
  if (limits.width > 0) {
    session.pass_rows = std::max(session.pass_rows, std::max(limits.grown, limits.nodes) - session.most_pending);
  }
}

// The most tokens that may be pending, and the most nodes of a tree whose size is chosen by what steps cost.
struct PassLimits {
  int64_t pending = kMaxPending, nodes = kMaxTreeNodes;
};

// Those of which a run takes the first that fits. Rows of attention layers are small beside what recurrent layers keep
// of each token of a pass, 2.4 MiB in a 27B, which they compute one after another: a node costs 1 to 4% of a step, so
// that trees with more than a few nodes do not pay. A fixed interval needs no more pending tokens than its
// own, so that memory does not decide an approximate text, whose trees are fixed, too. Substitutes of weights, too, are
// worth more than the last pending tokens, of which a refresh rarely confirms as many.
std::vector<PassLimits> pass_choices(const RunContext& context, const GenerateOptions& run, const RunSetup& setup) {
  if (!context.recurrent() && !setup.session.substitute) return {{}};
  constexpr PassLimits kChoices[] = {{kMaxPending, 16}, {kMaxPending / 2, 12}, {kMaxPending / 4, 8}};
  const bool tunes = setup.model != nullptr && setup.model->tunes_trees() && !run.tree_limits &&
                     *setup.verify.mode != VerifyMode::kApproximate;
  const int64_t step = 1 + (setup.model != nullptr ? setup.model->tree().levels : 0);  // most tokens of a step
  std::vector<PassLimits> choices;
  for (PassLimits choice : kChoices) {
    if (!tunes || !context.recurrent()) choice.nodes = kMaxTreeNodes;
    const bool fixed = setup.verify.interval != kAutoInterval;
    if (fixed) choice.pending = std::min(kMaxPending, setup.verify.interval + step);
    if (choices.empty() || (!fixed && choice.pending >= 2 * step)) choices.push_back(choice);
    if (*setup.verify.mode == VerifyMode::kFull && !tunes) break;
  }
  return choices;
}

// Sets what partial steps read and how many tokens they may leave pending, and the options that depend on it.
void set_partial(PartialKind kind, const PassLimits& limits, const RunContext& context, const GenerateOptions& run,
                 RunSetup* setup) {
  setup->session.partial = {};
  setup->session.most_pending = limits.pending;
  setup->most_tree_nodes = limits.nodes;
  if (*setup->verify.mode != VerifyMode::kFull) {
    const std::optional<DType> copy = copy_type(kind);
    const bool blocks = kind == PartialKind::kBlocks;
    const VerifyOptions& verify = setup->verify;
    setup->session.partial = {.shape = {.blocks = blocks ? verify.blocks() : 0,
                                        .copy = copy,
                                        .window = blocks ? verify.window : kTailWindow,
                                        .exact = kind == PartialKind::kExact},
                              .score = verify.score,
                              .reduce = verify.reduce,
                              .queries = verify.queries};
  }
  set_pending(pending_limits(context, run, *setup, false), setup);
}

// The kind that a run's setup begins with.
PartialKind first_kind(const RunSetup& setup) {
  const PartialKind kind = setup.verify.partial_kind();
  if (kind != PartialKind::kAuto) return kind;
  return setup.session.substitute && setup.session.kv != KvMode::kHost ? PartialKind::kExact : PartialKind::kBlocks;
}

// The kinds that --partial-kv auto may choose where the full KV streams, or weights that have substitutes, the most
// exact first.
std::vector<PartialKind> kinds_of_auto(const RunContext& context, const RunSetup& setup) {
  const bool automatic = *setup.verify.mode != VerifyMode::kFull && setup.verify.partial_kind() == PartialKind::kAuto;
  if (!automatic) return {};
  std::vector<PartialKind> kinds;
  if (first_kind(setup) == PartialKind::kExact) kinds.push_back(PartialKind::kExact);
  if (setup.session.kv == KvMode::kDevice) return kinds;
  if (!context.config.exact_rows) kinds.push_back(PartialKind::kInt8);
  if (!context.config.exact_rows && copy_type_fits(DType::kInt4, context.config.attention().head_dim))
    kinds.push_back(PartialKind::kInt4);
  kinds.push_back(PartialKind::kBlocks);
  return kinds;
}

// The predicted tokens/s of a planned run; 0: unknown.
double predicted_speed(const RunContext& context, const RunSetup& setup, const MemoryPlan& memory) {
  if (!context.rates || !context.rates->known()) return 0;
  return predicted_tokens_per_s(run_plan(context, setup, memory), *context.rates).value_or(0);
}

// A way to carry out a run, beyond its options.
struct Candidate {
  PartialKind kind;
  Savings savings;
  bool large;  // passes for the pending tokens of a run that streams
  PassLimits limits;
};

// Turns a setup into one candidate after the other, and plans it. Candidates whose draft's run is the same share a
// draft.
class Candidates {
 public:
  Candidates(const RunContext& context, const GenerateOptions& run, RunSetup* setup)
      : context_(context),
        run_(run),
        setup_(*setup),
        kinds_(kinds_of_auto(context, *setup)),
        limits_(pass_choices(context, run, *setup)),
        all_savings_(savings_of(context, *setup)) {}
  // The setup keeps the draft of a candidate that fits.
  ~Candidates() { setup_.session.draft = setup_.draft.get(); }
  Candidates(const Candidates&) = delete;
  Candidates& operator=(const Candidates&) = delete;

  std::optional<SessionPlan> first_that_fits();
  DoesNotFit refusal();

 private:
  bool take(const Candidate& candidate);
  Candidate candidate(PartialKind kind, bool large) const {
    return {.kind = kind, .savings = savings_, .large = large, .limits = limits_.front()};
  }
  bool has_most_limits() const { return setup_.session.most_pending == limits_.front().pending; }
  SessionLayout layout() const {
    return {context_.device, context_.compute, context_.config, context_.weights, setup_.session};
  }
  std::optional<SessionPlan> plan() const;
  std::optional<SessionPlan> plan_small(Candidate* candidate);
  std::optional<SessionPlan> plan_partial(PartialKind kind);
  std::optional<PartialKind> fastest_kind();
  std::optional<PartialKind> smaller_kind(DType refused);
  std::optional<SessionPlan> first_with_savings();
  SessionPlan chosen(SessionPlan plan);
  Draft* draft();

  const RunContext& context_;
  const GenerateOptions& run_;
  RunSetup& setup_;
  const std::vector<PartialKind> kinds_;    // of which the run may choose
  const std::vector<PassLimits> limits_;    // the same, the most first
  const std::vector<Savings> all_savings_;  // the same, each with all before it
  Savings savings_;                         // of the candidates that are planned now
  std::vector<std::pair<DraftRun, std::unique_ptr<Draft>>> drafts_;
};

Draft* Candidates::draft() {
  if (setup_.model == nullptr) return nullptr;
  const DraftRun wanted = setup_.draft_run();
  for (const auto& [run, draft] : drafts_) {
    if (run == wanted) return draft.get();
  }
  drafts_.emplace_back(wanted, setup_.model->start(wanted));
  return drafts_.back().second.get();
}

// Makes the setup that of the candidate. False: large passes are those that it has anyway.
bool Candidates::take(const Candidate& candidate) {
  setup_.session.host_embedding = candidate.savings.embedding;
  setup_.session.host_states = candidate.savings.states;
  setup_.session.lean_prefill = candidate.savings.lean;
  setup_.windowed = candidate.savings.window;
  set_partial(candidate.kind, candidate.limits, context_, run_, &setup_);
  if (candidate.large) {
    const PendingTreeLimits limits = pending_limits(context_, run_, setup_, true);
    if (limits == setup_.pending) return false;
    set_pending(limits, &setup_);
  }
  setup_.session.draft = draft();
  return true;
}

std::optional<SessionPlan> Candidates::plan() const {
  SessionLayout layout = this->layout();
  std::optional<MemoryPlan> memory = layout.try_plan();
  if (!memory) return std::nullopt;
  return SessionPlan{.layout = std::move(layout), .memory = *std::move(memory)};
}

// In small passes with the largest limits that fit: beside a KV cache that stays on the device, or else at all, unless
// the run is much faster with smaller ones. Sets them.
std::optional<SessionPlan> Candidates::plan_small(Candidate* candidate) {
  std::optional<PassLimits> best;
  double most = 0;
  for (const PassLimits& limits : limits_) {
    candidate->limits = limits;
    take(*candidate);
    std::optional<SessionPlan> small = plan();
    if (!small) continue;
    if (!refreshes_stream(small->memory) || limits_.size() == 1) return small;
    const double speed = predicted_speed(context_, setup_, small->memory);
    if (!best || speed > kWorthSaving * most) best = limits, most = speed;
  }
  if (!best) return std::nullopt;
  candidate->limits = *best;
  take(*candidate);
  return plan();
}

// With this kind of partial KV, in large passes if they fit.
std::optional<SessionPlan> Candidates::plan_partial(PartialKind kind) {
  Candidate small = candidate(kind, false);
  if (take(candidate(kind, true)) && setup_.session.partial_on()) {
    if (std::optional<SessionPlan> fits = plan()) return fits;
  }
  return setup_.session.partial_on() ? plan_small(&small) : std::nullopt;
}

SessionPlan Candidates::chosen(SessionPlan plan) {
  for (auto& [run, draft] : drafts_) {
    if (draft.get() == setup_.session.draft) setup_.draft = std::move(draft);
  }
  return plan;
}

// Of the kinds that fit, the one with which the run is predicted to be fastest, or if no speed is known, the most
// exact.
std::optional<PartialKind> Candidates::fastest_kind() {
  std::optional<PartialKind> fastest;
  double most = 0;
  for (const PartialKind kind : kinds_) {
    const std::optional<SessionPlan> fits = plan_partial(kind);
    if (!fits) continue;
    const double speed = predicted_speed(context_, setup_, fits->memory);
    if (fastest && speed <= most) continue;
    fastest = kind;
    most = speed;
  }
  return fastest;
}

// Small passes if nothing streams; else the fastest kind that fits, if the run may choose; else the first kind, in
// large passes if they fit (it then streams, too).
std::optional<SessionPlan> Candidates::first_with_savings() {
  Candidate first = candidate(first_kind(setup_), false);
  std::optional<SessionPlan> small = plan_small(&first);
  if (small && !refreshes_stream(small->memory)) return small;
  if (const std::optional<PartialKind> kind = fastest_kind()) return plan_partial(*kind);
  if (!small) return std::nullopt;
  if (take(candidate(first.kind, true))) {
    if (std::optional<SessionPlan> large = plan()) return large;
  }
  take(first);
  return small;
}

// With the fewest savings that fit. A run that streams is better off with savings that cost next to nothing than
// without what they let it do: a copy of more bits, remainders in place of rows, or more pending tokens, which a
// refresh confirms for the price of the link.
std::optional<SessionPlan> Candidates::first_that_fits() {
  struct Choice {
    Savings savings;
    bool most_limits, streams_weights;
    double speed;
    bool worse_than(const Choice& other) const {
      return speed > 0 ? other.speed > kWorthSaving * speed : other.most_limits && !most_limits;
    }
  };
  std::optional<Choice> best;
  std::unique_ptr<SessionPlan> last;  // the best's, while the setup is still its own
  for (const Savings& savings : all_savings_) {
    if (best && savings.states && !best->streams_weights) break;
    savings_ = savings;
    last.reset();
    std::optional<SessionPlan> fits = first_with_savings();
    if (!fits) continue;
    if (!refreshes_stream(fits->memory)) return chosen(*std::move(fits));
    const Choice choice{savings, has_most_limits(), fits->memory.streams_weights(),
                        predicted_speed(context_, setup_, fits->memory)};
    if (best && !best->worse_than(choice)) continue;
    best = choice;
    last = std::make_unique<SessionPlan>(*std::move(fits));
    if (choice.most_limits && choice.speed == 0) break;  // no speed is known, so nothing can be faster
  }
  if (!best) return std::nullopt;
  savings_ = best->savings;
  return chosen(last ? *std::move(last) : first_with_savings().value());
}

// The most exact kind that is smaller than the refused copy and fits.
std::optional<PartialKind> Candidates::smaller_kind(DType refused) {
  for (const PartialKind kind : {PartialKind::kInt4, PartialKind::kBlocks}) {
    const std::optional<DType> copy = copy_type(kind);
    if (copy && (copy == refused || !copy_type_fits(*copy, context_.config.attention().head_dim))) continue;
    if (plan_partial(kind)) return kind;
  }
  return std::nullopt;
}

// Of the smallest passes, so the alternatives that it offers fit. Where the run may choose, with the least budgets of
// all kinds: a copy may need less of one budget than blocks. Savings need less of the device, and some of them more of
// the host. A copy that was asked for is refused with one that fits.
DoesNotFit Candidates::refusal() {
  const auto least_of_kind = [&](PartialKind kind) {
    Candidate small = candidate(kind, false);
    small.limits = limits_.back();
    take(small);
    return layout().plan_input();
  };
  PlanInput input;
  std::optional<MinimumBudgets> least;
  const auto add = [&](const PlanInput& in) {
    MinimumBudgets needed = minimum_budgets(in);
    // The last savings count the memory of embeddings that they move as free.
    const bool stay = all_savings_.back().embedding && !savings_.embedding;
    for (uint64_t* const vram : {&needed.vram_bytes, &needed.both_vram_bytes}) {
      if (*vram > 0 && stay) *vram += context_.weights.movable_bytes();
    }
    least = least ? least_of(*least, needed) : needed;
  };
  for (size_t i = 0; i < all_savings_.size(); ++i) {
    savings_ = all_savings_[i];
    if (i + 1 < all_savings_.size() && !all_savings_[i + 1].takes_host_memory_beside(savings_)) continue;
    for (const PartialKind kind : kinds_) {
      const PlanInput in = least_of_kind(kind);
      if (setup_.session.partial_on()) add(in);
    }
    add(input = least_of_kind(first_kind(setup_)));
  }
  DoesNotFit refused(input, *least);
  if (!input.partial.copy) return refused;
  const std::optional<PartialKind> instead = smaller_kind(*input.partial.copy);
  return instead ? DoesNotFit(refused, *instead) : refused;
}

RunSetup resolved_anew(const RunContext& context, const GenerateOptions& run, const RunSetup& setup) {
  RunSetup anew = resolve_options(context, setup.session.prompt_tokens, run);
  anew.session.scores = setup.session.scores;
  return anew;
}

}  // namespace

void set_first_kind(const RunContext& context, const GenerateOptions& run, RunSetup* setup) {
  set_partial(first_kind(*setup), pass_choices(context, run, *setup).front(), context, run, setup);
}

std::optional<SessionPlan> try_as_asked(const RunContext& context, const GenerateOptions& run, RunSetup* setup) {
  std::vector<int64_t> snapshots = fewer_snapshots(context, *setup);
  snapshots.insert(snapshots.begin(), kAllSnapshots);
  for (const int64_t most : snapshots) {
    setup->session.most_snapshots = most;
    if (std::optional<SessionPlan> plan = Candidates(context, run, setup).first_that_fits()) return plan;
  }
  return std::nullopt;
}

std::optional<SessionPlan> try_finalize(const RunContext& context, const GenerateOptions& run, RunSetup* setup) {
  if (std::optional<SessionPlan> plan = try_as_asked(context, run, setup)) return plan;
  if (const std::optional<GenerateOptions> full = without_partial(context, run, *setup)) {
    RunSetup anew = resolved_anew(context, *full, *setup);
    anew.session.prefix = setup->session.prefix;
    if (std::optional<SessionPlan> plan = try_as_asked(context, *full, &anew)) {
      *setup = std::move(anew);
      setup->memory_note = str("memory has no room for partial verification",
                               setup->model != nullptr ? " beside the draft " + setup->model->name() : "",
                               ": each step reads the whole KV cache (--verify full)");
      return plan;
    }
  }
  const std::optional<RunContext> plain = without_draft(context, *setup);
  if (!plain || setup->session.prefix != nullptr) return std::nullopt;
  *setup = resolved_anew(*plain, run, *setup);
  return try_finalize(*plain, run, setup);
}

DoesNotFit refusal(const RunContext& context, const GenerateOptions& run, RunSetup* setup) {
  if (const std::optional<RunContext> plain = without_draft(context, *setup)) {
    *setup = resolved_anew(*plain, run, *setup);
    return refusal(*plain, run, setup);
  }
  const std::vector<int64_t> snapshots = fewer_snapshots(context, *setup);
  setup->session.most_snapshots = snapshots.empty() ? kAllSnapshots : snapshots.back();
  return Candidates(context, run, setup).refusal();
}

SessionPlan finalize(const RunContext& context, const GenerateOptions& run, RunSetup* setup) {
  if (std::optional<SessionPlan> plan = try_finalize(context, run, setup)) return *std::move(plan);
  throw refusal(context, run, setup);
}

}  // namespace headrace
