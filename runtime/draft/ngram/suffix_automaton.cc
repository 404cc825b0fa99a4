#include "runtime/draft/ngram/suffix_automaton.h"

#include <bit>

#include "cache/base.h"

namespace headrace {

namespace {

size_t z(int32_t index) { return static_cast<size_t>(index); }

uint64_t most_states(int64_t tokens) { return 2 * static_cast<uint64_t>(tokens) + 1; }
uint64_t most_edges(int64_t tokens) { return 3 * static_cast<uint64_t>(tokens) + 1; }
uint64_t slots_for(int64_t tokens) { return std::bit_ceil(most_edges(tokens) * 5 / 4); }

}  // namespace

uint64_t SuffixAutomaton::bytes(int64_t most_tokens) {
  return static_cast<uint64_t>(most_tokens) * sizeof(int32_t) + most_states(most_tokens) * sizeof(State) +
         most_edges(most_tokens) * sizeof(Edge) + slots_for(most_tokens) * sizeof(int32_t) + kUndos * sizeof(Undo);
}

SuffixAutomaton::SuffixAutomaton(int64_t most_tokens) : undos_(kUndos) {
  CHECK(most_tokens > 0 && most_tokens < INT32_MAX / 8, "most_tokens=", most_tokens);
  text_.reserve(static_cast<size_t>(most_tokens));
  states_.reserve(most_states(most_tokens));
  edges_.reserve(most_edges(most_tokens));
  slots_.resize(slots_for(most_tokens));
  clear();
}

void SuffixAutomaton::clear() {
  text_.clear();
  states_.assign(1, {.length = 0, .link = -1, .first_edge = -1, .last_edge = -1, .followed = 0});
  edges_.clear();
  slots_.assign(slots_.size(), -1);
  undoable_ = 0;
  whole_ = 0;
}

// The slot of the edge, or the free one where it belongs.
size_t SuffixAutomaton::slot_of(int32_t state, int32_t token) const {
  const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(state)) << 32 | static_cast<uint32_t>(token);
  // The lower half of the product depends on the token alone.
  size_t slot = static_cast<size_t>(key * 0x9e3779b97f4a7c15u >> 32) & (slots_.size() - 1);
  while (slots_[slot] >= 0) {
    const Edge& edge = edges_[z(slots_[slot])];
    if (edge.state == state && edge.token == token) break;
    slot = (slot + 1) & (slots_.size() - 1);
  }
  return slot;
}

void SuffixAutomaton::log(Change change, int32_t index, int32_t before) {
  newest_ = (newest_ + 1) % kUndos;
  undos_[newest_] = {change, index, before};
  if (undoable_ < kUndos) ++undoable_;
}

int32_t SuffixAutomaton::add_state(int32_t length, int32_t link) {
  const int32_t added = static_cast<int32_t>(states_.size());
  states_.push_back({.length = length, .link = link, .first_edge = -1, .last_edge = -1, .followed = 0});
  log(Change::kState, added, 0);
  return added;
}

void SuffixAutomaton::add_edge(int32_t state, int32_t token, int32_t target, int32_t count) {
  const int32_t added = static_cast<int32_t>(edges_.size());
  slots_[slot_of(state, token)] = added;
  edges_.push_back({.state = state, .token = token, .target = target, .next = -1, .count = count});
  State& from = states_[z(state)];
  log(Change::kEdge, added, from.last_edge);
  (from.last_edge < 0 ? from.first_edge : edges_[z(from.last_edge)].next) = added;
  from.last_edge = added;
  from.followed += count;
}

void SuffixAutomaton::count(int32_t edge) {
  ++edges_[z(edge)].count;
  ++states_[z(edges_[z(edge)].state)].followed;
  log(Change::kCount, edge, 0);
}

// `state` is reached from `from` and from longer contexts by `token`, and the text now has the shorter one elsewhere.
// Gives the shorter ones a state of their own and returns it.
int32_t SuffixAutomaton::divide(int32_t from, int32_t token, int32_t state) {
  const int32_t shorter = add_state(states_[z(from)].length + 1, states_[z(state)].link);
  for (int32_t edge = states_[z(state)].first_edge; edge >= 0; edge = edges_[z(edge)].next) {
    const Edge copied = edges_[z(edge)];
    add_edge(shorter, copied.token, copied.target, copied.count);
  }
  log(Change::kLink, state, states_[z(state)].link);
  states_[z(state)].link = shorter;
  for (; from >= 0; from = states_[z(from)].link) {
    const int32_t edge = find(from, token);
    if (edges_[z(edge)].target != state) break;
    log(Change::kTarget, edge, state);
    edges_[z(edge)].target = shorter;
  }
  return shorter;
}

void SuffixAutomaton::append(int32_t token) {
  CHECK(text_.size() < text_.capacity(), "size=", text_.size());
  text_.push_back(token);
  log(Change::kToken, whole_, 0);
  int32_t context = whole_, longer = 0;
  whole_ = add_state(states_[z(context)].length + 1, 0);
  int32_t known = find(context, token);
  for (; known < 0; ++longer) {
    add_edge(context, token, whole_, 1);
    context = states_[z(context)].link;
    if (context < 0) return;  // it never occurred: its state's link is the empty context
    known = find(context, token);
  }
  const int32_t target = edges_[z(known)].target;
  const bool exact = states_[z(target)].length == states_[z(context)].length + 1;
  states_[z(whole_)].link = exact ? target : divide(context, token, target);
  // longer: contexts above it, the whole text among them
  for (; context >= 0 && longer <= kCounted; ++longer) {
    count(find(context, token));
    context = states_[z(context)].link;
  }
}

void SuffixAutomaton::undo(const Undo& entry) {
  switch (entry.change) {
    case Change::kToken:
      whole_ = entry.index;
      text_.pop_back();
      return;
    case Change::kState:
      states_.pop_back();
      return;
    case Change::kEdge: {
      const Edge edge = edges_.back();
      State& from = states_[z(edge.state)];
      // Later edges are gone, so no other edge's search passes this slot.
      slots_[slot_of(edge.state, edge.token)] = -1;
      edges_.pop_back();
      (entry.before < 0 ? from.first_edge : edges_[z(entry.before)].next) = -1;
      from.last_edge = entry.before;
      from.followed -= edge.count;
      return;
    }
    case Change::kCount:
      --edges_[z(entry.index)].count;
      --states_[z(edges_[z(entry.index)].state)].followed;
      return;
    case Change::kTarget:
      edges_[z(entry.index)].target = entry.before;
      return;
    case Change::kLink:
      states_[z(entry.index)].link = entry.before;
      return;
  }
}

void SuffixAutomaton::cut(int64_t size) {
  CHECK(size >= 0 && size <= static_cast<int64_t>(text_.size()), "size=", size);
  const size_t kept = static_cast<size_t>(size);
  while (text_.size() > kept && undoable_ > 0) {
    undo(undos_[newest_]);
    newest_ = (newest_ + kUndos - 1) % kUndos;
    --undoable_;
  }
  if (text_.size() == kept) return;
  const std::vector<int32_t> text(text_.begin(), text_.begin() + size);
  clear();
  for (const int32_t token : text) append(token);
}

SuffixAutomaton::Match SuffixAutomaton::end() const {
  const int32_t link = states_[z(whole_)].link;
  return link < 0 ? Match{} : Match{link, states_[z(link)].length};
}

SuffixAutomaton::Match SuffixAutomaton::after(Match context, int32_t token) const {
  while (context.state >= 0) {
    const int32_t edge = find(context.state, token);
    if (edge >= 0) return {edges_[z(edge)].target, context.length + 1};
    context.state = states_[z(context.state)].link;
    if (context.state >= 0) context.length = states_[z(context.state)].length;
  }
  return {};
}

}  // namespace headrace
