#include "runtime/grammar/intersection.h"

#include <map>
#include <utility>
#include <vector>

#include "runtime/grammar/automaton.h"

namespace headrace {
namespace {

using States = std::pair<GrammarState, GrammarState>;

// Bytes that no set of the two grammars tells apart.
std::vector<ByteSet> byte_classes(const Grammar& first, const Grammar& second) {
  std::vector<ByteSet> classes = {byte_range(0, 255)};
  for (const Grammar* const grammar : {&first, &second}) {
    for (const ByteSet& set : grammar->sets) {
      const size_t count = classes.size();
      for (size_t i = 0; i < count; ++i) {
        const ByteSet inside = classes[i] & set;
        if (inside.none() || inside == classes[i]) continue;
        classes[i] &= ~set;
        classes.push_back(inside);
      }
    }
  }
  return classes;
}

}  // namespace

std::optional<int32_t> add_intersection(Grammar* g, const Grammar& first, const Grammar& second, Second how,
                                        size_t* states_left, int32_t next) {
  Automaton a(first), b(second);
  const std::vector<ByteSet> classes = byte_classes(first, second);
  std::map<States, int32_t> nodes;
  std::vector<States> order;
  const auto node_of = [&](const States& states) {
    const auto [found, added] = nodes.try_emplace(states, -1);
    if (added) {
      found->second = g->later();
      order.push_back(states);
    }
    return found->second;
  };
  const int32_t start = node_of({a.start(), b.start()});
  for (size_t i = 0; i < order.size(); ++i) {
    if (order.size() > *states_left) return std::nullopt;
    const auto [at_first, at_second] = order[i];
    std::map<States, ByteSet> to;
    for (const ByteSet& bytes : classes) {
      const auto byte = static_cast<unsigned char>(bytes._Find_first());
      const States then = {a.after(at_first, byte), b.after(at_second, byte)};
      const bool dead = then.first == kDeadState || (how == Second::kHolds && then.second == kDeadState);
      if (!dead) to[then] |= bytes;
    }
    std::vector<int32_t> choices;
    for (const auto& [states, bytes] : to) choices.push_back(g->bytes(bytes, node_of(states)));
    if (a.complete(at_first) && b.complete(at_second) == (how == Second::kHolds)) choices.push_back(next);
    g->settle(nodes.at(order[i]), g->split(choices));
  }
  *states_left -= order.size();
  return start;
}

bool has_text(const Grammar& grammar, std::string_view text) {
  Automaton automaton(grammar);
  return automaton.complete(automaton.after(automaton.start(), text));
}

}  // namespace headrace
