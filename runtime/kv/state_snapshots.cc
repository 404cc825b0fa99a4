#include "runtime/kv/state_snapshots.h"

#include <algorithm>
#include <utility>

#include "runtime/base/unsigned.h"

namespace headrace {
namespace {

constexpr int64_t kNear = 2048, kFar = 16384;  // multiples of which are kept
constexpr int64_t kNearCount = 3;              // the last ones of kNear
// A generation prompt has fewer tokens than this: Qwen3.5's has seven with an empty thought. As many of a prompt's last
// tokens are computed anyway (prompt_scoring_rows).
constexpr int64_t kOpenTokens = 16;

std::vector<int64_t> positions_by(int64_t prompt_tokens, int64_t unit, int64_t far) {
  std::vector<int64_t> positions;
  const int64_t last = (prompt_tokens - 1) / kNear * kNear;
  for (int64_t at = far; at <= last; at += far) positions.push_back(at);
  for (int64_t i = 0; i < kNearCount; ++i) positions.push_back(last - i * kNear);
  positions.push_back(std::max<int64_t>(prompt_tokens - kOpenTokens, 0) / unit * unit);
  std::erase_if(positions, [&](int64_t at) { return at <= 0 || at % unit != 0; });
  std::sort(positions.begin(), positions.end());
  positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
  return positions;
}

}  // namespace

std::vector<int64_t> snapshot_positions(int64_t prompt_tokens, int64_t unit, int64_t most) {
  CHECK(most >= kLeastSnapshots - 1, "most=", most);
  int64_t far = kFar;
  std::vector<int64_t> positions = positions_by(prompt_tokens, unit, far);
  while (static_cast<int64_t>(positions.size()) > most) positions = positions_by(prompt_tokens, unit, far *= 2);
  return positions;
}

int64_t most_snapshots(int64_t prompt_tokens) {
  return std::min(kNearCount, (prompt_tokens - 1) / kNear) + (prompt_tokens - 1) / kFar + 2;
}

SnapshotShape::SnapshotShape(const RecurrentShape& states) : layers(states.layers) {
  if (layers > 0) elements = {{DType::kF32, states.state_bytes()}, {states.type, states.conv_bytes()}};
}

SnapshotShape::SnapshotShape(const WindowShape& windows)
    : layers(windows.rows.layers), full_from(windows.snapshot_rows()) {
  const RowShape& rows = windows.rows;
  for (const DType type : {rows.k_type, rows.v_type}) {
    const uint64_t count = u(full_from * rows.kv_heads);
    elements.push_back({type, count * row_value_bytes(type, rows.head_dim)});
    if (low_bit(type)) elements.push_back({DType::kF16, count * row_parameter_bytes(type, rows.head_dim)});
  }
}

uint64_t SnapshotShape::used_bytes() const {
  uint64_t bytes = 0;
  for (const Elements& run : elements) bytes += run.bytes;
  return bytes;
}

uint64_t StateSnapshots::part_bytes(const SnapshotShape& shape) { return whole_pages(shape.used_bytes()); }
uint64_t StateSnapshots::bytes(const SnapshotShape& shape) { return u(shape.layers) * part_bytes(shape); }

std::byte* StateSnapshots::data(const Slot& slot, int64_t layer) const {
  return slot.memory.data() + u(layer) * part_bytes(shape_);
}

const StateSnapshots::Slot& StateSnapshots::slot(int64_t position) const {
  const auto it = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& s) { return s.position == position; });
  CHECK(position > 0 && it != slots_.end(), "position=", position);
  return *it;
}

void StateSnapshots::reserve(int64_t position) {
  auto free = std::find_if(slots_.begin(), slots_.end(), [](const Slot& s) { return s.position == 0; });
  if (free == slots_.end()) {
    slots_.push_back({.memory = device_.allocate_pinned(bytes(shape_), "a snapshot of states")});
    free = slots_.end() - 1;
    const uint64_t used = position < shape_.full_from ? 0 : shape_.used_bytes();
    for (int64_t layer = 0; layer < shape_.layers; ++layer) {
      std::fill_n(data(*free, layer) + used, part_bytes(shape_) - used, std::byte{0});
    }
  }
  free->position = position;
  free->whole = false;
}

void StateSnapshots::begin(int64_t first, std::span<const int64_t> wanted, int64_t most) {
  const auto is_wanted = [&](int64_t at) {
    return at == first || std::find(wanted.begin(), wanted.end(), at) != wanted.end();
  };
  std::vector<int64_t> fresh;
  for (const int64_t at : wanted) {
    if (at > first || (at == first && last(at) != at)) fresh.push_back(at);
  }
  for (Slot& slot : slots_) {
    if (slot.position > first) slot.position = 0;
  }
  std::sort(slots_.begin(), slots_.end(), [&](const Slot& a, const Slot& b) {
    return std::pair(is_wanted(a.position), a.position) > std::pair(is_wanted(b.position), b.position);
  });
  int64_t room = most - static_cast<int64_t>(fresh.size());
  for (Slot& slot : slots_) {
    if (slot.position != 0 && room-- <= 0) slot.position = 0;
  }
  for (const int64_t position : fresh) reserve(position);
}

int64_t StateSnapshots::next(int64_t after, int64_t end) const {
  int64_t found = 0;
  for (const Slot& slot : slots_) {
    const bool within = slot.position > after && slot.position <= end && !slot.whole;
    if (within && (found == 0 || slot.position < found)) found = slot.position;
  }
  return found;
}

void StateSnapshots::take(int64_t position, int64_t layer, const RecurrentState& states, Stream& stream) {
  const uint64_t state = shape_.elements[0].bytes, conv = shape_.elements[1].bytes;
  std::byte* const to = data(slot(position), layer);
  stream.copy(to, states.state(layer), state, Link::kDeviceToHost, "recurrent state");
  stream.copy(to + state, states.conv(layer), conv, Link::kDeviceToHost, "recurrent state");
}

void StateSnapshots::end(bool taken) {
  for (Slot& slot : slots_) {
    if (slot.position == 0 || slot.whole) continue;
    slot.whole = taken;
    if (!taken) slot.position = 0;
  }
}

int64_t StateSnapshots::last(int64_t position) const {
  int64_t found = 0;
  for (const Slot& slot : slots_) {
    if (slot.whole && slot.position <= position) found = std::max(found, slot.position);
  }
  return found;
}

void StateSnapshots::restore(int64_t position, RecurrentState& states, Stream& stream) const {
  const Slot& from = slot(position);
  CHECK(from.whole, "position=", position);
  for (int64_t layer = 0; layer < shape_.layers; ++layer) states.load(layer, data(from, layer), stream);
}

}  // namespace headrace
