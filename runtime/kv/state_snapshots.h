// What resumes a prompt some of whose layers have recurrent states or windows (docs/design.md, section 9): the states
// of all these layers at some of its positions, as prefill left them there, in pinned host memory; of a window, the
// rows before the position. Neither can be cut to fewer tokens as a KV cache can, so a later prompt begins at the last
// snapshot within the tokens that it shares. Owns the memory; all copies are enqueued on the caller's stream. Thread:
// one at a time.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "cache/window.h"
#include "offload/device/device.h"
#include "runtime/kv/recurrent_state.h"

namespace headrace {

// The positions whose states prefill keeps of a prompt, in ascending order: the last three multiples of 2,048 below
// its length, every multiple of 16,384, and the last position that leaves the next turn of a chat its generation
// prompt. All are multiples of `unit`, which is a multiple of 64. A position counts the tokens before it.
// If these are more than `most`, which is at least four, only every second multiple of 16,384 is kept, or every fourth,
// and so on.
constexpr int64_t kAllSnapshots = INT64_MAX;
std::vector<int64_t> snapshot_positions(int64_t prompt_tokens, int64_t unit, int64_t most = kAllSnapshots);
// As many as the runs on one KV cache need at most, with prompts of at most this length: those of a prompt, and the one
// that it resumed from.
int64_t most_snapshots(int64_t prompt_tokens);
constexpr int64_t kLeastSnapshots = 5;  // those without multiples of 16,384, and the one

// What a snapshot has of each layer. Of a recurrent one: the state, then the convolution's inputs. Of one with a
// window: the rows, as save_window() (window_rows.h) leaves them.
struct SnapshotShape {
  SnapshotShape() = default;
  SnapshotShape(const RecurrentShape& states);  // NOLINT: the shape of their snapshots
  SnapshotShape(const WindowShape& windows);    // NOLINT

  struct Elements {
    DType type;
    uint64_t bytes;
  };
  int64_t layers = 0;                // 0: nothing is kept
  std::vector<Elements> elements{};  // of a layer, one run of bytes after another
  int64_t full_from = 0;  // a snapshot at an earlier position has bytes that mean nothing: zeros, or old ones

  uint64_t used_bytes() const;  // of a layer
};

class StateSnapshots {
 public:
  // Allocates nothing.
  StateSnapshots(Device& device, SnapshotShape shape) : device_(device), shape_(std::move(shape)) {}

  // Of one snapshot, and of a layer in it: what it has, then zeros, in whole pages.
  static uint64_t part_bytes(const SnapshotShape& shape);
  static uint64_t bytes(const SnapshotShape& shape);

  // Before a prefill that computes the rows from `first` on: drops what is at later positions, and makes room for those
  // of `wanted`, in ascending order, that are new; `first` itself is new if it is not there. Of the others as many stay
  // as make `most` in all: `first` and those that are wanted, then the last. REQUIRES: `most` allows for these.
  void begin(int64_t first, std::span<const int64_t> wanted, int64_t most);
  // The next position in (after, end] whose states are to be taken; 0: there is none.
  int64_t next(int64_t after, int64_t end) const;
  // Copies a recurrent layer's states, which are at this position. REQUIRES: begin() has named it.
  void take(int64_t position, int64_t layer, const RecurrentState& states, Stream& stream);
  // After the prefill: all layers were taken, or what it should have taken is dropped. The copies have run.
  void end(bool taken);

  // The last whole one at or before `position`; 0: there is none.
  int64_t last(int64_t position) const;
  // Copies a whole one to all recurrent layers. REQUIRES: last(position) == position.
  void restore(int64_t position, RecurrentState& states, Stream& stream) const;
  // A layer's part of a snapshot that begin() has named. Of one with a window the caller fills it.
  std::byte* part(int64_t position, int64_t layer) const { return data(slot(position), layer); }

 private:
  struct Slot {
    int64_t position = 0;  // 0: free
    bool whole = false;
    PinnedBuffer memory;
  };
  const Slot& slot(int64_t position) const;
  std::byte* data(const Slot& slot, int64_t layer) const;
  void reserve(int64_t position);

  Device& device_;
  const SnapshotShape shape_;
  std::vector<Slot> slots_;
};

}  // namespace headrace
