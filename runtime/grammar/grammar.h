// What an answer may be, byte by byte: a graph of nodes with calls, which a pushdown automaton walks (automaton.h).
// Plain values; a finished grammar is immutable and may be read from any thread.
#pragma once

#include <bitset>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

using ByteSet = std::bitset<256>;

struct GrammarNode {
  enum class Kind : uint8_t {
    kBytes,   // one byte of sets[arg], then `next`
    kSplit,   // one of targets[arg .. arg + count)
    kCall,    // what begins at `arg`, up to its kReturn, then `next`
    kLoop,    // `min` to `max` (-1: any number) times what begins at `arg`, up to its kReturn; then `next`
    kReturn,  // to the last call or loop; without one the text is complete
  };
  Kind kind = Kind::kReturn;
  int32_t arg = 0, count = 0, next = -1;
  int32_t min = 0, max = -1;
};

struct Grammar {
  std::vector<GrammarNode> nodes;
  std::vector<ByteSet> sets;
  std::vector<int32_t> targets;
  int32_t start = -1;
  std::string text;              // what it was made of: a schema, or "json"
  int32_t thinking = INT32_MAX;  // nodes from here on are those before the answer, where a special token may be

  // Each adds a node and returns its index; `next` is the node that follows. Node 0 is the only kReturn.
  Grammar();
  int32_t bytes(const ByteSet& set, int32_t next);
  int32_t literal(std::string_view text, int32_t next);
  int32_t split(std::vector<int32_t> to);
  int32_t call(int32_t target, int32_t next);
  int32_t loop(int32_t body, int32_t min, int32_t max, int32_t next);
  int32_t optional(int32_t node, int32_t next) { return split({node, next}); }
  int32_t later();  // a node whose target is set by settle(): for what refers to itself
  void settle(int32_t node, int32_t target);
  int32_t append(const Grammar& other);  // its nodes; returns the place of its start, which ends with kReturn
};
constexpr int32_t kReturnNode = 0;

ByteSet byte_range(int first, int last);
ByteSet byte_set(std::string_view bytes);

// Any text up to and including the mark, which is not empty. `without`: what may follow a text that does not have the
// mark; -1: nothing.
int32_t any_up_to(Grammar* grammar, std::string_view mark, int32_t next, int32_t without = -1);

// Removes choices that no finite text completes. False: nothing is left.
bool drop_endless(Grammar* grammar);

// Whether a node leads back to itself without a byte between: an automaton would never end.
bool recurs_at_once(const Grammar& grammar);

// The grammar behind an answer's thinking: it begins after `close`. `open`: the answer may begin with this mark, and
// thinks then; empty: it is inside the thinking from the start.
Grammar behind_thinking(const Grammar& grammar, std::string_view open, std::string_view close);

}  // namespace headrace
