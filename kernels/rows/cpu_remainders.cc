// The remainders of int8 rows (kernels/rows/op.h).
#include <atomic>
#include <bit>
#include <cstring>

#include "kernels/rows/bodies.h"
#include "kernels/rows/plane.h"
#include "offload/host/thread_pool.h"

namespace headrace::kernels::cpu {

namespace {

constexpr uint8_t kListed = 255, kNegative = 128;
constexpr int kZero = 126;  // of q = 0
constexpr int kMaxAbove = 254, kMaxBelow = 125;

// K or V of a segment: its exact values, its stored ones, and for both its part of the remainders.
struct Plane {
  uint16_t* exact;
  const int8_t* values;
  const uint16_t* scales;
  uint8_t* codes;
  uint32_t* starts;
};

struct Segment {
  int64_t values, head_dim;  // values: of K, and as many of V
  Plane planes[2];
  uint16_t* list;

  Segment(const KvSegment& exact, const KvSegment& rows, const void* remainders, int64_t kv_heads, int64_t dim)
      : values(kv_heads * exact.stride_rows * dim), head_dim(dim) {
    auto* const codes = static_cast<uint8_t*>(const_cast<void*>(remainders));
    auto* const starts = reinterpret_cast<uint32_t*>(codes + 2 * values);
    list = reinterpret_cast<uint16_t*>(codes + remainder_list_offset(static_cast<uint64_t>(2 * values)));
    const void* const exact_of[] = {exact.k, exact.v};
    const void* const rows_of[] = {rows.k, rows.v};
    for (int i = 0; i < 2; ++i) {
      const PlaneRow first = plane_row(rows_of[i], DType::kInt8, kv_heads, rows.stride_rows, dim, 0, 0);
      planes[i] = {static_cast<uint16_t*>(const_cast<void*>(exact_of[i])), reinterpret_cast<int8_t*>(first.values),
                   reinterpret_cast<uint16_t*>(first.parameters), codes + i * values,
                   starts + i * (values / kRemainderRun)};
    }
  }
  int64_t runs() const { return values / kRemainderRun; }  // of each plane
};

// Half a row's scale: what the value 1/2 stands for. A scale that is not finite counts as 0.
float half_scale(uint16_t scale) { return (scale & 0x7fff) < 0x7c00 ? 0.5f * f16_to_f32({scale}) : 0.0f; }

// The least magnitude of |q| >= 1, the largest of q = 0.
int base_of(int q, float half) {
  const int halves = q == 0 ? 1 : 2 * (q < 0 ? -q : q) - 1;
  return static_cast<int>(std::bit_cast<uint32_t>(static_cast<float>(halves) * half) >> 16);
}

uint8_t encoded(uint16_t value, int q, int base) {
  const int magnitude = value & 0x7fff;
  const bool negative = (value & 0x8000) != 0;
  if (q != 0) {
    const int above = magnitude - base;
    return negative == (q < 0) && above >= 0 && above <= kMaxAbove ? static_cast<uint8_t>(above) : kListed;
  }
  const int below = magnitude == 0 ? kZero : base - magnitude;
  if (below < 0 || (below > kMaxBelow && magnitude != 0)) return kListed;
  return static_cast<uint8_t>(below + (negative ? kNegative : 0));
}

// REQUIRES: code != kListed.
uint16_t decoded(uint8_t code, int q, int base) {
  if (q != 0) return static_cast<uint16_t>((base + code) | (q < 0 ? 0x8000 : 0));
  const int below = code & 127;
  return static_cast<uint16_t>((below == kZero ? 0 : base - below) | (code & kNegative) << 8);
}

void encode_run(const Segment& segment, const Plane& plane, int64_t run, uint32_t* listed) {
  uint16_t list[kRemainderRun];
  uint32_t count = 0;
  for (int64_t i = run * kRemainderRun; i < (run + 1) * kRemainderRun; ++i) {
    const int base = base_of(plane.values[i], half_scale(plane.scales[i / segment.head_dim]));
    plane.codes[i] = encoded(plane.exact[i], plane.values[i], base);
    if (plane.codes[i] == kListed) list[count++] = plane.exact[i];
  }
  const uint32_t start = std::atomic_ref(*listed).fetch_add(count, std::memory_order_relaxed);
  plane.starts[run] = start;
  const uint64_t capacity = remainder_list_capacity(static_cast<uint64_t>(2 * segment.values));
  if (start + count <= capacity) std::memcpy(segment.list + start, list, count * sizeof(uint16_t));
}

void decode_run(const Segment& segment, const Plane& plane, int64_t run) {
  const uint16_t* next = segment.list + plane.starts[run];
  for (int64_t i = run * kRemainderRun; i < (run + 1) * kRemainderRun; ++i) {
    const int base = base_of(plane.values[i], half_scale(plane.scales[i / segment.head_dim]));
    plane.exact[i] = plane.codes[i] == kListed ? *next++ : decoded(plane.codes[i], plane.values[i], base);
  }
}

}  // namespace

void encode_remainders(const EncodeRemaindersParams& p, ThreadPool& pool) {
  const Segment segment(p.exact, p.rows, p.remainders, p.kv_heads, p.head_dim);
  pool.parallel_for(2 * segment.runs(), [&](int64_t index, int) {
    encode_run(segment, segment.planes[index / segment.runs()], index % segment.runs(), p.listed);
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
