#include "runtime/model/files/shapes.h"

#include "cache/base.h"
#include "runtime/base/input_file.h"
#include "runtime/base/json_file.h"
#include "runtime/model/config_check.h"
#include "runtime/model/decoder_tensors.h"

namespace headrace {
namespace {

enum class Family { kLlama, kMistral, kQwen2, kQwen3, kPhi3, kMinistral3, kSeedOss };
enum class Head { kTied, kOwn };

struct Row {
  const char* name;
  Family family;
  int64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, positions;
  double theta;
  double llama3_factor;  // 0: no rope scaling
  Head head;
};

// As the models' config.json files have them.
constexpr Row kShapes[] = {
    {"smollm2-135m", Family::kLlama, 30, 576, 9, 3, 64, 1536, 49152, 8192, 1e5, 0, Head::kTied},
    {"smollm2-360m", Family::kLlama, 32, 960, 15, 5, 64, 2560, 49152, 8192, 1e5, 0, Head::kTied},
    {"smollm2-1.7b", Family::kLlama, 24, 2048, 32, 32, 64, 8192, 49152, 8192, 1.3e5, 0, Head::kTied},
    {"llama-2-7b", Family::kLlama, 32, 4096, 32, 32, 128, 11008, 32000, 4096, 1e4, 0, Head::kOwn},
    {"llama-3.2-1b", Family::kLlama, 16, 2048, 32, 8, 64, 8192, 128256, 131072, 5e5, 32, Head::kTied},
    {"llama-3.2-3b", Family::kLlama, 28, 3072, 24, 8, 128, 8192, 128256, 131072, 5e5, 32, Head::kTied},
    {"llama-3.1-8b", Family::kLlama, 32, 4096, 32, 8, 128, 14336, 128256, 131072, 5e5, 8, Head::kOwn},
    {"llama-3.1-70b", Family::kLlama, 80, 8192, 64, 8, 128, 28672, 128256, 131072, 5e5, 8, Head::kOwn},
    {"llama-3.3-70b", Family::kLlama, 80, 8192, 64, 8, 128, 28672, 128256, 131072, 5e5, 8, Head::kOwn},
    {"mistral-7b-v0.3", Family::kMistral, 32, 4096, 32, 8, 128, 14336, 32768, 32768, 1e6, 0, Head::kOwn},
    {"mistral-small-24b", Family::kMistral, 40, 5120, 32, 8, 128, 32768, 131072, 32768, 1e8, 0, Head::kOwn},
    {"ministral-3-14b", Family::kMinistral3, 40, 5120, 32, 8, 128, 16384, 131072, 262144, 1e9, 0, Head::kOwn},
    {"phi-4", Family::kPhi3, 40, 5120, 40, 10, 128, 17920, 100352, 16384, 2.5e5, 0, Head::kOwn},
    {"qwen2.5-0.5b", Family::kQwen2, 24, 896, 14, 2, 64, 4864, 151936, 32768, 1e6, 0, Head::kTied},
    {"qwen2.5-1.5b", Family::kQwen2, 28, 1536, 12, 2, 128, 8960, 151936, 32768, 1e6, 0, Head::kTied},
    {"qwen2.5-3b", Family::kQwen2, 36, 2048, 16, 2, 128, 11008, 151936, 32768, 1e6, 0, Head::kTied},
    {"qwen2.5-7b", Family::kQwen2, 28, 3584, 28, 4, 128, 18944, 152064, 32768, 1e6, 0, Head::kOwn},
    {"qwen2.5-14b", Family::kQwen2, 48, 5120, 40, 8, 128, 13824, 152064, 32768, 1e6, 0, Head::kOwn},
    {"qwen3-0.6b", Family::kQwen3, 28, 1024, 16, 8, 128, 3072, 151936, 40960, 1e6, 0, Head::kTied},
    {"qwen3-1.7b", Family::kQwen3, 28, 2048, 16, 8, 128, 6144, 151936, 40960, 1e6, 0, Head::kTied},
    {"qwen3-4b", Family::kQwen3, 36, 2560, 32, 8, 128, 9728, 151936, 40960, 1e6, 0, Head::kTied},
    {"qwen3-8b", Family::kQwen3, 36, 4096, 32, 8, 128, 12288, 151936, 40960, 1e6, 0, Head::kOwn},
    {"qwen3-14b", Family::kQwen3, 40, 5120, 40, 8, 128, 17408, 151936, 40960, 1e6, 0, Head::kOwn},
    {"qwen3-32b", Family::kQwen3, 64, 5120, 64, 8, 128, 25600, 151936, 40960, 1e6, 0, Head::kOwn},
    {"seed-oss-36b", Family::kSeedOss, 64, 5120, 80, 8, 128, 27648, 155136, 524288, 1e7, 0, Head::kOwn},
};

const char* family_name(Family family) {
  constexpr const char* kNames[] = {"llama", "mistral", "qwen2", "qwen3", "phi3", "ministral3", "seed_oss"};
  return kNames[static_cast<size_t>(family)];
}

ModelConfig config_of(const Row& row) {
  ModelConfig c;
  c.family = family_name(row.family);
  c.hidden = row.hidden;
  c.vocab = row.vocab;
  c.max_positions = row.positions;
  const bool small_eps = row.family == Family::kQwen2 || row.family == Family::kQwen3 || row.family == Family::kSeedOss;
  c.rms_eps = small_eps ? 1e-6 : 1e-5;
  c.rope.theta = row.theta;
  if (row.llama3_factor > 0) {
    c.rope.scaling = RopeScaling::kLlama3;
    c.rope.factor = row.llama3_factor;
    c.rope.original_max_positions = 8192;
  }
  if (row.family == Family::kMinistral3) {
    c.rope.scaling = RopeScaling::kYarn;
    c.rope.factor = 16;
    c.rope.original_max_positions = 16384;
    c.rope.mscale = c.rope.mscale_all_dim = 1;
    c.rope.query_beta = 0.1;
    c.rope.query_step = 16384;
  }
  c.tied_head = row.head == Head::kTied;
  const AttentionSpec attention = {.heads = row.heads,
                                   .kv_heads = row.kv_heads,
                                   .head_dim = row.head_dim,
                                   .qkv_bias = row.family == Family::kQwen2 || row.family == Family::kSeedOss,
                                   .qk_norm = row.family == Family::kQwen3};
  c.layers = same_layers(row.layers, {.mixer = attention, .ffn = {row.ffn}});
  check_config(c, row.name);
  return c;
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
