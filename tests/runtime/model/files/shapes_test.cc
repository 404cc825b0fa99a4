// Shapes by name, and models of made-up weights.
#include "runtime/model/files/shapes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "kernels/weights/blocks.h"
#include "runtime/engine/engine.h"
#include "runtime/model/config_check.h"
#include "runtime/model/random_checkpoint.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

// What the models' authors count: a wrong size anywhere changes it. Qwen3.5 and later have an MTP block besides, of
// 120,599,552, 243,290,624, 424,699,392 and, with experts, 844,640,768. With the part that reads images, which is not
// counted, Gemma 3 has 4,300,079,472, 12,187,325,040 and 27,432,406,640 from 4B on. Gemma 4 12B has 256 more in GGUF,
// of its angles; of 31B, of 26B-A4B and of Qwen3.6-35B-A3B nobody has written the numbers: they are their shapes' own.
TEST(Shapes, HaveAsManyParametersAsTheirModels) {
  std::map<std::string, int64_t> published = {
      {"smollm2-135m", 134515008},    {"smollm2-360m", 361821120},    {"smollm2-1.7b", 1711376384},
      {"llama-2-7b", 6738415616},     {"llama-3.2-1b", 1235814400},   {"llama-3.2-3b", 3212749824},
      {"llama-3.1-8b", 8030261248},   {"llama-3.1-70b", 70553706496}, {"mistral-7b-v0.3", 7248023552},
      {"qwen2.5-0.5b", 494032768},    {"qwen2.5-1.5b", 1543714304},   {"qwen2.5-3b", 3085938688},
      {"qwen2.5-7b", 7615616512},     {"qwen2.5-14b", 14770033664},   {"qwen3-0.6b", 596049920},
      {"qwen3-1.7b", 1720574976},     {"qwen3-4b", 4022468096},       {"qwen3-8b", 8190735360},
      {"qwen3-14b", 14768307200},     {"qwen3-32b", 32762123264},     {"mistral-small-24b", 23572403200},
      {"phi-4", 14659507200},         {"seed-oss-36b", 36151104512},  {"ministral-3-14b", 13506073600},
      {"llama-3.3-70b", 70553706496}, {"qwen3.5-4b", 4326350848},     {"qwen3.5-9b", 9197093888},
      {"qwen3.6-27b", 27320697856},   {"qwen3.8-27b", 27320697856},   {"gemma-3-1b", 999885952},
      {"gemma-3-4b", 3880263168},     {"gemma-3-12b", 11766034176},   {"gemma-3-27b", 27009346304},
      {"gemma-4-12b", 11907350320},   {"gemma-4-31b", 30697345340},   {"gemma-4-26b-a4b", 25233141790},
      {"gpt-oss-20b", 20914757184},   {"gpt-oss-120b", 116829156672}};
  published["qwen3.6-35b-a3b"] = 35505251456;
  published["gemma-4-e2b"] = 4628569379;  // the text part, summed by hand from the sizes of its tensors
  published["gemma-4-e4b"] = 7463013418;
  published["qwen3-30b-a3b"] = published["qwen3-coder-30b-a3b"] = 30532122624;
  std::set<std::string> names;
  for (const Shape& shape : known_shapes()) {
    const auto count = published.find(shape.name);
    ASSERT_NE(count, published.end()) << shape.name;
    EXPECT_EQ(parameter_count(shape.config), count->second) << shape.name;
    EXPECT_EQ(parameter_count(find_shape(shape.name).config), count->second) << shape.name;
    EXPECT_NO_THROW(make_rope_table(shape.config.rope, shape.config.rope_sizes()));
    EXPECT_TRUE(names.insert(shape.name).second) << shape.name;
  }
  EXPECT_EQ(names.size(), published.size());
}

TEST(Shapes, AnUnknownNameListsThem) {
  try {
    find_shape("llama-9");
    ADD_FAILURE() << "found";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    for (const char* part : {"--shape", "'llama-9'", "llama-3.1-8b", "qwen3-8b", "config.json"}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST(Shapes, MayBeAConfigFile) {
  const Shape shape = find_shape(HEADRACE_TEST_DATA "/tiny/qwen3/config.json");
  EXPECT_EQ(shape.config.family, "qwen3");
  EXPECT_EQ(shape.config.layer_count(), 4);
  TemporaryFolder folder;
  const std::string broken = folder.write("config.json", "{\"model_type\": \"llama\"");
  for (const std::string& name : {broken, folder / "gone.json"}) {
    try {
      find_shape(name);
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput) << error.what();
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
  }
}

class RandomWeights : public ::testing::Test {
 protected:
  std::vector<float> read(const Checkpoint& model, const std::string& name, int64_t begin, int64_t end,
                          DType type = DType::kF32) {
    const TensorInfo& tensor = *model.find(name);
    const auto count = static_cast<size_t>((end - begin) * tensor.cols());
    std::vector<float> values(count);
    std::vector<uint16_t> halves(count);
    model.read_rows(tensor, begin, end, type, type == DType::kF32 ? static_cast<void*>(values.data()) : halves.data());
    for (size_t i = 0; i < count && type != DType::kF32; ++i) {
      values[i] = type == DType::kBF16 ? bf16_to_f32({halves[i]}) : f16_to_f32({halves[i]});
    }
    return values;
  }

  const ModelConfig config_ = find_shape(HEADRACE_TEST_DATA "/tiny/qwen25/config.json").config;
  const std::unique_ptr<Checkpoint> model_ = make_random_checkpoint("tiny", config_, 7);
  const std::string down_ = "model.layers.1.mlp.down_proj.weight";
};

TEST_F(RandomWeights, AreNormal) {
  for (const TensorInfo& tensor : model_->tensors()) {
    const std::vector<float> values = read(*model_, tensor.name, 0, tensor.rows());
    if (tensor.name.ends_with("norm.weight")) {
      for (const float value : values) ASSERT_EQ(value, 1.0f) << tensor.name;
      continue;
    }
    double sum = 0, squares = 0;
    for (const float value : values) sum += value, squares += static_cast<double>(value) * value;
    const auto count = static_cast<double>(values.size()), cols = static_cast<double>(tensor.cols());
    EXPECT_LT(std::abs(sum / count), 5 / std::sqrt(count * cols)) << tensor.name;
    EXPECT_NEAR(squares / count * cols, 1.0, 8 / std::sqrt(count)) << tensor.name;
  }
}

// What decides how long a recurrent layer remembers is that of an untrained model: a token's decay, of any head, is
// below 1, and heads are far apart. The convolution keeps the size of what it sums.
TEST_F(RandomWeights, OfRecurrentLayersDecayAtManyRates) {
  const auto model = make_random_checkpoint("27b", find_shape("qwen3.6-27b").config, 7);
  float least = 1, most = 0;
  for (const char* layer : {"0", "33", "62"}) {
    const std::string prefix = str("model.layers.", layer, ".linear_attn.");
    const std::vector<float> a = read(*model, prefix + "A", 0, 1), bias = read(*model, prefix + "dt_bias", 0, 1);
    ASSERT_EQ(a.size(), 48u);
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_TRUE(a[i] < 0 && a[i] >= -16) << a[i];
      const double step = std::log1p(std::exp(static_cast<double>(bias[i])));
      EXPECT_TRUE(step >= 1e-3 && step <= 0.1) << step;
      const auto decay = static_cast<float>(std::exp(a[i] * step));
      least = std::min(least, decay), most = std::max(most, decay);
    }
    double squares = 0;
    const std::vector<float> conv = read(*model, prefix + "conv1d.weight", 0, 1);
    for (const float value : conv) squares += static_cast<double>(value) * value;
    EXPECT_NEAR(squares / static_cast<double>(conv.size()), 0.25, 0.01);
  }
  EXPECT_LT(least, 0.5f);
  EXPECT_GT(most, 0.995f);
  EXPECT_LT(most, 1.0f);
}

// By seed, tensor and place alone: not by how many rows are read at once, nor in which type.
TEST_F(RandomWeights, AreAFunctionOfTheirPlace) {
  const TensorInfo& tensor = *model_->find(down_);
  const std::vector<float> all = read(*model_, down_, 0, tensor.rows());
  std::vector<float> pieces;
  for (int64_t row = 0, step = 1; row < tensor.rows(); row += step, step = step % 3 + 1) {
    const std::vector<float> piece = read(*model_, down_, row, std::min(row + step, tensor.rows()));
    pieces.insert(pieces.end(), piece.begin(), piece.end());
  }
  EXPECT_EQ(pieces, all);
  for (const DType type : {DType::kBF16, DType::kF16}) {
    const std::vector<float> rounded = read(*model_, down_, 0, tensor.rows(), type);
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(rounded[i], type == DType::kBF16 ? bf16_to_f32(f32_to_bf16(all[i])) : f16_to_f32(f32_to_f16(all[i])));
    }
  }
  EXPECT_EQ(read(*make_random_checkpoint("again", config_, 7), down_, 0, tensor.rows()), all);
  EXPECT_NE(read(*make_random_checkpoint("other", config_, 8), down_, 0, tensor.rows()), all);
  EXPECT_NE(read(*model_, "model.layers.2.mlp.down_proj.weight", 0, tensor.rows()), all);
}

// Small, but with rows of whole blocks of every type and with layers on both sides of the mixtures' rule.
ModelConfig quantisable(bool tied_head) {
  ModelConfig c = find_shape(HEADRACE_TEST_DATA "/tiny/llama2/config.json").config;
  c.hidden = 256, c.vocab = 320;
  c.layers = same_layers(16, {.mixer = AttentionSpec{.heads = 4, .kv_heads = 2, .head_dim = 64}, .ffn = {512}});
  c.tied_head = tied_head;
  return c;
}

TEST_F(RandomWeights, QuantisedOnesAreRandomBlocksOfAMixture) {
  const ModelConfig config = quantisable(false);
  for (const char* name :
       {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k", "q2_k", "q3_k", "iq4_nl", "iq4_xs"}) {
    const auto model = make_random_checkpoint("small", config, 7, find_weight_mixture(name));
    const TensorInfo& tensor = model->require(down_, {config.hidden, config.layers.front().ffn.width});
    EXPECT_EQ(tensor.stored_type.size(), std::string(name).size()) << tensor.stored_type;
    const std::vector<float> all = read(*model, down_, 0, tensor.rows());
    double sum = 0, squares = 0;
    for (const float value : all) sum += value, squares += static_cast<double>(value) * value;
    const auto count = static_cast<double>(all.size()), cols = static_cast<double>(tensor.cols());
    // Wider than for independent weights: those of a group of Q4_K share an offset.
    EXPECT_LT(std::abs(sum / count), 20 / std::sqrt(count * cols)) << name;
    EXPECT_NEAR(squares / count * cols, 1.0, 0.04) << name;  // of IQ4_XS, 4,096 random scales
    // The same blocks, read in other steps and dequantised, and none like another.
    const uint64_t row_bytes = weight_bytes(tensor.block_type().value(), 1, tensor.cols());
    EXPECT_EQ(tensor.stored_bytes, row_bytes * static_cast<uint64_t>(tensor.rows()));
    std::vector<char> blocks(tensor.stored_bytes);
    std::set<std::string> rows;
    for (int64_t row = 0, step = 1; row < tensor.rows(); row += step, step = step % 3 + 1) {
      const int64_t end = std::min(row + step, tensor.rows());
      model->read_blocks(tensor, row, end, blocks.data() + static_cast<uint64_t>(row) * row_bytes);
    }
    for (size_t at = 0; at < blocks.size(); at += row_bytes) rows.insert(std::string(&blocks[at], row_bytes));
    EXPECT_EQ(rows.size(), static_cast<size_t>(tensor.rows())) << name;
    std::vector<float> values(all.size());
    dequantise_blocks(*tensor.block_type(), blocks.data(),
                      tensor.rows() * tensor.cols() / weight_type_info(*tensor.block_type()).block_elements,
                      DType::kF32, values.data());
    EXPECT_EQ(values, all) << name;
    EXPECT_EQ(read(*model, "model.norm.weight", 0, 1), std::vector<float>(256, 1.0f)) << name;
  }
}

// As gpt-oss is published: experts alone are in MXFP4. Their scales are powers of two, and yet the weights' size is
// that of other types.
TEST_F(RandomWeights, ExpertsInMxfp4) {
  const ModelConfig config = find_shape(HEADRACE_TEST_DATA "/tiny/gptoss/config.json").config;
  const auto model = make_random_checkpoint("small", config, 7, find_weight_mixture("mxfp4"));
  double sum = 0, squares = 0, count = 0;
  for (const TensorInfo& tensor : model->tensors()) {
    if (tensor.shape.size() != 2) continue;
    const bool expert = tensor.name.find(".mlp.experts.") != std::string::npos;
    const bool router = tensor.name.ends_with("mlp.gate.weight");
    EXPECT_EQ(tensor.stored_type, router ? "random" : expert ? "MXFP4" : "Q8_0") << tensor.name;
    if (!expert) continue;
    const double scale = std::sqrt(static_cast<double>(tensor.cols()));
    for (const float value : read(*model, tensor.name, 0, tensor.rows())) {
      sum += value * scale, squares += value * scale * value * scale;
      ++count;
    }
  }
  EXPECT_LT(std::abs(sum / count), 5 / std::sqrt(count));
  EXPECT_NEAR(squares / count, 1.0, 0.04);
}

// llama.cpp's rule: v and down of layers 0, 1, 4, 7, 10, 13, 14 and 15 of 16, and the head, be it the embedding.
TEST_F(RandomWeights, AMixtureHasTheTypesOfLlamaCpps) {
  const std::set<int64_t> larger_layers = {0, 1, 4, 7, 10, 13, 14, 15};
  for (const bool tied : {false, true}) {
    const ModelConfig config = quantisable(tied);
    const auto model = make_random_checkpoint("small", config, 7, find_weight_mixture("q5_k_m"));
    EXPECT_EQ(model->path(), "small with random q5_k_m weights");
    EXPECT_EQ(model->find("model.embed_tokens.weight")->stored_type, tied ? "Q6_K" : "Q5_K");
    EXPECT_EQ(tied || model->find("lm_head.weight")->stored_type == "Q6_K", true);
    for (int64_t layer = 0; layer < config.layer_count(); ++layer) {
      const std::string prefix = str("model.layers.", layer, ".");
      const char* const larger = larger_layers.contains(layer) ? "Q6_K" : "Q5_K";
      EXPECT_EQ(model->find(prefix + "self_attn.v_proj.weight")->stored_type, larger) << layer;
      EXPECT_EQ(model->find(prefix + "mlp.down_proj.weight")->stored_type, larger) << layer;
      for (const char* other :
           {"self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj"})
        EXPECT_EQ(model->find(prefix + other + ".weight")->stored_type, "Q5_K") << layer;
    }
  }
}

// Of a hybrid: v of its attention layers, and the joined matrix of q, k and v of the others.
TEST_F(RandomWeights, AMixtureOfAHybridHasTheTypesOfLlamaCpps) {
  const ModelConfig config = find_shape("qwen3.6-27b").config;
  const auto model = make_random_checkpoint("27b", config, 7, find_weight_mixture("q4_k_m"));
  const auto type = [&](const std::string& name) { return model->find(name + ".weight")->stored_type; };
  EXPECT_EQ(type("model.layers.0.linear_attn.in_proj_qkv"), "Q5_K");
  EXPECT_EQ(type("model.layers.0.linear_attn.in_proj_z"), "Q4_K");
  EXPECT_EQ(type("model.layers.3.self_attn.v_proj"), "Q6_K");
  EXPECT_EQ(type("model.layers.3.self_attn.gate_proj"), "Q4_K");
  EXPECT_EQ(type("mtp.layers.0.mlp.down_proj"), "Q6_K");  // a block behind the last
  EXPECT_EQ(make_random_checkpoint("27b", config, 7, find_weight_mixture("q4_k"))
                ->find("model.layers.0.linear_attn.in_proj_qkv.weight")
                ->stored_type,
            "Q4_K");
}

// Published files are listed with two decimals, and hold a vocabulary of about 8 MB besides.
TEST_F(RandomWeights, AMixtureTakesWhatLlamaCppsFilesTake) {
  for (const auto& [name, file_bytes] :
       {std::pair("q4_k_m", 4.92e9), {"q5_k_m", 5.73e9}, {"q6_k", 6.60e9}, {"q8_0", 8.54e9}}) {
    const auto model = make_random_checkpoint("8b", find_shape("llama-3.1-8b").config, 0, find_weight_mixture(name));
    double bytes = 0;
    for (const TensorInfo& tensor : model->tensors()) bytes += static_cast<double>(tensor.stored_bytes);
    EXPECT_NEAR(bytes, file_bytes - 8e6, 5e6) << name;
  }
}

TEST_F(RandomWeights, ARowThatIsNoMultipleOfTheBlockIsAnError) {
  ModelConfig config = quantisable(false);
  config.hidden = 288;
  try {
    make_random_checkpoint("small", config, 7, find_weight_mixture("q4_k_m"));
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    for (const char* part : {"--weights", "q4_k_m", "model.embed_tokens.weight", "Q4_K", "256", "288", "q8_0"}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
  EXPECT_NO_THROW(make_random_checkpoint("small", config, 7, find_weight_mixture("q5_1")));
}

// Logits are finite and depend on the prompt.
TEST_F(RandomWeights, QuantisedOnesGiveATextThatDependsOnThePrompt) {
  for (const char* name : {"q4_1", "q8_0", "q4_k_m", "q6_k"}) {
    EngineOptions options;
    options.device = {.choice = DeviceChoice::kCpu, .threads = 2};
    options.want_tokenizer = false;
    Engine engine(options, make_random_checkpoint("small", quantisable(false), 7, find_weight_mixture(name)));
    GenerateOptions run;
    run.max_tokens = 1;
    run.ignore_eos = true;
    std::set<int32_t> ids;
    for (const int32_t last : {1, 20, 60, 100, 150, 200, 250, 300}) {
      const std::vector<int32_t> text = engine.generate({5, 7, last}, run, nullptr).token_ids;
      EXPECT_EQ(text.size(), 1u) << name;
      ids.insert(text.begin(), text.end());
    }
    EXPECT_GE(ids.size(), 3u) << name;
  }
}

TEST_F(RandomWeights, HaveNoTokenizer) { EXPECT_THROW(model_->load_tokenizer(), Error); }

}  // namespace
}  // namespace headrace
