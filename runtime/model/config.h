// What a Llama-shaped decoder is: sizes, rope and quirks. A plain value, the same whether it came from config.json or
// from GGUF metadata. Families: Llama 2/3/3.1/3.2, SmolLM2, Mistral (no sliding window), Ministral 3, Phi-4, Qwen2.5
// (q, k, v bias), Qwen3 (q, k norm), Seed-OSS (q, k, v bias).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

enum class RopeScaling { kNone, kLinear, kLlama3, kYarn };

struct RopeConfig {
  double theta = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  int64_t original_max_positions = 0;                    // llama3, yarn; 0: max_positions
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn
  double attention_factor = 0.0;                         // yarn; 0: from mscale, mscale_all_dim or 0.1 ln(factor) + 1
  double mscale = 0.0, mscale_all_dim = 0.0;             // yarn; 0: absent
  bool truncate = true;                                  // yarn: round the correction range to whole dimensions
  // Ministral 3: q of position p is multiplied by 1 + query_beta * ln(1 + floor(p / query_step)). Beta 0: it is not.
  double query_beta = 0.0;
  int64_t query_step = 1;
  // GGUF's rope_freqs.weight (Llama 3.1 files): per-frequency divisors, [head_dim / 2]; empty if absent.
  std::vector<float> frequency_factors;
};

// The context that a model has, whose config names `positions`: a linear scaling multiplies them, YaRN the positions
// that it began with, and what is larger counts: many configs name the scaled number. Llama 3's scaling is part of what
// the model was trained with. At most `most`.
int64_t scaled_positions(const RopeConfig& rope, int64_t positions, int64_t most);

struct ModelConfig {
  std::string family;  // "llama", "ministral3", "mistral", "mistral3" (GGUF: with or without query_beta), "phi3",
                       // "qwen2", "qwen3", "seed_oss"
  int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0, max_positions = 0;
  double rms_eps = 1e-5;
  RopeConfig rope;
  bool tied_head = false;        // lm_head is the embedding
  bool qkv_bias = false;         // Qwen2.5; Llama and Seed-OSS with attention_bias
  bool output_bias = false;      // o_proj bias (Llama with attention_bias, Seed-OSS with attention_out_bias)
  bool qk_norm = false;          // Qwen3: RMSNorm over each head of q and k, before rope
  bool images = false;           // the model takes images, too; what reads them is not loaded (Mistral 3)
  std::vector<int32_t> end_ids;  // eos ids that the config or generation_config.json names
};

// Inverse frequencies, [head_dim / 2] in f32 as the reference implementation computes them, and the factor that cos and
// sin are multiplied by (1 but for yarn). Pure. transformers' modeling_rope_utils is the reference.
struct RopeTable {
  std::vector<float> inv_freq;
  float scale = 1.0f;
};
RopeTable make_rope_table(const RopeConfig& rope, int64_t head_dim, int64_t max_positions);

// config.json's content, in the published forms (rope_theta + rope_scaling, or rope_parameters). Throws
// Error(kBadInput).
ModelConfig parse_config_json(std::string_view json, const std::string& source);

}  // namespace headrace
