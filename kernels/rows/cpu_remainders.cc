// The remainders of int8 rows (kernels/rows/op.h).
#include <atomic>
#include <bit>
#include <cstring>

#include "kernels/rows/bodies.h"
#include "kernels/rows/plane.h"
#include "offload/host/thread_pool.h"

namespace headrace::kernels::cpu {

namespace {

// K or V of a segment: its exact values, its stored ones, and for both its part of the remainders.
struct Plane {
  uint16_t* exact;
  const int8_t* values;
  const uint16_t* scales;
  uint32_t* starts;
};

struct Segment {
  int64_t values, head_dim;  // values: of K, and as many of V
  Plane planes[2];
  uint32_t* pieces;

  Segment(const KvSegment& exact, const KvSegment& rows, const void* remainders, int64_t kv_heads, int64_t dim)
      : values(kv_heads * exact.stride_rows * dim), head_dim(dim) {
    auto* const starts = static_cast<uint32_t*>(const_cast<void*>(remainders));
    pieces = starts + remainder_pieces_offset(static_cast<uint64_t>(2 * values)) / sizeof(uint32_t);
    const void* const exact_of[] = {exact.k, exact.v};
    const void* const rows_of[] = {rows.k, rows.v};
    for (int i = 0; i < 2; ++i) {
      const PlaneRow first = plane_row(rows_of[i], DType::kInt8, kv_heads, rows.stride_rows, dim, 0, 0);
      planes[i] = {static_cast<uint16_t*>(const_cast<void*>(exact_of[i])), reinterpret_cast<int8_t*>(first.values),
                   reinterpret_cast<uint16_t*>(first.parameters), starts + i * runs()};
    }
  }
  int64_t runs() const { return values / kRemainderRun; }  // of each plane
};

// What a stored value says of the exact one.
struct Known {
  bool listed_or_zero;
  int base, bits;  // the least magnitude, and how long the code is

  Known(int8_t q, uint16_t scale) {
    const int exponent = scale & 0x7c00, magnitude = q < 0 ? -q : q;
    listed_or_zero = magnitude == 0 || exponent == 0 || exponent == 0x7c00;
    const auto base_of = [&](int m) {  // both operations are exact
      return static_cast<int>(std::bit_cast<uint32_t>(static_cast<float>(2 * m - 1) * (0.5f * f16_to_f32({scale}))) >>
                              16);
    };
    base = listed_or_zero ? 0 : base_of(magnitude);
    bits = listed_or_zero ? 1 : std::bit_width(static_cast<unsigned>(base_of(magnitude + 1) - base));
  }
};

void encode_run(const Segment& segment, const Plane& plane, int64_t run, uint32_t* words) {
  uint32_t codes[kRemainderRun * kMaxCodeBits / 32 + 1] = {};
  uint16_t list[kRemainderRun + 1] = {};
  uint32_t at = 0, listed = 0;
  bool fits = true;
  for (int64_t i = run * kRemainderRun; i < (run + 1) * kRemainderRun; ++i) {
    const uint16_t value = plane.exact[i];
    const Known known(plane.values[i], plane.scales[i / segment.head_dim]);
    int code = (value & 0x7fff) - known.base;
    if (known.listed_or_zero) {
      code = value != 0;
      if (code != 0) list[listed++] = value;
    } else {
      fits = fits && code >= 0 && code >> known.bits == 0 && (value >> 15 != 0) == (plane.values[i] < 0);
    }
    const uint64_t bits = static_cast<uint64_t>(code & ((1 << known.bits) - 1)) << at % 32;
    codes[at / 32] |= static_cast<uint32_t>(bits);
    codes[at / 32 + 1] |= static_cast<uint32_t>(bits >> 32);
    at += static_cast<uint32_t>(known.bits);
  }
  const uint32_t code_words = (at + 31) / 32, list_words = (listed + 1) / 2;
  if (!fits) std::atomic_ref(*words).fetch_or(kNotTheseRows, std::memory_order_relaxed);
  const uint32_t start = std::atomic_ref(*words).fetch_add(code_words + list_words, std::memory_order_relaxed);
  if (start + code_words + list_words > remainder_room(static_cast<uint64_t>(2 * segment.values))) return;
  plane.starts[run] = start;
  std::memcpy(segment.pieces + start, codes, code_words * sizeof(uint32_t));
  std::memcpy(segment.pieces + start + code_words, list, list_words * sizeof(uint32_t));
}

void decode_run(const Segment& segment, const Plane& plane, int64_t run) {
  const uint32_t* const codes = segment.pieces + plane.starts[run];
  bool listed[kRemainderRun] = {};
  uint32_t at = 0;
  for (int64_t i = 0; i < kRemainderRun; ++i) {
    const int64_t index = run * kRemainderRun + i;
    const Known known(plane.values[index], plane.scales[index / segment.head_dim]);
    const uint32_t last = at + static_cast<uint32_t>(known.bits) - 1;  // a word that does not exist is not read
    const uint64_t window = codes[at / 32] | uint64_t{codes[last / 32]} << 32 * (last / 32 - at / 32);
    const auto code = static_cast<int>(window >> at % 32 & ((1u << known.bits) - 1));
    listed[i] = known.listed_or_zero && code != 0;
    plane.exact[index] =
        static_cast<uint16_t>(known.listed_or_zero ? 0 : (known.base + code) | (plane.values[index] < 0 ? 0x8000 : 0));
    at = last + 1;
  }
  const auto* next = reinterpret_cast<const uint16_t*>(codes + (at + 31) / 32);
  for (int64_t i = 0; i < kRemainderRun; ++i) {
    if (listed[i]) plane.exact[run * kRemainderRun + i] = *next++;
  }
}

}  // namespace

void encode_remainders(const EncodeRemaindersParams& p, ThreadPool& pool) {
  const Segment segment(p.exact, p.rows, p.remainders, p.kv_heads, p.head_dim);
  pool.parallel_for(2 * segment.runs(), [&](int64_t index, int) {
    encode_run(segment, segment.planes[index / segment.runs()], index % segment.runs(), p.words);
  });
}

void decode_remainders(const DecodeRemaindersParams& p, ThreadPool& pool) {
  for (int64_t i = 0; i < p.count; ++i) {
    const DecodeRemaindersParams::Segment& s = p.segments[i];
    const Segment segment(s.exact, s.rows, s.remainders, p.kv_heads, p.head_dim);
    pool.parallel_for(2 * segment.runs(), [&](int64_t index, int) {
      decode_run(segment, segment.planes[index / segment.runs()], index % segment.runs());
    });
  }
}

}  // namespace headrace::kernels::cpu
