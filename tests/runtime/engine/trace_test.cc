// A run's trace: what is in it, that the link is busy where it is what decoding waits for, and that the text is the
// same.
#include "offload/device/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "runtime/engine/engine.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trace_reader.h"

namespace headrace {
namespace {

using testing::ReadSlice;
using testing::ReadTrace;

constexpr int64_t kTracedPrompt = 1200;  // two segments of 512 rows leave for the host

class RunTrace : public ::testing::TestWithParam<DeviceChoice> {
 protected:
  EngineOptions options(bool traced) const {
    EngineOptions o;
    o.model = testing::tiny_model("llama31");
    o.device = {.choice = GetParam(), .threads = 2};
    if (traced) o.device.trace_path = folder_ / "trace.json";
    o.want_tokenizer = false;
    o.dtype = DType::kF32;
    o.kv = KvMode::kHost;
    return o;
  }
  GenerateResult generate(Engine& engine, int64_t tokens) const {
    return engine.generate(testing::made_up_ids(kTracedPrompt, 512), {.max_tokens = tokens, .ignore_eos = true},
                           nullptr);
  }

  TemporaryFolder folder_;
};

// The share of a step that `slices`, which do not overlap, fill.
double filled(const ReadSlice& step, const std::vector<ReadSlice>& slices) {
  double us = 0;
  for (const ReadSlice& s : slices) {
    us += std::max(0.0, std::min(s.end_us(), step.end_us()) - std::max(s.begin_us, step.begin_us));
  }
  return us / step.us;
}

TEST_P(RunTrace, HasEveryLayerOfEveryStep) {
  Engine engine(options(true));
  const GenerateResult result = generate(engine, 6);
  const std::optional<TraceSummary> summary = engine.write_trace();
  ASSERT_TRUE(summary.has_value());
  EXPECT_FALSE(engine.write_trace().has_value());  // once
  const ReadTrace read = testing::read_trace(folder_.read("trace.json"));
  const int64_t layers = engine.config().layer_count();
  EXPECT_EQ(summary->steps, result.timings.decode_steps);
  EXPECT_EQ(summary->dropped_steps + summary->dropped_slices, 0);
  EXPECT_EQ(read.process, "headrace, " + engine.device().name());
  for (const char* name : {"answer", "load weights", "prefill", "decode"}) EXPECT_EQ(read.one(name).track, "run");
  const ReadSlice prefill = read.one("prefill"), decode = read.one("decode");
  EXPECT_LE(prefill.end_us(), decode.begin_us);
  uint64_t in_prefill = 0, in_decode = 0;
  for (const ReadSlice& s : read.on("D2H")) in_prefill += s.bytes;
  for (const ReadSlice& s : read.slices) in_decode += s.link == "H2D" && s.begin_us >= decode.begin_us ? s.bytes : 0;
  EXPECT_EQ(in_prefill + sizeof(int32_t), result.transfers.prefill_d2h_bytes);  // and the first token
  EXPECT_EQ(in_decode, result.transfers.decode_h2d_bytes);
  const std::vector<ReadSlice> compute = read.on("compute");
  for (const ReadSlice& step : compute) {
    if (!step.name.starts_with("step ")) continue;
    std::multiset<std::string> inside;
    for (const ReadSlice& s : compute) {
      if (s.begin_us >= step.begin_us && s.end_us() <= step.end_us()) inside.insert(s.name);
    }
    for (int64_t layer = 0; layer < layers; ++layer) EXPECT_EQ(inside.count(str("layer ", layer)), 1u) << step.name;
    for (const char* name : {"qkv", "tail", "output, mlp", "prefix from row 0"}) {
      EXPECT_EQ(inside.count(name), static_cast<size_t>(layers)) << name << " in " << step.name;
    }
    for (const char* name : {"inputs", "logits", "sample", "samples"}) EXPECT_EQ(inside.count(name), 1u) << name;
  }
}

// What leaves for a disk and comes back has a track of its own, as its bytes say.
TEST_P(RunTrace, HasATrackForTheDisk) {
  EngineOptions o = options(true);
  o.device.trace_path.clear();
  o.dtype = DType::kBF16;  // small weights, whose loading takes a GPU's host memory, too, beside a cache that is larger
  o.cache_type_k = o.cache_type_v = DType::kF32;
  const MemoryPlan whole = Engine(o).plan(kTracedPrompt, {.max_tokens = 6}).memory;
  const uint64_t weights = GetParam() == DeviceChoice::kCpu ? Engine(o).plan(kTracedPrompt, {}).weights_bytes : 0;
  const uint64_t together = GetParam() == DeviceChoice::kCpu ? whole.vram_bytes : 0, segment = 512 * 256;
  o.spill = {.folder = folder_.path(), .slots = 1};
  o.device.host_mem_bytes = weights + together + whole.host_total_bytes - 4 * segment + segment;  // of four layers
  o.device.trace_path = folder_ / "trace.json";
  Engine engine(o);
  const GenerateResult result = generate(engine, 6);
  ASSERT_GT(result.spill.file.file_bytes, 0u);
  engine.write_trace();
  const ReadTrace read = testing::read_trace(folder_.read("trace.json"));
  const ReadSlice decode = read.one("decode");
  uint64_t written = 0, given_on = 0, got = 0;
  std::string copies;
  for (const ReadSlice& s : read.slices) {
    if (!s.track.starts_with("disk")) {
      if (!s.name.starts_with("from disk")) continue;
      given_on += s.bytes;
      copies += str(s.bytes, " B at ", s.begin_us - decode.begin_us, " us; ");
      continue;
    }
    EXPECT_EQ(s.link, "disk");
    EXPECT_GT(s.us, 0);
    (s.name == "read" ? got : written) += s.bytes;
    EXPECT_EQ(s.name == "read", s.begin_us >= decode.begin_us);
  }
  EXPECT_EQ(written, result.spill.prefill_written_bytes);
  EXPECT_GE(got, given_on);
  // Of five steps; what is copied for the first before prefill has ended may be more than is recorded of a prefill.
  EXPECT_GE(given_on, 4 * result.spill.prefill_written_bytes) << copies;
  // What the disk and the link read ahead since the result was made: a slot, and the staging ring.
  EXPECT_LE(got, result.spill.file.read_bytes + result.plan.disk_slot_bytes +
                     static_cast<uint64_t>(result.plan.ring_slots) * result.plan.ring_slot_bytes);
}

TEST_P(RunTrace, ChangesNoToken) {
  Engine traced(options(true)), plain(options(false));
  EXPECT_EQ(generate(traced, 40).token_ids, generate(plain, 40).token_ids);
  EXPECT_FALSE(plain.write_trace().has_value());
  EXPECT_EQ(plain.device().trace(), nullptr);
}

TEST_P(RunTrace, IsBoundedWhateverIsGenerated) {
  Engine engine(options(true));
  for (int run = 0; run < 2; ++run) EXPECT_EQ(generate(engine, 50).timings.decode_steps, 49);
  const TraceSummary summary = *engine.write_trace();
  EXPECT_EQ(summary.steps, 2 * Trace::kTracedSteps);
  EXPECT_EQ(summary.dropped_steps, 2 * (49 - Trace::kTracedSteps));
  const ReadTrace read = testing::read_trace(folder_.read("trace.json"));
  EXPECT_EQ(read.count("answer"), 2);
  EXPECT_EQ(read.count("decode"), 2);
  EXPECT_EQ(read.count("step"), 2 * Trace::kTracedSteps);
}

// Without a device's own speed in the way: copies take 20 ms a step and more, the compute much less. Of the hybrid's
// eight layers two have rows, and those of the next one are on their way while layers without rows compute.
class PacedRunTrace : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, PacedRunTrace, ::testing::Values("llama31", "qwen35"),
                         [](const auto& model) { return std::string(model.param); });
TEST_P(PacedRunTrace, TheLinkIsBusyWhereDecodingWaitsForIt) {
  const TemporaryFolder folder;
  EngineOptions options;
  options.model = testing::tiny_model(GetParam());
  options.device = {.choice = DeviceChoice::kCpu, .threads = 2, .trace_path = folder / "trace.json"};
  options.draft.type = SpecType::kNone;
  options.want_tokenizer = false;
  options.dtype = DType::kF32;
  options.kv = KvMode::kHost;
  options.ring.slots = 4;
  uint64_t step_bytes = 0;
  {
    EngineOptions probe = options;
    probe.device.trace_path = "";
    Engine engine(probe);
    const GenerateResult result = engine.generate(testing::made_up_ids(kTracedPrompt, 320), {.max_tokens = 9}, nullptr);
    step_bytes =
        result.transfers.decode_h2d_bytes / static_cast<uint64_t>(std::max<int64_t>(1, result.timings.decode_steps));
  }
  options.device.copy_gb_per_s = static_cast<double>(step_bytes) / 30e6;  // 30 ms a step
  Engine engine(options);
  engine.generate(testing::made_up_ids(kTracedPrompt, 320), {.max_tokens = 12, .ignore_eos = true}, nullptr);
  const TraceSummary summary = *engine.write_trace();
  EXPECT_EQ(summary.steps, 11);
  EXPECT_GE(summary.busy_share(), 0.9);
  EXPECT_LE(summary.busy_share(), 1.0);
  EXPECT_GE(summary.decode_s, 0.2);
  EXPECT_LE(summary.gb_per_s(), 1.1 * options.device.copy_gb_per_s);
  EXPECT_GE(summary.gb_per_s(), 0.1 * options.device.copy_gb_per_s);  // on a machine that others use, too
  const ReadTrace read = testing::read_trace(folder.read("trace.json"));
  std::vector<double> shares;  // the same from the file, step by step
  for (const ReadSlice& s : read.on("compute")) {
    if (s.name.starts_with("step ")) shares.push_back(filled(s, read.on("H2D")));
  }
  ASSERT_EQ(shares.size(), 11u);
  std::nth_element(shares.begin(), shares.begin() + 5, shares.end());
  EXPECT_GE(shares[5], 0.9);  // the median: another process may take a step's time
  if (engine.config().layer(0).has_attention()) return;
  // In most steps, the rows of a layer have begun to arrive before the first of the layers without rows that precede it
  // has ended.
  const auto slices_of = [&](const char* track, int64_t layer) {
    std::vector<ReadSlice> slices = read.on(track);
    std::erase_if(slices, [&](const ReadSlice& s) {
      return s.name != str("layer ", layer) || s.begin_us < read.one("decode").begin_us;
    });
    return slices;
  };
  for (const int64_t place : {0, 1}) {
    const std::vector<ReadSlice> without_rows = slices_of("compute", 4 * place), arrive = slices_of("H2D", place);
    ASSERT_EQ(without_rows.size(), 11u);
    ASSERT_GE(arrive.size(), 11u);
    int64_t begun = 0;
    for (size_t step = 1; step < 11; ++step) begun += arrive[step].begin_us < without_rows[step].end_us() ? 1 : 0;
    EXPECT_GE(begun, 6);  // another process may take the thread's time in some
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, RunTrace, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& device) { return testing::device_name(device.param); });

}  // namespace
}  // namespace headrace
