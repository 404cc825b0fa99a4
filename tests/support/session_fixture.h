// A small model on a device, ready for sessions: shared by the tests of runtime/session/executor.h. CUDA instances
// exist on machines with a GPU; their names begin with "cuda".
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "offload/device/backends.h"
#include "offload/device/device.h"
#include "offload/device/graph.h"
#include "runtime/model/files/open_checkpoint.h"
#include "runtime/model/weight_store.h"
#include "runtime/model/weights.h"
#include "runtime/session/executor.h"
#include "tests/support/sanitized.h"

namespace headrace::testing {

// Steps and rounds that these tests repeat must be those of their keys.
inline const bool checks_replays = (Replay::check_keys(true), true);

inline std::vector<DeviceChoice> session_devices() {
  if (cuda_usable()) return {DeviceChoice::kCpu, DeviceChoice::kCuda};
  return {DeviceChoice::kCpu};
}
// The GPUs among them.
inline std::vector<DeviceChoice> session_gpus() {
  std::vector<DeviceChoice> devices = session_devices();
  std::erase(devices, DeviceChoice::kCpu);
  return devices;
}
inline std::string device_name(DeviceChoice device) { return device == DeviceChoice::kCuda ? "cuda" : "cpu"; }
// A type of the tables: of weights and cache, or of the cache alone (weights_type()); and how prefill computes.
struct RowsType {
  DType type = DType::kF32;
  bool prefill_int8 = false;

  constexpr RowsType() = default;
  constexpr RowsType(DType rows, bool int8 = false) : type(rows), prefill_int8(int8) {}
  constexpr operator DType() const { return type; }
  PrefillType prefill() const { return prefill_int8 ? PrefillType::kInt8 : PrefillType::kCompute; }
  std::string name() const { return str(dtype_name(type), prefill_int8 ? "_prefill_int8" : ""); }
};
constexpr RowsType kReadInInt8{DType::kBF16, true};
using DeviceAndType = std::tuple<DeviceChoice, RowsType>;

inline std::vector<RowsType> row_types() {
  return {RowsType(DType::kF32), RowsType(DType::kBF16), RowsType(DType::kInt8), kReadInInt8};
}
// Of suites that run on each device with each kind of rows.
inline auto devices_and_types() {
  return ::testing::Combine(::testing::ValuesIn(session_devices()), ::testing::ValuesIn(row_types()));
}
// Of suites that compare many long runs with fresh ones.
inline std::vector<RowsType> types_to_share() {
  return kSanitized ? std::vector<RowsType>{RowsType(DType::kInt8)} : row_types();
}
inline std::string name_of_device_and_type(const ::testing::TestParamInfo<DeviceAndType>& given) {
  return device_name(std::get<0>(given.param)) + "_" + std::get<1>(given.param).name();
}

// A type of a table may be that of the KV cache alone: then the weights are bf16.
inline DType weights_type(DType type) { return low_bit(type) ? DType::kBF16 : type; }

inline SessionPlan plan_session(Device& device, Stream& compute, const ModelConfig& config, const Weights& weights,
                                const SessionOptions& options) {
  const SessionLayout layout(device, compute, config, weights, options);
  return {.layout = layout, .memory = layout.plan()};
}

struct PlannedSequence {
  PlannedSequence(SessionPlan the_plan, KeptState kept)
      : planned(std::move(the_plan)), sequence(planned, std::move(kept)) {}
  const SessionPlan planned;
  Sequence sequence;
};
// A sequence and its executor, as the engine joins them.
class Session : private PlannedSequence, public Executor {
 public:
  explicit Session(SessionPlan the_plan, KeptState kept = {})
      : PlannedSequence(std::move(the_plan), std::move(kept)), Executor(planned, sequence) {}

  const SessionLayout& layout() const { return planned.layout; }
  const MemoryPlan& plan() const { return planned.memory; }
  int64_t rows() const { return sequence.rows(); }
  int64_t pending_rows() const { return sequence.pending_rows(); }
  bool partial_ready() const { return sequence.partial_ready(); }
  const StateSnapshots* snapshots() const { return sequence.snapshots(); }
  SequenceStats stats() const { return sequence.stats(); }
  void begin_host_memory(uint64_t beside_bytes) { sequence.begin_host_memory(beside_bytes); }
  KeptState release() {
    stop();
    return sequence.release();
  }
};

// `dtype`: of the weights and of the cache.
struct LoadedModel {
  RowsType cache_type;
  std::unique_ptr<Device> device;
  std::unique_ptr<Checkpoint> checkpoint;
  Weights weights;
  std::unique_ptr<Stream> compute;

  LoadedModel(const std::string& path, RowsType dtype, DeviceChoice choice = DeviceChoice::kCpu, int threads = 2,
              uint64_t vram_bytes = 0, WeightPolicy policy = WeightPolicy::kKeep)
      : cache_type(dtype),
        device(open_device({.choice = choice, .vram_bytes = vram_bytes, .threads = threads})),
        checkpoint(open_checkpoint(path)),
        weights(Weights::reserve(*checkpoint, *device, {weights_type(dtype), policy})),
        compute(device->make_stream("compute", StreamRole::kCompute)) {
    weights.load(*checkpoint, *device, nullptr, nullptr);
  }

  SessionOptions options(int64_t prompt, int64_t more) const {
    SessionOptions o;
    o.prompt_tokens = prompt;
    o.context_tokens = prompt + more;
    o.k_type = o.v_type = cache_type;
    o.prefill_int8 = cache_type.prefill_int8;
    return o;
  }
  std::unique_ptr<Session> session(const SessionOptions& o) const {
    return std::make_unique<Session>(plan_session(*device, *compute, checkpoint->config(), weights, o));
  }
};

inline std::string tiny_model(const std::string& name) { return std::string(HEADRACE_TEST_DATA "/tiny/") + name; }

// Arbitrary ids, the same everywhere: a small linear congruential sequence.
inline std::vector<int32_t> made_up_ids(int64_t count, int32_t vocab, uint32_t seed = 1) {
  std::vector<int32_t> ids;
  for (uint32_t state = seed; static_cast<int64_t>(ids.size()) < count;) {
    state = state * 1664525u + 1013904223u;
    ids.push_back(static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(vocab - 3)) + 3);
  }
  return ids;
}

// The same half twice, so that a look-up has something to find.
inline std::vector<int32_t> repeated_ids(int64_t count, int32_t vocab) {
  const size_t half = static_cast<size_t>(count / 2);
  std::vector<int32_t> ids = made_up_ids(count / 2, vocab);
  ids.resize(static_cast<size_t>(count));
  for (size_t i = half; i < ids.size(); ++i) ids[i] = ids[i - half];
  return ids;
}

// Plain decoding: `count` tokens after the prompt, and (if requested) the logits of each step.
inline std::vector<int32_t> decode_plainly(Session& session, const std::vector<int32_t>& prompt, int64_t count,
                                           std::vector<std::vector<float>>* logits = nullptr) {
  std::vector<int32_t> tokens = {*session.prefill(prompt, nullptr, nullptr)};
  if (logits) logits->push_back(session.logits(1));
  Tree tree;
  Acceptance acceptance;
  while (static_cast<int64_t>(tokens.size()) < count) {
    tree.reset(tokens.back());
    accept(tree, session.verify(tree), &acceptance);
    if (logits) logits->push_back(session.logits(1));
    session.commit(acceptance);
    tokens.push_back(acceptance.next);
  }
  return tokens;
}

}  // namespace headrace::testing
