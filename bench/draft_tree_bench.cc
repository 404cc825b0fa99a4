// Ranking a draft's candidates and growing its tree, op by op, and a round's worth of both. One JSON object a line:
// microseconds of a call, many enqueued before they are waited for.
//   draft_tree_bench [cuda|cpu [calls]]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bench/gpu_time.h"
#include "bench/program.h"
#include "kernels/draft_tree.h"
#include "offload/device.h"
#include "runtime/tree_policy.h"

namespace headrace {
namespace {

class Bench {
 public:
  Bench(DeviceChoice choice, int calls) : calls_(calls) {
    DeviceOptions options;
    options.choice = choice;
    device_ = open_device(options);
    stream_ = device_->make_stream("bench", StreamRole::kCompute);
    std::printf("{\"machine\": \"%s\"}\n", device_->name().c_str());
  }

  void ranking(int64_t rows, int64_t vocab, int64_t k, float temperature, bool mapped);
  void growing(const std::string& tree, int64_t vocab);

 private:
  DeviceBuffer zeros(int64_t bytes) { return device_->allocate(static_cast<uint64_t>(bytes), "bench"); }
  DeviceBuffer logits(int64_t count);
  DeviceBuffer ids(int64_t count, int32_t step);
  void upload(const DeviceBuffer& to, const void* from, uint64_t bytes);
  void report(const std::string& name, int64_t rows, const std::function<void()>& call) {
    std::printf("{\"bench\": \"%s\", \"rows\": %ld, \"us\": %.2f}\n", name.c_str(), static_cast<long>(rows),
                bench::median_us(*stream_, calls_, call));
    std::fflush(stdout);
  }

  const int calls_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

void Bench::upload(const DeviceBuffer& to, const void* from, uint64_t bytes) {
  const PinnedBuffer staging = device_->allocate_pinned(bytes, "bench");
  std::memcpy(staging.data(), from, bytes);
  stream_->copy(to.data(), staging.data(), bytes, Link::kHostToDevice);
  stream_->synchronize();
}

DeviceBuffer Bench::logits(int64_t count) {
  std::minstd_rand random(1);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  DeviceBuffer buffer = zeros(count * 4);
  upload(buffer, values.data(), values.size() * 4);
  return buffer;
}

DeviceBuffer Bench::ids(int64_t count, int32_t step) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(i) * step;
  DeviceBuffer buffer = zeros(count * 4);
  upload(buffer, values.data(), values.size() * 4);
  return buffer;
}

void Bench::ranking(int64_t rows, int64_t vocab, int64_t k, float temperature, bool mapped) {
  const DeviceBuffer values = logits(rows * vocab), map = ids(vocab, 4), positions = ids(rows, 1);
  const DeviceBuffer log_probs = zeros(rows * k * 4), tokens = zeros(rows * k * 4);
  const DeviceBuffer workspace = zeros(static_cast<int64_t>(top_log_probs_workspace_bytes(rows, vocab, k)));
  TopLogProbsParams p{};
  p.logits = values.as<float>();
  p.map = mapped ? map.as<int32_t>() : nullptr;
  p.positions = positions.as<int32_t>();
  p.log_probs = log_probs.as<float>();
  p.tokens = tokens.as<int32_t>();
  p.workspace = workspace.data();
  p.rows = rows;
  p.vocab = p.stride = vocab;
  p.k = k;
  p.temperature = temperature;
  report(str("top_log_probs, ", k, " of ", vocab, temperature > 0 ? ", noise" : "", mapped ? ", mapped" : ""), rows,
         [&] { top_log_probs(p, *stream_); });
}

void Bench::growing(const std::string& text, int64_t vocab) {
  const TreeShape shape = *parse_tree(text);
  const int64_t most = kMaxFrontier * kMaxBranch, stride = shape.deepest() + 1, nodes = shape.nodes;
  const DeviceBuffer values = logits(shape.widest() * vocab), log_probs = zeros(most * 4), children = zeros(most * 4);
  const DeviceBuffer workspace =
      zeros(static_cast<int64_t>(top_log_probs_workspace_bytes(shape.widest(), vocab, kMaxBranch)));
  std::vector<DeviceBuffer> table, frontier, tree;
  for (int i = 0; i < 4; ++i) table.push_back(zeros(shape.candidates() * 4));
  for (int i = 0; i < 5; ++i) frontier.push_back(zeros(kMaxFrontier * 4));
  for (int i = 0; i < 6; ++i) tree.push_back(zeros(nodes * 4));
  const DeviceBuffer path = zeros(kMaxFrontier * stride * 4), tree_path = zeros(nodes * stride * 4);
  const DeviceBuffer progress = zeros(sizeof(TreeProgress)), accepted = zeros(sizeof(TreeAcceptance)), ones = ids(4, 1);
  const TreeCandidates candidates = {table[0].as<int32_t>(), table[1].as<float>(), table[2].as<int32_t>(),
                                     table[3].as<int32_t>()};
  TreeGrowParams grow{};
  grow.log_probs = log_probs.as<float>();
  grow.tokens = children.as<int32_t>();
  grow.candidates = candidates;
  grow.progress = progress.as<TreeProgress>();
  grow.frontier = {frontier[0].as<int32_t>(),
                   frontier[1].as<float>(),
                   frontier[2].as<int32_t>(),
                   frontier[3].as<int32_t>(),
                   frontier[4].as<int32_t>(),
                   path.as<int32_t>(),
                   stride};
  grow.committed = ones.as<int32_t>();
  grow.nodes = nodes;
  grow.threshold = -1;  // every level
  TopLogProbsParams top{};
  top.logits = values.as<float>();
  top.log_probs = log_probs.as<float>();
  top.tokens = children.as<int32_t>();
  top.workspace = workspace.data();
  top.vocab = top.stride = vocab;
  const auto level = [&](size_t l) {
    grow.level = static_cast<int64_t>(l);
    grow.rows = top.rows = shape.levels[l].rows;
    grow.branch = top.k = shape.levels[l].branch;
    grow.width = shape.levels[l].width;
    grow.keep = shape.levels[l].keep;
    grow.first_candidate = shape.levels[l].first_candidate;
  };
  const TreeRows out{.count = ones.as<int32_t>() + 2,
                     .tokens = tree[0].as<int32_t>(),
                     .parents = tree[1].as<int32_t>(),
                     .depths = tree[2].as<int32_t>(),
                     .scores = tree[3].as<float>(),
                     .positions = tree[4].as<int32_t>(),
                     .draw_positions = tree[5].as<int32_t>(),
                     .path = tree_path.as<int32_t>(),
                     .path_stride = stride,
                     .slots = nullptr,
                     .committed = nullptr};
  const TreeSelectParams select{
      candidates, progress.as<TreeProgress>(), ones.as<int32_t>(), ones.as<int32_t>(), nullptr, out, nodes};
  report(str(text, " of ", vocab, ": a round's ranking, growing and selecting"), shape.widest(), [&] {
    for (size_t l = 0; l < shape.levels.size(); ++l) {
      level(l);
      top_log_probs(top, *stream_);
      tree_grow(grow, *stream_);
    }
    tree_select(select, *stream_);
  });
  report(text + ": a round's tree_grow", shape.widest(), [&] {
    for (size_t l = 0; l < shape.levels.size(); ++l) {
      level(l);
      tree_grow(grow, *stream_);
    }
  });
  report(text + ": tree_select", nodes, [&] { tree_select(select, *stream_); });
  report(text + ": tree_accept", nodes, [&] {
    tree_accept({out.tokens, out.parents, out.tokens, accepted.as<TreeAcceptance>(), nodes}, *stream_);
  });
}

void run(DeviceChoice choice, int calls) {
  Bench bench(choice, calls);
  for (int64_t vocab : {8192, 32000, 128256}) {
    for (int64_t rows : {1, 10, 50}) {
      bench.ranking(rows, vocab, 10, 0.0f, false);
      bench.ranking(rows, vocab, 10, 0.8f, false);
      bench.ranking(rows, vocab, 10, 0.8f, true);
      bench.ranking(rows, vocab, 50, 0.0f, true);
    }
  }
  for (const char* tree : {"eagle2", "opt", "beams:4,16,16,16,16", "chain:6"}) bench.growing(tree, 32000);
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  const bool cpu = argc > 1 && std::strcmp(argv[1], "cpu") == 0;
  const int calls = argc > 2 ? std::atoi(argv[2]) : cpu ? 5 : 200;
  return headrace::bench::guarded("draft_tree_bench", [&] {
    headrace::run(cpu ? headrace::DeviceChoice::kCpu : headrace::DeviceChoice::kCuda, calls);
  });
}
