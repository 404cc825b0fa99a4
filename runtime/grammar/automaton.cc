#include "runtime/grammar/automaton.h"

#include <algorithm>

#include "cache/base.h"

namespace headrace {
namespace {

constexpr GrammarState kUnknown = -2;

using Kind = GrammarNode::Kind;

size_t mixed(size_t hash, int32_t value) {
  return (hash ^ static_cast<uint32_t>(value)) * 0x9E3779B97F4A7C15u + (hash >> 29);
}

}  // namespace

size_t Automaton::HashStack::operator()(const GrammarStack& stack) const {
  return mixed(mixed(mixed(1, stack.node), stack.count), stack.below);
}

size_t Automaton::HashStacks::operator()(const std::vector<int32_t>& stacks) const {
  size_t hash = 1;
  for (const int32_t stack : stacks) hash = mixed(hash, stack);
  return hash;
}

Automaton::Automaton(const Grammar& grammar) : grammar_(grammar) {
  stacks_.assign(2, {});  // the empty ones
  begin();
  enter(grammar.start, kTextEnd);
  start_ = finish();
}

int32_t Automaton::push(const GrammarStack& stack) {
  const auto [found, added] = stack_numbers_.try_emplace(stack, static_cast<int32_t>(stacks_.size()));
  if (added) stacks_.push_back(stack);
  return found->second;
}

bool Automaton::has(GrammarState state, int32_t end) const {
  if (state == kDeadState) return false;
  const State& s = states_[static_cast<size_t>(state)];
  return end == kTextEnd ? s.text_ends : s.part_ends;
}

void Automaton::begin() {
  made_.clear();
  entered_.clear();
}

GrammarState Automaton::finish() {
  if (made_.empty()) return kDeadState;
  std::sort(made_.begin(), made_.end());
  made_.erase(std::unique(made_.begin(), made_.end()), made_.end());
  const auto [found, added] = state_numbers_.try_emplace(made_, static_cast<GrammarState>(states_.size()));
  if (added) {
    State& state = states_.emplace_back();
    for (const int32_t stack : made_) {
      if (stack == kTextEnd) state.text_ends = true;
      if (stack == kPartEnd) state.part_ends = true;
      if (stack > kPartEnd) state.stacks.push_back(stack);
    }
  }
  return found->second;
}

void Automaton::enter(int32_t node, int32_t below) {
  const GrammarNode& n = grammar_.nodes[static_cast<size_t>(node)];
  if (n.kind == Kind::kBytes) {
    made_.push_back(push({.node = node, .count = kFollows, .below = below}));
    return;
  }
  if (n.kind == Kind::kReturn) return leave(below);
  const GrammarStack here{.node = node, .count = kFollows, .below = below};
  if (std::find(entered_.begin(), entered_.end(), here) != entered_.end()) return;
  entered_.push_back(here);
  if (n.kind == Kind::kSplit) {
    for (int32_t i = 0; i < n.count; ++i)
      enter(grammar_.targets[static_cast<size_t>(n.arg) + static_cast<size_t>(i)], below);
  } else if (n.kind == Kind::kCall) {
    // What returns at once needs no stack of its own: a list's last element, say.
    const bool last = grammar_.nodes[static_cast<size_t>(n.next)].kind == Kind::kReturn;
    enter(n.arg, last ? below : push({.node = n.next, .count = kFollows, .below = below}));
  } else {
    enter_loop(node, 0, below);
  }
}

void Automaton::enter_loop(int32_t node, int32_t count, int32_t below) {
  const GrammarNode& n = grammar_.nodes[static_cast<size_t>(node)];
  const GrammarStack here{.node = node, .count = count, .below = below};
  if (std::find(entered_.begin(), entered_.end(), here) != entered_.end()) return;
  entered_.push_back(here);
  if (n.max < 0 || count < n.max) {
    const int32_t begun = n.max < 0 ? std::min(count + 1, n.min) : count + 1;  // more than enough is all the same
    enter(n.arg, push({.node = node, .count = begun, .below = below}));
  }
  if (count >= n.min) enter(n.next, below);
}

void Automaton::leave(int32_t below) {
  if (below <= kPartEnd) {
    made_.push_back(below);
    return;
  }
  const GrammarStack frame = stacks_[static_cast<size_t>(below)];
  if (frame.count == kFollows) return enter(frame.node, frame.below);
  enter_loop(frame.node, frame.count, frame.below);
}

GrammarState Automaton::after(GrammarState state, unsigned char byte) {
  if (state == kDeadState) return kDeadState;
  auto& known = states_[static_cast<size_t>(state)].after;
  if (known == nullptr) {
    known = std::make_unique<std::array<GrammarState, 256>>();
    known->fill(kUnknown);
  }
  if (const GrammarState next = (*known)[byte]; next != kUnknown) return next;
  begin();
  for (size_t i = 0; i < states_[static_cast<size_t>(state)].stacks.size(); ++i) {
    const GrammarStack top = stack(states_[static_cast<size_t>(state)].stacks[i]);
    const GrammarNode& n = node(top.node);
    if (grammar_.sets[static_cast<size_t>(n.arg)].test(byte)) enter(n.next, top.below);
  }
  const GrammarState next = finish();  // which may move the states
  (*states_[static_cast<size_t>(state)].after)[byte] = next;
  return next;
}

GrammarState Automaton::after(GrammarState state, std::string_view bytes) {
  for (const char byte : bytes) state = after(state, static_cast<unsigned char>(byte));
  return state;
}

GrammarState Automaton::state_of(int32_t stack) {
  begin();
  made_.push_back(stack);
  return finish();
}

GrammarState Automaton::state_behind(int32_t below) {
  begin();
  leave(below);
  return finish();
}

}  // namespace headrace
