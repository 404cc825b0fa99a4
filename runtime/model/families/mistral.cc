// Mistral, without a sliding window; Ministral 3, whose queries are scaled by their position; Mistral 3, which takes
// images and has either as its decoder. GGUF files have Mistral as llama, and the other two as mistral3.
#include "cache/base.h"
#include "runtime/base/end_ids.h"
#include "runtime/base/json_file.h"
#include "runtime/model/config_check.h"
#include "runtime/model/families/llama_like.h"

namespace headrace {
namespace {

using nlohmann::json;

void read_mistral(const JsonFields& fields, ModelConfig* config) {
  read_sizes(fields, config);
  refuse_window(fields, *config, 4096);
  read_layers(fields, read_heads(fields, *config, {}), config);
}

void read_ministral3(const JsonFields& fields, ModelConfig* config) {
  read_sizes(fields, config);
  refuse_window(fields, *config, config->max_positions);
  read_layers(fields, read_heads(fields, *config, {.head_dim = 128}), config, QueryScale::kByPosition);
}

// The decoder's config is in text_config.
void read_mistral_with_images(const JsonFields& whole, ModelConfig* config) {
  refuse_unsupported(whole);
  const json* inner = whole.find("text_config");
  if (inner == nullptr || !inner->is_object()) whole.refuse("text_config", "must be an object: the decoder's config");
  const JsonFields fields(*inner, whole.source(), "text_config.");
  config->family = fields.string_or("model_type", "mistral");
  if (config->family == "mistral") {
    read_mistral(fields, config);
  } else if (config->family == "ministral3") {
    read_ministral3(fields, config);
  } else {
    fields.refuse("model_type", "is not supported", "supported: mistral, ministral3");
  }
  config->images = true;
  config->tied_head = whole.boolean_or("tie_word_embeddings", fields.boolean_or("tie_word_embeddings", true));
  append_end_ids(whole, config->vocab, &config->end_ids);
}

// The decoder's tensors as transformers writes them since 4.52, and as it did before.
std::string mistral3_tensor(std::string_view stored) {
  constexpr std::string_view kNow = "model.language_model.", kBefore = "language_model.";
  if (stored.starts_with(kNow)) return str("model.", stored.substr(kNow.size()));
  if (stored.starts_with(kBefore)) return std::string(stored.substr(kBefore.size()));
  return stored == "lm_head.weight" ? std::string(stored) : "";
}

// The step is the context that the model was trained with before YaRN, `trained` positions where no key says it.
void read_query_scale(const GgufSource& source, int64_t trained, RopeConfig* rope) {
  const GgufFields& fields = source.fields;
  rope->query_beta = fields.number_or(source.key("attention.temperature_scale"), 0, kMaxQueryBeta, 0);
  if (rope->query_beta == 0) return;
  const std::string original = source.key("rope.scaling.original_context_length"),
                    length = source.key("attention.temperature_length");
  rope->query_step = fields.integer_or(original, 1, kMaxPositions, trained);
  const int64_t other = fields.integer_or(length, 1, kMaxPositions, rope->query_step);
  if (other != rope->query_step)
    fields.refuse(length, str(other, " differs from ", original, ", ", rope->query_step, "; that is not supported"));
}

void read_mistral3(const GgufSource& source, ModelConfig* config) {
  read_sizes(source, config);
  const int64_t trained = config->max_positions;
  read_rope(source, config);
  read_query_scale(source, trained, &config->rope);
  read_layers(source, read_heads(source, *config), config);
}

}  // namespace

const Family& mistral_family() {
  static const Family family = {.json = {{.name = "ministral3",
                                          .model_types = {"ministral3"},
                                          .architectures = {"Ministral3ForCausalLM"},
                                          .read = read_ministral3},
                                         {.name = "mistral",
                                          .model_types = {"mistral"},
                                          .architectures = {"MistralForCausalLM"},
                                          .read = read_mistral},
                                         {.name = "mistral3",
                                          .model_types = {"mistral3"},
                                          .architectures = {"Mistral3ForConditionalGeneration"},
                                          .read = read_mistral_with_images,
                                          .tensor_name = mistral3_tensor}},
                                .gguf = {{.architecture = "mistral3",
                                          .also = "",
                                          .read = read_mistral3,
                                          .tensors = llama_like_tensors(),
                                          .rotary_pairs = true}}};
  return family;
}

}  // namespace headrace
