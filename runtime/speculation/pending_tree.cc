#include "runtime/speculation/pending_tree.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

namespace headrace {
namespace {

constexpr double kForget = 0.99;

// Every estimate enters the tree through this: a child's chance is at most its parent's, whatever rounding or a draft
// did. An estimate that is not a number is worth nothing.
double bounded(double chance, double parent) { return chance >= 0 ? std::min(chance, parent) : 0; }

}  // namespace

PendingTree::PendingTree(const PendingTreeLimits& limits, std::vector<int32_t> ends)
    : limits_(limits), ends_(std::move(ends)), missed_(seen_ * limits.unranked) {
  CHECK(limits.width > 0 && limits.nodes > 0 && limits.nodes <= kMaxPassNodes, "nodes=", limits.nodes);
  CHECK(limits.grown > 0 && limits.grown <= kMaxPassNodes, "grown=", limits.grown);
  const auto known = std::find(kSharpness.begin(), kSharpness.end(), limits.sharpness);
  CHECK(known != kSharpness.end(), "sharpness=", limits.sharpness);
  CHECK(limits.unranked >= 0 && limits.unranked < 1, "unranked=", limits.unranked);
  evidence_[static_cast<size_t>(known - kSharpness.begin())] = 1;
  const size_t most = static_cast<size_t>(std::max(limits.grown, limits.nodes));
  nodes_.reserve(most);
  tokens_.reserve(most * (kRankedTokens + 1));
  log_probs_.reserve(most * kRankedTokens);
  candidates_.reserve(most * kRankedTokens + kMaxTreeNodes);
  by_chance_.reserve(most * (kRankedTokens + 1) + kMaxTreeNodes);
  accepted_depths_.reserve(most);
  place_.reserve(most);
}

void PendingTree::begin(int32_t root) {
  begun_ = true;
  offered_ = ended_ = false;
  tree_.reset(root);
  nodes_.assign(1, Node{});
  tokens_.clear();
  log_probs_.clear();
  candidates_.clear();
  computed_ = steps_ = first_choices_ = 0;
  last_choice_ = -1;
}

bool PendingTree::ends(int32_t token) const { return std::find(ends_.begin(), ends_.end(), token) != ends_.end(); }

// ---- the draft's offers ---------------------------------------------------------------------------------------------

const PendingTree::Candidate* PendingTree::find_tip() const {
  for (const Candidate& candidate : candidates_) {
    if (candidate.kind == Kind::kTip) return &candidate;
  }
  return nullptr;
}

int64_t PendingTree::tip_depth() const {
  const Candidate* const found = find_tip();
  return found == nullptr ? 0 : tree_.depths[static_cast<size_t>(found->from)] + 1;
}

std::optional<PendingTree::Tip> PendingTree::tip() const {
  if (computed_ == 0) return Tip{.token = tree_.tokens[0], .depth = 0};
  const Candidate* const found = find_tip();
  if (found == nullptr) return std::nullopt;
  return Tip{.token = found->token, .depth = tip_depth(), .chance = found->chance};
}

bool PendingTree::finished(int64_t most_depth) const {
  const std::optional<Tip> at = tip();
  return ended_ || (at && at->depth >= most_depth);
}

// A draft's scores are log-probabilities of paths.
void PendingTree::offer(const Tree& proposed) {
  CHECK(proposed.scores.size() == proposed.tokens.size(), "scores=", proposed.scores.size());
  CHECK(tip().has_value() && tip()->token == proposed.tokens[0] && !offered_, "token ", proposed.tokens[0]);
  const double tip_chance = computed_ == 0 ? 1 : find_tip()->chance;
  offer_ = proposed;
  offered_ = true;
  by_chance_.assign(proposed.tokens.size(), tip_chance);  // here by node
  place_.assign(proposed.tokens.size(), 0);               // -1: at or beyond the end of the run
  for (size_t node = 1; node < proposed.tokens.size(); ++node) {
    const size_t parent = static_cast<size_t>(proposed.parents[node]);
    const auto score = [&](size_t of) { return static_cast<double>(proposed.scores[of]); };
    by_chance_[node] = bounded(tip_chance * std::exp(score(node)), by_chance_[parent]);
    if (place_[parent] < 0 || ends(proposed.tokens[node])) {
      place_[node] = -1;
      continue;
    }
    candidates_.push_back({.token = proposed.tokens[node],
                           .from = static_cast<int32_t>(node),
                           .share = bounded(std::exp(score(node) - score(parent)), 1),
                           .chance = by_chance_[node],
                           .kind = Kind::kOffered});
  }
}

void PendingTree::drop_offer() {
  std::erase_if(candidates_, [](const Candidate& c) { return c.kind == Kind::kOffered; });
  offered_ = false;
}

// ---- a partial step -------------------------------------------------------------------------------------------------

int64_t PendingTree::depth_of(const Candidate& candidate, int64_t tip) const {
  const size_t from = static_cast<size_t>(candidate.from);
  return candidate.kind == Kind::kOffered ? tip + offer_.depths[from] : tree_.depths[from] + 1;
}

void PendingTree::drop_deeper(int64_t most_depth) {
  const int64_t tip = tip_depth();
  std::erase_if(candidates_, [&](const Candidate& c) { return depth_of(c, tip) > most_depth; });
}

// Moves the at most `count` likeliest candidates of the levels up to `last_depth` to the front, and returns their
// number. No child is likelier than its parent (bounded()), and on a tie the parent comes first, so the parents of
// selected candidates are in the tree or selected before.
size_t PendingTree::bring_forward(int64_t count, int64_t last_depth) {
  const int64_t tip = tip_depth();
  const auto end = std::partition(candidates_.begin(), candidates_.end(),
                                  [&](const Candidate& c) { return depth_of(c, tip) <= last_depth; });
  const auto kept = std::clamp<int64_t>(count, 0, end - candidates_.begin());
  std::partial_sort(candidates_.begin(), candidates_.begin() + kept, end, [](const Candidate& a, const Candidate& b) {
    if (a.chance != b.chance) return a.chance > b.chance;
    if (a.kind != b.kind) return a.kind < b.kind;
    return a.from != b.from ? a.from < b.from : a.token < b.token;
  });
  return static_cast<size_t>(kept);
}

int32_t PendingTree::add(const Candidate& candidate, int32_t parent) {
  const int32_t node = tree_.add(candidate.token, parent);
  nodes_.push_back({.share = candidate.share, .chance = candidate.chance});
  if (candidate.kind == Kind::kOffered) {
    nodes_.back().offered_depth = offer_.depths[static_cast<size_t>(candidate.from)];
  }
  return node;
}

void PendingTree::add_offered(const Candidate& candidate) {
  const size_t from = static_cast<size_t>(candidate.from);
  const int32_t parent = place_[static_cast<size_t>(offer_.parents[from])];
  CHECK(parent >= 0, "node ", candidate.from);
  place_[from] = add(candidate, parent);
  drafted_.add(candidate.token, parent - place_[0]);
  drafted_.scores.push_back(offer_.scores[from]);
}

// Turns the first `count` candidates into nodes: the tip, the tokens offered after it, the rest.
void PendingTree::add_first(size_t count) {
  const std::span<const Candidate> first(candidates_.data(), count);
  place_.assign(offered_ ? offer_.tokens.size() : 1, -1);
  drafted_.tokens.clear();
  if (computed_ == 0) {
    place_[0] = 0;
    drafted_.reset(tree_.tokens[0]);
  }
  for (const Candidate& c : first) {
    if (c.kind != Kind::kTip) continue;
    place_[0] = add(c, c.from);
    drafted_.reset(c.token);
  }
  if (offered_) drafted_.scores.assign(1, 0);
  for (const Candidate& c : first) {
    if (c.kind == Kind::kOffered) add_offered(c);
  }
  for (const Candidate& c : first) {
    if (c.kind == Kind::kRanked) add(c, c.from);
  }
  candidates_.erase(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(count));
}

int64_t PendingTree::extend(int64_t most_depth) {
  const int64_t first = computed_, root = computed_ == 0 ? 1 : 0;  // the root itself must be computed
  drop_deeper(most_depth);
  add_first(bring_forward(std::min(limits_.width - root, limits_.grown - tree_.size()), most_depth - 1));
  return first;
}

void PendingTree::rank(int64_t first, const Ranked& ranked) {
  const int64_t count = tree_.size() - first;
  CHECK(first == computed_ && static_cast<int64_t>(ranked.samples.size()) >= count, "first=", first);
  CHECK(ranked.tokens.size() == ranked.log_probs.size());
  if (!drafted_.tokens.empty()) drop_offer();
  for (int64_t i = 0; i < count; ++i) {
    const size_t row = static_cast<size_t>(i * kRankedTokens);
    rank_node(first + i, ranked.samples[static_cast<size_t>(i)], ranked.tokens.subspan(row, kRankedTokens),
              ranked.log_probs.subspan(row, kRankedTokens));
  }
  computed_ = tree_.size();
  ++steps_;
  follow(first, ranked.samples);
  update_chances();
}

// Makes candidates of its ranked tokens, except those that a draft has already offered and that are nodes.
void PendingTree::rank_node(int64_t node, int32_t sample, std::span<const int32_t> tokens,
                            std::span<const float> log_probs) {
  const int32_t children = static_cast<int32_t>(tokens_.size()), index = static_cast<int32_t>(node);
  nodes_[static_cast<size_t>(node)].children = children;
  // The sample comes first; if filters forbid a token ranked above it, the sample gets that token's chance.
  tokens_.push_back(sample);
  for (const int32_t token : tokens) {
    if (token != sample) tokens_.push_back(token);
  }
  tokens_.resize(static_cast<size_t>(children) + kRankedTokens);
  log_probs_.insert(log_probs_.end(), log_probs.begin(), log_probs.end());
  const std::array<double, kRankedTokens> share = chances(children, sharpness());
  const int32_t* const row = tokens_.data() + children;
  std::array<bool, kRankedTokens> is_node{};
  for (size_t child = static_cast<size_t>(node) + 1; child < nodes_.size(); ++child) {
    if (tree_.parents[child] != index) continue;
    const size_t place = static_cast<size_t>(std::find(row, row + kRankedTokens, tree_.tokens[child]) - row);
    nodes_[child].share = place < share.size() ? share[place] : (1 - among_ranked()) / kRankedTokens;
    if (place < share.size()) is_node[place] = true;
  }
  for (size_t place = 0; place < share.size(); ++place) {
    if (is_node[place] || ends(row[place])) continue;
    candidates_.push_back(
        {.token = row[place], .from = index, .share = share[place], .chance = 0, .kind = Kind::kRanked});
  }
}

// Updates the chances from the root on; drops nodes whose chance is too low.
void PendingTree::update_chances() {
  for (size_t i = 1; i < nodes_.size(); ++i) {
    nodes_[i].chance = nodes_[static_cast<size_t>(tree_.parents[i])].chance * nodes_[i].share;
  }
  for (Candidate& c : candidates_) {
    if (c.kind != Kind::kOffered) c.chance = nodes_[static_cast<size_t>(c.from)].chance * c.share;
  }
  std::erase_if(candidates_, [&](const Candidate& c) { return c.chance < limits_.least; });
}

// Follows the first choices from the tip through the offered tokens after it to a new tip.
void PendingTree::follow(int64_t first, std::span<const int32_t> samples) {
  followed_.nodes.clear();
  if (drafted_.tokens.empty()) return;
  accept(drafted_, samples.first(drafted_.tokens.size()), &followed_);
  first_choices_ += static_cast<int64_t>(followed_.nodes.size());
  settle_depths(first);
  ended_ = ends(followed_.next);
  last_choice_ = static_cast<int32_t>(first) + followed_.nodes.back();
  for (Candidate& c : candidates_) {
    if (c.kind == Kind::kRanked && c.from == last_choice_ && c.token == followed_.next) c.kind = Kind::kTip;
  }
}

// A partial step accepted a token of each depth along the first choices.
void PendingTree::settle_depths(int64_t first) {
  const int32_t last = drafted_.depths[static_cast<size_t>(followed_.nodes.back())];
  for (size_t i = 0; i < drafted_.tokens.size(); ++i) {
    if (drafted_.depths[i] <= last) nodes_[static_cast<size_t>(first) + i].offered_depth = 0;
  }
}

// ---- what a refresh is expected to confirm --------------------------------------------------------------------------

double PendingTree::sharpness() const {
  return kSharpness[static_cast<size_t>(std::max_element(evidence_.begin(), evidence_.end()) - evidence_.begin())];
}

// The chance of each of a node's ranked tokens, given that its path is correct.
std::array<double, kRankedTokens> PendingTree::chances(int32_t ranked, double sharpness) const {
  std::array<double, kRankedTokens> out{};
  const float* const log_probs = log_probs_.data() + ranked;
  double sum = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    const double below = static_cast<double>(log_probs[i] - log_probs[0]);  // NaN for missing logits
    out[i] = i == 0 ? 1 : bounded(std::exp(sharpness * below), 1);
    sum += out[i];
  }
  for (double& chance : out) chance *= among_ranked() / sum;
  return out;
}

double PendingTree::expected(int64_t most_depth) {
  drop_deeper(most_depth);
  by_chance_.clear();
  for (const Node& node : nodes_) by_chance_.push_back(node.chance);
  for (const Candidate& candidate : candidates_) by_chance_.push_back(candidate.chance);
  const auto end = by_chance_.begin() + std::min(limits_.nodes, static_cast<int64_t>(by_chance_.size()));
  std::partial_sort(by_chance_.begin(), end, by_chance_.end(), std::greater<>());
  return std::accumulate(by_chance_.begin(), end, 0.0);
}

// The gain from the tokens that the next step will rank, less those that a draft has already offered; or, if that is
// more, what steps have brought so far: the draft's next offer is not known yet.
double PendingTree::predicted_growth(int64_t most_depth, double step_tokens) {
  drop_deeper(most_depth);
  if (tree_.size() >= limits_.grown) return 0;
  const size_t best = bring_forward(std::min(limits_.width, limits_.grown - tree_.size()), most_depth - 1);
  double growth = 0;
  place_.assign(offered_ ? offer_.tokens.size() : 1, 0);
  for (size_t i = 0; i < best; ++i) {
    const Candidate& c = candidates_[i];
    growth += c.chance * among_ranked();
    if (c.kind != Kind::kRanked) place_[c.kind == Kind::kTip ? 0 : static_cast<size_t>(c.from)] = 1;
  }
  for (const Candidate& c : candidates_) {
    if (c.kind != Kind::kOffered) continue;
    const size_t parent = static_cast<size_t>(offer_.parents[static_cast<size_t>(c.from)]);
    if (place_[parent] != 0) growth -= c.chance;
  }
  const std::optional<Tip> at = tip();
  return std::max(growth, at && at->depth < most_depth ? at->chance * step_tokens : 0);
}

// Keeps nodes likelier than `least`, and so their parents, and the first `ties` of those that equal it.
void PendingTree::keep_nodes(double least, int64_t ties) {
  place_.assign(nodes_.size(), -1);
  int32_t kept = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const double chance = nodes_[i].chance;
    const bool stays = chance > least || (chance == least && ties-- > 0);
    if (!stays && i > 0) continue;  // the root always stays
    const size_t to = static_cast<size_t>(kept);
    place_[i] = kept++;
    nodes_[to] = nodes_[i];
    tree_.tokens[to] = tree_.tokens[i];
    tree_.depths[to] = tree_.depths[i];
    tree_.parents[to] = i == 0 ? -1 : place_[static_cast<size_t>(tree_.parents[i])];
  }
  const size_t size = static_cast<size_t>(kept);
  nodes_.resize(size);
  tree_.tokens.resize(size);
  tree_.depths.resize(size);
  tree_.parents.resize(size);
  for (Candidate& c : candidates_) {
    if (c.kind != Kind::kOffered) c.from = place_[static_cast<size_t>(c.from)];
  }
  std::erase_if(candidates_, [](const Candidate& c) { return c.from < 0; });
  if (computed_ > 0 && find_tip() == nullptr) drop_offer();
}

void PendingTree::fill(int64_t most_depth) {
  expected(most_depth);  // sorts by_chance_ as far as a refresh judges
  const size_t most = static_cast<size_t>(limits_.nodes);
  const double least = by_chance_.size() <= most ? 0 : by_chance_[most - 1];
  const auto likelier = std::count_if(by_chance_.begin(), by_chance_.end(), [&](double c) { return c > least; });
  keep_nodes(std::max(least, limits_.least), limits_.nodes - likelier);
  add_first(bring_forward(limits_.nodes - tree_.size(), most_depth));
}

PendingTree::Verdict PendingTree::learn(std::span<const int32_t> samples, const Acceptance& acceptance) {
  Verdict verdict;
  accepted_depths_.clear();
  for (const int32_t right : acceptance.nodes) {
    const Node& node = nodes_[static_cast<size_t>(right)];
    if (node.offered_depth > 0) accepted_depths_.push_back(node.offered_depth);
    if (node.children < 0) continue;
    const int32_t truth = samples[static_cast<size_t>(right)];
    const int32_t* const row = tokens_.data() + node.children;
    const int64_t place = std::find(row, row + kRankedTokens, truth) - row;
    seen_ = seen_ * kForget + 1;
    missed_ = missed_ * kForget + (place == kRankedTokens ? 1 : 0);
    if (place < kRankedTokens) {
      for (size_t i = 0; i < kSharpness.size(); ++i) {
        const double chance = chances(node.children, kSharpness[i])[static_cast<size_t>(place)];
        evidence_[i] = evidence_[i] * kForget + std::log(std::max(chance, 1e-6));
      }
    }
    if (verdict.rejected > 0) continue;
    ++verdict.judged;
    if (place != 0) verdict.rejected = 1;
  }
  if (verdict.rejected > 0) {  // the first choices up to the wrong one, and the root
    verdict.recovered = static_cast<int64_t>(acceptance.nodes.size()) - verdict.judged;
  }
  verdict.accepted_depths = accepted_depths_;
  return verdict;
}

}  // namespace headrace
