// The suffix automaton of a text that grows token by token (Blumer et al. 1985): from any context, the longest suffix
// of it that the text holds, and what followed that suffix and each shorter one, with counts. A text of n tokens has at
// most 2n states and 3n edges, so time and memory are linear. Owns a copy of the text. Pure: it knows no model and no
// device. Thread: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace headrace {

class SuffixAutomaton {
 public:
  // A set of contexts that end at the same places of the text. The suffix link leads to the longest shorter context
  // that also ends elsewhere; state 0 is the empty context, whose link is -1.
  struct State {
    int32_t length, link;           // length: of the longest context
    int32_t first_edge, last_edge;  // what followed, in the order in which it was first seen; -1: nothing
    int32_t followed;               // the sum of the edges' counts
  };
  struct Edge {
    int32_t state, token, target, next;
    int32_t count;  // how often `token` followed, as long as the state was among the kCounted longest contexts
  };
  // A context: the state that has it, and how many of its last tokens are in the text.
  struct Match {
    int32_t state = 0, length = 0;
  };
  static constexpr int kCounted = 8;

  // `most_tokens`: most tokens of the text. Allocates all memory.
  explicit SuffixAutomaton(int64_t most_tokens);
  static uint64_t bytes(int64_t most_tokens);  // host memory

  std::span<const int32_t> text() const { return text_; }
  int64_t states() const { return static_cast<int64_t>(states_.size()); }
  int64_t edges() const { return static_cast<int64_t>(edges_.size()); }
  void append(int32_t token);
  // Forgets the tokens from `size` on, without a trace. The last few hundred tokens cost what appending them did; if
  // more are cut, or a token changed very much, the automaton is built again.
  void cut(int64_t size);

  // The longest suffix of the text that also occurred earlier.
  Match end() const;
  // The longest suffix of a context and `token` after it.
  Match after(Match context, int32_t token) const;
  const State& state(int32_t state) const { return states_[static_cast<size_t>(state)]; }
  const Edge& edge(int32_t edge) const { return edges_[static_cast<size_t>(edge)]; }

 private:
  // What one step of append() changed, so that cut() can undo it.
  enum class Change : int32_t { kToken, kState, kEdge, kCount, kTarget, kLink };
  struct Undo {
    Change change;
    int32_t index, before;
  };
  static constexpr size_t kUndos = 1 << 14;  // the latest ones

  void clear();
  int32_t add_state(int32_t length, int32_t link);
  void add_edge(int32_t state, int32_t token, int32_t target, int32_t count);
  void count(int32_t edge);
  int32_t divide(int32_t from, int32_t token, int32_t state);
  size_t slot_of(int32_t state, int32_t token) const;
  int32_t find(int32_t state, int32_t token) const { return slots_[slot_of(state, token)]; }
  void log(Change change, int32_t index, int32_t before);
  void undo(const Undo& entry);

  std::vector<int32_t> text_;
  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<int32_t> slots_;  // edges by the hash of state and token, linear probing; -1: none
  std::vector<Undo> undos_;     // a ring
  size_t newest_ = 0, undoable_ = 0;
  int32_t whole_ = 0;  // the state of the whole text
};

}  // namespace headrace
