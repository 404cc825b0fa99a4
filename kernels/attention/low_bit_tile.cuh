// Flash attention over low-bit rows (kernels/rows/op.h): the tiles of tile.cuh, widened to the element type on their
// way. cp.async copies a tile as it is stored. Each thread widens the bytes that it copied: the values while the scores
// are computed, the next keys while the weighted values are added, so that this work runs beside the tensor cores.
// int8 values are exact in bf16 and f16; a key's scale multiplies its score, a value's scale its weight before the
// weight is rounded. An int4 value is rounded to the element type once. Device code, internal to kernels/attention.
//
// The columns of a step of the products are permuted as few_int8_tile.cuh finds a row's bytes in fragments: k 2 t, 2 t
// + 1, 2 t + 8, 2 t + 9 are columns 4 t, 4 t + 2, 4 t + 1, 4 t + 3. So both kernels add a score's products alike, and a
// row of q has the same bits.
//
// The parameters show which rows are not finite. Such a row of V becomes zeros, and rows of q that see it are marked
// and get a NaN as sum of weights (finish()).
#pragma once

#include "kernels/attention/tile.cuh"

namespace headrace::kernels::cuda {

// Two of a word's four bytes: the first and third, or the others.
constexpr uint32_t kEvenTwo = 0x4240, kOddTwo = 0x4341;
// Each below 0x80, as the bf16 numbers 128 to 255.
template <uint32_t kTwo>
__device__ inline uint32_t biased_bytes(uint32_t word) {
  return __byte_perm(word, 0x43434343, kTwo);
}

// What int8 values are multiplied by as they are widened.
template <typename T>
constexpr float kWidened = std::is_same_v<T, __half> ? 1.0f : 1.0f / 64;

// Two int8 values as a pair of elements. A byte with zeros above it is the bf16 number byte 2^-133, be it subnormal or
// not; here the byte is the value + 128, and one instruction makes (byte - 128) / 64 of it.
template <uint32_t kTwo>
__device__ inline uint32_t widen_pair(uint32_t word, __nv_bfloat16) {
  uint32_t bytes;  // (two & 0x00ff00ff) ^ 0x00800080, which the compiler would make two instructions of
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;"
      : "=r"(bytes)
      : "r"(kTwo == kEvenTwo ? word : word >> 8), "r"(0x00ff00ff), "r"(0x00800080));
  const uint32_t largest_power = 0x7f007f00, minus_two = 0xc000c000;  // 2^127
  const __nv_bfloat162 pair =
      __hfma2(reinterpret_cast<const __nv_bfloat162&>(bytes), reinterpret_cast<const __nv_bfloat162&>(largest_power),
              reinterpret_cast<const __nv_bfloat162&>(minus_two));
  return reinterpret_cast<const uint32_t&>(pair);
}
// In f16: 1024 and the value + 128, less 1152.
template <uint32_t kTwo>
__device__ inline uint32_t widen_pair(uint32_t word, __half) {
  const uint32_t biased = __byte_perm(word ^ 0x80808080, 0x64646464, kTwo), bias = 0x64806480;
  const __half2 pair = __hsub2(reinterpret_cast<const __half2&>(biased), reinterpret_cast<const __half2&>(bias));
  return reinterpret_cast<const uint32_t&>(pair);
}

// The lower nibbles of two bytes as elements: n * scale + minimum, where shifted = minimum - 128 * scale.
template <typename T, uint32_t kTwo>
__device__ uint32_t widen_nibbles(uint32_t word, float scale, float shifted) {
  const uint32_t both = biased_bytes<kTwo>(word) & 0xff0fff0f;
  const float low = __uint_as_float(both << 16), high = __uint_as_float(both & 0xffff0000);
  return pack(__fmaf_rn(low, scale, shifted), __fmaf_rn(high, scale, shifted), T{});
}

// Columns d to d + 3 of a row of q as two pairs, the even and the odd ones. aligned: to 8 bytes.
__device__ inline uint2 load_four(const void* row, int d, int dim, bool aligned) {
  const unsigned short* from = static_cast<const unsigned short*>(row) + d;
  if (d >= dim) return {0, 0};
  if (!aligned) return {from[0] | uint32_t{from[2]} << 16, from[1] | uint32_t{from[3]} << 16};
  const uint2 four = *reinterpret_cast<const uint2*>(from);
  return {__byte_perm(four.x, four.y, 0x5410), __byte_perm(four.x, four.y, 0x7632)};
}
// q's fragments; this lane's rows are `low` and `high`, which is zeros if kHalves is 1.
template <int kHalves = 2, int kSteps>
__device__ void load_fragments(const void* low, const void* high, int dim, bool aligned, uint32_t (&q)[kSteps][4]) {
#pragma unroll
  for (int i = 0; i < 2 * kSteps; ++i) {
    if (i % 2 >= kHalves) {
      q[i / 2][1] = q[i / 2][3] = 0;
      continue;
    }
    const uint2 four = load_four(i % 2 == 0 ? low : high, i / 2 * 16 + threadIdx.x % 4 * 4, dim, aligned);
    q[i / 2][i % 2] = four.x;
    q[i / 2][i % 2 + 2] = four.y;
  }
}
// Stores q in shared memory; place(row, chunk) is a chunk's address.
template <int kDim, int kRows, int kThreads, typename RowOf, typename Place>
__device__ void store_fours(int dim, bool aligned, const RowOf& row_of, const Place& place) {
  constexpr int kFours = kDim / 4;
#pragma unroll 8
  for (int i = threadIdx.x; i < kRows * kFours; i += kThreads) {
    const int row = i / kFours, four = i % kFours;
    const uint2 pairs = load_four(row_of(row).q, four * 4, dim, aligned);
    store_word(place(row, four / 4 * 2) + four % 4 * 4, static_cast<int>(pairs.x));
    store_word(place(row, four / 4 * 2 + 1) + four % 4 * 4, static_cast<int>(pairs.y));
  }
}

// kStored: kInt8 or kInt4, of K and V. Weights are added in the parts of FewRows. o of a large head and the widening
// leave no registers to q.
template <typename T, int kDim, int kMTiles>
using WideTile = AttentionTile<T, kDim, kMTiles, 1, 4, T, 4, kMTiles == 1 && kDim <= 128>;

template <typename T, int kDim, int kMTiles, DType kStored>
struct LowBitTile : WideTile<T, kDim, kMTiles> {
  using Base = WideTile<T, kDim, kMTiles>;
  using Base::kKeys;
  using Base::kSteps;
  using Base::kThreads;
  static constexpr bool kInt8 = kStored == DType::kInt8;
  // Tiles in flight. With many rows the products take longer than a copy.
  static constexpr int kRawStages = kMTiles == 1 ? 2 : 1;
  static constexpr bool kBeside = kInt8 || kMTiles == 1;  // else there are no registers for it
  // Of int8 values' scales: the weights that they multiply would lose bits to f16's smallest exponent. The largest
  // scale of an f16 row, 516, stays within f16.
  static constexpr float kValueFactor = std::is_same_v<T, __half> ? 64.0f : 1.0f;
  static constexpr float kKeyFactor = 1.0f / kWidened<T>;                   // of a key's scale
  static constexpr float kSumFactor = 1.0f / (kWidened<T> * kValueFactor);  // of o, in the end
  // A raw chunk: 16 bytes of a row, which become kWide chunks of elements.
  static constexpr int kWide = kInt8 ? 2 : 4, kRowChunks = kDim / 8 / kWide;
  static constexpr int kEach = kKeys * kRowChunks / kThreads;  // raw chunks of K, and of V, for each thread
  static constexpr int kRawAt = (Base::kSharedBytes + 15) / 16 * 16;
  static constexpr int kRawBytes = kRawStages * 2 * kEach * kThreads * 16;
  // int8: the scales of the keys, then of the values. int4: beside each raw chunk its group's scale and minimum.
  static constexpr int kScalesAt = kRawAt + kRawBytes;
  static constexpr int kBeginAt = kScalesAt + (kInt8 ? 2 * kKeys * 4 : kRawBytes / 4);  // the first row's position
  static constexpr int kSharedBytes = kBeginAt + 4;
  static_assert(kSharedBytes <= 99 * 1024);
  static_assert(2 * kKeys <= kThreads);

  const AttentionShape* shape;  // in constant memory, as the segment is
  const KvSegment* segment;
  int count;  // the rows to walk
  // Bytes from a plane's first to this thread's first raw chunk, and to the parameters of the KV head's first row.
  uint32_t values_at, parameters_at;
  __half scale;  // of this thread's next key or value, if int8

  __device__ int dim() const { return static_cast<int>(shape->head_dim); }

  template <typename RowOf>
  __device__ void start(const void* shared_memory, const AttentionShape& of, const TileBounds& bounds,
                        const RowOf& row_of) {
    Base::start_rows(shared_memory, of.scale, bounds, row_of);
    shape = &of;
    if (kInt8) this->scale_log2 = 1.0f;  // put_scale() applies it to the keys' scales
  }

  // Processes one KV head's rows within the bounds. active: whether this warp has rows. aligned: whether every row of q
  // is. REQUIRES: a plane has less than 4 GiB.
  template <typename RowOf>
  __device__ void walk(const KvSegment& from, int kv_head, const TileBounds& bounds, bool active, bool aligned,
                       const RowOf& row_of) {
    segment = &from;
    const int skip = max(bounds.first - from.position, 0) / kKeys * kKeys;
    count = min(from.rows, bounds.limit - from.position) - skip;
    if (threadIdx.x == 0) store_word(this->shared + kBeginAt, from.position + skip);
    const uint32_t first = kv_head * from.stride_rows + from.first_row + skip;
    const uint32_t all = static_cast<int>(shape->kv_heads) * from.stride_rows;
    values_at = (first + row_of_slot()) * row_bytes() + chunk_of_slot() * 16;
    parameters_at = all * row_bytes() + first * (kInt8 ? 2 : groups() * 4);
    if (!active) this->most = 0;
    const int tiles = (count + kKeys - 1) / kKeys;
    __syncthreads();  // start() has set the bounds
    if (tiles <= 0) {
      commit_copies();
      wait_copies<0>();
      return;
    }
#pragma unroll
    for (int stage = 0; stage < kRawStages; ++stage) {
      fetch_all(0, stage);
      fetch_all(1, stage);
    }
    fetch_scale(0);
    if constexpr (Base::kQueriesInRegisters) {
      load_fragments(row_of(Base::fragment_row(0, 0)).q, row_of(Base::fragment_row(0, 1)).q, dim(), aligned, this->q);
    } else {
      store_fours<kDim, Base::kRows, kThreads>(
          dim(), aligned, row_of, [&](int row, int chunk) { return this->shared + Base::place(row, chunk); });
    }
    wait_copies<2 * kRawStages - 1>();
    widen_all(0, 0);
    put_scale(0);
    for (int tile = 0; tile < tiles; ++tile) {
      const bool sees = begin() + tile * kKeys < this->most;
      float s[kMTiles][kKeys / 8][4];
      wait_copies<2 * kRawStages - 1>();  // this thread's part of the values is loaded
      __syncthreads();  // q and the keys are there, and all threads have finished with the last values
      if (!sees || !kBeside) widen_all(1, tile);
      if (sees) {
        this->score(this->keys(0), s, [&](int step) { widen_beside<kSteps>(1, tile, step); });
        if constexpr (kInt8) apply(kScalesAt, s);
        mask_tile(tile, s);
        this->weigh(s);
        if constexpr (kInt8) apply(kScalesAt + kKeys * 4, s);
      }
      wait_copies<2 * kRawStages - 1>();  // of the next keys
      __syncthreads();                    // the values are there, and all threads have finished with keys and scales
      if (sees) {
        this->add(this->values(0), s, [&](int step) { widen_beside<kKeys / 16>(0, tile + 1, step); });
      }
      if (!sees || !kBeside) widen_all(0, tile + 1);
      put_scale(tile + 1);
    }
    wait_copies<0>();
  }

  // Completes the rows' sums.
  __device__ void finish() {
    Base::finish();
    if constexpr (kInt8) {
#pragma unroll
      for (int i = 0; i < kMTiles * kDim / 2; ++i) {
        float& element = this->o[i / (kDim / 2)][i / 4 % (kDim / 8)][i % 4];
        element = __fmul_rn(element, kSumFactor);
      }
    }
    this->spoil_marked();
  }

  // Stores the states of rows [0, count) of the block; state_of(row) is a row's index in `to`.
  template <typename StateOf>
  __device__ void store(int count, const AttentionState& to, const StateOf& state_of) const {
    const int t = thread_now() % 4;
#pragma unroll
    for (int i = 0; i < 2 * kMTiles; ++i) {
      const int part = i / 2, half = i % 2, row = Base::fragment_row(part, half, thread_now());
      if (row >= count) continue;
      const int64_t state = state_of(row);
      if (t == 0) {
        to.ml[2 * state] = __fmul_rn(__fmul_rn(this->m[part][half], this->scale_log2), kLn2);
        to.ml[2 * state + 1] = this->l[part][half];
      }
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int d = step * 16 + t * 4;
        if (d >= dim()) break;
        const float* const even = this->o[part][2 * step] + 2 * half;
        const float* const odd = this->o[part][2 * step + 1] + 2 * half;
        // + 0: a zero's sign must not depend on rows with weight 0.
        *reinterpret_cast<float4*>(to.o + state * dim() + d) = {__fadd_rn(even[0], 0.0f), __fadd_rn(odd[0], 0.0f),
                                                                __fadd_rn(even[1], 0.0f), __fadd_rn(odd[1], 0.0f)};
      }
    }
  }

 private:
  // This thread's raw chunks: rows row_of_slot() + i * kThreads / kRowChunks, chunk chunk_of_slot(). Eight threads that
  // store together fill different banks: their chunks or their rows' permutations differ.
  static constexpr int kLow = kInt8 ? 2 : 1;  // bits
  __device__ static int chunk_of_slot() {
    const int low = threadIdx.x & ((1 << kLow) - 1), high = threadIdx.x / 8 % (kRowChunks >> kLow);
    return low | high << kLow;
  }
  __device__ static int row_of_slot() {
    const int low = (threadIdx.x >> kLow) & ((1 << (3 - kLow)) - 1), high = threadIdx.x / 8 / (kRowChunks >> kLow);
    return low | high << (3 - kLow);
  }
  __device__ static int slot(int side, int stage, int i) {
    return ((stage * 2 + side) * kEach + i) * kThreads + threadIdx.x;
  }
  __device__ uint32_t raw(int side, int stage, int i) const {
    return this->shared + kRawAt + slot(side, stage, i) * 16;
  }
  __device__ uint32_t group_of(int side, int stage, int i) const {
    return this->shared + kScalesAt + slot(side, stage, i) * 4;
  }
  __device__ int row_bytes() const { return kInt8 ? dim() : dim() / 2; }
  __device__ int groups() const { return dim() / static_cast<int>(kInt4Group); }
  __device__ const unsigned char* plane(int side) const {
    return static_cast<const unsigned char*>(side == 0 ? segment->k : segment->v);
  }

  // side: 0 for K, 1 for V.
  __device__ __forceinline__ void fetch(int side, int tile, int i) {
    const int row = tile * kKeys + i * (kThreads / kRowChunks);  // before this thread's
    const bool some = row + row_of_slot() < count && chunk_of_slot() * kWide * 8 < dim();
    const unsigned char* const from = plane(side);
    copy_async(raw(side, tile % kRawStages, i), some ? from + (values_at + row * row_bytes()) : from, some ? 16 : 0);
    if constexpr (!kInt8) {
      copy_word(group_of(side, tile % kRawStages, i),
                some ? from + (parameters_at + ((row + row_of_slot()) * groups() + chunk_of_slot()) * 4) : from,
                some ? 4 : 0);
    }
  }
  __device__ __forceinline__ void fetch_all(int side, int tile) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) fetch(side, tile, i);
    commit_copies();
  }
  // The same as parameters_at, computed again: where this is used, there are no registers to keep it in.
  __device__ uint32_t scales() const {
    const uint32_t all = static_cast<int>(shape->kv_heads) * segment->stride_rows;
    const uint32_t first = blockIdx.y * segment->stride_rows + segment->first_row + begin() - segment->position;
    return all * dim() + first * 2;
  }
  __device__ void fetch_scale(int tile) {
    if constexpr (kInt8) {
      const int row = tile * kKeys + threadIdx.x % kKeys;
      scale = __float2half_rn(0.0f);
      if (row < count && has_scale()) {
        scale = *reinterpret_cast<const __half*>(plane(threadIdx.x / kKeys) + (scales() + row * 2));
      }
    }
  }

  // Threads for the keys and for the values of a tile.
  __device__ static bool has_scale() { return 2 * kKeys == kThreads || threadIdx.x < 2 * kKeys; }
  // Stores this thread's scale, and fetches the next.
  __device__ void put_scale(int tile) {
    if constexpr (kInt8) {
      float value = __half2float(scale);
      if (threadIdx.x < kKeys) {
        value = __fmul_rn(value, __fmul_rn(shape->scale, kLog2E * kKeyFactor));
      } else if (isfinite(value)) {
        value = __fmul_rn(value, kValueFactor);
      } else {
        value = 0.0f;
        mark(tile * kKeys + thread_now() % kKeys);
      }
      if (has_scale()) store_word(this->shared + kScalesAt + threadIdx.x * 4, __float_as_int(value));
      fetch_scale(tile + 1);
    }
  }
  __device__ void mask_tile(int tile, float (&s)[kMTiles][kKeys / 8][4]) {
    const int from = begin(), at = from + tile * kKeys;
    if (this->is_partial(at, from + count)) this->mask(at, from + count, s);
  }
  __device__ int begin() const { return load_word(this->shared + kBeginAt); }
  // Marks the rows of q that see the walk's row `row`.
  __device__ void mark(int row) const { mark_rows(this->first_of(0), this->limit_of(0), Base::kRows, begin() + row); }
  // s *= the factors of its columns.
  __device__ void apply(int factors_at, float (&s)[kMTiles][kKeys / 8][4]) {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      const float2 factor = load_floats(this->shared + factors_at + (n * 8 + threadIdx.x % 4 * 2) * 4);
#pragma unroll
      for (int tile = 0; tile < kMTiles; ++tile) {
        s[tile][n][0] = __fmul_rn(s[tile][n][0], factor.x);
        s[tile][n][1] = __fmul_rn(s[tile][n][1], factor.y);
        s[tile][n][2] = __fmul_rn(s[tile][n][2], factor.x);
        s[tile][n][3] = __fmul_rn(s[tile][n][3], factor.y);
      }
    }
  }

  // Widens one of this thread's chunks of a tile, and fetches the one that follows in its place.
  __device__ __forceinline__ void widen(int side, int tile, int i) {
    constexpr int kRowsApart = kThreads / kRowChunks;
    static_assert(kRowsApart % 8 == 0);  // so that all of a thread's rows permute their chunks alike
    const uint4 words = load_words(raw(side, tile % kRawStages, i));
    const uint32_t to = (side == 0 ? this->keys(0) : this->values(0)) + i * kRowsApart * Base::kRowBytes +
                        Base::place(row_of_slot(), chunk_of_slot() * kWide);
    if constexpr (kInt8) {
      store_words(to, wide_words<kEvenTwo>(words));
      store_words(to ^ 16, wide_words<kOddTwo>(words));  // the next chunk
    } else {
      const int packed = load_word(group_of(side, tile % kRawStages, i));
      float2 group = __half22float2(reinterpret_cast<const __half2&>(packed));
      if (side == 1 && !(isfinite(group.x) && isfinite(group.y))) {
        group = {0.0f, 0.0f};
        mark(tile * kKeys + row_of_slot() + i * kRowsApart);
      }
      const float shifted = __fmaf_rn(group.x, -128.0f, group.y);
      const uint4 upper = {words.x >> 4, words.y >> 4, words.z >> 4, words.w >> 4};
      store_words(to, wide_nibbles<kEvenTwo>(words, group.x, shifted));
      store_words(to ^ 16, wide_nibbles<kOddTwo>(words, group.x, shifted));
      store_words(to ^ 32, wide_nibbles<kEvenTwo>(upper, group.x, shifted));
      store_words(to ^ 48, wide_nibbles<kOddTwo>(upper, group.x, shifted));
    }
    fetch(side, tile + kRawStages, i);
  }
  template <uint32_t kTwo>
  __device__ static uint4 wide_words(const uint4& words) {
    return {widen_pair<kTwo>(words.x, T{}), widen_pair<kTwo>(words.y, T{}), widen_pair<kTwo>(words.z, T{}),
            widen_pair<kTwo>(words.w, T{})};
  }
  template <uint32_t kTwo>
  __device__ static uint4 wide_nibbles(const uint4& words, float scale, float shifted) {
    return {widen_nibbles<T, kTwo>(words.x, scale, shifted), widen_nibbles<T, kTwo>(words.y, scale, shifted),
            widen_nibbles<T, kTwo>(words.z, scale, shifted), widen_nibbles<T, kTwo>(words.w, scale, shifted)};
  }
  __device__ __forceinline__ void widen_all(int side, int tile) {
#pragma unroll(kBeside ? kEach : 1)
    for (int i = 0; i < kEach; ++i) widen(side, tile, i);
    commit_copies();
  }
  // The part of widen_all() in one of kOf steps.
  template <int kOf>
  __device__ __forceinline__ void widen_beside(int side, int tile, int step) {
    constexpr int kEvery = kOf > kEach ? kOf / kEach : 1, kAtOnce = kOf > kEach ? 1 : kEach / kOf;
    static_assert(kOf * kAtOnce == kEach * kEvery);
    if constexpr (kBeside) {
#pragma unroll
      for (int i = 0; i < kAtOnce && step % kEvery == 0; ++i) widen(side, tile, step / kEvery * kAtOnce + i);
      if (step == kOf - 1) commit_copies();
    }
  }
};

// Other shapes use kernels/attention/rows.cuh. The shape decides, never the number of queries.
inline bool has_low_bit_tiles(const AttentionShape& shape) {
  return shape.type != DType::kF32 && low_bit(shape.k_type) && shape.v_type == shape.k_type &&
         shape.head_dim % 16 == 0 && shape.head_dim <= 256 && shape.scale > 0;
}

}  // namespace headrace::kernels::cuda
