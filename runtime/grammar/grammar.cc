#include "runtime/grammar/grammar.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "cache/base.h"

namespace headrace {
namespace {

constexpr int32_t kMaxSpaceBeforeMark = 8;

using Kind = GrammarNode::Kind;

}  // namespace

Grammar::Grammar() { nodes.emplace_back(); }

int32_t Grammar::bytes(const ByteSet& set, int32_t next) {
  const auto found = std::find(sets.begin(), sets.end(), set);
  const auto index = static_cast<int32_t>(found - sets.begin());
  if (found == sets.end()) sets.push_back(set);
  nodes.push_back({.kind = Kind::kBytes, .arg = index, .next = next});
  return static_cast<int32_t>(nodes.size()) - 1;
}

int32_t Grammar::literal(std::string_view all, int32_t next) {
  for (size_t i = all.size(); i > 0; --i) next = bytes(byte_set(all.substr(i - 1, 1)), next);
  return next;
}

int32_t Grammar::split(std::vector<int32_t> to) {
  if (to.size() == 1) return to[0];
  nodes.push_back(
      {.kind = Kind::kSplit, .arg = static_cast<int32_t>(targets.size()), .count = static_cast<int32_t>(to.size())});
  targets.insert(targets.end(), to.begin(), to.end());
  return static_cast<int32_t>(nodes.size()) - 1;
}

int32_t Grammar::call(int32_t target, int32_t next) {
  nodes.push_back({.kind = Kind::kCall, .arg = target, .next = next});
  return static_cast<int32_t>(nodes.size()) - 1;
}

int32_t Grammar::loop(int32_t body, int32_t min, int32_t max, int32_t next) {
  nodes.push_back({.kind = Kind::kLoop, .arg = body, .next = next, .min = min, .max = max});
  return static_cast<int32_t>(nodes.size()) - 1;
}

int32_t Grammar::later() {
  nodes.push_back({.kind = Kind::kSplit, .arg = static_cast<int32_t>(targets.size()), .count = 1});
  targets.push_back(-1);
  return static_cast<int32_t>(nodes.size()) - 1;
}

void Grammar::settle(int32_t node, int32_t target) {
  targets[static_cast<size_t>(nodes[static_cast<size_t>(node)].arg)] = target;
}

int32_t Grammar::append(const Grammar& other) {
  const auto first = static_cast<int32_t>(nodes.size()) - 1, first_target = static_cast<int32_t>(targets.size());
  const auto moved = [first](int32_t node) { return node <= kReturnNode ? node : node + first; };
  for (size_t i = 1; i < other.nodes.size(); ++i) {
    GrammarNode node = other.nodes[i];
    node.next = moved(node.next);
    if (node.kind == Kind::kBytes) {
      node.arg = nodes[static_cast<size_t>(bytes(other.sets[static_cast<size_t>(node.arg)], -1))].arg;
      nodes.pop_back();
    } else {
      node.arg = node.kind == Kind::kSplit ? node.arg + first_target : moved(node.arg);
    }
    nodes.push_back(node);
  }
  std::transform(other.targets.begin(), other.targets.end(), std::back_inserter(targets), moved);
  return moved(other.start);
}

ByteSet byte_range(int first, int last) {
  ByteSet set;
  for (int byte = first; byte <= last; ++byte) set.set(static_cast<size_t>(byte));
  return set;
}

ByteSet byte_set(std::string_view bytes) {
  ByteSet set;
  for (const char byte : bytes) set.set(static_cast<unsigned char>(byte));
  return set;
}

// By the automaton of Knuth, Morris and Pratt.
int32_t any_up_to(Grammar* g, std::string_view mark, int32_t next, int32_t without) {
  std::vector<size_t> fall(mark.size() + 1, 0);  // the longest end of mark[0, i) that begins it
  for (size_t i = 1; i < mark.size(); ++i) {
    size_t k = fall[i];
    while (k > 0 && mark[i] != mark[k]) k = fall[k];
    fall[i + 1] = mark[i] == mark[k] ? k + 1 : 0;
  }
  std::vector<int32_t> place;
  for (size_t i = 0; i < mark.size(); ++i) place.push_back(g->later());
  for (size_t i = 0; i < mark.size(); ++i) {
    std::vector<ByteSet> to(mark.size() + 1);
    for (int byte = 0; byte < 256; ++byte) {
      size_t k = i;
      while (k > 0 && static_cast<unsigned char>(mark[k]) != byte) k = fall[k];
      to[static_cast<unsigned char>(mark[k]) == byte ? k + 1 : 0].set(static_cast<size_t>(byte));
    }
    std::vector<int32_t> choices;
    for (size_t k = 0; k <= mark.size(); ++k) {
      if (to[k].any()) choices.push_back(g->bytes(to[k], k < mark.size() ? place[k] : next));
    }
    if (without >= 0) choices.push_back(without);
    g->settle(place[i], g->split(choices));
  }
  return place[0];
}

bool drop_endless(Grammar* grammar) {
  std::vector<GrammarNode>& nodes = grammar->nodes;
  std::vector<int32_t>& targets = grammar->targets;
  std::vector<bool> ends(nodes.size(), false);
  const auto at = [&](int32_t node) -> bool { return ends[static_cast<size_t>(node)]; };
  const auto completes = [&](const GrammarNode& node) -> bool {
    if (node.kind == Kind::kReturn) return true;
    if (node.kind == Kind::kCall) return at(node.arg) && at(node.next);
    if (node.kind == Kind::kLoop) return (node.min == 0 || at(node.arg)) && at(node.next);
    if (node.kind == Kind::kBytes) return at(node.next);
    return std::any_of(targets.begin() + node.arg, targets.begin() + node.arg + node.count, at);
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (ends[i] || !completes(nodes[i])) continue;
      ends[i] = changed = true;
    }
  }
  for (GrammarNode& node : nodes) {
    if (node.kind == Kind::kLoop && !at(node.arg)) node.max = 0;
    if (node.kind != Kind::kSplit) continue;
    const auto first = targets.begin() + node.arg;
    node.count = static_cast<int32_t>(std::stable_partition(first, first + node.count, at) - first);
  }
  return at(grammar->start);
}

bool recurs_at_once(const Grammar& grammar) {
  enum class Mark : uint8_t { kNew, kOpen, kDone };
  std::vector<Mark> marks(grammar.nodes.size(), Mark::kNew);
  const std::function<bool(int32_t)> recurs = [&](int32_t index) {
    Mark& mark = marks[static_cast<size_t>(index)];
    if (mark != Mark::kNew) return mark == Mark::kOpen;
    mark = Mark::kOpen;
    const GrammarNode& node = grammar.nodes[static_cast<size_t>(index)];
    bool found = false;
    if (node.kind == Kind::kCall) found = recurs(node.arg);
    if (node.kind == Kind::kLoop) found = recurs(node.arg) || recurs(node.next);
    for (int32_t i = 0; node.kind == Kind::kSplit && i < node.count && !found; ++i) {
      found = recurs(grammar.targets[static_cast<size_t>(node.arg) + static_cast<size_t>(i)]);
    }
    mark = Mark::kDone;
    return found;
  };
  for (size_t i = 0; i < grammar.nodes.size(); ++i) {
    if (recurs(static_cast<int32_t>(i))) return true;
  }
  return false;
}

Grammar behind_thinking(const Grammar& grammar, std::string_view open, std::string_view close) {
  CHECK(!close.empty());
  Grammar all = grammar;
  all.thinking = static_cast<int32_t>(all.nodes.size());
  const int32_t inside = any_up_to(&all, close, grammar.start);
  if (open.empty()) {
    all.start = inside;
    return all;
  }
  const int32_t space = all.bytes(byte_set(" \t\r\n"), kReturnNode);
  const int32_t thinks = all.loop(space, 0, kMaxSpaceBeforeMark, all.literal(open, inside));
  all.start = all.split({thinks, grammar.start});
  return all;
}

}  // namespace headrace
