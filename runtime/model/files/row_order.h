// Which row of a file is a row of the decoder: heads whose rows are stored in another order, or with others between.
// Plain values; any thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace headrace {

struct RowOrder {
  int64_t head_dim = 0;            // rows of a head; 0: all rows are where they are stored
  int64_t stride = 0, offset = 0;  // stored rows from head to head, and to the first that is the tensor's
  // Half-split rotary pairs, as transformers stores them, are (j, j + rotary / 2), of the first `rotary` rows. The
  // decoder's are (j, j + head_dim / 2), j < rotary / 2, and the rows that are not rotated fill the other places in
  // order.
  int64_t rotary = 0;
  bool neighbours = false;  // the pairs of all rows are stored as (2j, 2j + 1), as llama.cpp does for some families

  bool as_stored() const { return head_dim == 0; }
  // Within its head.
  int64_t stored_place(int64_t place) const {
    if (rotary == 0 && !neighbours) return place;
    const int64_t half = place / (head_dim / 2), pair = place % (head_dim / 2);
    if (neighbours) return 2 * pair + half;
    const int64_t rotated = rotary / 2;
    return pair < rotated ? half * rotated + pair : rotary + half * (head_dim / 2 - rotated) + pair - rotated;
  }
};

// Rows [begin, end) in the decoder's order, at `out`. `read(first, dst)` reads the head_dim stored rows from `first`
// on: those of a head are stored together.
template <typename ReadHead>
void read_in_order(const RowOrder& order, int64_t begin, int64_t end, size_t row_bytes, char* out,
                   const ReadHead& read) {
  std::vector<char> head(static_cast<size_t>(order.head_dim) * row_bytes);
  for (int64_t row = begin; row < end; ++row, out += row_bytes) {
    const int64_t place = row % order.head_dim;
    if (row == begin || place == 0) read(row / order.head_dim * order.stride + order.offset, head.data());
    std::memcpy(out, head.data() + static_cast<size_t>(order.stored_place(place)) * row_bytes, row_bytes);
  }
}

}  // namespace headrace
