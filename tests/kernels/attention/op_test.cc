// The decode ops of kernels/attention/op.h: tail_attention, prefix_attention.
#include "kernels/attention/op.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/kernels/attention/fixture.h"
#include "tests/support/sanitized.h"

namespace headrace {
namespace {

using testing_support::DeviceArray;
using testing_support::expect_close;
using testing_support::random_values;
using testing_support::rounded;

// A pass over a tree of nodes behind `committed` rows. Node n's row is row committed + n of the context.
struct Pass {
  AttentionCase c;
  int64_t committed;
  std::vector<int32_t> positions;           // of each node
  std::vector<std::vector<int32_t>> paths;  // of each node: the nodes from the root's level down to itself
  AttentionContext context;
  std::vector<float> q;  // [nodes][heads][head_dim]

  Pass(const AttentionCase& attention_case, int64_t committed_rows, int64_t nodes, uint64_t seed)
      : c(attention_case),
        committed(committed_rows),
        context(c, committed + nodes, seed),
        q(rounded(random_values(seed + 2, nodes * c.heads * c.head_dim, c.q_scale), c.type)) {
    std::mt19937 random(static_cast<unsigned>(seed));
    for (int32_t node = 0; node < nodes; ++node) {
      // Mostly chains, so that paths get long; sometimes a new root.
      std::vector<int32_t> path;
      if (node > 0 && random() % 16 != 0) path = paths[static_cast<size_t>(node) - 1 - random() % (node < 3 ? 1 : 3)];
      path.push_back(node);
      positions.push_back(static_cast<int32_t>(committed + static_cast<int64_t>(path.size()) - 1));
      paths.push_back(path);
    }
  }
  // Rows of the context that a node sees: of the prefix, or all.
  std::vector<int64_t> prefix_rows(size_t node) const {
    std::vector<int64_t> rows = seen_rows(c, positions[node]);
    std::erase_if(rows, [&](int64_t row) { return row >= tail_begin(positions[node]); });
    return rows;
  }
  std::vector<int64_t> rows(size_t node) const {
    std::vector<int64_t> all = seen_rows(c, positions[node]);
    for (int64_t& row : all) {
      if (row >= committed) row = committed + paths[node][static_cast<size_t>(row - committed)];
    }
    return all;
  }
  bool sees(size_t node, int64_t row) const {
    const std::vector<int64_t> all = rows(node);
    return std::find(all.begin(), all.end(), row) != all.end();
  }
  const float* query(size_t node) const { return q.data() + static_cast<int64_t>(node) * c.heads * c.head_dim; }
};

struct Result {
  std::vector<float> o, ml;    // the prefix's state
  std::vector<std::byte> out;  // of tail and prefix
};

class DecodeAttentionTest : public AttentionTest {
 protected:
  // Runs both ops for some of the pass's nodes, in the given order, `per_call` segments a call.
  // With `first`, the tail begins no earlier.
  Result run(const Pass& pass, const Segments& committed, const std::vector<size_t>& nodes, int64_t per_call = 32,
             std::optional<int32_t> first = {});
  Segments committed_segments(const Pass& pass, int64_t rows_each) {
    AttentionContext committed(pass.context);
    committed.rows = pass.committed;
    return segments(committed, rows_each, 3);
  }
  void check(const AttentionCase& c, int64_t committed, int64_t nodes, int64_t rows_each);

 private:
  DeviceArray ring(const Pass& pass, const std::vector<float>& from, DType type);
  void fold_prefix(const PrefixAttentionParams& base, const Segments& segments, int64_t per_call, void* out);
};
INSTANTIATE_KERNEL_TEST(DecodeAttentionTest);

constexpr int64_t kRingRows = 391;  // of no particular size

// The last committed rows, each at its position modulo the ring's size; the rest is NaN.
DeviceArray DecodeAttentionTest::ring(const Pass& pass, const std::vector<float>& from, DType type) {
  const AttentionCase& c = pass.c;
  std::vector<float> rows(static_cast<size_t>(c.kv_heads * kRingRows * c.head_dim), std::nanf(""));
  for (int64_t p = std::max<int64_t>(0, pass.committed - kRingRows); p < pass.committed; ++p) {
    for (int64_t head = 0; head < c.kv_heads; ++head) {
      const float* source = from.data() + (p * c.kv_heads + head) * c.head_dim;
      std::copy_n(source, c.head_dim, rows.data() + (head * kRingRows + p % kRingRows) * c.head_dim);
    }
  }
  return upload(rows, type);
}

void DecodeAttentionTest::fold_prefix(const PrefixAttentionParams& base, const Segments& segments, int64_t per_call,
                                      void* out) {
  const int64_t count = static_cast<int64_t>(segments.list.size());
  PrefixAttentionParams params = base;
  for (int64_t first = 0; first < std::max<int64_t>(count, 1); first += per_call) {
    params.segment_count = std::min(per_call, count - first);
    std::copy_n(segments.list.begin() + first, params.segment_count, params.segments);
    params.out = first + per_call < count ? nullptr : out;
    prefix_attention(params, stream());
    params.beside_tail = false;
  }
}

Result DecodeAttentionTest::run(const Pass& pass, const Segments& committed, const std::vector<size_t>& nodes,
                                int64_t per_call, std::optional<int32_t> first) {
  const AttentionCase& c = pass.c;
  const int64_t row = c.heads * c.head_dim, stride = row + 3, count = static_cast<int64_t>(nodes.size());
  const int64_t all_nodes = static_cast<int64_t>(pass.positions.size()), path_stride = all_nodes + 1;
  std::vector<float> q(static_cast<size_t>(count * stride), std::nanf(""));
  std::vector<int32_t> positions, paths(static_cast<size_t>(count * path_stride), -1000);
  for (size_t i = 0; i < nodes.size(); ++i) {
    std::copy_n(pass.query(nodes[i]), row, q.begin() + static_cast<int64_t>(i) * stride);
    positions.push_back(pass.positions[nodes[i]]);
    std::copy(pass.paths[nodes[i]].begin(), pass.paths[nodes[i]].end(),
              paths.begin() + static_cast<int64_t>(i) * path_stride);
  }
  const auto behind = [&](const std::vector<float>& all) {
    return std::vector<float>(all.begin() + pass.committed * c.kv_heads * c.head_dim, all.end());
  };
  const DeviceArray q_array = upload(q, c.type), position_array = upload_raw(positions), path_array = upload_raw(paths);
  const DeviceArray length = upload_raw(std::vector<int32_t>{static_cast<int32_t>(pass.committed)});
  const DType k_type = AttentionContext::exact(c.k_type), v_type = AttentionContext::exact(c.v_type);
  const DeviceArray ring_k = ring(pass, pass.context.k, k_type), ring_v = ring(pass, pass.context.v, v_type);
  const DeviceArray pass_k = upload(behind(pass.context.k), k_type), pass_v = upload(behind(pass.context.v), v_type);
  const uint64_t rows = static_cast<uint64_t>(count * row), states = static_cast<uint64_t>(count * c.heads);
  std::vector<float> no_ml(2 * states, 0.0f);
  for (size_t i = 0; i < no_ml.size(); i += 2) no_ml[i] = -std::numeric_limits<float>::infinity();
  const DeviceArray o = upload(std::vector<float>(rows, 0.0f), DType::kF32), ml = upload(no_ml, DType::kF32);
  const DeviceArray all_o = output(rows * 4), all_ml = output(states * 8);
  const DeviceArray scratch_o = output(rows * 4 * kMaxPrefixParts), scratch_ml = output(states * 8 * kMaxPrefixParts);
  const DeviceArray out = output(rows * dtype_bytes(c.type)), rotated_q = output(rows * dtype_bytes(c.type));

  PrefixAttentionParams prefix{};
  prefix.shape = c.shape(count, stride);
  prefix.q = q_array.data();
  prefix.positions = position_array.as<int32_t>();
  prefix.state = {o.as<float>(), ml.as<float>()};
  prefix.scratch = {scratch_o.as<float>(), scratch_ml.as<float>()};
  prefix.rotated_q = rotated_q.data();
  fold_prefix(prefix, committed, per_call, nullptr);
  Result result{download(o, DType::kF32), download(ml, DType::kF32), {}};

  TailAttentionParams tail{};
  tail.shape = prefix.shape;
  tail.shape.k_type = k_type;
  tail.shape.v_type = v_type;
  tail.q = q_array.data();
  tail.positions = position_array.as<int32_t>();
  tail.committed = length.as<int32_t>();
  tail.path = path_array.as<int32_t>();
  tail.ring_k = ring_k.data();
  tail.ring_v = ring_v.data();
  tail.pass_k = pass_k.data();
  tail.pass_v = pass_v.data();
  tail.state = {all_o.as<float>(), all_ml.as<float>()};
  tail.path_stride = path_stride;
  tail.ring_rows = kRingRows;
  tail.pass_rows = all_nodes;
  const DeviceArray first_row = upload_raw(std::vector<int32_t>{first.value_or(0)});
  if (first) tail.first = first_row.as<int32_t>();
  const DeviceArray sinks = upload(c.all_sinks(), DType::kF32);
  if (c.sinks) tail.sinks = sinks.as<float>();
  tail_attention(tail, stream());
  prefix.state = tail.state;
  prefix.beside_tail = true;
  fold_prefix(prefix, committed, per_call, out.data());
  result.out = download(out);
  for (const DeviceArray* array : {&all_o, &all_ml, &scratch_o, &scratch_ml, &rotated_q}) download(*array);  // guards
  return result;
}

std::vector<size_t> all_nodes(const Pass& pass) {
  std::vector<size_t> nodes(pass.positions.size());
  std::iota(nodes.begin(), nodes.end(), size_t{0});
  return nodes;
}

void DecodeAttentionTest::check(const AttentionCase& c, int64_t committed, int64_t nodes, int64_t rows_each) {
  const Pass pass(c, committed, nodes, 1);
  AttentionExpectation expected;
  for (size_t node = 0; node < pass.positions.size(); ++node) {
    attend(pass.context, pass.query(node), pass.rows(node), prefix_weight_error(c), &expected);
  }
  const Result result = run(pass, committed_segments(pass, rows_each), all_nodes(pass));
  expect_close(testing_support::decode(result.out, c.type), expected.values, expected.magnitude, c.type,
               str(c.name(), ", ", nodes, " nodes behind ", committed, " rows in segments of ", rows_each));
}

TEST_P(DecodeAttentionTest, EqualsPlainAttention) {
  for (const AttentionCase& c : prefix_cases()) check(c, 470, 5, 128);
}

TEST_P(DecodeAttentionTest, SeesItsWindow) {
  for (const AttentionCase& c : windowed_cases()) {
    check(c, 470, 3, 128);
    check(c, 800, 9, 192);
  }
  for (int64_t window : {1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 300, 383, 384, 385, 700, 701, 702, 1000}) {
    for (DType type : {DType::kF32, DType::kBF16}) {
      check({3, 1, type == DType::kF32 ? 20 : 24, type, type, type, 1.0f, window}, 700, 13, 192);
    }
  }
}

// Once, however many segments there are and whatever a query sees of them.
TEST_P(DecodeAttentionTest, ASinkTakesItsPart) {
  for (const AttentionCase& c : sink_cases()) {
    check(c, 0, 5, 128);
    check(c, 470, 5, 128);
    check(c, 800, 9, 64);
  }
}

TEST_P(DecodeAttentionTest, AnyLengthAndTree) {
  for (DType type : {DType::kF32, DType::kBF16}) {
    const AttentionCase c{3, 1, type == DType::kF32 ? 20 : 24, type, type, type};
    for (int64_t committed : {0, 1, 15, 16, 17, 63, 64, 255, 256, 257, 300, 319, 320, 321, 383, 384, 700}) {
      check(c, committed, 1, 512);
      check(c, committed, 23, 192);
    }
    check(c, 900, 150, 64);
  }
}

// A window that is shorter than the tail: rows between the prefix and its first one are not seen, whatever they hold.
// One that begins before the tail changes no bit.
TEST_P(DecodeAttentionTest, AShorterWindowBeginsTheTail) {
  for (AttentionCase c : {AttentionCase{9, 3, 64, DType::kBF16, DType::kBF16, DType::kBF16},
                          AttentionCase{4, 2, 128, DType::kF16, DType::kF16, DType::kF16}, AttentionCase{3, 1, 20}}) {
    for (const int64_t committed : {300, 470, 512}) {
      Pass pass(c, committed, 70, 5);
      const Result whole = run(pass, committed_segments(pass, 128), all_nodes(pass));
      const int64_t before = tail_begin(committed);
      EXPECT_EQ(run(pass, committed_segments(pass, 128), all_nodes(pass), 32, static_cast<int32_t>(before)).out,
                whole.out);
      for (const int64_t first : {committed / 16 * 16 - 128, committed / 16 * 16 - 16, committed / 16 * 16}) {
        AttentionExpectation expected;
        for (size_t node = 0; node < pass.positions.size(); ++node) {
          std::vector<int64_t> seen = pass.rows(node);
          const int64_t prefix = tail_begin(pass.positions[node]);
          std::erase_if(seen, [&](int64_t row) { return row >= prefix && row < first; });
          attend(pass.context, pass.query(node), seen, prefix_weight_error(c), &expected);
        }
        const Result result =
            run(pass, committed_segments(pass, 128), all_nodes(pass), 32, static_cast<int32_t>(first));
        expect_close(testing_support::decode(result.out, c.type), expected.values, expected.magnitude, c.type,
                     str(c.name(), ", ", committed, " rows, window from ", first));
      }
    }
  }
}

// What a state is: o = sum of e^(s - m) v, l = sum of e^(s - m), over the prefix.
TEST_P(DecodeAttentionTest, StateOfThePrefix) {
  const AttentionCase c{4, 2, 24};
  const Pass pass(c, 600, 4, 9);
  const Result result = run(pass, committed_segments(pass, 128), all_nodes(pass));
  for (size_t node = 0; node < pass.positions.size(); ++node) {
    AttentionExpectation expected;
    attend(pass.context, pass.query(node), pass.prefix_rows(node), 0, &expected);
    std::vector<float> normalised;
    for (size_t i = 0; i < static_cast<size_t>(c.heads * c.head_dim); ++i) {
      const size_t head = node * static_cast<size_t>(c.heads) + i / static_cast<size_t>(c.head_dim);
      normalised.push_back(result.o[head * static_cast<size_t>(c.head_dim) + i % static_cast<size_t>(c.head_dim)] /
                           result.ml[2 * head + 1]);
    }
    expect_close(normalised, expected.values, expected.magnitude, DType::kF32, str("node ", node));
    for (int64_t head = 0; head < c.heads; ++head) {
      double total = 0, top = -1e300;
      for (int64_t row : pass.prefix_rows(node)) {
        double score = 0;
        for (int64_t d = 0; d < c.head_dim; ++d) {
          score += static_cast<double>(pass.query(node)[head * c.head_dim + d]) *
                   pass.context.k[static_cast<size_t>((row * c.kv_heads + head / c.group()) * c.head_dim + d)];
        }
        top = std::max(top, score * c.scale());
        total += std::exp(score * c.scale());
      }
      const float* ml = &result.ml[2 * (node * static_cast<size_t>(c.heads) + static_cast<size_t>(head))];
      EXPECT_NEAR(ml[0], top, 1e-5 * std::fabs(top));
      EXPECT_NEAR(ml[0] + std::log(ml[1]), std::log(total), 1e-5 * std::fabs(std::log(total)));
    }
  }
}

TEST_P(DecodeAttentionTest, EmptyPrefixLeavesTheStateEmpty) {
  const AttentionCase c{3, 1, 20};
  const Pass pass(c, 250, 3, 4);  // tail_begin is 0
  const Result result = run(pass, committed_segments(pass, 64), all_nodes(pass));
  for (float o : result.o) EXPECT_EQ(std::memcmp(&o, "\0\0\0\0", 4), 0) << o;
  for (size_t i = 0; i < result.ml.size(); i += 2) {
    EXPECT_EQ(result.ml[i], -std::numeric_limits<float>::infinity());
    EXPECT_EQ(result.ml[i + 1], 0.0f);
  }
}

// docs/design.md, section 6: the bits of a row do not depend on who rides along, nor on its place, nor on the threads,
// nor on how many segments a call folds.
TEST_P(DecodeAttentionTest, SameBitsWhoeverRidesAlong) {
  // Blocks of a CPU have few rows.
  const bool few = testing::kSanitized || GetParam().device == DeviceChoice::kCpu;
  const size_t count_of_nodes = few ? 24 : 64;
  for (const AttentionCase& c : {AttentionCase{9, 3, 64},
                                 AttentionCase{7, 1, 18},
                                 AttentionCase{9, 3, 64, DType::kBF16, DType::kBF16, DType::kBF16},
                                 AttentionCase{8, 1, 80, DType::kBF16, DType::kBF16, DType::kF16},
                                 AttentionCase{2, 1, 128, DType::kBF16, DType::kBF16, DType::kBF16},
                                 AttentionCase{20, 1, 40, DType::kBF16, DType::kBF16, DType::kBF16},
                                 AttentionCase{1, 1, 256, DType::kBF16, DType::kBF16, DType::kBF16},
                                 AttentionCase{2, 1, 32, DType::kF16, DType::kF16, DType::kF16},
                                 AttentionCase{4, 1, 128, DType::kBF16, DType::kF16, DType::kF16},
                                 AttentionCase{3, 1, 56, DType::kBF16, DType::kF16, DType::kF16, 2e4f},
                                 AttentionCase{1, 1, 512, DType::kBF16, DType::kBF16, DType::kBF16, 20.0f},
                                 AttentionCase{3, 1, 512, DType::kBF16, DType::kF16, DType::kF16},
                                 AttentionCase{2, 2, 320, DType::kF16, DType::kF16, DType::kF16},
                                 AttentionCase{4, 1, 48, DType::kF16, DType::kInt8, DType::kInt8},
                                 AttentionCase{4, 1, 128, DType::kBF16, DType::kInt8, DType::kInt8},
                                 AttentionCase{4, 1, 128, DType::kBF16, DType::kInt4, DType::kInt4},
                                 AttentionCase{3, 1, 64, DType::kBF16, DType::kInt8, DType::kInt8},
                                 AttentionCase{3, 1, 128, DType::kF16, DType::kInt8, DType::kInt8},
                                 AttentionCase{1, 1, 256, DType::kBF16, DType::kInt8, DType::kInt8},
                                 AttentionCase{1, 1, 256, DType::kF16, DType::kInt4, DType::kInt4}}) {
    const Pass pass(c, 830, count_of_nodes, 2);
    Segments committed = committed_segments(pass, 192);
    const Result all = run(pass, committed, all_nodes(pass));
    const size_t row = static_cast<size_t>(c.heads * c.head_dim), row_bytes = row * dtype_bytes(c.type);
    const auto expect_same = [&](const std::vector<size_t>& nodes, int64_t per_call, const std::string& what) {
      const Result got = run(pass, committed, nodes, per_call);
      for (size_t i = 0; i < nodes.size(); ++i) {
        const size_t heads = static_cast<size_t>(c.heads), n = nodes[i];
        ASSERT_EQ(std::memcmp(&got.out[i * row_bytes], &all.out[n * row_bytes], row_bytes), 0)
            << c.name() << ": node " << n << " in place " << i << ", " << what;
        ASSERT_EQ(std::memcmp(&got.o[i * row], &all.o[n * row], row * 4), 0) << c.name() << " node " << n << what;
        ASSERT_EQ(std::memcmp(&got.ml[i * 2 * heads], &all.ml[n * 2 * heads], heads * 8), 0) << c.name() << what;
      }
    };
    for (size_t node = 0; node < count_of_nodes; node += few ? 7 : 3) expect_same({node}, 32, "alone");
    std::vector<size_t> nodes = all_nodes(pass);
    std::mt19937 random(3);
    for (size_t shift = 0; shift < count_of_nodes; ++shift) {  // every node in every place
      std::rotate(nodes.begin(), nodes.begin() + 1, nodes.end());
      if (shift % (few ? 12 : 8) == 0) expect_same(nodes, 32, "rotated");
    }
    for (size_t count : {2, 3, 7, 8, 9, 16, 17, 25, 63}) {  // a CUDA kernel has up to 16, 32, 64 or 128 rows a block
      if (few && count % 7 != 2) continue;                  // 2, 9, 16
      std::shuffle(nodes.begin(), nodes.end(), random);
      expect_same({nodes.begin(), nodes.begin() + static_cast<int64_t>(count)}, 32, str("among ", count));
    }
    for (int64_t per_call : {1, 2, 3}) {
      if (c.v_type == DType::kInt4) break;  // what the segments of one call add is rotated back at once
      expect_same(nodes, per_call, str(per_call, " segments a call"));
    }
    std::vector<size_t> many;  // more rows than one block holds
    for (int i = 0; i < 3; ++i) many.insert(many.end(), nodes.begin(), nodes.end());
    expect_same(many, 32, "three times over");
    committed = {};
    for (int threads : {1, 3}) {
      open(threads);
      committed = committed_segments(pass, 192);
      expect_same(nodes, 32, str(threads, " threads"));
      committed = {};
    }
    open(2);
  }
}

// The tail follows positions: whether a row has been committed since, or is the pass's own, changes no bit.
TEST_P(DecodeAttentionTest, SameBitsWhereverRowsLie) {
  for (const AttentionCase& c :
       {AttentionCase{6, 2, 40}, AttentionCase{8, 2, 128, DType::kBF16, DType::kBF16, DType::kBF16},
        AttentionCase{3, 1, 72, DType::kF16, DType::kF16, DType::kF16}}) {
    constexpr size_t kNodes = 45;
    Pass chain(c, 800, kNodes, 8);
    std::vector<int32_t> path;
    for (int32_t node = 0; node < static_cast<int32_t>(kNodes); ++node) {
      path.push_back(node);
      chain.paths[static_cast<size_t>(node)] = path;
      chain.positions[static_cast<size_t>(node)] = 800 + node;
    }
    const Result all = run(chain, committed_segments(chain, 192), all_nodes(chain));
    const size_t row = static_cast<size_t>(c.heads * c.head_dim), row_bytes = row * dtype_bytes(c.type);
    for (size_t node = 0; node < kNodes; node += testing::kSanitized ? 11 : 2) {  // the last is even
      Pass later(chain);  // the nodes before it have been committed
      later.committed += static_cast<int64_t>(node);
      later.positions = {chain.positions[node]};
      later.paths = {{0}};
      later.q.assign(chain.query(node), chain.query(node) + row);
      const Result alone = run(later, committed_segments(later, 192), {0});
      ASSERT_EQ(std::memcmp(alone.out.data(), &all.out[node * row_bytes], row_bytes), 0)
          << c.name() << ": node " << node;
      if (node + 1 == kNodes) break;  // the pass has no more rows
      later.committed += 1;           // its own row, too: nothing of the pass is seen, by however many
      later.paths = {{}};
      const Result without = run(later, committed_segments(later, 192), {0, 0, 0});
      for (size_t query = 0; query < 3; ++query) {
        ASSERT_EQ(std::memcmp(&without.out[query * row_bytes], alone.out.data(), row_bytes), 0)
            << c.name() << ": node " << node << ", committed";
      }
    }
  }
}

// A node's bits do not depend on the rows of other paths, though these are not finite, nor on such a node's query; and
// a node that has one on its path has no finite result.
TEST_P(DecodeAttentionTest, OtherPathsDoNotReachANode) {
  constexpr int64_t kNodes = 24;
  const std::vector<Poison> all = poisons();
  size_t turn = 0;  // a case has one poison for each of its four places: all of them cost minutes
  std::vector<AttentionCase> cases = attention_cases();
  for (const int64_t window : {3, 7, 16, 300}) {
    cases.push_back({4, 2, 18, DType::kF32, DType::kF32, DType::kF32, 1.0f, window});
    cases.push_back({4, 2, 128, DType::kBF16, DType::kBF16, DType::kBF16, 1.0f, window});
  }
  for (const AttentionCase& c : cases) {
    for (int64_t committed : {20, 317}) {
      const Pass pass(c, committed, kNodes, 2);
      const Segments segments = committed_segments(pass, 192);
      const Result clean = run(pass, segments, all_nodes(pass));
      const size_t row = static_cast<size_t>(c.heads * c.head_dim), row_bytes = row * dtype_bytes(c.type);
      for (int32_t bad : {0, 9}) {
        const Poison& poison = all[turn++ % all.size()];
        Pass other(pass);
        poison.put(committed + bad, committed + bad + 1, &other.context);
        if (poison.k && poison.v) std::fill_n(other.q.begin() + bad * static_cast<int64_t>(row), row, poison.value);
        const Result got = run(other, segments, all_nodes(other));
        for (size_t node = 0; node < kNodes; ++node) {
          const std::string what = str(c.name(), ": node ", node, " of ", committed, ", ", poison.name(), " at ", bad);
          if (!pass.sees(node, committed + bad)) {
            ASSERT_EQ(std::memcmp(&got.out[node * row_bytes], &clean.out[node * row_bytes], row_bytes), 0) << what;
          } else if (poison.shows()) {
            const std::vector<float> values = testing_support::decode(got.out, c.type);
            ASSERT_FALSE(std::isfinite(values[node * row + row - 1])) << what;
          }
        }
      }
    }
    ++turn;  // four places and six poisons: each place has had each poison after six cases
  }
}

// A segment in parts has the states of as many segments.
TEST_P(DecodeAttentionTest, PartsOfASegmentAreSegments) {
  int cases = 0;
  for (const AttentionCase& c : prefix_cases()) {
    if (!low_bit(c.k_type) || !low_bit(c.v_type)) continue;
    ++cases;
    const Pass pass(c, 700, 40, 2);
    const Segments small = committed_segments(pass, 128);
    Segments large = committed_segments(pass, 256);
    const std::vector<KvSegment> whole = std::exchange(large.list, {});
    for (const KvSegment& segment : whole) {
      for (int32_t first = 0; first < segment.rows; first += 128) {
        KvSegment part = segment;
        part.position += first;
        part.first_row = first;
        part.rows = std::min(128, segment.rows - first);
        large.list.push_back(part);
      }
    }
    ASSERT_EQ(large.list.size(), small.list.size());
    for (const std::vector<size_t>& nodes : {all_nodes(pass), std::vector<size_t>{0, 1, 38, 39}}) {
      const Result expected = run(pass, small, nodes), got = run(pass, large, nodes);
      ASSERT_EQ(std::memcmp(got.o.data(), expected.o.data(), got.o.size() * 4), 0) << c.name() << ", " << nodes.size();
      ASSERT_EQ(std::memcmp(got.ml.data(), expected.ml.data(), got.ml.size() * 4), 0)
          << c.name() << ", " << nodes.size();
    }
  }
  EXPECT_GT(cases, 2);
}

// Of two queries whose prefixes end at different rows, the one with the shorter prefix has the same state whatever lies
// in the rest of the other's.
TEST_P(DecodeAttentionTest, RowsBehindAPrefixDoNotReachItsState) {
  constexpr int64_t kCommitted = 573, kNodes = 40, kFirst = 256, kSecond = 320;  // where their prefixes end
  const std::vector<Poison> all = poisons();
  size_t turn = 0;  // two poisons a case, one under sanitizers
  for (const AttentionCase& c : prefix_cases()) {
    const Pass pass(c, kCommitted, kNodes, 2);
    const Result clean = run(pass, committed_segments(pass, 192), all_nodes(pass));
    const size_t heads = static_cast<size_t>(c.heads), row = heads * static_cast<size_t>(c.head_dim);
    for (int each = 0; each < (testing::kSanitized ? 1 : 2); ++each) {
      const Poison& poison = all[turn++ % all.size()];
      Pass other(pass);
      poison.put(kFirst + 17, kSecond, &other.context);
      // All of them, and few, for which CUDA has another kernel where rows are int8.
      for (const std::vector<size_t>& nodes : {all_nodes(other), std::vector<size_t>{0, 1, kNodes - 2, kNodes - 1}}) {
        const Result got = run(other, committed_segments(other, 192), nodes);
        int64_t shorter = 0, longer = 0;
        for (size_t i = 0; i < nodes.size(); ++i) {
          const size_t node = nodes[i];
          const std::string what = str(c.name(), ": node ", node, " of ", nodes.size(), ", ", poison.name());
          if (tail_begin(pass.positions[node]) == kFirst) {
            ++shorter;
            ASSERT_EQ(std::memcmp(&got.o[i * row], &clean.o[node * row], row * 4), 0) << what;
            ASSERT_EQ(std::memcmp(&got.ml[i * 2 * heads], &clean.ml[node * 2 * heads], heads * 8), 0) << what;
          } else if (poison.shows()) {
            ++longer;
            ASSERT_EQ(tail_begin(pass.positions[node]), kSecond);
            const float o = got.o[i * row + row - 1], l = got.ml[i * 2 * heads + 2 * heads - 1];
            // A value hides where its row weighs nothing, as where one row has all the weight.
            const bool hides = !poison.k && clean.ml[node * 2 * heads + 2 * heads - 1] < 1.5f;
            ASSERT_TRUE(hides || !std::isfinite(o / l)) << what << ": " << o << " / " << l;
          }
        }
        ASSERT_GT(shorter, 0);
        ASSERT_TRUE(longer > 0 || !poison.shows());
      }
    }
  }
}

// Rows before a query's window do not reach it, whatever they hold, and a segment that has none but such rows, or
// begins with them, need not be there. A window that all rows are in changes no bit.
TEST_P(DecodeAttentionTest, RowsBeforeAWindowDoNotReachIt) {
  constexpr int64_t kCommitted = 700, kNodes = 24;
  const std::vector<Poison> all = poisons();
  size_t turn = 0;
  for (const AttentionCase& c : windowed_cases()) {
    const Pass pass(c, kCommitted, kNodes, 2);
    const std::vector<size_t> nodes = all_nodes(pass), few = {0, 1, kNodes - 2, kNodes - 1};
    const size_t heads = static_cast<size_t>(c.heads), row = heads * static_cast<size_t>(c.head_dim);
    const size_t row_bytes = row * dtype_bytes(c.type);
    const Result clean = run(pass, committed_segments(pass, 192), nodes);
    const auto expect_same = [&](const Result& got, size_t i, size_t node, const std::string& what) {
      ASSERT_EQ(std::memcmp(&got.out[i * row_bytes], &clean.out[node * row_bytes], row_bytes), 0) << what;
      ASSERT_EQ(std::memcmp(&got.o[i * row], &clean.o[node * row], row * 4), 0) << what;
      ASSERT_EQ(std::memcmp(&got.ml[i * 2 * heads], &clean.ml[node * 2 * heads], heads * 8), 0) << what;
    };
    // The middle one of the nodes' windows decides where the poison ends, so that some see it.
    std::vector<int64_t> firsts;
    for (size_t node : nodes) firsts.push_back(first_seen(pass.positions[node], c.window));
    std::vector<int64_t> sorted = firsts;
    std::sort(sorted.begin(), sorted.end());
    const int64_t middle = sorted[kNodes / 2];
    const Poison& poison = all[turn++ % all.size()];
    Pass other(pass);
    poison.put(0, std::min(middle, kCommitted), &other.context);
    for (const std::vector<size_t>& some : {nodes, few}) {
      const Result got = run(other, committed_segments(other, 192), some);
      const std::vector<float> values = testing_support::decode(got.out, c.type);
      for (size_t i = 0; i < some.size(); ++i) {
        const std::string what = str(c.name(), ": node ", some[i], " of ", some.size(), ", ", poison.name());
        if (firsts[some[i]] >= middle) {
          expect_same(got, i, some[i], what);
        } else if (poison.shows() && firsts[some[i]] < kCommitted) {
          ASSERT_FALSE(std::isfinite(values[i * row + row - 1])) << what;
        }
      }
    }
    // Without whole tiles before all windows: a segment less, or a part of one.
    Segments shorter = committed_segments(pass, 192);
    const int64_t begin = sorted.front() / kPrefixTile * kPrefixTile;
    std::erase_if(shorter.list, [&](const KvSegment& segment) { return segment.position + segment.rows <= begin; });
    if (!shorter.list.empty() && shorter.list.front().position < begin) {
      KvSegment& segment = shorter.list.front();
      const auto skipped = static_cast<int32_t>(begin - segment.position);
      if (low_bit(c.k_type) && low_bit(c.v_type)) {
        segment.first_row = skipped;
      } else if (!low_bit(c.k_type) && !low_bit(c.v_type)) {
        const int64_t elements = skipped * c.head_dim;
        segment.k = static_cast<const std::byte*>(segment.k) + elements * static_cast<int64_t>(dtype_bytes(c.k_type));
        segment.v = static_cast<const std::byte*>(segment.v) + elements * static_cast<int64_t>(dtype_bytes(c.v_type));
      }
      if (low_bit(c.k_type) == low_bit(c.v_type)) {
        segment.position += skipped;
        segment.rows -= skipped;
      }
    }
    const Result got = run(pass, shorter, nodes);
    for (size_t i = 0; i < nodes.size(); ++i) expect_same(got, i, i, str(c.name(), ": node ", i, ", shorter"));
    Pass whole(pass);
    whole.c.window = 0;
    const Result unlimited = run(whole, committed_segments(whole, 192), nodes);
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (firsts[i] == 0) expect_same(unlimited, i, i, str(c.name(), ": node ", i, ", without a window"));
    }
  }
}

// Of nodes with windows that begin in different tiles, each has the bits that it has alone.
TEST_P(DecodeAttentionTest, SameBitsInAWindowWhoeverRidesAlong) {
  constexpr size_t kNodes = 40;
  for (const AttentionCase& c : windowed_cases()) {
    const Pass pass(c, 600, kNodes, 2);
    const Segments committed = committed_segments(pass, 192);
    const Result all = run(pass, committed, all_nodes(pass));
    const size_t row_bytes = static_cast<size_t>(c.heads * c.head_dim) * dtype_bytes(c.type);
    const auto expect_same = [&](const std::vector<size_t>& nodes) {
      const Result got = run(pass, committed, nodes);
      for (size_t i = 0; i < nodes.size(); ++i) {
        ASSERT_EQ(std::memcmp(&got.out[i * row_bytes], &all.out[nodes[i] * row_bytes], row_bytes), 0)
            << c.name() << ": node " << nodes[i] << " in place " << i << " of " << nodes.size();
      }
    };
    for (size_t node = 0; node < kNodes; node += 13) expect_same({node});
    std::vector<size_t> nodes = all_nodes(pass);
    std::mt19937 random(3);
    for (size_t count : {2, 5, 13, 31, 40}) {
      std::shuffle(nodes.begin(), nodes.end(), random);
      expect_same({nodes.begin(), nodes.begin() + static_cast<int64_t>(count)});
    }
  }
}

}  // namespace
}  // namespace headrace
