#include "runtime/engine/decode_loop.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <string>

#include "kernels/sample/op.h"
#include "offload/device/trace.h"
#include "runtime/engine/substitute_loss.h"

namespace headrace {
namespace {

// Intervals of step_mode(): the next step is partial whenever the tail has room for it, or never.
constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max(), kNothing = -1;

double usual_share(const PreparedRun& run) {
  const double rows = usual_rejected_share(run.setup.session.partial.shape);
  return run.plan.memory.substitutes() ? joined_loss(rows, substitute_loss(*run.plan.layout.substitute())) : rows;
}

// "first; second; ..."
std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += (text.empty() ? "" : "; ") + line;
  return text;
}

}  // namespace

DecodeLoop::DecodeLoop(const Run& run)
    : run_(run),
      layout_(run.prepared.plan.layout),
      sequence_(run.sequence),
      executor_(run.executor),
      drafting_(run.drafting),
      output_(run.output),
      most_pending_(run.prepared.setup.session.most_pending),
      interval_(run.prepared.setup.verify.interval),
      final_(run.prepared.setup.verify.mode == VerifyMode::kApproximate),
      chain_(usual_share(run.prepared)),
      prompt_tokens_(sequence_.rows()) {
  pending_.reserve(static_cast<size_t>(most_pending_));
  wrong_.reserve(static_cast<size_t>(most_pending_));
  if (run.prepared.setup.pending.width > 0) growing_.emplace(run.prepared.setup.pending, output_.ends());
  const double most_overturned = run.prepared.setup.verify.max_overturned;
  if (final_ && most_overturned < 1) limit_.emplace(most_overturned);
  if (interval_ == kAutoInterval) {
    policy_.emplace(run.prepared.refreshes_stream(), run.options.step_costs, run.refresh_steps);
  }
}

void DecodeLoop::run(int32_t first) {
  const std::atomic<bool>* const interrupt = run_.options.interrupt;
  root_ = output_.thinking().due().value_or(settled(first));
  bool going = output_.take(root_, executor_.log_probs(0));
  while (going) {
    if (interrupt != nullptr && interrupt->load(std::memory_order_relaxed)) {
      return output_.interrupted();  // pending tokens of a lossless run were never emitted
    }
    const TraceStep step(layout_.compute());
    const StepMode mode = next_mode();
    going = mode != StepMode::kPartial ? verify_step(mode) : growing_ ? tree_step() : partial_step();
    if (run_.progress) run_.progress->update(output_.tokens());
  }
}

void DecodeLoop::follow(std::vector<ForcedToken>* out) {
  const std::vector<int32_t>& text = run_.options.forced;
  acceptance_.nodes = {0};
  for (size_t i = 0; output_.take(text[i]) && i + 1 < text.size(); ++i) {
    if (run_.options.interrupt != nullptr && run_.options.interrupt->load(std::memory_order_relaxed)) {
      return output_.interrupted();
    }
    const TraceStep step(layout_.compute());
    const int64_t position = sequence_.rows();
    acceptance_.next = text[i + 1];
    tree_.reset(text[i]);
    drafting_.begin(StepMode::kFull, 0, 0);
    drafting_.propose(text[i], position, &tree_);
    const std::optional<TokenRank> rank = drafting_.rank(acceptance_.next);
    const int32_t sample = settled(executor_.verify(tree_, StepMode::kFull)[0]);
    out->push_back({.token = acceptance_.next, .sampled = sample == acceptance_.next, .draft = rank});
    commit(StepMode::kFull, tree_, {.committed = 1});
    if (run_.progress) run_.progress->update(output_.tokens());
  }
}

// Returns the sample if it is a token; throws Error if the row has none.
int32_t DecodeLoop::settled(int32_t sample) const {
  if (sample >= 0) [[likely]]
    return sample;
  const int64_t position = sequence_.rows() + sequence_.pending_rows();
  const int64_t answered = position - prompt_tokens_;
  const std::string damage = joined(layout_.weights().damage().lines);
  throw_error(ExitCode::kBadInput, run_.model,
              str("the logits after ",
                  answered == 0 ? str("the prompt's ", prompt_tokens_, " tokens ")
                                : str(answered, answered == 1 ? " token" : " tokens", " of the answer, at position ",
                                      position, ", "),
                  sample == kNanLogit        ? "hold NaN"
                  : sample == kInfiniteLogit ? "hold infinity"
                                             : "are all -infinity"),
              damage.empty() ? "No text can follow: the model overflows on this text, or its file is damaged."
                             : "The file is damaged: " + damage);
}

StepMode DecodeLoop::next_mode() const {
  if (at_the_end_) return StepMode::kRefresh;
  if (policy_ && policy_->full()) return StepMode::kFull;
  if (growing_ && sequence_.partial_ready()) return interval_ == 0 ? StepMode::kRefresh : StepMode::kPartial;
  const int64_t pending = sequence_.pending_rows();
  const int64_t automatic = policy_ && chain_pays() ? kUnlimited : kNothing;
  return step_mode({.rows = sequence_.rows() + pending,
                    .least_context = layout_.partial_from(),
                    .initialised = sequence_.partial_ready(),
                    .accepted = accepted_,
                    .pending = pending,
                    .deepest = drafting_.deepest(),
                    .interval = policy_ ? automatic : interval_,
                    .most_pending = most_pending_});
}

// Whether another partial step pays, or all steps up to the end of the run together.
bool DecodeLoop::chain_pays() const {
  const int64_t pending = sequence_.pending_rows(), end = output_.room();
  return policy_->pays(chain_.next_step(pending)) ||
         (end <= most_pending_ && policy_->pays(chain_.to_the_end(pending, end)));
}

// ---- a step over the full KV ----------------------------------------------------------------------------------------

// The pending tokens are a chain before the proposed tree: one pass judges both.
bool DecodeLoop::verify_step(StepMode mode) {
  const int64_t pending = sequence_.pending_rows();
  tree_.reset(root_);
  drafting_.begin(mode, pending, pending);
  const int64_t first = sequence_.rows();
  VerifyOutcome verify_outcome;
  wrong_.clear();
  if (pending > 0 || at_the_end_ || !step_on_device(mode, first)) {
    if (!at_the_end_) drafting_.propose(root_, first + pending, &tree_);
    const Tree& together = behind_pending();
    const std::span<const int32_t> samples = executor_.verify(together, mode);
    accept_behind(together, samples, final_ ? pending : 0, &acceptance_);
    verify_outcome = verify_pending(samples);
  }
  const Tree& tree = pending > 0 ? combined_ : tree_;
  // Skips nodes that were emitted before: the first node in a lossless run, all up to the tree's root in an approximate
  // one.
  const size_t first_node = final_ ? static_cast<size_t>(pending) + 1 : 1;
  end_thinking(tree, first_node);
  const int64_t right = static_cast<int64_t>(acceptance_.nodes.size());
  if (limit_ && !final_) verify_outcome.lossless_tokens = right;
  commit(mode, tree,
         {.committed = final_ ? right - pending : right, .verify_outcome = verify_outcome, .wrong_ages = wrong_});
  if (policy_ && mode == StepMode::kFull) policy_->record_full(drafting_.last_ms(), right);
  if (policy_ && pending > 0) {
    chain_.record_refresh(verify_outcome, right - pending);
    // The forecast itself learns what comes true.
    policy_->record_refresh(drafting_.last_ms(), pending, static_cast<double>(right), right);
  }
  accepted_ = std::max<int64_t>(right - pending, 0);
  pending_.clear();
  at_the_end_ = false;
  if (limit_ && verify_outcome.judged > 0) {
    limit_->record(verify_outcome);
    final_ = !limit_->exceeded();
  }
  return emit(tree, first_node);
}

// Proposes a tree after the rows before `position`, verifies it and accepts a path without involving the host. Returns
// false and does nothing if the draft or the run's rules need the host.
bool DecodeLoop::step_on_device(StepMode mode, int64_t position) {
  if (executor_.ruled()) return false;
  const ProposedTree proposed = drafting_.propose_into(root_, position, executor_.tree_inputs(mode));
  if (proposed.nodes == 0) return false;
  executor_.verify(proposed, mode, &tree_, &acceptance_);
  return true;
}

const Tree& DecodeLoop::behind_pending() {
  if (pending_.empty()) return tree_;
  combined_.reset(pending_.front());
  for (size_t i = 1; i < pending_.size(); ++i) combined_.add(pending_[i], static_cast<int32_t>(i) - 1);
  const int32_t before = static_cast<int32_t>(pending_.size());
  for (size_t i = 0; i < tree_.tokens.size(); ++i) combined_.add(tree_.tokens[i], tree_.parents[i] + before);
  return combined_;
}

// The first pending token was sampled from the full KV; the root behind the last is judged with them.
VerifyOutcome DecodeLoop::verify_pending(std::span<const int32_t> samples) {
  VerifyOutcome verify_outcome;
  for (size_t i = 0; i < pending_.size(); ++i) {
    ++verify_outcome.judged;
    if (combined_.tokens[i + 1] == samples[i]) continue;
    ++verify_outcome.rejected;
    wrong_.push_back(static_cast<int32_t>(i));
    if (final_) continue;
    verify_outcome.discarded = static_cast<int64_t>(pending_.size() - 1 - i);
    break;
  }
  return verify_outcome;
}

// Commits the accepted path of the tree that a step has verified; the token after it is the next root.
void DecodeLoop::commit(StepMode mode, const Tree& tree, const Outcome& outcome) {
  const int64_t position = sequence_.rows() + (mode == StepMode::kPartial ? sequence_.pending_rows() : 0);
  executor_.commit(acceptance_);
  drafting_.observe(tree, acceptance_, position, outcome);
  root_ = acceptance_.next;
}

// The accepted path, of which the output has the nodes before `first_node`, ends before a token that the budget of
// thinking replaces.
void DecodeLoop::end_thinking(const Tree& tree, size_t first_node) {
  if (!output_.thinking().limited()) return;
  ThinkingBudget thinking = output_.thinking();
  std::vector<int32_t>& path = acceptance_.nodes;
  for (size_t i = first_node; i <= path.size(); ++i) {
    const int32_t token = i < path.size() ? tree.tokens[static_cast<size_t>(path[i])] : acceptance_.next;
    if (const std::optional<int32_t> due = thinking.due(); due && *due != token) {
      path.resize(i);
      acceptance_.next = *due;
      return;
    }
    thinking.push(token);
  }
}

// Tokens from the last emitted one on that the target chooses; at least 1, as in all of a run.
int64_t DecodeLoop::room() const { return std::min(output_.room(), std::max<int64_t>(output_.thinking().room(), 1)); }

// Emits the accepted path from `first_node` on, then the root: all of these are final.
bool DecodeLoop::emit(const Tree& tree, size_t first_node) {
  const std::vector<int32_t>& path = acceptance_.nodes;
  bool going = true;
  for (size_t i = first_node; i < path.size() && going; ++i) {
    going = output_.take(tree.tokens[static_cast<size_t>(path[i])], executor_.log_probs(path[i - 1]));
  }
  return going && output_.take(settled(root_), executor_.log_probs(path.back()));
}

// ---- a step over the partial KV -------------------------------------------------------------------------------------

bool DecodeLoop::partial_step() {
  tree_.reset(root_);
  drafting_.begin(StepMode::kPartial, 0, sequence_.pending_rows());
  const int64_t first = sequence_.rows() + sequence_.pending_rows();
  if (!step_on_device(StepMode::kPartial, first)) {
    drafting_.propose(root_, first, &tree_);
    accept_behind(tree_, executor_.verify(tree_, StepMode::kPartial), 0, &acceptance_);
  }
  if (!final_) acceptance_.next = std::max(acceptance_.next, 0);  // a NoToken becomes token 0: a refresh decides
  final_ ? end_thinking(tree_, 1) : cut_at_the_end();
  const int64_t count = static_cast<int64_t>(acceptance_.nodes.size());
  commit(StepMode::kPartial, tree_, {.committed = final_ ? count : 0});
  for (const int32_t node : acceptance_.nodes) pending_.push_back(tree_.tokens[static_cast<size_t>(node)]);
  accepted_ += count;
  chain_.record_partial(count);
  if (policy_) policy_->record_partial(drafting_.last_ms());
  return !final_ || emit(tree_, 1);
}

// ---- pending tokens as a tree ---------------------------------------------------------------------------------------

// Grows the tree by one step, or verifies it. Where thinking ends there is nothing to grow; a draft reads all tokens
// that it has observed when it proposes, so it is asked in each step.
bool DecodeLoop::tree_step() {
  if (!growing_->begun() && output_.thinking().room() <= 1) return verify_step(StepMode::kRefresh);
  if (!growing_->begun()) growing_->begin(root_);
  const int64_t interval = policy_ ? most_pending_ : interval_;
  const int64_t most_depth = std::min({room() - 1, interval, most_pending_ - 1});
  const std::optional<PendingTree::Tip> tip = growing_->tip();
  drafting_.begin(StepMode::kPartial, 0, tip ? tip->depth : 0);
  propose_after_tip(most_depth);
  if (!grow_on(most_depth)) return verify_tree(most_depth);
  const int64_t first = growing_->extend(most_depth);
  growing_->rank(first, executor_.grow(growing_->tree(), first, growing_->last_choice()));
  drafting_.grown(growing_->tree().size() - first, growing_->drafted(), growing_->followed());
  if (!growing_->followed().nodes.empty()) {
    chain_.record_partial(static_cast<int64_t>(growing_->followed().nodes.size()));
  }
  if (policy_) policy_->record_partial(drafting_.last_ms());
  return true;
}

// The draft proposes a tree behind the last of the first choices.
void DecodeLoop::propose_after_tip(int64_t most_depth) {
  if (!drafting_.drafts() || growing_->offered()) return;
  const std::optional<PendingTree::Tip> tip = growing_->tip();
  if (!tip || tip->depth >= most_depth) return;
  tree_.reset(tip->token);
  drafting_.propose(tip->token, sequence_.rows() + tip->depth, &tree_);
  growing_->offer(tree_);
}

// By measured cost and yield, or after a fixed interval.
bool DecodeLoop::grow_on(int64_t most_depth) {
  if (most_depth <= 0) return false;
  const double growth =
      growing_->partial_steps() == 0 ? 1 : growing_->predicted_growth(most_depth, chain_.step_tokens());
  if (growth == 0) return false;
  if (!policy_) return !growing_->finished(most_depth);
  return policy_->pays({.expected = growing_->expected(most_depth), .more = growth});
}

// The tree ends with this refresh: the committed path stops at a node without a right child, so no node that remains is
// right. Growing the tree while the refresh streams was found not to pay (docs/decisions.md).
bool DecodeLoop::verify_tree(int64_t most_depth) {
  const double predicted = growing_->expected(most_depth);
  growing_->fill(most_depth);
  const Tree& tree = growing_->tree();
  drafting_.turn_to_refresh(growing_->first_choices());
  const std::span<const int32_t> samples = executor_.verify(tree, StepMode::kRefresh);
  accept_behind(tree, samples, 0, &acceptance_);
  const PendingTree::Verdict verdict = growing_->learn(samples, acceptance_);
  end_thinking(tree, 1);
  const int64_t committed = static_cast<int64_t>(acceptance_.nodes.size());
  wrong_.clear();
  if (verdict.rejected > 0) wrong_.push_back(static_cast<int32_t>(verdict.judged - 1));
  commit(StepMode::kRefresh, tree,
         {.committed = committed,
          .accepted_depths = verdict.accepted_depths,
          .verify_outcome = {.judged = verdict.judged,
                             .rejected = verdict.rejected,
                             .recovered = verdict.recovered,
                             .predicted = predicted},
          .wrong_ages = wrong_});
  if (policy_) policy_->record_refresh(drafting_.last_ms(), 0, predicted, committed);
  const bool going = emit(tree, 1);
  growing_->clear();
  return going;
}

// A token that would end the run is pending like any other token, and so is the last one before a forced end of
// thinking. The path is cut behind it, and the next step is a refresh.
void DecodeLoop::cut_at_the_end() {
  const int64_t room = this->room() - sequence_.pending_rows();  // only the first one is emitted
  const std::vector<int32_t>& nodes = acceptance_.nodes;
  for (size_t i = 1; i <= nodes.size() && !at_the_end_; ++i) {
    const int32_t token = i < nodes.size() ? tree_.tokens[static_cast<size_t>(nodes[i])] : acceptance_.next;
    at_the_end_ = output_.ends(token) || static_cast<int64_t>(i) >= room;
    if (!at_the_end_) continue;
    acceptance_.nodes.resize(i);
    acceptance_.next = token;
  }
}

}  // namespace headrace
