// The recurrent layers of a target pass, and their states behind pending tokens (docs/design.md, section 6, rule 5). A
// chain of pending tokens is replayed once, into states of its own, which the next partial pass continues. Of a tree
// these states follow the first choices: nodes behind their end start there, the others at the committed token, and the
// rows of all nodes stay where they are. The states are the sequence's; owns nothing. Thread: the executor's; all work
// is enqueued on its compute stream.
#pragma once

#include <cstdint>

#include "runtime/session/attend.h"
#include "runtime/speculation/tree.h"

namespace headrace {

inline DeltaState delta_state(const RecurrentState& states, int64_t place) {
  return {.state = states.state(place),
          .conv = states.conv(place),
          .stored = states.stored(place),
          .pass_rows = states.pass_rows()};
}

class PassRecurrence {
 public:
  // All references must outlive this. Where all layers have rows, its functions but run() do nothing.
  PassRecurrence(const SessionLayout& layout, const SessionBuffers& buffers);

  // Before a pass that commit() may follow: with kPartial it follows the pending tokens, else the committed ones.
  void begin(const PassScope& scope) const;
  // Before a pass over nodes [first, size) of a tree of pending tokens; a pass has computed node `followed` and those
  // before it on its path. -1: none. Writes host inputs, which the caller uploads.
  void begin_growth(Sequence& sequence, const Tree& tree, int64_t first, int32_t followed) const;
  // One layer of the pass, by its place among those without rows: work.qkv -> work.attention.
  void run(const Pass& pass, const LayerWeights& weights, int64_t place, const PassScope& scope) const;
  // Moves the states that the pass followed behind its rows source[0] to source[count - 1], in device memory.
  void commit(const int32_t* source, int64_t count, const PassScope& scope) const;

 private:
  void move_ahead(Sequence& sequence, const Tree& tree, int32_t followed) const;

  const SessionLayout& layout_;
  Stream& compute_;
  const SessionBuffers& buffers_;
};

}  // namespace headrace
