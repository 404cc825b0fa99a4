// What a decode step takes with a share of the KV cache on disk, against what the disk and the link would need for its
// bytes alone; and what verifying makes it later by, which the run itself counts. The disk is measured with the steps,
// as a shared one is another from second to second: a file of the bench's own beside the run's, as large as what a step
// reads (a short burst may be faster than any disk for long), is read before and after each step, past the page cache,
// in blocks as the run's reads are and as many at a time as the run has at most (both are in the JSON), into memory as
// large as the run's ring and used in turn as it is (a virtual disk's host copies, and is faster into memory that is in
// its cache), while the run's ring is full and its disk quiet. One JSON object on stdout, the machine named.
//   spill_step_bench --folder DIR [--shape llama-3.1-8b] [--tokens 61440] [--share 0.25] [--steps 20]
//                    [--beside 2GiB] [--depth N] [--slots 8] [--device cuda] [--seed 0]
// --depth: of reads, instead of what is measured. --slots: of the run's ring.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "bench/figures.h"
#include "bench/machine.h"
#include "bench/program.h"
#include "cache/layout.h"
#include "offload/host/pages.h"
#include "offload/measure/link_bandwidth.h"
#include "offload/spill/extent.h"
#include "runtime/base/random.h"
#include "runtime/model/files/shapes.h"
#include "runtime/model/random_checkpoint.h"
#include "runtime/model/weights.h"
#include "runtime/session/session.h"

namespace headrace::bench {
namespace {

using nlohmann::ordered_json;

struct Args {
  std::string shape = "llama-3.1-8b", folder;
  DeviceChoice device = DeviceChoice::kAuto;
  uint64_t beside_bytes = 2 * kGiB;
  int64_t tokens = 61440;
  double share = 0.25;
  int steps = 20, depth = 0, slots = SpillOptions{}.slots;
  uint64_t seed = 0;
};

// A file beside the run's, of blocks.
class Beside {
 public:
  // `ring_bytes`: the run's ring.
  Beside(const std::string& folder, uint64_t bytes, uint64_t block, uint64_t ring_bytes)
      : block_(block),
        bytes_(std::max<uint64_t>(1, bytes / block) * block),
        places_(std::max<uint64_t>(1, ring_bytes / block)),
        file_(File::temporary(folder, FileCaching::kDirect)),
        memory_(static_cast<std::byte*>(map_pages(places_ * block))) {
    CHECK(memory_ != nullptr);
    file_.allocate(bytes_);
    for (uint64_t i = 0; i < places_ * block / 8; ++i) reinterpret_cast<uint64_t*>(memory_)[i] = random64(7, i);
    move(FileOp::kWrite, most_depth());
  }
  ~Beside() { unmap_pages(memory_, places_ * block_); }

  int most_depth() const { return static_cast<int>(std::min<uint64_t>(places_, 64)); }

  uint64_t block_bytes() const { return block_; }
  uint64_t memory_bytes() const { return places_ * block_; }
  // Bytes a second that all of it is read with. REQUIRES: 1 <= depth <= most_depth()
  double read_gb_per_s(int depth) { return move(FileOp::kRead, depth); }

 private:
  double move(FileOp op, int depth) {
    const auto queue = FileQueue::open(file_, {.depth = depth, .memory = {memory_, places_ * block_}});
    std::vector<bool> used(places_);
    uint64_t place = 0;
    const Clock::time_point start = Clock::now();
    for (uint64_t at = 0; at < bytes_ || queue->pending() > 0;) {
      if (at < bytes_ && !queue->full() && !used[place]) {
        queue->submit({.op = op, .offset = at, .data = memory_ + place * block_, .bytes = block_, .tag = place});
        used[place] = true;
        place = (place + 1) % places_;
        at += block_;
        continue;
      }
      const FileDone done = queue->wait();
      queue->check(done);
      used[done.request.tag] = false;
    }
    return static_cast<double>(bytes_) / ms_since(start) / 1e6;
  }

  const uint64_t block_, bytes_, places_;
  File file_;
  std::byte* const memory_;
};

struct Step {
  double ms = 0, busy_ms = 0, full_ms = 0, take_wait_ms = 0, checksum_ms = 0, verify_wait_ms = 0, verify_late_ms = 0,
         before = 0,
         after = 0;  // GB/s of the disk
  uint64_t disk_bytes = 0, link_bytes = 0;
  double disk_floor_ms() const { return static_cast<double>(disk_bytes) / ((before + after) / 2) / 1e6; }
};

class Bench {
 public:
  explicit Bench(const Args& args)
      : args_(args), shape_(find_shape(args.shape)), device_(open_device({.choice = args.device})) {
    LinkMeter meter(*device_, 64 * kMiB);
    link_gb_per_s_ = meter.measure(LinkUse::kToDevice, 64 * kMiB, 256 * kMiB).gb_per_s;
    shape_.config.max_positions = std::max(shape_.config.max_positions, args.tokens + 2 * args.steps + 8);
    checkpoint_ = make_random_checkpoint(shape_.name, shape_.config, args.seed);
    weights_ = std::make_unique<Weights>(Weights::reserve(*checkpoint_, *device_, checkpoint_->natural_dtype()));
    weights_->load(*checkpoint_, *device_, nullptr, nullptr);
    compute_ = device_->make_stream("compute", StreamRole::kCompute);
    open_session();
    const MemoryPlan& plan = session_->plan();
    const uint64_t ring_bytes = static_cast<uint64_t>(plan.disk_slots) * plan.disk_slot_bytes;
    beside_ = std::make_unique<Beside>(args.folder, args.beside_bytes, request_bytes(), ring_bytes);
  }

  ordered_json run() {
    std::vector<int32_t> prompt;
    for (int64_t i = 0; i < args_.tokens; ++i) {
      prompt.push_back(static_cast<int32_t>(random64(args_.seed + 1, static_cast<uint64_t>(i)) %
                                            static_cast<uint64_t>(shape_.config.vocab)));
    }
    const Clock::time_point start = Clock::now();
    token_ = *session_->prefill(prompt, nullptr, nullptr);
    prefill_ms_ = ms_since(start);
    if (session_->disk() == nullptr) {
      throw_error(
          ExitCode::kUsage, "--share",
          str(args_.share, " of the KV cache's ", format_bytes(session_->plan().host_bytes), " puts nothing on disk"),
          "Ask for more of it, or more --tokens.");
    }
    for (int i = 0; i < 2; ++i) step();  // the first ones make graphs, and measure the depth
    std::vector<Step> steps;
    double before = disk_rate();
    for (int i = 0; i < args_.steps; ++i) {
      Step one = step();
      one.before = before;
      one.after = before = disk_rate();
      steps.push_back(one);
      std::fprintf(stderr, "%s\n", json_of(one).dump().c_str());
    }
    return report(steps);
  }

 private:
  void open_session() {
    SessionOptions options;
    options.prompt_tokens = args_.tokens;
    options.context_tokens = args_.tokens + args_.steps + 4;
    options.kv = KvMode::kHost;
    options.k_type = options.v_type = weights_->dtype();
    options.spill.folder = args_.folder;
    options.spill.slots = args_.slots;
    if (args_.depth > 0) options.spill.depth = {.depth = args_.depth, .why = "as asked"};
    const auto session = [&] {
      return std::make_unique<Session>(plan_session(*device_, *compute_, shape_.config, *weights_, options));
    };
    const MemoryPlan whole = session()->plan();
    const uint64_t segment = whole.host_bytes / static_cast<uint64_t>(whole.host_layers * whole.segments);
    MemoryBudget& budget = device_->host_mem();
    const uint64_t need = whole.host_total_bytes + (device_->backend() == Backend::kCpu ? whole.vram_bytes : 0) -
                          static_cast<uint64_t>(args_.share * static_cast<double>(whole.host_bytes)) +
                          std::max<uint64_t>(128 * kMiB, 8 * segment);
    if (need < budget.free_bytes()) others_ = budget.reserve(budget.free_bytes() - need, "others");
    session_ = session();
  }

  // The most that the session's file is asked for at once: it is made of segments (KvBacking), and extents
  // may be shorter than a request.
  uint64_t request_bytes() const {
    const ModelConfig& config = shape_.config;
    const RowShape rows{config.layers, config.kv_heads, config.head_dim, weights_->dtype(), weights_->dtype()};
    const uint64_t request = SpillCut(segments_bytes(rows, 0, 1)).most_request_bytes();
    const uint64_t extent = session_->plan().disk_slot_bytes;  // 0: nothing is on disk, as run() will say
    return extent > 0 ? std::min(request, extent) : request;
  }

  // As the run has them: what of the limit its ring and its queue allow.
  int beside_depth() const { return std::clamp(session_->stats().spill.reads_at_once, 1, beside_->most_depth()); }

  Step step() {
    const SpillStats before = session_->stats().spill;
    const uint64_t link = device_->bytes_over(Link::kHostToDevice);
    const Clock::time_point start = Clock::now();
    tree_.reset(token_);
    accept(tree_, session_->verify(tree_), &acceptance_);
    session_->commit(acceptance_);
    token_ = acceptance_.next;
    Step step{.ms = ms_since(start)};
    const SpillStats after = session_->stats().spill;
    step.disk_bytes = after.read_bytes - before.read_bytes;
    step.link_bytes = device_->bytes_over(Link::kHostToDevice) - link;
    step.busy_ms = after.read_busy_ms - before.read_busy_ms;
    step.full_ms = after.ring_full_ms - before.ring_full_ms;
    step.take_wait_ms = after.take_wait_ms - before.take_wait_ms;
    step.checksum_ms = after.checksum_ms - before.checksum_ms;
    step.verify_wait_ms = after.verify_wait_ms - before.verify_wait_ms;
    step.verify_late_ms = after.verify_late_ms - before.verify_late_ms;
    return step;
  }

  // Once the ring is full, and the run's own reads are done.
  double disk_rate() {
    uint64_t seen = 0;
    for (uint64_t now = session_->stats().spill.read_bytes; now != seen; now = session_->stats().spill.read_bytes) {
      seen = now;
      std::this_thread::sleep_for(std::chrono::milliseconds(60));
    }
    return beside_->read_gb_per_s(beside_depth());
  }

  double link_floor_ms(const Step& step) const { return static_cast<double>(step.link_bytes) / link_gb_per_s_ / 1e6; }
  double over_floor(const Step& step) const { return step.ms / std::max(step.disk_floor_ms(), link_floor_ms(step)); }
  ordered_json json_of(const Step& step) const {
    return {{"ms", rounded(step.ms)},
            {"disk_bytes", step.disk_bytes},
            {"link_bytes", step.link_bytes},
            {"disk_gb_per_s_before", rounded(step.before)},
            {"disk_gb_per_s_after", rounded(step.after)},
            {"disk_floor_ms", rounded(step.disk_floor_ms())},
            {"link_floor_ms", rounded(link_floor_ms(step))},
            {"over_floor", rounded(over_floor(step))},
            {"disk_busy_ms", rounded(step.busy_ms)},
            {"ring_full_ms", rounded(step.full_ms)},
            {"take_wait_ms", rounded(step.take_wait_ms)},
            {"checksum_ms", rounded(step.checksum_ms)},
            {"verify_wait_ms", rounded(step.verify_wait_ms)},
            {"verify_late_ms", rounded(step.verify_late_ms)}};
  }
  ordered_json summary(const std::vector<Step>& steps) const {
    std::vector<double> ms, over, busy, checksum, waits, lates;
    double late_ms = 0;
    for (const Step& step : steps) {
      ms.push_back(step.ms);
      over.push_back(over_floor(step));
      busy.push_back(step.busy_ms / step.ms);
      checksum.push_back(step.checksum_ms);
      waits.push_back(step.verify_wait_ms / step.ms);
      lates.push_back(step.verify_late_ms / step.ms);
      late_ms += step.verify_late_ms;
    }
    return {{"steps", ms.size()},
            {"ms_median", rounded(median(ms))},
            {"over_floor_median", rounded(median(over))},
            {"disk_busy_share_median", rounded(median(busy))},
            {"checksum_ms_median", rounded(median(checksum))},
            {"verify_wait_share_median", rounded(median(waits))},
            {"verify_late_share_median", rounded(median(lates))},
            {"verify_late_share", rounded(late_ms / std::accumulate(ms.begin(), ms.end(), 0.0))}};
  }
  ordered_json report(const std::vector<Step>& steps) const {
    const MemoryPlan& plan = session_->plan();
    const SpillStats stats = session_->stats().spill;
    ordered_json rows = ordered_json::array();
    for (const Step& step : steps) rows.push_back(json_of(step));
    return {{"program", "spill_step_bench"},
            {"machine", machine_json()},
            {"device", device_->name()},
            {"shape", shape_.name},
            {"tokens", args_.tokens},
            {"kv_host_bytes", plan.host_bytes},
            {"kv_disk_bytes", plan.disk_bytes},
            {"ring_slots", plan.disk_slots},
            {"ring_slot_bytes", plan.disk_slot_bytes},
            {"how", stats.how},
            {"read_depth", stats.reads_at_once},
            {"read_depth_limit", stats.depth.depth},
            {"read_depth_why", stats.depth.why},
            {"beside_depth", beside_depth()},
            {"beside_block_bytes", beside_->block_bytes()},
            {"beside_memory_bytes", beside_->memory_bytes()},
            {"read_depth_ms", rounded(stats.depth_ms)},
            {"prefill_ms", rounded(prefill_ms_)},
            {"link_gb_per_s", rounded(link_gb_per_s_)},
            {"floors",
             "disk: the bytes that the disk brought within the step, by the mean of the rates measured just before and "
             "just after it on another file of the same folder; link: the step's bytes by the measured peak; a step's "
             "floor is the larger one. Rates of a shared disk move between the step and its two measurements, so that "
             "single steps may lie below 1; disk_busy_ms is the time within the step with reads under way, "
             "ring_full_ms that without, as no slot was free, "
             "take_wait_ms that in which who takes what is read waited for it; "
             "verify_wait_ms that in which who takes what is read waited for a span that was there and not verified, "
             "verify_late_ms by how much later than without verifying the step's last span was taken than its first "
             "(offload/spill/lateness.h)"},
            {"summary", summary(steps)},
            {"steps", rows}};
  }

  const Args args_;
  Shape shape_;
  const std::unique_ptr<Device> device_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<Stream> compute_;
  MemoryBudget::Reservation others_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Beside> beside_;
  Tree tree_;
  Acceptance acceptance_;
  int32_t token_ = 0;
  double link_gb_per_s_ = 0, prefill_ms_ = 0;
};

void add_flags(CLI::App& app, Args& args) {
  app.add_option("--folder", args.folder)->required();
  app.add_option("--shape", args.shape);
  app.add_option("--tokens", args.tokens);
  app.add_option("--share", args.share)->check(CLI::Range(0.01, 1.0));
  app.add_option("--steps", args.steps)->check(CLI::Range(2, 1000));
  app.add_option("--depth", args.depth)->check(CLI::Range(0, 64));
  app.add_option("--slots", args.slots)->check(CLI::Range(1, 64));
  add_size(app, "--beside", &args.beside_bytes, kMiB);
  add_device(app, &args.device);
  app.add_option("--seed", args.seed);
}

}  // namespace
}  // namespace headrace::bench

int main(int argc, char** argv) {
  using namespace headrace::bench;
  Args args;
  CLI::App app("What a step takes with a share of the KV cache on disk", "spill_step_bench");
  add_flags(app, args);
  return run_program(app, argc, argv, [&] { return Bench(args).run(); });
}
