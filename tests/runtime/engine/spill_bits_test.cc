// The disk tier: with any part of the KV cache on disk a run has the bits of one without.
#include <gtest/gtest.h>

#include <filesystem>
#include <tuple>

#include "tests/support/session_fixture.h"
#include "tests/support/spill.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using testing::host_bytes_for;
using testing::LoadedModel;

struct SpillCase {
  const char* model;
  testing::RowsType dtype;
  DType k_type, v_type;
  int64_t prompt, tokens;
  float temperature;
  double least_share;  // on disk, that still takes in a segment which is read
};

class Spill : public ::testing::TestWithParam<std::tuple<DeviceChoice, SpillCase>> {};

struct SpilledRun {
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> logits;
  MemoryPlan plan;
  SpillStats disk;
};

SpilledRun run_spilling(const LoadedModel& model, const SessionOptions& options, int64_t tokens) {
  const std::vector<int32_t> prompt =
      testing::made_up_ids(options.prompt_tokens, static_cast<int32_t>(model.checkpoint->config().vocab));
  SpilledRun result;
  auto session = model.session(options);
  result.plan = session->plan();
  result.tokens = testing::decode_plainly(*session, prompt, tokens, &result.logits);
  result.disk = session->stats().spill;
  return result;
}

struct Disk {
  double share;
  int slots, ring_slots;
  FileQueueBody body;
};

TEST_P(Spill, GivesTheBitsOfAPlainRun) {
  const auto& [choice, c] = GetParam();
  const LoadedModel model(testing::tiny_model(c.model), c.dtype, choice);
  const TemporaryFolder folder;
  SessionOptions options = model.options(c.prompt, c.tokens);
  options.k_type = c.k_type;
  options.v_type = c.v_type;
  options.sampling = {.temperature = c.temperature, .top_p = 0.95f, .seed = 7};
  options.kv = KvMode::kDevice;
  const SpilledRun device = run_spilling(model, options, c.tokens);
  options.kv = KvMode::kHost;
  const MemoryPlan whole = model.session(options)->plan();
  const uint64_t segment = whole.host_bytes / static_cast<uint64_t>(whole.host_layers * whole.segments);
  MemoryBudget& budget = model.device->host_mem();
  for (const Disk& disk : {Disk{1.0, 1, 1, FileQueueBody::kAuto}, Disk{1.0, 8, 4, FileQueueBody::kThreads},
                           Disk{0.5, 2, 4, FileQueueBody::kAuto}, Disk{0.5, 3, 1, FileQueueBody::kThreads},
                           // A ring of more slots would take as much memory as the disk saves.
                           Disk{c.least_share, 1, 2, FileQueueBody::kAuto}}) {
    options.spill = {.folder = folder.path(), .slots = disk.slots, .body = disk.body};
    options.ring.slots = disk.ring_slots;
    options.ring.slot_bytes = disk.ring_slots == 4 ? 2 * segment : segment;
    const MemoryPlan roomy = model.session(options)->plan();
    const uint64_t need =
        host_bytes_for(roomy, model.device->backend(), disk.share, static_cast<uint64_t>(disk.slots) * segment);
    const MemoryBudget::Reservation others = budget.reserve(budget.free_bytes() - need, "others");
    const SpilledRun said = run_spilling(model, options, c.tokens);
    const std::string what = str(disk.share, ", ", disk.slots, " slots");
    EXPECT_EQ(said.tokens, device.tokens) << what;
    EXPECT_EQ(said.logits, device.logits) << what;
    const double on_disk = static_cast<double>(said.plan.disk_bytes) / static_cast<double>(whole.host_bytes);
    EXPECT_GT(said.plan.disk_bytes, 0u) << what;
    EXPECT_GT(said.disk.read_bytes, 0u) << what;
    EXPECT_NEAR(on_disk, disk.share, 2.0 / static_cast<double>(whole.segments)) << what;
    EXPECT_EQ(said.plan.host_bytes + said.plan.disk_bytes, whole.host_bytes) << what;
    EXPECT_EQ(said.disk.file_bytes, said.plan.disk_bytes) << what;
    if (disk.share == 1.0) {  // each sealed segment is written once, and read in each step
      const RowShape rows{.layers = 1,
                          .kv_heads = model.checkpoint->config().layers.front().attention().kv_heads,
                          .head_dim = model.checkpoint->config().layers.front().attention().head_dim,
                          .k_type = c.k_type,
                          .v_type = c.v_type};
      const auto layers = static_cast<uint64_t>(whole.host_layers);
      const int64_t closed = segment_of(c.prompt), in_the_end = segment_of(c.prompt + c.tokens - 1);
      EXPECT_EQ(said.disk.written_bytes, layers * segments_bytes(rows, 0, in_the_end));
      EXPECT_GE(said.disk.read_bytes, layers * segments_bytes(rows, 0, closed) * static_cast<uint64_t>(c.tokens - 1));
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, Spill,
    ::testing::Combine(
        ::testing::ValuesIn(testing::session_devices()),
        // They cross the ends of segments that live on disk while decoding: rows 5,120 and 1,024.
        ::testing::Values(SpillCase{"llama31", DType::kF32, DType::kF32, DType::kF32, 5110, 24, 0.0f, 0.1},
                          SpillCase{"qwen3", DType::kBF16, DType::kF16, DType::kF32, 1010, 24, 0.9f, 0.34},
                          SpillCase{"qwen3", DType::kBF16, DType::kInt8, DType::kF16, 1010, 24, 0.9f, 0.34},
                          SpillCase{"llama31", testing::kReadInInt8, DType::kBF16, DType::kBF16, 1010, 24, 0.9f,
                                    0.34})),
    [](const auto& given) {
      const SpillCase& c = std::get<1>(given.param);
      return testing::device_name(std::get<0>(given.param)) + "_" + c.model + "_" + dtype_name(c.k_type) +
             (c.dtype.prefill_int8 ? "_prefill_int8" : "");
    });

// Beyond row 16,384 a segment has four times the rows of the first ones, and a unit of the disk holds several of those.
// A CPU takes some seconds for such a prompt; tests/cache/placement_test.cc has its layout.
class SpillLargeSegments : public ::testing::TestWithParam<DeviceChoice> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SpillLargeSegments);
INSTANTIATE_TEST_SUITE_P(Devices, SpillLargeSegments, ::testing::ValuesIn(testing::session_gpus()),
                         [](const auto& given) { return testing::device_name(given.param); });

TEST_P(SpillLargeSegments, GiveTheBitsOfAPlainRun) {
  const LoadedModel model(testing::tiny_model("llama31"), DType::kBF16, GetParam());
  const TemporaryFolder folder;
  SessionOptions options = model.options(18420, 16);  // crosses row 18,432
  options.k_type = DType::kInt8;
  options.kv = KvMode::kDevice;
  const SpilledRun device = run_spilling(model, options, 16);
  options.kv = KvMode::kHost;
  options.spill = {.folder = folder.path(), .slots = 2};
  const MemoryPlan whole = model.session(options)->plan();
  MemoryBudget& budget = model.device->host_mem();
  const uint64_t need = host_bytes_for(whole, model.device->backend(), 0.5, 0);
  const MemoryBudget::Reservation others = budget.reserve(budget.free_bytes() - need, "others");
  const SpilledRun said = run_spilling(model, options, 16);
  EXPECT_GT(said.plan.disk_bytes, whole.host_bytes / 2);
  EXPECT_EQ(said.tokens, device.tokens);
  EXPECT_EQ(said.logits, device.logits);
}

}  // namespace
}  // namespace headrace
