#include "runtime/kv/row_remainders.h"

#include <algorithm>

#include "kernels/rows/op.h"
#include "runtime/kv/kv_cache.h"

namespace headrace {
namespace {

uint64_t piece_of(const MemoryPlan& plan, uint64_t most) {
  return plan.remainder_layer_bytes * std::max<uint64_t>(1, most / plan.remainder_layer_bytes);
}

}  // namespace

RowRemainders::RowRemainders(Device& device, const RowShape& shape, const MemoryPlan& plan, uint64_t piece_bytes)
    : shape_(shape),
      segments_(plan.segments),
      first_(plan.resident_segments),
      end_(plan.remainder_segments),
      layer_bytes_(plan.remainder_layer_bytes),
      memory_(device, plan.remainder_bytes, piece_of(plan, piece_bytes), "what the int8 copy lacks of the KV cache"),
      work_(device.allocate(plan.remainder_work_bytes - plan.remainder_lengths_bytes, "rows made of their int8 copy")),
      lengths_(device.allocate(plan.remainder_lengths_bytes, "the lengths of remainders")),
      host_lengths_(device.allocate_pinned(plan.remainder_lengths_bytes, "the lengths of remainders")),
      encoded_(static_cast<size_t>(plan.host_layers * plan.segments), false) {}

uint64_t RowRemainders::offset(int64_t layer, int64_t index) const {
  return static_cast<uint64_t>(layer) * layer_bytes_ + remainders_bytes(shape_, first_, index);
}

bool RowRemainders::wants(int64_t layer, int64_t index) const {
  return !lacks_memory_ && index >= first_ && index < end_ && !encoded_[place(layer, index)];
}

// Made on the device in the memory that decode() uses later, then copied with all the room of the pieces: how much of
// it is taken is not known yet.
void RowRemainders::encode(int64_t layer, int64_t index, const KvSegment& exact, const KvSegment& rows, Stream& out) {
  CHECK(wants(layer, index), "layer ", layer, ", segment ", index);
  std::byte* to = nullptr;
  try {
    to = memory_.at(offset(layer, index));
  } catch (const Error&) {
    lacks_memory_ = true;
    return;
  }
  uint32_t* const length = lengths_.as<uint32_t>() + place(layer, index);
  out.copy_small(length, host_lengths_.as<uint32_t>() + encoded_.size(), sizeof(uint32_t), Link::kHostToDevice,
                 "length");
  encode_remainders({.exact = exact,
                     .rows = rows,
                     .remainders = work_.data(),
                     .words = length,
                     .kv_heads = shape_.kv_heads,
                     .head_dim = shape_.head_dim},
                    out);
  out.copy(to, work_.data(), remainders_bytes(shape_, index, index + 1), Link::kDeviceToHost,
           {"remainders, layer", layer});
  encoded_[place(layer, index)] = true;
}

void RowRemainders::finish_encoding(Stream& out) {
  out.copy_small(host_lengths_.data(), lengths_.data(), encoded_.size() * sizeof(uint32_t), Link::kDeviceToHost,
                 "lengths");
}

void RowRemainders::drop_from(int64_t index) {
  for (size_t i = 0; i < encoded_.size(); ++i) {
    if (static_cast<int64_t>(i) % segments_ >= index) encoded_[i] = false;
  }
}

bool RowRemainders::has(int64_t layer, int64_t index) const {
  return usable_ && encoded_[place(layer, index)] &&
         host_lengths_.as<uint32_t>()[place(layer, index)] <= remainder_room(segments_values(shape_, index, index + 1));
}

std::span<const std::byte> RowRemainders::of(int64_t layer, int64_t index) {
  const uint64_t words = host_lengths_.as<uint32_t>()[place(layer, index)];
  return {memory_.at(offset(layer, index)), remainder_bytes(segments_values(shape_, index, index + 1), words)};
}

const std::byte* RowRemainders::decode(int64_t layer, const Chunk& chunk, const std::byte* slot,
                                       std::span<const KvSegment> rows, Stream& compute) const {
  DecodeRemaindersParams params{};
  params.kv_heads = shape_.kv_heads;
  params.head_dim = shape_.head_dim;
  for (int64_t i = chunk.first_segment; i < chunk.last_segment; ++i) {
    if (has(layer, i)) {
      const uint64_t offset = segments_bytes(shape_, chunk.first_segment, i);
      params.segments[params.count++] = {.remainders = slot + offset,
                                         .rows = rows[static_cast<size_t>(i)],
                                         .exact = segment_view(shape_, work_.data() + offset, i)};
    }
    if (params.count == kMaxRemainderSegments || (i + 1 == chunk.last_segment && params.count > 0)) {
      decode_remainders(params, compute);
      params.count = 0;
    }
  }
  return work_.data();
}

}  // namespace headrace
