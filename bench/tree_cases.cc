// Ranking a draft's candidates and growing its tree, op by op, and a whole round.
#include "bench/kernel_bench.h"
#include "kernels/tree/op.h"
#include "runtime/speculation/policy/tree_policy.h"

namespace headrace::bench {
namespace {

constexpr int64_t kDraftVocab = 32000;

struct Ranking {
  int64_t k;
  float temperature;
  bool mapped;
};

void ranking(KernelBench& bench, int64_t rows) {
  if (bench.type != DType::kBF16) return;  // logits are fp32 in every type
  for (const int64_t vocab : {int64_t{8192}, kDraftVocab, bench.shape.vocab}) {
    for (const auto& [k, temperature, mapped] :
         {Ranking{10, 0, false}, Ranking{10, 0.8f, false}, Ranking{10, 0.8f, true}, Ranking{50, 0, true}}) {
      const DeviceBuffer logits = bench.normal(rows * vocab, DType::kF32, 3.0f), map = bench.ascending(vocab, 4);
      const DeviceBuffer positions = bench.ascending(rows);
      const DeviceBuffer log_probs = bench.zeros(rows * k * 4), tokens = bench.zeros(rows * k * 4);
      const DeviceBuffer workspace = bench.zeros(static_cast<int64_t>(top_log_probs_workspace_bytes(rows, vocab, k)));
      const TopLogProbsParams params{.logits = logits.as<float>(),
                                     .map = mapped ? map.as<int32_t>() : nullptr,
                                     .positions = positions.as<int32_t>(),
                                     .log_probs = log_probs.as<float>(),
                                     .tokens = tokens.as<int32_t>(),
                                     .workspace = workspace.data(),
                                     .rows = rows,
                                     .vocab = vocab,
                                     .stride = vocab,
                                     .k = k,
                                     .position_offset = 0,
                                     .temperature = temperature,
                                     .seed = 0};
      bench.measure({{"bench", str("top_log_probs, ", k, " of ", vocab, temperature > 0 ? ", noise" : "",
                                   mapped ? ", mapped" : "")},
                     {"rows", rows}},
                    {}, [&] { top_log_probs(params, bench.stream()); });
    }
  }
}

// One tree's buffers, and its round.
class Round {
 public:
  Round(KernelBench& bench, const std::string& tree)
      : bench_(bench), name_(tree), shape_(*parse_tree(tree)), ones_(bench.ascending(4)) {
    const int64_t stride = shape_.deepest() + 1, most = kMaxFrontier * kMaxBranch;
    top_.logits = floats(bench.normal(shape_.widest() * kDraftVocab, DType::kF32, 3.0f));
    top_.vocab = top_.stride = kDraftVocab;
    top_.log_probs = take<float>(most);
    top_.tokens = take<int32_t>(most);
    top_.workspace = take<float>(
        static_cast<int64_t>(top_log_probs_workspace_bytes(shape_.widest(), kDraftVocab, kMaxBranch) / 4 + 1));
    const auto list = [&](int64_t count) { return take<int32_t>(count); };
    const int64_t kept = shape_.candidates();
    grow_.candidates = {list(kept), take<float>(kept), list(kept), list(kept)};
    grow_.frontier = {list(kMaxFrontier),
                      take<float>(kMaxFrontier),
                      list(kMaxFrontier),
                      list(kMaxFrontier),
                      list(kMaxFrontier),
                      list(kMaxFrontier * stride),
                      stride};
    grow_.log_probs = top_.log_probs;
    grow_.tokens = top_.tokens;
    grow_.progress = take<TreeProgress>(1);
    grow_.committed = ones_.as<int32_t>();
    grow_.nodes = shape_.nodes;
    grow_.threshold = -1;  // every level
    const int64_t nodes = shape_.nodes;
    out_ = {.count = list(1),
            .tokens = list(nodes),
            .parents = list(nodes),
            .depths = list(nodes),
            .scores = take<float>(nodes),
            .positions = list(nodes),
            .draw_positions = list(nodes),
            .path = list(nodes * stride),
            .path_stride = stride,
            .slots = nullptr,
            .committed = nullptr};
    accepted_ = take<TreeAcceptance>(1);
  }

  void measure() {
    report(str(name_, " of ", kDraftVocab, ": a round's ranking, growing and selecting"), shape_.widest(), [&] {
      grow(true);
      select();
    });
    report(name_ + ": a round's tree_grow", shape_.widest(), [&] { grow(false); });
    report(name_ + ": tree_select", shape_.nodes, [&] { select(); });
    report(name_ + ": tree_accept", shape_.nodes, [&] {
      tree_accept({out_.tokens, out_.parents, out_.tokens, accepted_, shape_.nodes}, bench_.stream());
    });
  }

 private:
  template <typename T>
  T* take(int64_t count) {
    owned_.push_back(bench_.zeros(count * static_cast<int64_t>(sizeof(T))));
    return owned_.back().as<T>();
  }
  const float* floats(DeviceBuffer buffer) {
    owned_.push_back(std::move(buffer));
    return owned_.back().as<float>();
  }
  void grow(bool rank) {
    for (size_t level = 0; level < shape_.levels.size(); ++level) {
      const TreeLevel& here = shape_.levels[level];
      grow_.level = static_cast<int64_t>(level);
      grow_.rows = top_.rows = here.rows;
      grow_.branch = top_.k = here.branch;
      grow_.width = here.width;
      grow_.keep = here.keep;
      grow_.first_candidate = here.first_candidate;
      if (rank) top_log_probs(top_, bench_.stream());
      tree_grow(grow_, bench_.stream());
    }
  }
  void select() {
    const int32_t* const one = ones_.as<int32_t>();
    tree_select({grow_.candidates, grow_.progress, one, one, nullptr, out_, shape_.nodes}, bench_.stream());
  }
  void report(const std::string& name, int64_t rows, const std::function<void()>& call) {
    bench_.measure({{"bench", name}, {"rows", rows}}, {}, call);
  }

  KernelBench& bench_;
  const std::string name_;
  const TreeShape shape_;
  const DeviceBuffer ones_;
  std::vector<DeviceBuffer> owned_;
  TopLogProbsParams top_{};
  TreeGrowParams grow_{};
  TreeRows out_{};
  TreeAcceptance* accepted_ = nullptr;
};

void trees(KernelBench& bench, int64_t) {
  if (bench.type != DType::kBF16) return;
  for (const char* tree : {"eagle2", "opt", "beams:4,16,16,16,16", "chain:6"}) Round(bench, tree).measure();
}

}  // namespace

const std::vector<Case> kTreeCases = {{"top_log_probs", ranking, 1, 64}, {"draft_tree", trees, 0, 0}};

}  // namespace headrace::bench
