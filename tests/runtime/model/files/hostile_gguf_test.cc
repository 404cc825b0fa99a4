// GGUF files that are cut or forged.
// Each ends in an Error that names the file and the value, and none touches memory it should not (this runs under ASan
// and UBSan too).
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "cache/base.h"
#include "tests/runtime/model/files/hostile.h"
#include "tests/runtime/model/files/model_files.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using namespace testing_support;

struct GgufRow {
  const char* label;
  std::function<void(GgufWriter&)> forge;
  const char* expected;
};

GgufWriter::Tensor& tensor_of(GgufWriter& writer, const std::string& name) {
  for (GgufWriter::Tensor& tensor : writer.tensors())
    if (tensor.name == name) return tensor;
  ADD_FAILURE() << "no tensor " << name;
  return writer.tensors().front();
}

std::vector<GgufRow> gguf_rows() {
  using W = GgufWriter;
  const std::string norm = "output_norm.weight", embedding = "token_embd.weight";
  const uint64_t huge = uint64_t{1} << 60;
  const auto tensor = [](std::function<void(W::Tensor&)> change, std::string name) {
    return [=](W& w) { change(tensor_of(w, name)); };
  };
  const auto key = [](std::string name, uint32_t type, std::string bytes) {
    return [=](W& w) { w.add_raw(name, type, bytes); };
  };
  return {
      {"another magic", [](W& w) { w.magic = "GGML"; }, "GGML"},
      {"version 1", [](W& w) { w.version = 1; }, "version 1"},
      {"version 4", [](W& w) { w.version = 4; }, "version 4"},
      {"big-endian", [](W& w) { w.version = 3u << 24; }, "big-endian"},
      {"2^60 tensors", [=](W& w) { w.forged_tensors = huge; }, "1152921504606846976 tensors"},
      {"2^60 keys", [=](W& w) { w.forged_keys = huge; }, "1152921504606846976 keys"},
      {"2^64 - 1 tensors", [](W& w) { w.forged_tensors = ~uint64_t{0}; }, "18446744073709551615"},
      {"a tensor too many", [](W& w) { w.forged_tensors = w.tensors().size() + 1; }, "at byte"},
      {"a key too many", [](W& w) { w.forged_keys = 20; }, "at byte"},
      {"a key twice", [](W& w) { w.add_u32("llama.block_count", 1); }, "llama.block_count"},
      {"a key without a name", [](W& w) { w.add_u32("", 1); }, "a key of 0 bytes"},
      {"a key of 64 KiB", [](W& w) { w.add_u32(std::string(65536, 'k'), 1); }, "a key of 65536 bytes"},
      {"an unknown type of value", key("x", 13, "1234"), "unknown type 13"},
      {"a string of 2^63 bytes", key("x", 8, raw_bytes<uint64_t>(uint64_t{1} << 63)), "9223372036854775808"},
      {"an array of 2^61 u64", key("x", 9, raw_bytes<uint32_t>(10) + raw_bytes<uint64_t>(uint64_t{1} << 61)),
       "2305843009213693952 values"},
      {"an array of 2^60 strings", key("x", 9, raw_bytes<uint32_t>(8) + raw_bytes(huge)), "1152921504606846976 values"},
      {"an array of an unknown type", key("x", 9, raw_bytes<uint32_t>(99) + raw_bytes<uint64_t>(1)), "type 99"},
      {"an array of arrays", key("x", 9, raw_bytes<uint32_t>(9) + raw_bytes<uint64_t>(1)), "array of arrays"},
      {"a string array cut short",
       key("x", 9, raw_bytes<uint32_t>(8) + raw_bytes<uint64_t>(1) + raw_bytes<uint64_t>(uint64_t{1} << 62)),
       "4611686018427387904"},
      {"alignment 0", [](W& w) { w.add_u32("general.alignment", 0); }, "general.alignment is 0"},
      {"alignment 48", [](W& w) { w.add_u32("general.alignment", 48); }, "48 is not a power of two"},
      {"alignment 2^31", [](W& w) { w.add_u32("general.alignment", 1u << 31); }, "2147483648"},
      {"alignment is a string", [](W& w) { w.add_string("general.alignment", "32"); }, "\"32\""},
      {"no dimensions", tensor([](W::Tensor& t) { t.forged_rank = 0; }, norm), "0 dimensions"},
      {"five dimensions",
       tensor(
           [](W::Tensor& t) {
             t.dimensions = {2, 2, 2, 2, 2};
           },
           norm),
       "5 dimensions"},
      {"2^32 - 1 dimensions", tensor([](W::Tensor& t) { t.forged_rank = ~0u; }, norm), "4294967295 dimensions"},
      {"a dimension of 0", tensor([](W::Tensor& t) { t.dimensions = {0}; }, norm), "a dimension of 0"},
      {"a dimension of -1", tensor([](W::Tensor& t) { t.dimensions = {-1}; }, norm), "a dimension of -1"},
      {"elements overflow",
       tensor(
           [](W::Tensor& t) {
             t.dimensions = {INT64_MAX, INT64_MAX};
           },
           embedding),
       "too many elements"},
      {"bytes overflow", tensor([](W::Tensor& t) { t.dimensions = {INT64_MAX}; }, norm), "too many bytes"},
      {"bytes beyond the file", tensor([](W::Tensor& t) { t.dimensions = {1 << 30}; }, norm), "4294967296 bytes"},
      {"an unknown tensor type", tensor([](W::Tensor& t) { t.type = 5; }, norm), "unknown type 5"},
      {"tensor type 2^32 - 1", tensor([](W::Tensor& t) { t.type = ~0u; }, norm), "4294967295"},
      {"a type that cannot be read", tensor([](W::Tensor& t) { t.type = 26; }, norm),
       "\"output_norm.weight\" is stored as I32"},
      {"rows that are not whole blocks", tensor([](W::Tensor& t) { t.dimensions = {33}, t.type = 8; }, norm),
       "\"output_norm.weight\" has rows of 33 elements, which blocks of 32 (Q8_0) do not fill"},
      {"rows that are not whole blocks of 256", tensor([](W::Tensor& t) { t.type = 12; }, embedding),
       "\"token_embd.weight\" has rows of 32 elements, which blocks of 256 (Q4_K) do not fill"},
      {"an offset that is not aligned", tensor([](W::Tensor& t) { t.forged_offset = 4; }, norm), "offset 4"},
      {"an offset beyond the file", tensor([=](W::Tensor& t) { t.forged_offset = huge; }, norm), "1152921504606846976"},
      {"an offset that wraps", tensor([](W::Tensor& t) { t.forged_offset = ~uint64_t{31}; }, norm),
       "18446744073709551584"},
      {"two tensors in one place", tensor([](W::Tensor& t) { t.forged_offset = 0; }, norm), "overlaps"},
      {"a tensor's name twice", tensor([](W::Tensor& t) { t.name = "blk.0.ffn_norm.weight"; }, norm),
       "post_attention_layernorm"},
      {"a name that another's becomes", tensor([](W::Tensor& t) { t.name = "model.embed_tokens.weight"; }, norm),
       "two tensors named \"model.embed_tokens.weight\""},
      {"a tensor without a name", tensor([](W::Tensor& t) { t.name = ""; }, norm), "name of 0 bytes"},
      {"a missing tensor", tensor([](W::Tensor& t) { t.name = "strange"; }, norm), "model.norm.weight"},
      {"a name of control bytes", tensor([](W::Tensor& t) { t.name = "\x1b[31m", t.type = 77; }, norm), "\\x1b[31m"},
      {"a name with a NUL", tensor([](W::Tensor& t) { t.name = std::string("a\0b", 3), t.type = 77; }, norm),
       "a\\x00b"},
      {"a shape that the config denies",
       tensor([](W::Tensor& t) { std::swap(t.dimensions[0], t.dimensions[1]); }, embedding), "[32, 8]"},
      {"split into parts", [](W& w) { w.add_u32("split.count", 3); }, "is part 1 of 3 by its metadata"},
      {"a mixture of experts", [](W& w) { w.add_u32("llama.expert_count", 8); }, "llama.expert_count 8"},
      {"part rotary", [](W& w) { w.add_u32("llama.rope.dimension_count", 8); }, "llama.rope.dimension_count 8"},
      {"odd heads", [](W& w) { w.add_u32("llama.attention.key_length", 15); }, "15"},
      {"keys and values differ", [](W& w) { w.add_u32("llama.attention.value_length", 32); }, "value_length 32"},
      {"queries scaled by position", [](W& w) { w.add_f32("llama.attention.temperature_scale", 0.1f); },
       "llama.attention.temperature_scale 0.1"},
      {"a multiplier of YaRN's scale", [](W& w) { w.add_f32("llama.rope.scaling.yarn_log_multiplier", 1); },
       "llama.rope.scaling.yarn_log_multiplier 1"},
      {"a sliding window", [](W& w) { w.add_u32("llama.attention.sliding_window", 64); }, "sliding_window 64"},
      {"a vocabulary of 2^40", [](W& w) { w.add_u64("llama.vocab_size", uint64_t{1} << 40); }, "1099511627776"},
      {"longrope", [](W& w) { w.add_string("llama.rope.scaling.type", "longrope"); }, "\"longrope\""},
      {"a scaling that is no number", [](W& w) { w.add_f32("llama.rope.scaling.factor", NAN); }, "nan"},
      {"too few rope factors",
       [](W& w) {
         w.add_tensor({"rope_freqs.weight", {4}, 0, std::string(16, '?'), {}, {}});
       },
       "rope_freqs.weight holds 4"},
      {"rope factors of zero",
       [](W& w) {
         w.add_tensor({"rope_freqs.weight", {8}, 0, std::string(32, '\0'), {}, {}});
       },
       "rope_freqs.weight holds 0"},
      {"rope factors of another type",
       [](W& w) {
         w.add_tensor({"rope_freqs.weight", {8}, 1, std::string(16, '\0'), {}, {}});
       },
       "rope_freqs.weight must be one row of F32; it is F16"},
      {"a scaling below zero", [](W& w) { w.add_i32("llama.rope.scale_linear", -5); }, "-5"},
  };
}

TEST(HostileGguf, EachIsRefused) {
  for (const GgufRow& row : gguf_rows()) {
    const TemporaryFolder folder;
    GgufWriter writer = small_gguf("llama");
    row.forge(writer);
    expect_refused(row.label, folder.write("forged.gguf", writer.finish()), "forged.gguf", row.expected);
  }
}

TEST(HostileGguf, FusedTensors) {
  using W = GgufWriter;
  const auto rows = [](std::string name, int64_t count) {
    return [=](W& w) { tensor_of(w, name).dimensions = {32, count}; };
  };
  const auto add = [](std::string name, int64_t elements) {
    return [=](W& w) {
      w.add_tensor({name, {elements}, 0, std::string(static_cast<size_t>(elements) * 4, '\0'), {}, {}});
    };
  };
  const std::string qkv = "blk.0.attn_qkv.weight";
  const GgufRow kRows[] = {
      {"a row of q, k and v too few", rows(qkv, 63),
       "model.layers.0.self_attn.qkv_proj.weight has the shape [63, 32]; its config asks for [64, 32]"},
      {"gate without up", rows("blk.0.ffn_up.weight", 32), "gate_up_proj.weight has the shape [32, 32]"},
      {"a row", [=](W& w) { tensor_of(w, qkv).dimensions = {64 * 32}; }, "qkv_proj.weight has the shape [2048]"},
      {"q beside q, k and v",
       [](W& w) {
         w.add_tensor({"blk.0.attn_q.weight", {32, 32}, 0, std::string(32 * 32 * 4, '\0'), {}, {}});
       },
       "two tensors named \"model.layers.0.self_attn.q_proj.weight\""},
      {"no q, k and v", [=](W& w) { tensor_of(w, qkv).name = "strange"; },
       "lacks the tensor model.layers.0.self_attn.q"},
      {"one bias", add("blk.0.attn_qkv.bias", 64), "self_attn.qkv_proj.bias: one bias of q, k and v together"},
      {"long factors", add("rope_factors_long.weight", 8), "rope_factors_long.weight: LongRoPE is not supported"},
      {"short factors", add("rope_factors_short.weight", 8), "rope_factors_short.weight: LongRoPE is not supported"},
      {"part rotary", [](W& w) { w.add_u32("phi3.rope.dimension_count", 12); }, "phi3.rope.dimension_count 12"},
      {"a window", [](W& w) { w.add_u32("phi3.attention.sliding_window", 255); }, "phi3.attention.sliding_window 255"},
  };
  for (const GgufRow& row : kRows) {
    const TemporaryFolder folder;
    W writer = small_gguf("phi3");
    row.forge(writer);
    expect_refused(row.label, folder.write("forged.gguf", writer.finish()), "forged.gguf", row.expected);
  }
}

TEST(HostileGguf, ScalesOfMinistral3) {
  const GgufRow kRows[] = {
      {"not a number", [](GgufWriter& w) { w.add_f32("mistral3.attention.temperature_scale", NAN); },
       "mistral3.attention.temperature_scale is nan"},
      {"below zero", [](GgufWriter& w) { w.add_f32("mistral3.attention.temperature_scale", -0.1f); }, "is -0.1"},
      {"of a step of 0",
       [](GgufWriter& w) {
         w.add_f32("mistral3.attention.temperature_scale", 0.1f);
         w.add_u32("mistral3.rope.scaling.original_context_length", 0);
       },
       "mistral3.rope.scaling.original_context_length is 0"},
      {"of two steps",
       [](GgufWriter& w) {
         w.add_f32("mistral3.attention.temperature_scale", 0.1f);
         w.add_u32("mistral3.rope.scaling.original_context_length", 64);
         w.add_u32("mistral3.attention.temperature_length", 32);
       },
       "mistral3.attention.temperature_length 32 differs from mistral3.rope.scaling.original_context_length, 64"},
      {"a multiplier below zero",
       [](GgufWriter& w) {
         w.add_string("mistral3.rope.scaling.type", "yarn");
         w.add_f32("mistral3.rope.scaling.yarn_log_multiplier", -1);
       },
       "yarn_log_multiplier is -1"},
  };
  for (const GgufRow& row : kRows) {
    const TemporaryFolder folder;
    GgufWriter writer = small_gguf("mistral3");
    row.forge(writer);
    expect_refused(row.label, folder.write("forged.gguf", writer.finish()), "forged.gguf", row.expected);
  }
}

TEST(HostileGguf, NormsOfSeedOss) {
  const auto refused = [](const char* label, const std::function<void(GgufWriter&)>& forge, const char* expected) {
    const TemporaryFolder folder;
    GgufWriter writer = small_gguf("seed_oss");
    forge(writer);
    expect_refused(label, folder.write("forged.gguf", writer.finish()), "forged.gguf", expected);
  };
  const std::string norm = "blk.0.post_attention_norm.weight";
  refused(
      "no norm before the MLP", [=](GgufWriter& w) { tensor_of(w, norm).name = "strange"; },
      "lacks the tensor model.layers.0.post_attention_layernorm.weight");
  refused(
      "both norms",
      [](GgufWriter& w) {
        w.add_tensor({"blk.0.ffn_norm.weight", {32}, 0, std::string(128, '\0'), {}, {}});
      },
      "two tensors named \"model.layers.0.post_attention_layernorm.weight\"");
  refused(
      "a bias of another size", [](GgufWriter& w) { tensor_of(w, "blk.0.attn_k.bias").dimensions = {15}; },
      "self_attn.k_proj.bias");
  refused(
      "q has a bias, v has none", [](GgufWriter& w) { tensor_of(w, "blk.0.attn_v.bias").name = "strange"; },
      "self_attn.v_proj.bias");
}

TEST(HostileGguf, KeysThatAreMissingOrAbsurd) {
  struct KeyRow {
    const char* key;
    std::function<void(GgufWriter&)> set;  // null: left out
    const char* expected;
  };
  const KeyRow kRows[] = {
      {"general.architecture", nullptr, "general.architecture"},
      {"general.architecture", [](GgufWriter& w) { w.add_string("general.architecture", "mamba"); }, "mamba"},
      {"general.architecture", [](GgufWriter& w) { w.add_u32("general.architecture", 7); }, "is 7"},
      {"general.architecture", [](GgufWriter& w) { w.add_string("general.architecture", "clip"); },
       "is an mmproj file (general.architecture \"clip\")"},
      {"llama.block_count", nullptr, "llama.block_count is missing"},
      {"llama.block_count", [](GgufWriter& w) { w.add_u32("llama.block_count", 0); }, "is 0"},
      {"llama.block_count", [](GgufWriter& w) { w.add_i32("llama.block_count", -1); }, "is -1"},
      {"llama.block_count", [](GgufWriter& w) { w.add_u32("llama.block_count", 2); }, "model.layers.1."},
      {"llama.block_count", [](GgufWriter& w) { w.add_u64("llama.block_count", ~uint64_t{0}); },
       "18446744073709551615"},
      {"llama.block_count", [](GgufWriter& w) { w.add_f32("llama.block_count", 1.5f); }, "1.5"},
      {"llama.embedding_length", [](GgufWriter& w) { w.add_u32("llama.embedding_length", 33); }, "33"},
      {"llama.attention.head_count", [](GgufWriter& w) { w.add_u32("llama.attention.head_count", 0); }, "is 0"},
      {"llama.attention.head_count",
       [](GgufWriter& w) {
         w.add_i32s("llama.attention.head_count", {2, 2});
       },
       "an array of 2"},
      {"llama.attention.head_count", [](GgufWriter& w) { w.add_u32("llama.attention.head_count", 32); }, "32"},
      {"llama.attention.head_count_kv", [](GgufWriter& w) { w.add_u32("llama.attention.head_count_kv", 3); },
       "num_key_value_heads 3"},
      {"llama.rope.freq_base", [](GgufWriter& w) { w.add_f32("llama.rope.freq_base", -1); }, "is -1"},
      {"llama.context_length", [](GgufWriter& w) { w.add_string("llama.context_length", "\xff\xfe"); }, "\\xff\\xfe"},
      {"tokenizer.ggml.tokens", nullptr, "tokenizer.ggml.tokens"},
      {"tokenizer.ggml.tokens", [](GgufWriter& w) { w.add_u32("tokenizer.ggml.tokens", 8); }, "is 8"},
      {"tokenizer.ggml.eos_token_id", [](GgufWriter& w) { w.add_u32("tokenizer.ggml.eos_token_id", 8); },
       "tokenizer.ggml.eos_token_id is 8"},
      {"tokenizer.chat_template", [](GgufWriter& w) { w.add_u32("tokenizer.chat_template", 42); }, "is 42"},
  };
  for (const KeyRow& row : kRows) {
    const TemporaryFolder folder;
    GgufWriter writer = small_gguf("llama");
    writer.remove(row.key);
    if (row.set) row.set(writer);
    expect_refused(row.key, folder.write("forged.gguf", writer.finish()), "forged.gguf", row.expected);
  }
}

TEST(HostileGguf, CutAnywhere) {
  const std::string whole = small_gguf("llama").finish();
  const TemporaryFolder folder;
  EXPECT_NO_THROW(open_and_read(folder.write("cut.gguf", whole)));
  for (size_t length = 0; length < whole.size(); length += length < 3000 ? 5 : 499)
    EXPECT_THROW(open_and_read(folder.write("cut.gguf", std::string_view(whole).substr(0, length))), Error) << length;
  EXPECT_THROW(open_and_read(folder.write("cut.gguf", std::string_view(whole).substr(0, whole.size() - 1))), Error);
}

TEST(HostileGguf, AnyFlippedBitIsAnErrorOrHarmless) {
  const std::string whole = small_gguf("llama").finish();
  const TemporaryFolder folder;
  size_t refused = 0;
  for (size_t bit = 0; bit < std::min<size_t>(whole.size(), 2600) * 8; bit += 11) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    try {
      open_and_read(folder.write("flipped.gguf", flipped));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput);
      ++refused;
    }
  }
  EXPECT_GT(refused, 300u);
}

}  // namespace
}  // namespace headrace
