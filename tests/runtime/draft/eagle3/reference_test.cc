// The EAGLE-3 head against its formulas in plain loops of doubles, for every kind of head: the norms of EAGLE-3.1 and
// of speculators, RoPE flags, and the window that a head trained short gets. The target's states are made up.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>

#include "runtime/draft/cache.h"
#include "runtime/draft/open/open_draft.h"
#include "tests/support/sanitized.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_drafts.h"

namespace headrace {
namespace {

using Row = std::vector<double>;
using testing_support::DraftFiles;

constexpr int64_t kHidden = 64, kHeads = 4, kKvHeads = 2, kDim = 16, kVocab = 512, kDeep = 3;
constexpr double kEps = 1e-6;
constexpr int64_t kTapped[] = {1, 2, 3};

// A head for tests/data/tiny/llama31 whose layer changes its input by more than a rounding.
DraftFiles strong_head() {
  DraftFiles files = testing_support::tiny_eagle3_head();
  for (auto& [name, tensor] : files.tensors) {
    if (tensor.shape.size() < 2) continue;
    for (size_t at = 0; at < tensor.bytes.size(); at += sizeof(float)) {
      float value;
      std::memcpy(&value, tensor.bytes.data() + at, sizeof value);
      value *= name.starts_with("lm_head") ? 20.0f : 6.0f;
      std::memcpy(tensor.bytes.data() + at, &value, sizeof value);
    }
  }
  return files;
}

// The formulas (EAGLE-3 section 3; runtime/draft/eagle3/config.h for what publishers vary).
class Reference {
 public:
  Reference(const DraftFiles& files, std::vector<float> embedding, const RopeConfig& rope, int64_t positions)
      : files_(files), embedding_(std::move(embedding)), table_(make_rope_table(rope, kDim, positions)) {}

  bool flag(const char* key) const { return files_.config.value(key, false); }

  Row feature(const std::vector<std::vector<float>>& states, int64_t row) const {
    Row joined;
    for (size_t i = 0; i < 3; ++i) {
      const float* const from = states[i].data() + row * kHidden;
      Row state(from, from + kHidden);
      if (flag("fc_norm")) state = normed(state, str("fc_norm.", i, ".weight"));
      joined.insert(joined.end(), state.begin(), state.end());
    }
    return times("fc.weight", joined);
  }

  // Appends the row of `position` to K and V, and returns what is fed back and what the lm_head reads. `first`: the
  // first row that it sees, besides the sinks.
  std::pair<Row, Row> forward(int32_t token, const Row& g, int64_t position, int64_t first) {
    const float* const e = embedding_.data() + int64_t{token} * kHidden;
    Row a = normed(Row(e, e + kHidden), layer("input_layernorm"));
    const Row h = normed(g, layer("hidden_norm"));
    a.insert(a.end(), h.begin(), h.end());
    const Row q = turned(times(layer("self_attn.q_proj"), a), position);
    keys_.push_back(turned(times(layer("self_attn.k_proj"), a), position));
    values_.push_back(times(layer("self_attn.v_proj"), a));
    Row u = times(layer("self_attn.o_proj"), attend(q, first));
    add(flag("norm_before_residual") ? h : g, &u);
    const Row n = normed(u, layer("post_attention_layernorm"));
    Row gate = times(layer("mlp.gate_proj"), n);
    const Row up = times(layer("mlp.up_proj"), n);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
    Row o = times(layer("mlp.down_proj"), gate);
    add(u, &o);
    const Row read = normed(o, "norm.weight");
    return {flag("norm_output") ? read : o, read};
  }
  Row logits(const Row& read) const { return times("lm_head.weight", read); }
  int64_t rows() const { return static_cast<int64_t>(keys_.size()); }

 private:
  static std::string layer(const char* name) { return str("midlayer.", name, ".weight"); }
  static void add(const Row& x, Row* to) {
    for (size_t i = 0; i < x.size(); ++i) (*to)[i] += x[i];
  }
  const float* weights(const std::string& name) const {
    return reinterpret_cast<const float*>(files_.tensors.at(name).bytes.data());
  }
  Row normed(const Row& x, const std::string& name) const {
    const float* const w = weights(name);
    const double square = std::inner_product(x.begin(), x.end(), x.begin(), 0.0) / static_cast<double>(x.size());
    Row out(x.size());
    for (size_t i = 0; i < x.size(); ++i) out[i] = x[i] / std::sqrt(square + kEps) * static_cast<double>(w[i]);
    return out;
  }
  Row times(const std::string& name, const Row& x) const {
    const float* const w = weights(name);
    Row out(static_cast<size_t>(files_.tensors.at(name).shape[0]));
    for (size_t i = 0; i < out.size(); ++i) {
      for (size_t j = 0; j < x.size(); ++j) out[i] += static_cast<double>(w[i * x.size() + j]) * x[j];
    }
    return out;
  }
  Row turned(Row x, int64_t position) const {
    for (size_t head = 0; head < x.size(); head += kDim) {
      for (size_t i = 0; i < kDim / 2; ++i) {
        const double angle = static_cast<double>(table_.inv_freq[i]) * static_cast<double>(position);
        const double c = std::cos(angle) * static_cast<double>(table_.scale),
                     s = std::sin(angle) * static_cast<double>(table_.scale);
        double &low = x[head + i], &high = x[head + i + kDim / 2];
        std::tie(low, high) = std::pair(low * c - high * s, high * c + low * s);
      }
    }
    return x;
  }
  Row attend(const Row& q, int64_t first) const {
    Row out(kHeads * kDim);
    for (size_t head = 0; head < kHeads; ++head) {
      const size_t kv = head / (kHeads / kKvHeads) * kDim;
      double sum = 0;
      for (int64_t row = 0; row < rows(); ++row) {
        if (row >= kDraftSinkRows && row < first) continue;
        const Row &k = keys_[static_cast<size_t>(row)], &v = values_[static_cast<size_t>(row)];
        double dot = 0;
        for (size_t i = 0; i < kDim; ++i) dot += q[head * kDim + i] * k[kv + i];
        const double weight = std::exp(dot / std::sqrt(static_cast<double>(kDim)));
        sum += weight;
        for (size_t i = 0; i < kDim; ++i) out[head * kDim + i] += weight * v[kv + i];
      }
      for (size_t i = 0; i < kDim; ++i) out[head * kDim + i] /= sum;
    }
    return out;
  }

  const DraftFiles& files_;
  const std::vector<float> embedding_;
  const RopeTable table_;
  std::vector<Row> keys_, values_;
};

class Eagle3Reference : public ::testing::Test {
 protected:
  void SetUp() override {
    prompt_ = testing::made_up_ids(rows_, kVocab);
    for (size_t i = 0; i < 3; ++i) {  // of quite different sizes, as real ones are
      std::vector<float> state(static_cast<size_t>(rows_ * kHidden));
      const std::vector<int32_t> values = testing::made_up_ids(rows_ * kHidden, 2000, static_cast<uint32_t>(i) + 7);
      const double scale = std::pow(5.0, static_cast<double>(i)) / 1000;
      std::transform(values.begin(), values.end(), state.begin(),
                     [&](int32_t v) { return static_cast<float>((v - 1000) * scale); });
      states_.push_back(std::move(state));
    }
    const TensorInfo* const info = model_.checkpoint->find("model.embed_tokens.weight");
    embedding_.resize(static_cast<size_t>(kVocab * kHidden));
    model_.checkpoint->read_rows(*info, 0, kVocab, DType::kF32, embedding_.data());
  }

  // The head's chain after the prompt.
  Tree propose(const DraftFiles& files, const DraftOptions& with = {}) {
    const TemporaryFolder folder;
    files.write(folder.path());
    DraftOptions options = with;
    options.type = SpecType::kEagle3;
    options.model = folder.path();
    options.tree = chain_shape(kDeep);
    const auto model = open_draft(options, *model_.device, model_.checkpoint->config(), model_.weights);
    model->load(nullptr, nullptr);
    const DraftRun run = {.prompt_tokens = rows_, .context_tokens = rows_ + 10};
    window_ = model->window(run);
    const auto draft = model->start(run);
    draft->allocate(*model_.compute);
    for (size_t i = 0; i < 3; ++i)
      draft->prefill_layer({.layer = kTapped[i], .hidden = states_[i].data(), .type = DType::kF32, .rows = rows_});
    draft->finish_prefill(prompt_, nullptr, nullptr);
    Tree tree;
    draft->propose(kRoot, rows_, {.nodes = kDeep + 1, .levels = kDeep}, &tree);
    return tree;
  }

  // The same by the formulas. `first`: the first row in the window.
  Tree expected(const DraftFiles& files, const RopeConfig& rope, int64_t positions, int64_t first = 0) const {
    Reference head(files, embedding_, rope, positions);
    for (int64_t row = 0; row + 1 < rows_; ++row) {
      head.forward(prompt_[static_cast<size_t>(row) + 1], head.feature(states_, row), row, first);
    }
    Tree tree;
    tree.reset(kRoot);
    tree.scores = {0};
    auto [fed, read] = head.forward(kRoot, head.feature(states_, rows_ - 1), rows_ - 1, first);
    for (int64_t level = 1; level <= kDeep; ++level) {
      const Row logits = head.logits(read);
      const auto best = std::max_element(logits.begin(), logits.end());
      double sum = 0;
      for (const double logit : logits) sum += std::exp(logit - *best);
      tree.add(static_cast<int32_t>(best - logits.begin()), static_cast<int32_t>(level) - 1);
      tree.scores.push_back(tree.scores.back() - static_cast<float>(std::log(sum)));
      std::tie(fed, read) = head.forward(tree.tokens.back(), fed, head.rows(), first);
    }
    return tree;
  }

  static void expect_equal(const Tree& is, const Tree& should) {
    EXPECT_EQ(is.tokens, should.tokens);
    ASSERT_EQ(is.scores.size(), should.scores.size());
    for (size_t i = 0; i < is.scores.size(); ++i) EXPECT_NEAR(is.scores[i], should.scores[i], 1e-3) << "level " << i;
  }

  static constexpr int32_t kRoot = 77;
  const int64_t rows_ = 700;
  const testing::LoadedModel model_{testing::tiny_model("llama31"), DType::kF32};
  std::vector<int32_t> prompt_;
  std::vector<std::vector<float>> states_;
  std::vector<float> embedding_;
  DraftWindow window_;
};

TEST_F(Eagle3Reference, EveryNormThatPublishersVary) {
  std::map<std::vector<float>, std::string> seen;
  for (const bool fc_norm : {false, true}) {
    for (const bool norm_output : {false, true}) {
      for (const bool norm_before_residual : {false, true}) {
        if (testing::kSanitized && fc_norm + norm_output + norm_before_residual > 1) continue;
        SCOPED_TRACE(str(fc_norm, norm_output, norm_before_residual));
        DraftFiles files = strong_head();
        files.config.update(
            {{"fc_norm", fc_norm}, {"norm_output", norm_output}, {"norm_before_residual", norm_before_residual}});
        for (int i = 0; fc_norm && i < 3; ++i) files.add(str("fc_norm.", i, ".weight"), {kHidden});
        const Tree tree = propose(files);
        expect_equal(tree, expected(files, {}, 2048));
        EXPECT_TRUE(seen.emplace(tree.scores, "").second) << "this norm changes nothing";
      }
    }
  }
}

TEST_F(Eagle3Reference, AHeadTrainedShortSeesItsFirstRowsAndTheLast) {
  DraftFiles files = strong_head();
  files.config["max_position_embeddings"] = 500;
  const Tree whole = propose(files, {.window = 0});
  EXPECT_EQ(window_.rows, 0);
  expect_equal(whole, expected(files, {}, 500));
  const Tree tree = propose(files);
  EXPECT_EQ(window_.rows, 500 - kDeep - kPrefixTile - kDraftSinkRows);
  EXPECT_EQ(window_.trained_positions, 500);
  DraftCacheShape shape;
  shape.context_rows = rows_ + 10;
  shape.window = window_.rows;
  const int64_t first = shape.first_kept(rows_);
  ASSERT_GT(first, kDraftSinkRows);
  ASSERT_EQ(first, shape.first_kept(rows_ - 1));  // of the row before the prompt's last, too
  expect_equal(tree, expected(files, {}, 500, first));
  EXPECT_GT(std::abs(tree.scores.back() - whole.scores.back()), 1e-2);
}

TEST_F(Eagle3Reference, RopeFlags) {
  DraftFiles files = strong_head();
  files.config["max_position_embeddings"] = 256;
  const RopeConfig yarn = {
      .theta = 500, .scaling = RopeScaling::kYarn, .factor = 4, .original_max_positions = 256, .frequency_factors = {}};
  const Tree by_flags = propose(files, {.rope = {.scaling = RopeScaling::kYarn, .factor = 4, .theta = 500}});
  EXPECT_EQ(window_.rows, 0);  // 1,024 positions by now
  expect_equal(by_flags, expected(files, yarn, 1024));
  const Tree linear = propose(files, {.rope = {.scaling = RopeScaling::kLinear, .factor = 3}});
  expect_equal(linear, expected(files, {.scaling = RopeScaling::kLinear, .factor = 3, .frequency_factors = {}}, 768));
  files.config["rope_theta"] = 500;
  files.config["rope_scaling"] = {{"type", "yarn"}, {"factor", 2.0}, {"original_max_position_embeddings", 256}};
  files.config["max_position_embeddings"] = 512;
  EXPECT_EQ(propose(files, {.rope = {.factor = 4}}).scores, by_flags.scores);  // of the config's own scaling
  EXPECT_NE(propose(files).scores, by_flags.scores);
  files.config["max_position_embeddings"] = 2048;
  EXPECT_EQ(propose(files, {.rope = {.scaling = RopeScaling::kNone, .theta = 10000}}).scores,
            propose(strong_head()).scores);
}

}  // namespace
}  // namespace headrace
