#include "runtime/model/files/shapes.h"

#include "cache/base.h"
#include "runtime/base/input_file.h"
#include "runtime/base/json_file.h"
#include "runtime/model/decoder_tensors.h"
#include "runtime/model/families/read_config.h"

namespace headrace {
namespace {

enum class Head { kTied, kOwn };

// What else config.json says.
constexpr const char* kEps6 = R"("rms_norm_eps": 1e-6)";
constexpr const char* kEps5 = R"("rms_norm_eps": 1e-5)";
constexpr const char* kMistral = R"("rms_norm_eps": 1e-5, "sliding_window": null)";
constexpr const char* kMinistral3 =
    R"("rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "yarn", "factor": 16,
       "original_max_position_embeddings": 16384, "mscale": 1, "mscale_all_dim": 1, "llama_4_scaling_beta": 0.1})";
constexpr const char* kLlama31 =
    R"("rms_norm_eps": 1e-5, "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
       "high_freq_factor": 4, "original_max_position_embeddings": 8192})";
constexpr const char* kQwen35 = R"("rms_norm_eps": 1e-6, "mtp_num_hidden_layers": 1)";
constexpr const char* kQwen35Large =
    R"("rms_norm_eps": 1e-6, "linear_num_value_heads": 48, "mtp_num_hidden_layers": 1)";
constexpr const char* kQwen35Moe =
    R"("rms_norm_eps": 1e-6, "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
       "shared_expert_intermediate_size": 512, "mtp_num_hidden_layers": 1)";
constexpr const char* kGemma3 =
    R"("sliding_window": 1024, "query_pre_attn_scalar": 256, "rope_scaling": {"rope_type": "linear", "factor": 8})";
constexpr const char* kGemma3Large =
    R"("sliding_window": 1024, "query_pre_attn_scalar": 168, "rope_scaling": {"rope_type": "linear", "factor": 8})";
constexpr const char* kGemma3Small = R"("sliding_window": 512, "query_pre_attn_scalar": 256)";
constexpr const char* kGemma4 =
    R"("global_head_dim": 512, "num_global_key_value_heads": 1, "attention_k_eq_v": true, "sliding_window": 1024,
       "final_logit_softcapping": 30.0, "rope_parameters": {"full_attention": {"rope_type": "proportional",
       "partial_rotary_factor": 0.25, "rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}})";
constexpr const char* kGemma4Large =
    R"("global_head_dim": 512, "num_global_key_value_heads": 4, "attention_k_eq_v": true, "sliding_window": 1024,
       "final_logit_softcapping": 30.0, "rope_parameters": {"full_attention": {"rope_type": "proportional",
       "partial_rotary_factor": 0.25, "rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}})";
constexpr const char* kGemma4E2b =
    R"("global_head_dim": 512, "sliding_window": 512, "sliding_window_pattern": 5, "hidden_size_per_layer_input": 256,
       "num_kv_shared_layers": 20, "use_double_wide_mlp": true, "final_logit_softcapping": 30.0,
       "rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
       "rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}})";
constexpr const char* kGemma4E4b =
    R"("global_head_dim": 512, "sliding_window": 512, "hidden_size_per_layer_input": 256, "num_kv_shared_layers": 18,
       "final_logit_softcapping": 30.0, "rope_parameters": {"full_attention": {"rope_type": "proportional",
       "partial_rotary_factor": 0.25, "rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}})";
constexpr const char* kGemma4Moe =
    R"("global_head_dim": 512, "num_global_key_value_heads": 2, "attention_k_eq_v": true, "sliding_window": 1024,
       "final_logit_softcapping": 30.0, "enable_moe_block": true, "num_experts": 128, "top_k_experts": 8,
       "moe_intermediate_size": 704, "rope_parameters": {"full_attention": {"rope_type": "proportional",
       "partial_rotary_factor": 0.25, "rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}})";
constexpr const char* kQwen3Moe =
    R"("rms_norm_eps": 1e-6, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
       "norm_topk_prob": true)";
constexpr const char* kGptOss20 =
    R"("num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128, "rope_scaling": {"rope_type": "yarn",
       "factor": 32, "beta_fast": 32, "beta_slow": 1, "truncate": false, "original_max_position_embeddings": 4096})";
constexpr const char* kGptOss120 =
    R"("num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128, "rope_scaling": {"rope_type": "yarn",
       "factor": 32, "beta_fast": 32, "beta_slow": 1, "truncate": false, "original_max_position_embeddings": 4096})";
constexpr const char* kLlama32 =
    R"("rms_norm_eps": 1e-5, "rope_scaling": {"rope_type": "llama3", "factor": 32, "low_freq_factor": 1,
       "high_freq_factor": 4, "original_max_position_embeddings": 8192})";

struct Row {
  const char *name, *model_type;
  int64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, positions;
  double theta;
  Head head;
  const char* more;
};

// As the models' config.json files have them.
constexpr Row kShapes[] = {
    {"smollm2-135m", "llama", 30, 576, 9, 3, 64, 1536, 49152, 8192, 1e5, Head::kTied, kEps5},
    {"smollm2-360m", "llama", 32, 960, 15, 5, 64, 2560, 49152, 8192, 1e5, Head::kTied, kEps5},
    {"smollm2-1.7b", "llama", 24, 2048, 32, 32, 64, 8192, 49152, 8192, 1.3e5, Head::kTied, kEps5},
    {"llama-2-7b", "llama", 32, 4096, 32, 32, 128, 11008, 32000, 4096, 1e4, Head::kOwn, kEps5},
    {"llama-3.2-1b", "llama", 16, 2048, 32, 8, 64, 8192, 128256, 131072, 5e5, Head::kTied, kLlama32},
    {"llama-3.2-3b", "llama", 28, 3072, 24, 8, 128, 8192, 128256, 131072, 5e5, Head::kTied, kLlama32},
    {"llama-3.1-8b", "llama", 32, 4096, 32, 8, 128, 14336, 128256, 131072, 5e5, Head::kOwn, kLlama31},
    {"llama-3.1-70b", "llama", 80, 8192, 64, 8, 128, 28672, 128256, 131072, 5e5, Head::kOwn, kLlama31},
    {"llama-3.3-70b", "llama", 80, 8192, 64, 8, 128, 28672, 128256, 131072, 5e5, Head::kOwn, kLlama31},
    {"mistral-7b-v0.3", "mistral", 32, 4096, 32, 8, 128, 14336, 32768, 32768, 1e6, Head::kOwn, kMistral},
    {"mistral-small-24b", "mistral", 40, 5120, 32, 8, 128, 32768, 131072, 32768, 1e8, Head::kOwn, kMistral},
    {"ministral-3-14b", "ministral3", 40, 5120, 32, 8, 128, 16384, 131072, 262144, 1e9, Head::kOwn, kMinistral3},
    {"phi-4", "phi3", 40, 5120, 40, 10, 128, 17920, 100352, 16384, 2.5e5, Head::kOwn, kEps5},
    {"qwen2.5-0.5b", "qwen2", 24, 896, 14, 2, 64, 4864, 151936, 32768, 1e6, Head::kTied, kEps6},
    {"qwen2.5-1.5b", "qwen2", 28, 1536, 12, 2, 128, 8960, 151936, 32768, 1e6, Head::kTied, kEps6},
    {"qwen2.5-3b", "qwen2", 36, 2048, 16, 2, 128, 11008, 151936, 32768, 1e6, Head::kTied, kEps6},
    {"qwen2.5-7b", "qwen2", 28, 3584, 28, 4, 128, 18944, 152064, 32768, 1e6, Head::kOwn, kEps6},
    {"qwen2.5-14b", "qwen2", 48, 5120, 40, 8, 128, 13824, 152064, 32768, 1e6, Head::kOwn, kEps6},
    {"qwen3-0.6b", "qwen3", 28, 1024, 16, 8, 128, 3072, 151936, 40960, 1e6, Head::kTied, kEps6},
    {"qwen3-1.7b", "qwen3", 28, 2048, 16, 8, 128, 6144, 151936, 40960, 1e6, Head::kTied, kEps6},
    {"qwen3-4b", "qwen3", 36, 2560, 32, 8, 128, 9728, 151936, 40960, 1e6, Head::kTied, kEps6},
    {"qwen3-8b", "qwen3", 36, 4096, 32, 8, 128, 12288, 151936, 40960, 1e6, Head::kOwn, kEps6},
    {"qwen3-14b", "qwen3", 40, 5120, 40, 8, 128, 17408, 151936, 40960, 1e6, Head::kOwn, kEps6},
    {"qwen3-32b", "qwen3", 64, 5120, 64, 8, 128, 25600, 151936, 40960, 1e6, Head::kOwn, kEps6},
    {"qwen3-30b-a3b", "qwen3_moe", 48, 2048, 32, 4, 128, 6144, 151936, 262144, 1e7, Head::kOwn, kQwen3Moe},
    {"qwen3-coder-30b-a3b", "qwen3_moe", 48, 2048, 32, 4, 128, 6144, 151936, 262144, 1e7, Head::kOwn, kQwen3Moe},
    {"qwen3.5-4b", "qwen3_5_text", 32, 2560, 16, 4, 256, 9216, 248320, 262144, 1e7, Head::kTied, kQwen35},
    {"qwen3.5-9b", "qwen3_5_text", 32, 4096, 16, 4, 256, 12288, 248320, 262144, 1e7, Head::kOwn, kQwen35},
    {"qwen3.6-27b", "qwen3_5_text", 64, 5120, 24, 4, 256, 17408, 248320, 262144, 1e7, Head::kOwn, kQwen35Large},
    {"qwen3.6-35b-a3b", "qwen3_5_moe_text", 40, 2048, 16, 2, 256, 512, 248320, 262144, 1e7, Head::kOwn, kQwen35Moe},
    {"qwen3.8-27b", "qwen3_5_text", 64, 5120, 24, 4, 256, 17408, 248320, 262144, 1e7, Head::kOwn, kQwen35Large},
    {"gemma-3-1b", "gemma3_text", 26, 1152, 4, 1, 256, 6912, 262144, 32768, 1e6, Head::kTied, kGemma3Small},
    {"gemma-3-4b", "gemma3_text", 34, 2560, 8, 4, 256, 10240, 262208, 131072, 1e6, Head::kTied, kGemma3},
    {"gemma-3-12b", "gemma3_text", 48, 3840, 16, 8, 256, 15360, 262208, 131072, 1e6, Head::kTied, kGemma3},
    {"gemma-3-27b", "gemma3_text", 62, 5376, 32, 16, 128, 21504, 262208, 131072, 1e6, Head::kTied, kGemma3Large},
    {"gemma-4-12b", "gemma4_text", 48, 3840, 16, 8, 256, 15360, 262144, 262144, 1e6, Head::kTied, kGemma4},
    {"gemma-4-26b-a4b", "gemma4_text", 30, 2816, 16, 8, 256, 2112, 262144, 262144, 1e6, Head::kTied, kGemma4Moe},
    {"gemma-4-31b", "gemma4_text", 60, 5376, 32, 16, 256, 21504, 262144, 262144, 1e6, Head::kTied, kGemma4Large},
    {"gemma-4-e2b", "gemma4_text", 35, 1536, 8, 1, 256, 6144, 262144, 131072, 1e6, Head::kTied, kGemma4E2b},
    {"gemma-4-e4b", "gemma4_text", 42, 2560, 8, 2, 256, 10240, 262144, 131072, 1e6, Head::kTied, kGemma4E4b},
    {"gpt-oss-20b", "gpt_oss", 24, 2880, 64, 8, 64, 2880, 201088, 131072, 1.5e5, Head::kOwn, kGptOss20},
    {"gpt-oss-120b", "gpt_oss", 36, 2880, 64, 8, 64, 2880, 201088, 131072, 1.5e5, Head::kOwn, kGptOss120},
    {"seed-oss-36b", "seed_oss", 64, 5120, 80, 8, 128, 27648, 155136, 524288, 1e7, Head::kOwn, kEps6},
};

ModelConfig config_of(const Row& row) {
  const std::string config =
      str(R"({"model_type": ")", row.model_type, R"(", "num_hidden_layers": )", row.layers, R"(, "hidden_size": )",
          row.hidden, R"(, "num_attention_heads": )", row.heads, R"(, "num_key_value_heads": )", row.kv_heads,
          R"(, "head_dim": )", row.head_dim, R"(, "intermediate_size": )", row.ffn, R"(, "vocab_size": )", row.vocab,
          R"(, "max_position_embeddings": )", row.positions, R"(, "rope_theta": )", row.theta,
          R"(, "tie_word_embeddings": )", row.head == Head::kTied ? "true" : "false", ", ", row.more, "}");
  return parse_config_json(config, row.name);
}

bool is_file_name(const std::string& name) { return name.find('/') != std::string::npos || name.ends_with(".json"); }

}  // namespace

std::vector<Shape> known_shapes() {
  std::vector<Shape> shapes;
  for (const Row& row : kShapes) shapes.push_back({row.name, config_of(row)});
  return shapes;
}

Shape find_shape(const std::string& name) {
  if (is_file_name(name)) return {name, parse_config_json(read_small_file(name, kMaxConfigBytes), name)};
  std::string names;
  for (const Row& row : kShapes) {
    if (name == row.name) return {name, config_of(row)};
    names += str(names.empty() ? "" : ", ", row.name);
  }
  throw_error(ExitCode::kUsage, "--shape", str("'", printable(name), "' is not one of ", names),
              "A path to a config.json is a shape, too.");
}

int64_t parameter_count(const ModelConfig& config) {
  int64_t count = 0;
  for (const DecoderTensor& tensor : decoder_tensors(config)) {
    int64_t elements = 1;
    for (const int64_t size : tensor.shape) elements *= size;
    count += elements;
  }
  return count;
}

}  // namespace headrace
