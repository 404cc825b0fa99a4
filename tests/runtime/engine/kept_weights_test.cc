// Weights that stay quantised. On the CPU their logits are to the bit those of the same weights dequantised, but where
// decoding does not round them. Their text is that of plain decoding with every draft.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/weights/blocks.h"
#include "offload/device/dry_run_device.h"
#include "runtime/engine/engine.h"
#include "runtime/model/gguf/dequantize.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/refusal.h"
#include "tests/support/sanitized.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_drafts.h"
#include "tests/support/weight_blocks.h"

namespace headrace {
namespace {

using testing::LoadedModel;
using testing_support::GgufWriter;

constexpr int64_t kHidden = 256, kFfn = 512, kVocab = 300;
constexpr int kHeads = 4, kKvHeads = 2;

struct StoredType {
  uint32_t id;  // ggml's
  WeightType type;
};
constexpr StoredType kQ4_0 = {2, WeightType::kQ4_0}, kQ4_1 = {3, WeightType::kQ4_1}, kQ5_0 = {6, WeightType::kQ5_0},
                     kQ5_1 = {7, WeightType::kQ5_1}, kQ8_0 = {8, WeightType::kQ8_0}, kQ4K = {12, WeightType::kQ4K},
                     kQ5K = {13, WeightType::kQ5K}, kQ6K = {14, WeightType::kQ6K}, kQ2K = {10, WeightType::kQ2K},
                     kQ3K = {11, WeightType::kQ3K}, kIQ4NL = {20, WeightType::kIQ4NL},
                     kIQ4XS = {23, WeightType::kIQ4XS}, kIQ2XXS = {16, WeightType::kIQ2XXS},
                     kIQ2XS = {17, WeightType::kIQ2XS}, kIQ2S = {22, WeightType::kIQ2S},
                     kIQ3XXS = {18, WeightType::kIQ3XXS}, kIQ3S = {21, WeightType::kIQ3S};

GgufWriter::Tensor matrix(const std::string& name, int64_t rows, int64_t cols, const StoredType& type) {
  const std::vector<std::byte> blocks =
      testing_support::random_blocks(type.type, std::hash<std::string>()(name), rows, cols);
  return {name, {cols, rows}, type.id, std::string(reinterpret_cast<const char*>(blocks.data()), blocks.size()), {},
          {}};
}
GgufWriter::Tensor ones(const std::string& name) {
  std::string bytes;
  for (int64_t i = 0; i < kHidden; ++i) bytes += testing_support::raw_bytes(1.0f);
  return {name, {kHidden}, 0, bytes, {}, {}};
}

// Five layers have every type; a file that mixes them as Q4_K_M, IQ4_XS and Q2_K files do.
GgufWriter mixed_gguf(int64_t layers) {
  GgufWriter out;
  out.add_string("general.architecture", "llama");
  out.add_u32("llama.block_count", static_cast<uint32_t>(layers));
  out.add_u32("llama.context_length", 2048);
  out.add_u32("llama.embedding_length", kHidden);
  out.add_u32("llama.feed_forward_length", kFfn);
  out.add_u32("llama.attention.head_count", kHeads);
  out.add_u32("llama.attention.head_count_kv", kKvHeads);
  out.add_f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  out.add_f32("llama.rope.freq_base", 20000.0f);
  std::vector<std::string> tokens;
  for (int64_t i = 0; i < kVocab; ++i) tokens.push_back("t" + std::to_string(i));
  out.add_string("tokenizer.ggml.model", "gpt2");
  out.add_string("tokenizer.ggml.pre", "gpt-2");
  out.add_strings("tokenizer.ggml.tokens", tokens);
  out.add_i32s("tokenizer.ggml.token_type", std::vector<int32_t>(kVocab, 1));
  out.add_strings("tokenizer.ggml.merges", {});
  out.add_u32("tokenizer.ggml.bos_token_id", 0);
  out.add_u32("tokenizer.ggml.eos_token_id", 1);
  out.add_tensor(matrix("token_embd.weight", kVocab, kHidden, kQ6K));
  const StoredType types[5][7] = {{kQ4K, kQ4K, kQ6K, kQ5K, kQ4K, kQ4K, kQ6K},
                                  {kQ4_0, kQ4_1, kQ5_0, kQ8_0, kQ5_1, kQ8_0, kQ4_1},
                                  {kIQ4XS, kIQ4XS, kQ5K, kIQ4NL, kIQ4XS, kIQ4XS, kQ5K},
                                  {kQ2K, kQ2K, kQ3K, kQ3K, kQ2K, kQ2K, kQ3K},
                                  {kIQ3XXS, kIQ2S, kIQ3S, kIQ2XS, kIQ2XXS, kIQ2XXS, kIQ3S}};
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string name = "blk." + std::to_string(layer) + ".";
    const StoredType* const type = types[layer % 5];
    out.add_tensor(ones(name + "attn_norm.weight"));
    out.add_tensor(matrix(name + "attn_q.weight", kHidden, kHidden, type[0]));
    out.add_tensor(matrix(name + "attn_k.weight", kHidden / 2, kHidden, type[1]));
    out.add_tensor(matrix(name + "attn_v.weight", kHidden / 2, kHidden, type[2]));
    out.add_tensor(matrix(name + "attn_output.weight", kHidden, kHidden, type[3]));
    out.add_tensor(ones(name + "ffn_norm.weight"));
    out.add_tensor(matrix(name + "ffn_gate.weight", kFfn, kHidden, type[4]));
    out.add_tensor(matrix(name + "ffn_up.weight", kFfn, kHidden, type[5]));
    out.add_tensor(matrix(name + "ffn_down.weight", kHidden, kFfn, type[6]));
  }
  out.add_tensor(ones("output_norm.weight"));
  return out;
}

class KeptWeights : public ::testing::Test {
 protected:
  const TemporaryFolder folder_;
  const std::string path_ = folder_.write("mixed.gguf", mixed_gguf(5).finish());
};

TEST_F(KeptWeights, StayAsTheyAreStored) {
  const LoadedModel kept(path_, DType::kBF16);
  ASSERT_TRUE(kept.weights.keeps_blocks());
  EXPECT_EQ(kept.weights.damage().tensors, 0);
  const LayerWeights &first = kept.weights.layer(0), &second = kept.weights.layer(1);
  ASSERT_EQ(first.qkv.count, 2);  // q and k are of one type, and one part
  EXPECT_EQ(first.qkv.parts[0].rows, kHidden + kHidden / 2);
  EXPECT_EQ(first.qkv.parts[1].type, WeightType::kQ6K);
  EXPECT_EQ(first.gate_up.count, 1);
  EXPECT_EQ(second.qkv.count, 3);
  EXPECT_EQ(second.gate_up.count, 2);
  EXPECT_EQ(kept.weights.head().parts[0].data, kept.weights.embedding().parts[0].data);  // tied
  const LoadedModel plain(path_, DType::kBF16, DeviceChoice::kCpu, 2, 0, WeightPolicy::kDequantise);
  EXPECT_FALSE(plain.weights.keeps_blocks());
  EXPECT_TRUE(plain.weights.layer(0).qkv.plain());
  EXPECT_LT(kept.weights.bytes(), plain.weights.bytes() / 2);
  for (const WeightTypeUse& use : plain.weights.types()) EXPECT_EQ(use.loaded, "BF16") << use.stored;
  std::map<std::string, int64_t> tensors;
  uint64_t bytes = 0, stored_bytes = 0;
  for (const WeightTypeUse& use : kept.weights.types()) {
    EXPECT_EQ(use.loaded, use.stored == "F32" ? "BF16" : use.stored);
    EXPECT_FALSE(use.dequantised()) << use.stored;
    tensors[use.stored] += use.tensors;
    bytes += use.bytes, stored_bytes += use.stored_bytes;
  }
  EXPECT_EQ(tensors, (std::map<std::string, int64_t>{{"F32", 11},
                                                     {"IQ2_S", 1},
                                                     {"IQ2_XS", 1},
                                                     {"IQ2_XXS", 2},
                                                     {"IQ3_S", 2},
                                                     {"IQ3_XXS", 1},
                                                     {"IQ4_NL", 1},
                                                     {"IQ4_XS", 4},
                                                     {"Q2_K", 4},
                                                     {"Q3_K", 3},
                                                     {"Q4_0", 1},
                                                     {"Q4_1", 2},
                                                     {"Q4_K", 4},
                                                     {"Q5_0", 1},
                                                     {"Q5_1", 1},
                                                     {"Q5_K", 3},
                                                     {"Q6_K", 3},
                                                     {"Q8_0", 2}}));
  EXPECT_EQ(stored_bytes, bytes + 11 * kHidden * 2);  // norms are stored in f32
  EXPECT_LE(bytes, kept.weights.bytes());
}

// Decoding does not round weights that are kept, but to bf16 with AVX-512 BF16.
TEST_F(KeptWeights, GiveTheLogitsOfDequantisedOnesWhereDecodingRounds) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    std::vector<std::vector<float>> dequantised, kept;
    for (const WeightPolicy policy : {WeightPolicy::kDequantise, WeightPolicy::kKeep}) {
      std::vector<std::vector<float>>& expected = policy == WeightPolicy::kKeep ? kept : dequantised;
      for (const int threads : {1, 3}) {
        const LoadedModel model(path_, dtype, DeviceChoice::kCpu, threads, 0, policy);
        std::vector<std::vector<float>> logits;
        testing::decode_plainly(*model.session(model.options(300, 8)), testing::made_up_ids(300, kVocab), 6, &logits);
        if (expected.empty()) expected = logits;
        EXPECT_TRUE(logits == expected) << dtype_name(dtype) << ", " << threads << " threads";
      }
    }
    const bool same = dtype == DType::kF32 || (dtype == DType::kBF16 && kernels::isa() == kernels::Isa::kAvx512Bf16);
    EXPECT_EQ(kept == dequantised, same) << dtype_name(dtype);
  }
}

TEST_F(KeptWeights, GiveTheSameTextWithEveryDraft) {
  for (const WeightPolicy policy : {WeightPolicy::kDequantise, WeightPolicy::kKeep}) {
    std::vector<int32_t> first;
    for (const SpecType type : {SpecType::kNone, SpecType::kSimple, SpecType::kNgram}) {
      EngineOptions options;
      options.model = path_;
      options.device = {.choice = DeviceChoice::kCpu, .threads = 2};
      options.weights = policy;
      options.want_tokenizer = false;
      options.draft.type = type;
      if (type == SpecType::kSimple) options.draft.model = path_;
      Engine engine(options);
      const GenerateResult result = engine.generate(testing::made_up_ids(90, kVocab), {.max_tokens = 24}, nullptr);
      if (first.empty()) first = result.token_ids;
      EXPECT_EQ(result.token_ids, first) << spec_type_name(type);
    }
    EXPECT_GT(first.size(), 3u);
  }
}

// ---- Quantised as they are loaded -----------------------------------------------------------------------------------

// mixed_gguf(), with every matrix dequantised to f32.
GgufWriter plain_gguf() {
  GgufWriter file = mixed_gguf(4);
  for (GgufWriter::Tensor& tensor : file.tensors()) {
    if (tensor.type == 0) continue;
    const GgmlType& type = *find_ggml_type(tensor.type);
    std::vector<float> values(static_cast<size_t>(tensor.dimensions[0] * tensor.dimensions[1]));
    dequantize(type, tensor.bytes.data(), DType::kF32, values.data(), static_cast<int64_t>(values.size()));
    tensor.bytes.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    tensor.type = 0;
  }
  return file;
}

// plain_gguf(), with every matrix quantised in the file.
GgufWriter quantised_gguf(const StoredType& type) {
  GgufWriter file = plain_gguf();
  for (GgufWriter::Tensor& tensor : file.tensors()) {
    if (tensor.dimensions.size() != 2) continue;
    const int64_t count = tensor.dimensions[0] * tensor.dimensions[1];
    std::vector<float> values(static_cast<size_t>(count));
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    tensor.bytes.resize(weight_bytes(type.type, 1, count));
    quantise_blocks(type.type, values.data(), count / weight_type_info(type.type).block_elements, tensor.bytes.data());
    tensor.type = type.id;
  }
  return file;
}

// The logits of a file that holds those blocks, with any number of threads; q and k's rows in a GGUF's order.
TEST_F(KeptWeights, QuantisingAsTheyAreLoadedIsQuantisingTheFile) {
  const std::string plain = folder_.write("plain.gguf", plain_gguf().finish());
  const std::vector<int32_t> ids = testing::made_up_ids(12, kVocab);
  for (const auto& [type, policy] : {std::pair<StoredType, WeightPolicy>{kQ8_0, WeightPolicy::kQ8_0},
                                     {kQ6K, WeightPolicy::kQ6K},
                                     {kQ5K, WeightPolicy::kQ5K},
                                     {kQ4K, WeightPolicy::kQ4K}}) {
    if (testing::kSanitized && policy != WeightPolicy::kQ4K) continue;
    const char* const name = weight_type_info(type.type).name;
    const LoadedModel kept(folder_.write("quantised.gguf", quantised_gguf(type).finish()), DType::kBF16);
    std::vector<std::vector<float>> expected;
    testing::decode_plainly(*kept.session(kept.options(12, 4)), ids, 2, &expected);
    for (const int threads : {1, 3}) {
      const LoadedModel model(plain, DType::kBF16, DeviceChoice::kCpu, threads, 0, policy);
      EXPECT_EQ(model.weights.damage().tensors, 0);
      EXPECT_EQ(model.weights.bytes(), kept.weights.bytes()) << name;
      EXPECT_EQ(model.weights.quantises_to(), type.type);
      for (const WeightTypeUse& use : model.weights.types()) {
        EXPECT_EQ(use.stored, "F32");
        EXPECT_TRUE(use.loaded == (use.tensors == 9 ? "BF16" : name)) << use.loaded;
      }
      std::vector<std::vector<float>> logits;
      testing::decode_plainly(*model.session(model.options(12, 4)), ids, 2, &logits);
      EXPECT_TRUE(logits == expected) << name << ", " << threads << " threads";
    }
  }
}

TEST_F(KeptWeights, WhatAFileHasQuantisedIsNotQuantisedAgain) {
  const LoadedModel model(path_, DType::kBF16, DeviceChoice::kCpu, 2, 0, WeightPolicy::kQ4K);
  EXPECT_EQ(model.weights.bytes(), LoadedModel(path_, DType::kBF16).weights.bytes());
  EXPECT_EQ(model.weights.quantises_to(), std::nullopt);
}

TEST(QuantisedType, DependsOnTheRowsLength) {
  const auto type_of = [](std::vector<int64_t> shape, const char* stored = "BF16") {
    return loaded_type({"model.layers.3.mlp.up_proj.weight", std::move(shape), stored, 0},
                       {DType::kBF16, WeightPolicy::kQ4K});
  };
  EXPECT_EQ(type_of({4, 512}), WeightType::kQ4K);
  EXPECT_EQ(type_of({4, 576}), WeightType::kQ8_0);
  EXPECT_EQ(type_of({512}), WeightType::kBF16);
  EXPECT_EQ(type_of({4, 512}, "Q5_0"), WeightType::kQ5_0);
  try {
    type_of({4, 40});
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    for (const char* part : {"--weights", "Q4_K", "model.layers.3.mlp.up_proj.weight", "32", "40"}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST_F(KeptWeights, QuantisingIsComputedInBf16) {
  EngineOptions options;
  options.model = folder_.write("plain.gguf", plain_gguf().finish());
  options.want_tokenizer = false;
  const DryRunCard gpu = {.name = "a GPU", .vram_bytes = kGiB, .host_bytes = kGiB};
  EXPECT_EQ(Engine(options, nullptr, open_dry_run_device(gpu)).dtype(), DType::kF32);
  options.weights = WeightPolicy::kQ6K;
  EXPECT_EQ(Engine(options, nullptr, open_dry_run_device(gpu)).dtype(), DType::kBF16);
  options.dtype = DType::kF32;
  try {
    const Engine engine(options, nullptr, open_dry_run_device(gpu));
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_NE(std::string(error.what()).find("Q6_K needs bf16 on a GPU, but --dtype is f32"), std::string::npos)
        << error.what();
  }
}

class KeptText : public KeptWeights, public ::testing::WithParamInterface<DeviceChoice> {};
INSTANTIATE_TEST_SUITE_P(Devices, KeptText, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& given) { return testing::device_name(given.param); });

// With a part of the KV cache and refreshes, on a host's cache: drafts that read the target's states and its head, one
// whose weights are kept, too, and look-up.
TEST_P(KeptText, IsThatOfPlainDecodingWithPartialVerification) {
  const int64_t kPrompt = testing::kSanitized ? 400 : 700;
  const TemporaryFolder eagle3, longspec;
  const testing_support::TinyTarget target = {.hidden = kHidden, .vocab = kVocab, .tapped_layers = {0, 1, 2}};
  testing_support::tiny_eagle3_head(target).write(eagle3.path());
  testing_support::tiny_longspec_layer(target).write(longspec.path());
  EngineOptions options;
  options.model = path_;
  options.device = {.choice = GetParam(), .threads = 2};
  options.want_tokenizer = false;
  options.ring.slots = 2;
  GenerateOptions run{.max_tokens = 24, .kv = KvMode::kHost, .sampling = {.temperature = 0.7f, .seed = 3}};
  run.ignore_eos = true;
  std::vector<int32_t> plain;
  for (const SpecType type : kSpecTypes) {
    if (type == SpecType::kMtp) continue;  // the model has no block
    options.draft.type = type;
    options.draft.model = type == SpecType::kNone || type == SpecType::kNgram ? ""
                          : type == SpecType::kEagle3                         ? eagle3.path()
                          : type == SpecType::kLongSpec                       ? longspec.path()
                                                                              : options.model;
    if (type != SpecType::kNone) {
      run.verify = VerifyOptions{.mode = VerifyMode::kLossless, .budget = 64, .interval = 8};
    }
    Engine engine(options);
    const GenerateResult result = engine.generate(testing::repeated_ids(kPrompt, kVocab), run, nullptr);
    EXPECT_EQ(result.token_ids.size(), 24u);
    if (type == SpecType::kNone) {
      plain = result.token_ids;
      continue;
    }
    EXPECT_EQ(result.token_ids, plain) << spec_type_name(type);
    EXPECT_GT(result.speculation.of(StepMode::kPartial).steps, 0) << spec_type_name(type);
    EXPECT_GT(result.speculation.of(StepMode::kRefresh).steps, 0) << spec_type_name(type);
    const bool looks_up = type == SpecType::kNgram;  // and the model does not repeat itself
    EXPECT_GT(looks_up ? result.speculation.proposed : result.speculation.accepted, 0) << spec_type_name(type);
  }
}

// On a GPU blocks that loading makes are repacked like those of a file.
TEST_P(KeptText, IsThatOfAFileQuantisedBefore) {
  EngineOptions options;
  options.device = {.choice = GetParam(), .threads = 2};
  options.want_tokenizer = false;
  options.dtype = DType::kBF16;
  for (const auto& [type, policy] :
       {std::pair<StoredType, WeightPolicy>{kQ8_0, WeightPolicy::kQ8_0}, {kQ4K, WeightPolicy::kQ4K}}) {
    const GenerateOptions run{.max_tokens = 5, .sampling = {.temperature = 0.7f, .seed = 3}, .ignore_eos = true};
    options.weights = WeightPolicy::kKeep;
    options.model = folder_.write("quantised.gguf", quantised_gguf(type).finish());
    const std::vector<int32_t> expected =
        Engine(options).generate(testing::made_up_ids(40, kVocab), run, nullptr).token_ids;
    options.weights = policy;
    options.model = folder_.write("plain.gguf", plain_gguf().finish());
    EXPECT_EQ(Engine(options).generate(testing::made_up_ids(40, kVocab), run, nullptr).token_ids, expected);
  }
}

TEST_F(KeptWeights, ATypeThatCannotBeReadIsNamedWithItsTensor) {
  GgufWriter file = mixed_gguf(4);
  for (GgufWriter::Tensor& tensor : file.tensors()) {
    if (tensor.name != "blk.1.ffn_up.weight") continue;
    tensor.type = 19;  // IQ1_S
    tensor.bytes.resize(static_cast<size_t>(kFfn * kHidden / 256 * 50));
  }
  EngineOptions options;
  options.model = folder_.write("iq1_s.gguf", file.finish());
  options.device = {.choice = DeviceChoice::kCpu, .threads = 2};
  options.want_tokenizer = false;
  try {
    Engine(options).generate({1, 2}, {.max_tokens = 1}, nullptr);
    ADD_FAILURE() << "read";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    for (const char* part : {"iq1_s.gguf", "\"blk.1.ffn_up.weight\"", "IQ1_S", "IQ2_XXS and MXFP4"}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

// A GPU whose products would be slower than plain ones gets dequantised weights, and a line says so.
TEST_F(KeptWeights, ANoteSaysThatAGpuDequantisesThem) {
  EngineOptions options;
  options.model = path_;
  options.want_tokenizer = false;
  options.dtype = DType::kF32;
  const DryRunCard gpu = {.name = "a GPU", .vram_bytes = kGiB, .host_bytes = kGiB};
  DryRunCard cpu = gpu;
  cpu.backend = Backend::kCpu;
  const Engine on_gpu(options, nullptr, open_dry_run_device(gpu));
  EXPECT_NE(on_gpu.weights_note().find("dequantised to f32"), std::string::npos) << on_gpu.weights_note();
  for (const WeightTypeUse& use : on_gpu.weight_types()) EXPECT_EQ(use.loaded, "F32") << use.stored;
  EXPECT_EQ(Engine(options, nullptr, open_dry_run_device(cpu)).weights_note(), "");
  options.weights = WeightPolicy::kDequantise;  // as requested
  EXPECT_EQ(Engine(options, nullptr, open_dry_run_device(gpu)).weights_note(), "");
}

// So does one for a KV cache whose attention a GPU computes without tensor cores.
TEST_F(KeptWeights, ANoteSaysThatACacheIsSlow) {
  EngineOptions options;
  options.model = path_;
  options.want_tokenizer = false;
  options.dtype = DType::kBF16;
  DryRunCard card = {.name = "a GPU", .vram_bytes = kGiB, .host_bytes = kGiB};
  const auto note = [&](std::optional<DType> k, std::optional<DType> v) {
    options.cache_type_k = k;
    options.cache_type_v = v;
    return Engine(options, nullptr, open_dry_run_device(card)).cache_note();
  };
  EXPECT_EQ(note(std::nullopt, std::nullopt), "");
  for (const DType fast : {DType::kBF16, DType::kF16, DType::kInt8}) EXPECT_EQ(note(fast, fast), "");
  for (const auto& [k, v] :
       {std::pair(DType::kF32, DType::kF32), {DType::kF16, DType::kBF16}, {DType::kInt8, DType::kF16}}) {
    const std::string said = note(k, v);
    EXPECT_NE(said.find(str("-ctk ", dtype_name(k), " -ctv ", dtype_name(v))), std::string::npos) << said;
  }
  card.backend = Backend::kCpu;
  EXPECT_EQ(note(DType::kF32, DType::kF32), "");
}

// Of a file of f32 weights, too, and on a CPU as on a GPU.
TEST(Bf16Weights, AreComputedInBf16) {
  const DryRunCard card = {.name = "a GPU", .vram_bytes = kGiB, .host_bytes = kGiB};
  const auto opened = [&](std::optional<DType> dtype) {
    EngineOptions options;
    options.model = testing::tiny_model("llama31");
    options.want_tokenizer = false;
    options.dtype = dtype;
    options.weights = WeightPolicy::kBf16;
    return Engine(options, nullptr, open_dry_run_device(card));
  };
  for (const std::optional<DType>& dtype : {std::optional<DType>(), std::optional<DType>(DType::kBF16)}) {
    const Engine engine = opened(dtype);
    EXPECT_EQ(engine.dtype(), DType::kBF16);
    for (const WeightTypeUse& use : engine.weight_types()) EXPECT_EQ(use.loaded, "BF16") << use.stored;
  }
  testing_support::expect_error(ExitCode::kUsage, "--weights", {"bf16 needs --dtype bf16 or auto, not f32"},
                                [&] { opened(DType::kF32); });
}

}  // namespace
}  // namespace headrace
