// Where the KV cache lies cannot matter: --kv device, host and auto give the same bits, with rings of several sizes,
// across the ends of segments, at every temperature.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <tuple>

#include "kernels/product/op.h"
#include "tests/support/session_fixture.h"

namespace headrace {
namespace {

using testing::LoadedModel;

struct Said {
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> logits;
  MemoryPlan plan;
  uint64_t in_bytes = 0, out_bytes = 0;  // over the link
};

Said run(const LoadedModel& model, SessionOptions options, int64_t tokens) {
  const std::vector<int32_t> prompt =
      testing::made_up_ids(options.prompt_tokens, static_cast<int32_t>(model.checkpoint->config().vocab));
  Said result;
  auto session = model.session(options);
  result.plan = session->plan();
  const uint64_t in = model.device->bytes_over(Link::kHostToDevice),
                 out = model.device->bytes_over(Link::kDeviceToHost);
  result.tokens = testing::decode_plainly(*session, prompt, tokens, &result.logits);
  result.in_bytes = model.device->bytes_over(Link::kHostToDevice) - in;
  result.out_bytes = model.device->bytes_over(Link::kDeviceToHost) - out;
  return result;
}

void expect_same(const Said& a, const Said& b, const std::string& what) {
  EXPECT_EQ(a.tokens, b.tokens) << what;
  EXPECT_EQ(a.logits, b.logits) << what;
}

struct Case {
  const char* model;
  testing::RowsType dtype;
  DType k_type, v_type;
  int64_t prompt, tokens;
  float temperature;
};

class KvModes : public ::testing::TestWithParam<std::tuple<DeviceChoice, Case>> {};

TEST_P(KvModes, GiveTheSameBits) {
  const auto& [choice, c] = GetParam();
  const LoadedModel model(testing::tiny_model(c.model), c.dtype, choice);
  SessionOptions options = model.options(c.prompt, c.tokens);
  options.k_type = c.k_type;
  options.v_type = c.v_type;
  options.sampling = {.temperature = c.temperature, .top_p = 0.95f, .seed = 7};
  options.kv = KvMode::kDevice;
  const Said device = run(model, options, c.tokens);
  EXPECT_EQ(device.plan.resident_segments, device.plan.segments);

  const RowShape rows{.layers = StateGroups(model.checkpoint->config()).row_layers(),
                      .kv_heads = model.checkpoint->config().layers.front().attention().kv_heads,
                      .head_dim = model.checkpoint->config().layers.front().attention().head_dim,
                      .k_type = c.k_type,
                      .v_type = c.v_type};
  const uint64_t segment = 512 * rows.bytes();
  for (const int slots : {1, 2, 5}) {
    for (const uint64_t slot_bytes : {segment, 2 * segment + 100, 64 * kMiB}) {
      options.kv = KvMode::kHost;
      options.ring.slots = slots;
      options.ring.slot_bytes = slot_bytes;
      // Host memory in pieces of one layer, of two or three, or whole.
      options.host_piece_bytes = slots == 1 ? 1 : slots == 2 ? 3 * segments_bytes(rows, 0, 3) : kGiB;
      const Said host = run(model, options, c.tokens);
      EXPECT_EQ(host.plan.resident_segments, 0);
      expect_same(device, host, str("host, ", slots, " slots of ", slot_bytes));
      // Each sealed segment crosses outwards once, and inwards in each step.
      const uint64_t closed =
          segments_bytes(rows, 0, segment_of(c.prompt + c.tokens - 1)) * static_cast<uint64_t>(rows.layers);
      EXPECT_GE(host.out_bytes, closed);
      EXPECT_LT(host.out_bytes, closed + kMiB);
      const uint64_t first = segments_bytes(rows, 0, segment_of(c.prompt)) * static_cast<uint64_t>(rows.layers);
      EXPECT_GE(host.in_bytes, first * static_cast<uint64_t>(c.tokens - 1));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, KvModes,
    ::testing::Combine(
        ::testing::ValuesIn(testing::session_devices()),
        ::testing::Values(Case{"llama31", DType::kF32, DType::kF32, DType::kF32, 1500, 60, 0.0f},
                          Case{"qwen3", DType::kBF16, DType::kBF16, DType::kBF16, 1000, 60, 0.9f},  // crosses row 1,024
                          Case{"llama2", DType::kBF16, DType::kF16, DType::kF32, 511, 40, 1.2f},   // its second segment
                          Case{"mistral", DType::kF32, DType::kBF16, DType::kF16, 100, 20, 0.0f},  // nothing streams
                          Case{"qwen3", DType::kBF16, DType::kInt8, DType::kInt8, 1000, 60, 0.9f},
                          Case{"llama31", DType::kF32, DType::kInt8, DType::kF32, 505, 20, 0.0f},  // padded segments
                          Case{"qwen3", testing::kReadInInt8, DType::kBF16, DType::kBF16, 1000, 60, 0.9f},
                          Case{"qwen3moe", DType::kBF16, DType::kBF16, DType::kBF16, 1000, 60, 0.9f},
                          Case{"qwen3moe", testing::kReadInInt8, DType::kInt8, DType::kInt8, 1000, 20, 0.0f},
                          Case{"gemma3", DType::kBF16, DType::kBF16, DType::kBF16, 1000, 60, 0.9f},
                          Case{"gemma3", testing::kReadInInt8, DType::kInt8, DType::kInt8, 1000, 20, 0.0f},
                          Case{"gptoss", DType::kBF16, DType::kBF16, DType::kBF16, 900, 60, 0.9f},
                          Case{"gptoss", testing::kReadInInt8, DType::kInt8, DType::kInt8, 900, 20, 0.0f},
                          Case{"llama31", {DType::kF32, true}, DType::kInt8, DType::kF32, 1500, 20, 0.0f})),
    [](const auto& given) {
      const Case& c = std::get<1>(given.param);
      return testing::device_name(std::get<0>(given.param)) + "_" + c.model + "_" + dtype_name(c.k_type) +
             (c.dtype.prefill_int8 ? "_prefill_int8" : "");
    });

class KvBudgets : public ::testing::TestWithParam<DeviceChoice> {};

INSTANTIATE_TEST_SUITE_P(Devices, KvBudgets, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& given) { return testing::device_name(given.param); });

// A budget between the two: some segments resident, the rest streamed.
TEST_P(KvBudgets, AutoUnderEveryBudgetGivesTheSameBits) {
  const uint64_t taken = open_device({.choice = GetParam()})->vram().used_bytes();  // by the backend itself
  const LoadedModel whole(testing::tiny_model("llama31"), DType::kF32, GetParam());
  const uint64_t products = product_workspace_bytes(*whole.compute);
  SessionOptions options = whole.options(2200, 24);
  options.kv = KvMode::kDevice;
  const Said device = run(whole, options, 24);
  options.kv = KvMode::kHost;
  const uint64_t least = run(whole, options, 2).plan.vram_bytes + products;
  int64_t last_resident = -1;
  for (int64_t resident = 0; resident < device.plan.segments; ++resident) {
    const RowShape rows{.layers = 4, .kv_heads = 2, .head_dim = 16, .k_type = DType::kF32, .v_type = DType::kF32};
    LoadedModel model(testing::tiny_model("llama31"), DType::kF32, GetParam());
    const uint64_t weights = model.weights.bytes();
    auto small = open_device({.choice = GetParam(),
                              .vram_bytes = taken + weights + least + 4 * segments_bytes(rows, 0, resident) + 64 * kKiB,
                              .threads = 2});
    Weights on_small = Weights::reserve(*model.checkpoint, *small, {DType::kF32});
    on_small.load(*model.checkpoint, *small, nullptr, nullptr);
    model.weights = std::move(on_small);
    model.device.swap(small);
    model.compute = model.device->make_stream("compute", StreamRole::kCompute);
    options.kv = KvMode::kAuto;
    const Said got = run(model, options, 24);
    EXPECT_GE(got.plan.resident_segments, last_resident);
    EXPECT_GE(got.plan.resident_segments, resident);
    last_resident = got.plan.resident_segments;
    expect_same(device, got, str("auto, ", got.plan.resident_segments, " resident"));
    EXPECT_LE(model.device->vram().peak_bytes(), model.device->vram().limit_bytes());
    model.weights.release();
  }
}

// What the plan says is what is taken: the budget's peak is the plan's, to a page an allocation. A recurrent layer's
// share of passes is taken once prefill's memory is free.
TEST_P(KvBudgets, TheBudgetsPeakIsThePlans) {
  using testing::RowsType;
  struct Kind {
    KvMode mode;
    RowsType type;
    const char* model = "llama31";
    int64_t pass_rows = 1, blocks = 0;
  };
  for (const auto& [mode, type, name, pass_rows, blocks] :
       {Kind{KvMode::kDevice, DType::kF32}, Kind{KvMode::kHost, DType::kF32}, Kind{KvMode::kHost, DType::kInt8},
        Kind{KvMode::kHost, RowsType(DType::kF32, true)}, Kind{KvMode::kHost, DType::kF32, "qwen35"},
        Kind{KvMode::kHost, DType::kF32, "qwen3moe"}, Kind{KvMode::kHost, RowsType(DType::kF32, true), "qwen3moe", 60},
        Kind{KvMode::kHost, DType::kF32, "qwen35", 1, 4}, Kind{KvMode::kHost, DType::kF32, "qwen35", 300, 4},
        Kind{KvMode::kHost, DType::kF32, "qwen35moe"},
        Kind{KvMode::kHost, RowsType(DType::kF32, true), "qwen35moe", 60}}) {
    SCOPED_TRACE(str(name, ", KV mode ", static_cast<int>(mode), ", ", pass_rows, " rows, ", blocks, " blocks, ",
                     type.prefill_int8 ? "int8" : "plain", " prefill"));
    const LoadedModel model(testing::tiny_model(name), {DType::kF32, type.prefill_int8}, GetParam());
    const uint64_t products = product_workspace_bytes(*model.compute);  // stay on the stream
    SessionOptions options = model.options(1500, 16);
    options.kv = mode;
    options.k_type = options.v_type = type;
    options.pass_rows = pass_rows;
    options.partial.shape.blocks = blocks;
    model.device->vram().reset_peak();
    const uint64_t before = model.device->vram().used_bytes();
    const Said got = run(model, options, 16);
    const uint64_t taken = model.device->vram().peak_bytes() - before;
    EXPECT_LE(taken, got.plan.vram_bytes);
    EXPECT_GT(taken + 64 * kKiB, got.plan.vram_bytes);
    EXPECT_EQ(model.device->vram().used_bytes(), before + products);
  }
}

// What the first run leaves on the stream is not planned for twice: under a budget that holds a part of the cache, a
// second run on the same stream keeps as much of it on the device.
TEST_P(KvBudgets, ASecondRunHasTheFirstOnesPlan) {
  const LoadedModel whole(testing::tiny_model("llama31"), DType::kF32, GetParam());
  SessionOptions options = whole.options(2200, 8);
  options.kv = KvMode::kHost;
  const uint64_t taken = open_device({.choice = GetParam()})->vram().used_bytes();
  const uint64_t limit = taken + whole.weights.bytes() + run(whole, options, 2).plan.vram_bytes + 5 * kMiB / 4;
  LoadedModel model(testing::tiny_model("llama31"), DType::kF32, GetParam(), 2, limit);
  options.kv = KvMode::kAuto;
  const Said first = run(model, options, 8), second = run(model, options, 8);
  EXPECT_GT(first.plan.resident_segments, 0);
  EXPECT_LT(first.plan.resident_segments, first.plan.segments);
  EXPECT_EQ(first.plan.resident_segments, second.plan.resident_segments);
  expect_same(first, second, "a second run");
}

// The cache's host memory is taken early where the budget has room for it and for what is taken beside it, and by
// prefill where it has not; the bits are the same.
TEST_P(KvBudgets, HostMemoryBegunEarlyIsTheSame) {
  const LoadedModel model(testing::tiny_model("llama31"), DType::kF32, GetParam());
  SessionOptions options = model.options(1500, 8);
  options.kv = KvMode::kHost;
  const MemoryBudget& budget = model.device->host_mem();
  const uint64_t before = budget.used_bytes();
  const auto say = [&](uint64_t room, bool begins) {
    auto session = model.session(options);
    EXPECT_GT(session->plan().host_bytes, 0u);
    session->begin_host_memory(budget.free_bytes() - whole_pages(session->plan().host_bytes) - room);
    while (begins && budget.used_bytes() == before) std::this_thread::yield();
    EXPECT_EQ(budget.used_bytes() != before, begins);
    return testing::decode_plainly(*session, testing::made_up_ids(1500, 512), 8);
  };
  const std::vector<int32_t> early = say(0, true), late = say(static_cast<uint64_t>(-1), false);
  EXPECT_EQ(early, late);
  EXPECT_EQ(budget.used_bytes(), before);
}

// Beyond row 16,384 segments have 2,048 rows: the cut between the two sizes is crossed while decoding.
TEST(LargeSegments, StreamedRowsEqualResidentOnes) {
  const LoadedModel model(testing::tiny_model("llama31"), DType::kBF16);
  SessionOptions options = model.options(16370, 24);
  options.v_type = DType::kInt8;
  options.kv = KvMode::kDevice;
  const Said device = run(model, options, 24);
  options.kv = KvMode::kHost;
  options.ring.slots = 2;
  options.ring.slot_bytes = 1;  // one large segment
  const Said host = run(model, options, 24);
  expect_same(device, host, "16,370 rows and on");
  EXPECT_GT(host.plan.segments, 32);
}

// int8 is another rounding of the same rows: the logits move, and not far. Of prefill, which reads rounded rows, and of
// decoding, which reads int8 ones and then rows that it has quantised itself (the segment with row 512).
TEST_P(KvBudgets, Int8RowsAreCloseToExactOnes) {
  const LoadedModel model(testing::tiny_model("llama31"), DType::kF32, GetParam());
  SessionOptions options = model.options(500, 350);
  const std::vector<int32_t> prompt = testing::made_up_ids(500, 512), more = testing::made_up_ids(340, 512, 3);
  const auto logits = [&](DType type) {
    options.k_type = options.v_type = type;
    const auto session = model.session(options);
    session->prefill(prompt, nullptr, nullptr);
    std::vector<std::vector<float>> all = {session->logits(1)};
    Tree tree;
    for (const int32_t token : more) {
      tree.reset(token);
      session->verify(tree);
      session->commit({.nodes = {0}, .next = 0});
    }
    all.push_back(session->logits(1));
    return all;
  };
  const auto exact = logits(DType::kF32), int8 = logits(DType::kInt8);
  for (size_t i = 0; i < exact.size(); ++i) {
    float largest = 0, moved = 0;
    for (size_t j = 0; j < exact[i].size(); ++j) {
      largest = std::max(largest, std::fabs(exact[i][j]));
      moved = std::max(moved, std::fabs(exact[i][j] - int8[i][j]));
    }
    EXPECT_GT(moved, 0) << i;
    EXPECT_LT(moved, 0.02f * largest) << i;
  }
}

// How prefill groups the prompt's rows changes no bit on the CPU, also where a group lies in several segments.
TEST(PrefillGroups, ChangeNoBit) {
  const LoadedModel model(testing::tiny_model("llama31"), DType::kF32);
  SessionOptions options = model.options(1500, 8);
  options.k_type = DType::kInt8;
  Said first;
  for (const int64_t group : {64, 256, 512, 1024, 2048}) {
    options.prefill_group = group;
    const Said got = run(model, options, 8);
    if (first.tokens.empty()) first = got;
    expect_same(first, got, str("groups of ", group));
  }
}

// The number of threads, the size of prefill's groups' neighbours and the pass's room change no bit.
TEST_P(KvBudgets, ThreadsAndPassRoomChangeNoBit) {
  for (const DType type : {DType::kBF16, DType::kInt8}) {
    SessionOptions options;
    Said first;
    for (const int threads : {1, 2, 3}) {
      if (type == DType::kInt8 && threads == 2) continue;
      const LoadedModel model(testing::tiny_model("qwen3"), type, GetParam(), threads);
      for (const int64_t pass_rows : {1, 7, 128}) {
        if (type == DType::kInt8 && pass_rows == 7) continue;
        options = model.options(700, 20);
        options.pass_rows = pass_rows;
        const Said got = run(model, options, 20);
        if (first.tokens.empty()) first = got;
        expect_same(first, got, str(dtype_name(type), ", ", threads, " threads, ", pass_rows, " rows"));
      }
    }
  }
}

}  // namespace
}  // namespace headrace
