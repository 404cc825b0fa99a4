// Ctrl-C while the KV cache's host memory is being pinned: prefill ends at once, and as interrupted, whatever becomes
// of the memory.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <semaphore>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/support/forwarding_device.h"
#include "tests/support/session_fixture.h"

namespace headrace {
namespace {

// Its host memory for the KV cache comes a piece at a time, when the test lets it; after two seconds it fails.
class SlowPinning final : public testing::ForwardingDevice {
 public:
  SlowPinning() : ForwardingDevice(open_device({.choice = DeviceChoice::kCpu, .threads = 2})) {}
  PinnedBuffer allocate_pinned(uint64_t bytes, std::string_view what) override {
    if (what == "the KV cache in host memory") {
      if (!may_.try_acquire_for(std::chrono::seconds(2)) || failing) {
        throw_error(ExitCode::kDoesNotFit, "mlock", "is refused");
      }
      ++pieces;
    }
    return real().allocate_pinned(bytes, what);
  }
  void let(int more) { may_.release(more); }
  std::atomic<int> pieces{0};
  std::atomic<bool> failing{false};

 private:
  std::counting_semaphore<> may_{0};
};

class InterruptedPrefill : public ::testing::Test {
 protected:
  std::unique_ptr<testing::Session> session() {
    SessionOptions options{.prompt_tokens = 1500, .context_tokens = 1510, .kv = KvMode::kHost};
    options.k_type = options.v_type = DType::kF32;
    options.prefill_group = 64;
    options.host_piece_bytes = 1;  // a piece for each layer
    return std::make_unique<testing::Session>(
        testing::plan_session(device_, *compute_, checkpoint_->config(), weights_, options));
  }
  void SetUp() override { weights_.load(*checkpoint_, device_, nullptr, nullptr); }
  int layers() const { return static_cast<int>(checkpoint_->config().layer_count()); }

  SlowPinning device_;
  const std::unique_ptr<Checkpoint> checkpoint_ = open_checkpoint(testing::tiny_model("llama31"));
  Weights weights_ = Weights::reserve(*checkpoint_, device_, {DType::kF32, WeightPolicy::kKeep});
  const std::unique_ptr<Stream> compute_ = device_.make_stream("compute", StreamRole::kCompute);
  const std::vector<int32_t> ids_ = testing::made_up_ids(1500, 512);
};

TEST_F(InterruptedPrefill, WaitsForNoHostMemory) {
  const std::atomic<bool> interrupt{true};
  const auto held = session();
  EXPECT_EQ(held->prefill(ids_, nullptr, &interrupt), std::nullopt);
  EXPECT_EQ(device_.pieces, 0);
  device_.let(layers());
}

// Interrupted in a later layer, with the host memory of the layers before it.
TEST_F(InterruptedPrefill, WaitsForNoFurtherHostMemory) {
  ASSERT_GT(layers(), 2);
  std::atomic<bool> interrupt{false};
  class Stops final : public Progress {
   public:
    explicit Stops(std::atomic<bool>* flag) : flag_(flag) {}
    void begin(std::string_view, std::string_view, int64_t total) override { total_ = total; }
    void update(int64_t done) override {
      if (4 * done > total_) flag_->store(true);
    }
    void end() override {}

   private:
    std::atomic<bool>* const flag_;
    int64_t total_ = 0;
  } stops(&interrupt);
  const auto held = session();
  device_.let(layers() - 1);
  EXPECT_EQ(held->prefill(ids_, &stops, &interrupt), std::nullopt);
  EXPECT_LT(device_.pieces, layers());
  device_.let(1);
}

TEST_F(InterruptedPrefill, IsNoErrorOfTheMemory) {
  std::atomic<bool> interrupt{true};
  device_.failing = true;
  device_.let(2);
  EXPECT_EQ(session()->prefill(ids_, nullptr, &interrupt), std::nullopt);
  interrupt = false;
  EXPECT_THROW(session()->prefill(ids_, nullptr, &interrupt), Error);
}

}  // namespace
}  // namespace headrace
