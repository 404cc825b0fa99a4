// Which chunks of a text a draft is shown: those that a softmax over the target's last layer, or over the two layers
// that are scored where they are on the device, ranks first. The softmax is computed here.
#include "runtime/draft/retrieval.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>

#include "tests/support/session_fixture.h"

namespace headrace {
namespace {

constexpr int64_t kTargetHeads = 4, kTargetKvHeads = 2, kTargetDim = 16;  // of llama31
constexpr int64_t kScoredRows = 900, kRowsAChunk = 32, kLookRows = 64;
constexpr int64_t kLayers = 4, kStride = (kTargetHeads + 2 * kTargetKvHeads) * kTargetDim;

// Looks back as a draft would, and keeps the queries of the layers that are scored.
class Looker final : public Draft {
 public:
  // `layers`: those that it expects to be scored.
  Looker(Device& device, const RetrievalShape& shape, const std::vector<int64_t>& layers)
      : device_(device), shape_(shape), layers_(layers) {}

  DraftMemory memory() const override { return {.lasting_bytes = Retrieval::bytes(setup())}; }
  bool reads_last_layer() const override { return true; }
  void allocate(Stream& compute) override {
    compute_ = &compute;
    queries_ = device_.allocate(kLayers * kLookRows * kStride * sizeof(float), "queries");
    retrieval.emplace(device_, setup(), compute);
    EXPECT_FALSE(retrieval->due());
    EXPECT_EQ(retrieval->choose(kScoredRows, compute).count, 0) << "nothing was scored";
  }
  void attach(const KvCache& target) override {
    cache = &target;
    retrieval->attach(target);
  }
  void prefill_layer(const LayerInput&) override {}
  bool finish_prefill(std::span<const int32_t>, Progress*, const std::atomic<bool>*) override { return true; }
  void propose(int32_t root, int64_t, const TreeLimits&, Tree* tree) override { tree->reset(root); }
  void pass_layer(const LayerInput&) override {}
  void rewind(int64_t) override {}
  void observe(const Tree&, const Acceptance&) override {}
  void pass_queries(const PassQueries& pass) override {
    ASSERT_LE(pass.rows, kLookRows);
    ASSERT_EQ(pass.stride, kStride);
    compute_->copy(of_layer(pass.layer), pass.q, static_cast<uint64_t>(pass.rows * pass.stride) * sizeof(float),
                   Link::kWithinDevice);
    retrieval->keep_queries(pass, *compute_);
  }
  void observe_query(const TargetQuery& target) override {
    queries.clear();
    for (const int64_t layer : layers_) {
      queries[layer] = on_host<float>(of_layer(layer) + target.row * kStride, kTargetHeads * kTargetDim);
    }
    EXPECT_EQ(on_host<float>(target.q, kTargetHeads * kTargetDim),
              on_host<float>(of_layer(kLayers - 1) + target.row * kStride, kTargetHeads * kTargetDim));
    retrieval->observe_query(target, *cache, *compute_);
  }

  template <typename T>
  std::vector<T> on_host(const void* from, int64_t count) const {
    std::vector<T> values(static_cast<size_t>(count));
    compute_->copy(values.data(), from, values.size() * sizeof(T), Link::kDeviceToHost);
    compute_->synchronize();
    return values;
  }
  std::vector<int32_t> choose(int64_t end) {
    const Retrieval::Choice choice = retrieval->choose(end, *compute_);
    return choice.count == 0 ? std::vector<int32_t>() : on_host<int32_t>(choice.chunks, choice.count);
  }

  std::optional<Retrieval> retrieval;
  const KvCache* cache = nullptr;
  std::map<int64_t, std::vector<float>> queries;  // of each scored layer

 private:
  float* of_layer(int64_t layer) const {
    return reinterpret_cast<float*>(queries_.data()) + layer * kLookRows * kStride;
  }
  RetrievalSetup setup() const {
    return {.shape = shape_,
            .context_rows = kScoredRows + 40,
            .pass_rows = kLookRows,
            .heads = kTargetHeads,
            .kv_heads = kTargetKvHeads,
            .head_dim = kTargetDim,
            .query_bytes = kStride * sizeof(float)};
  }

  Device& device_;
  const RetrievalShape shape_;
  const std::vector<int64_t> layers_;
  DeviceBuffer queries_;
  Stream* compute_ = nullptr;
};

// The mean attention of the rows of each chunk of the first `rows` in a layer, in doubles.
void add_scores(const Looker& looker, int64_t layer, const std::vector<float>& query, int64_t rows,
                std::vector<double>* scores) {
  for (int64_t head = 0; head < kTargetHeads; ++head) {
    std::vector<double> weights;
    for (int64_t i = 0; i < segments_for(rows); ++i) {
      const KvSegment segment = looker.cache->resident_segment(layer, i);
      const std::vector<float> keys =
          looker.on_host<float>(segment.k, kTargetKvHeads * segment.stride_rows * kTargetDim);
      const int64_t first = head / (kTargetHeads / kTargetKvHeads) * segment.stride_rows * kTargetDim;
      for (int64_t row = 0; segment.position + row < rows && row < segment.rows; ++row) {
        double dot = 0;
        for (int64_t j = 0; j < kTargetDim; ++j) {
          dot += static_cast<double>(query[static_cast<size_t>(head * kTargetDim + j)]) *
                 static_cast<double>(keys[static_cast<size_t>(first + row * kTargetDim + j)]);
        }
        weights.push_back(std::exp(dot / std::sqrt(static_cast<double>(kTargetDim))));
      }
    }
    EXPECT_EQ(static_cast<int64_t>(weights.size()), rows);
    const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (size_t row = 0; row < weights.size(); ++row) {
      const auto chunk = static_cast<int64_t>(row) / kRowsAChunk;
      const int64_t here = std::min(kRowsAChunk, rows - chunk * kRowsAChunk);
      (*scores)[static_cast<size_t>(chunk)] += weights[row] / all / static_cast<double>(kTargetHeads * here);
    }
  }
}

// The sum over the scored layers.
std::vector<double> scores_of(const Looker& looker, int64_t rows) {
  std::vector<double> scores(static_cast<size_t>(ceil_div(rows, kRowsAChunk)));
  for (const auto& [layer, query] : looker.queries) add_scores(looker, layer, query, rows, &scores);
  return scores;
}

// The first chunk, and the best of chunks [1, end).
std::vector<int32_t> best_of(const std::vector<double>& scores, int64_t end, int64_t keep) {
  std::vector<int32_t> chunks(static_cast<size_t>(end - 1));
  std::iota(chunks.begin(), chunks.end(), 1);
  std::sort(chunks.begin(), chunks.end(),
            [&](int32_t a, int32_t b) { return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)]; });
  chunks.resize(static_cast<size_t>(std::min(keep, end - 1)));
  chunks.push_back(0);
  std::sort(chunks.begin(), chunks.end());
  return chunks;
}

class RetrievalTest : public ::testing::TestWithParam<DeviceChoice> {};

// Of llama31's four layers, where all or only the last are on the device.
const std::vector<int64_t> kResident = {2, 3}, kStreaming = {3};

INSTANTIATE_TEST_SUITE_P(Devices, RetrievalTest, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& given) { return testing::device_name(given.param); });

void expect_the_most_attended(DeviceChoice device, KvMode kv) {
  SCOPED_TRACE(kv == KvMode::kHost ? "in host memory" : "on the device");
  const testing::LoadedModel model(testing::tiny_model("llama31"), DType::kF32, device);
  Looker looker(*model.device, {.chunks = 5, .rows = kRowsAChunk, .every = 3},
                kv == KvMode::kHost ? kStreaming : kResident);
  SessionOptions options = model.options(kScoredRows, 40);
  options.kv = kv;
  options.draft = &looker;
  const auto session = model.session(options);
  const std::vector<int32_t> ids = testing::made_up_ids(kScoredRows + 20, 512);
  ASSERT_TRUE(session->prefill(std::span(ids).first(kScoredRows), nullptr, nullptr));

  EXPECT_TRUE(looker.retrieval->due());
  const std::vector<double> after_prompt = scores_of(looker, kScoredRows);
  EXPECT_EQ(looker.choose(700), best_of(after_prompt, 700 / kRowsAChunk, 5));
  EXPECT_FALSE(looker.retrieval->due());
  EXPECT_EQ(looker.choose(200), best_of(after_prompt, 200 / kRowsAChunk, 5)) << "only chunks before row 200";
  EXPECT_EQ(looker.choose(100), (std::vector<int32_t>{0, 1, 2})) << "no more than there are";
  EXPECT_EQ(looker.choose(40), std::vector<int32_t>{0});
  EXPECT_EQ(looker.choose(31), std::vector<int32_t>{});
  EXPECT_EQ(looker.choose(kScoredRows + 500), best_of(after_prompt, kScoredRows / kRowsAChunk, 5))
      << "rows not yet scored";

  // Every third pass. The last one's query and rows count.
  Tree tree;
  Acceptance root;
  root.nodes = {0};
  for (int64_t pass = 1; pass <= 6; ++pass) {
    tree.reset(ids[static_cast<size_t>(kScoredRows + pass)]);
    session->verify(tree);
    session->commit(root);
    EXPECT_EQ(looker.retrieval->due(), pass % 3 == 0) << pass;
    if (!looker.retrieval->due()) continue;
    const std::vector<double> now = scores_of(looker, kScoredRows + pass);
    EXPECT_EQ(looker.choose(896), best_of(now, 28, 5)) << pass;
    EXPECT_NE(best_of(now, 28, 5), best_of(after_prompt, 28, 5)) << "the same chunks prove nothing: other tokens";
  }
}

TEST_P(RetrievalTest, ChoosesWhatTheTargetAttendsToMost) {
  expect_the_most_attended(GetParam(), KvMode::kDevice);
  expect_the_most_attended(GetParam(), KvMode::kHost);
}

// Partial steps, which leave the full KV as it is, trees of pending tokens, and refreshes: the query is that of the
// last token that was accepted, or of the deepest node that a tree has grown, as a full pass computes it.
TEST_P(RetrievalTest, ScoresAfterEveryKindOfPass) {
  const testing::LoadedModel model(testing::tiny_model("llama31"), DType::kF32, GetParam());
  const RetrievalShape shape = {.chunks = 5, .rows = kRowsAChunk, .every = 2};
  Looker looker(*model.device, shape, kResident), full_looker(*model.device, shape, kResident);
  SessionOptions options = model.options(kScoredRows, 40);
  options.pass_rows = 8;
  options.draft = &full_looker;
  const auto full = model.session(options);
  options.draft = &looker;
  options.grow_rows = 4;
  options.partial.shape.blocks = (tail_begin(kScoredRows) - kSinkRows) / kSelectRows;  // all that there are
  const auto partial = model.session(options);
  const std::vector<int32_t> ids = testing::made_up_ids(kScoredRows, 512), more = testing::made_up_ids(5, 512, 9);
  ASSERT_TRUE(full->prefill(ids, nullptr, nullptr));
  ASSERT_TRUE(partial->prefill(ids, nullptr, nullptr));
  std::vector<int32_t> last_choice = looker.choose(kScoredRows);
  const auto expect_scores = [&](int64_t rows, const char* after) {
    ASSERT_TRUE(looker.retrieval->due()) << after;
    for (const auto& [layer, query] : looker.queries) {
      for (size_t i = 0; i < query.size(); ++i) {
        ASSERT_NEAR(query[i], full_looker.queries.at(layer)[i], 1e-4f) << after << ", layer " << layer;
      }
    }
    const std::vector<int32_t> choice = looker.choose(rows);
    EXPECT_EQ(choice, best_of(scores_of(looker, rows), rows / kRowsAChunk, 5)) << after;
    EXPECT_NE(choice, last_choice) << after << ": the same chunks prove nothing: other tokens";
    last_choice = choice;
    EXPECT_FALSE(looker.retrieval->due());
  };
  const auto chain = [&](size_t first, size_t end) {
    Tree tree;
    tree.reset(more[first]);
    for (size_t i = first + 1; i < end; ++i) tree.add(more[i], static_cast<int32_t>(i - first) - 1);
    return tree;
  };

  Tree tree = chain(0, 2);
  partial->grow(tree, 0);
  EXPECT_FALSE(looker.retrieval->due());
  tree.add(7, 0);
  tree.add(more[2], 1);  // the deepest
  tree.add(8, 0);
  partial->grow(tree, 2);
  full->verify(chain(0, 3));
  full->commit({.nodes = {0, 1, 2}, .next = 0});
  expect_scores(kScoredRows, "growing");

  partial->verify(chain(0, 2), StepMode::kPartial);
  partial->commit({.nodes = {0, 1}, .next = 0});
  EXPECT_FALSE(looker.retrieval->due());
  partial->verify(chain(2, 4), StepMode::kPartial);
  partial->commit({.nodes = {0, 1}, .next = 0});
  full->verify(chain(3, 4));
  full->commit({.nodes = {0}, .next = 0});
  expect_scores(kScoredRows, "a partial step");

  partial->verify(chain(0, 5), StepMode::kRefresh);  // between two turns
  partial->commit({.nodes = {0, 1, 2, 3, 4}, .next = 0});
  EXPECT_EQ(partial->rows(), kScoredRows + 5);
  full->verify(chain(4, 5));
  full->commit({.nodes = {0}, .next = 0});
  expect_scores(kScoredRows + 5, "a refresh");
}

TEST(RetrievalWindow, FitsWhatTheDraftWasMadeFor) {
  // A head with 2,048 positions or so, 64 chunks if they fit.
  const DraftWindow head = retrieval_window({}, 64, -1, 1973, 16'000);
  EXPECT_EQ(head.rows, 512);
  EXPECT_EQ(head.retrieval.chunks, (1973 - 512) / 32 - 1);
  EXPECT_LE(head.rows + head.retrieval.placed_rows(), 1973);
  EXPECT_EQ(retrieval_window({}, 64, -1, 100'000, 16'000).retrieval.chunks, 64);
  // Named ones are as asked for, even if they are too many.
  const DraftWindow named = retrieval_window({.chunks = 100, .rows = 64, .every = 9}, 64, 700, 1973, 16'000);
  EXPECT_EQ(named.rows, 700);
  EXPECT_EQ(named.retrieval.chunks, 100);
  EXPECT_EQ(named.retrieval.rows, 64);
  EXPECT_EQ(named.retrieval.every, 9);
  // A context that fits is seen whole, unless the draft was not made for it.
  EXPECT_EQ(retrieval_window({}, 64, -1, 1973, 1900).rows, 0);
  EXPECT_EQ(retrieval_window({}, 64, -1, 1973, 1900).retrieval.chunks, 0);
  EXPECT_EQ(retrieval_window({.chunks = 100}, 64, -1, 1973, 2500).retrieval.chunks, 100);
  // A draft with few positions has the least window.
  EXPECT_EQ(retrieval_window({}, 64, -1, 256, 5000).rows, 320);
  EXPECT_EQ(retrieval_window({}, 64, -1, 256, 5000).retrieval.chunks, 1);
}

}  // namespace
}  // namespace headrace
