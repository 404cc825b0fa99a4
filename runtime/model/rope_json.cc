#include "runtime/model/rope_json.h"

#include "cache/base.h"
#include "runtime/model/config_check.h"

namespace headrace {
namespace {

using nlohmann::json;

// rope_scaling (wins, if it says anything) or rope_parameters, whose one entry may be named after the layer type.
const json* rope_object(const JsonFields& fields, std::string* prefix) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json* object = fields.find(key);
    if (object == nullptr || object->empty()) continue;
    if (!object->is_object()) fields.refuse(key, "must be an object");
    *prefix = str(key, ".");
    if (const auto full = object->find("full_attention"); full != object->end()) {
      if (!full->is_object()) fields.refuse(key, "must hold an object for \"full_attention\"");
      *prefix += "full_attention.";
      return &*full;
    }
    return object;
  }
  return nullptr;
}

void parse_yarn(const JsonFields& rope, int64_t max_positions, RopeConfig* out) {
  if (!rope.has("factor"))
    out->factor = static_cast<double>(max_positions) / static_cast<double>(out->original_max_positions);
  // A zero stands for "absent" here, as it does in the reference.
  out->beta_fast = rope.number_or("beta_fast", 0, 1e6, 32);
  out->beta_slow = rope.number_or("beta_slow", 0, 1e6, 1);
  if (out->beta_fast == 0) out->beta_fast = 32;
  if (out->beta_slow == 0) out->beta_slow = 1;
  if (rope.has("attention_factor")) out->attention_factor = rope.number("attention_factor", 1e-6, 1e6);
  out->mscale = rope.number_or("mscale", 0, 1e6, 0);
  out->mscale_all_dim = rope.number_or("mscale_all_dim", 0, 1e6, 0);
  out->truncate = rope.boolean_or("truncate", true);
}

}  // namespace

double rotary_part(const JsonFields& fields, double absent) {
  std::string prefix;
  const json* object = rope_object(fields, &prefix);
  const double beside = fields.number_or("partial_rotary_factor", 0, 1, absent);
  if (object == nullptr) return beside;
  return JsonFields(*object, fields.source(), prefix).number_or("partial_rotary_factor", 0, 1, beside);
}

RopeConfig parse_rope(const JsonFields& fields, int64_t max_positions, RopeAllowed allowed) {
  constexpr double kMaxTheta = 1e15, kMaxFactor = 1e6;
  RopeConfig out;
  out.theta = fields.number_or("rope_theta", 1e-3, kMaxTheta, allowed.theta);
  if (!allowed.part && fields.number_or("partial_rotary_factor", 0, 1e6, 1) != 1)
    fields.refuse("partial_rotary_factor", "is not supported (1 is)");
  std::string prefix;
  const json* object = rope_object(fields, &prefix);
  if (object == nullptr) return out;
  const JsonFields rope(*object, fields.source(), prefix);
  out.theta = rope.number_or("rope_theta", 1e-3, kMaxTheta, out.theta);
  out.query_beta = rope.number_or("llama_4_scaling_beta", 0, kMaxQueryBeta, 0);
  if (out.query_beta != 0 && !allowed.query_scale)
    rope.refuse("llama_4_scaling_beta", "is supported for ministral3 only: no other family scales queries");
  if (out.query_beta != 0) out.query_step = rope.integer("original_max_position_embeddings", 1, kMaxPositions);
  if (!allowed.part && rope.number_or("partial_rotary_factor", 0, 1e6, 1) != 1)
    rope.refuse("partial_rotary_factor", "is not supported (1 is)");
  const char* key = rope.has("rope_type") ? "rope_type" : "type";
  const std::string type = rope.string_or(key, "default");
  if (rope.has("long_factor") || rope.has("short_factor"))
    rope.refuse(rope.has("long_factor") ? "long_factor" : "short_factor", "means LongRoPE, which is not supported");
  if (type == "default") return out;
  if (type == "linear") out.scaling = RopeScaling::kLinear;
  if (type == "llama3") out.scaling = RopeScaling::kLlama3;
  if (type == "yarn") out.scaling = RopeScaling::kYarn;
  if (out.scaling == RopeScaling::kNone)
    rope.refuse(key, "is not a supported rope scaling", "supported: default, linear, llama3, yarn");
  const char* original = "original_max_position_embeddings";
  out.original_max_positions = rope.integer_or(original, 1, kMaxPositions, max_positions);
  out.original_max_positions = fields.integer_or(original, 1, kMaxPositions, out.original_max_positions);
  if (out.scaling != RopeScaling::kYarn || rope.has("factor")) out.factor = rope.number("factor", 1e-3, kMaxFactor);
  if (out.scaling == RopeScaling::kLlama3) {
    out.low_freq_factor = rope.number("low_freq_factor", 1e-6, kMaxFactor);
    out.high_freq_factor = rope.number("high_freq_factor", 1e-6, kMaxFactor);
  }
  if (out.scaling == RopeScaling::kYarn) parse_yarn(rope, max_positions, &out);
  if (out.scaling == RopeScaling::kLinear) out.original_max_positions = 0;
  return out;
}

}  // namespace headrace
