// headrace inspect: shows a model from its headers alone, or the prompt that its chat template makes of messages.
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "cli/print/format.h"
#include "runtime/model/files/open_checkpoint.h"
#include "runtime/model/rope_overrides.h"
#include "runtime/model/weight_store.h"
#include "runtime/text/chat_render.h"
#include "runtime/text/document.h"

namespace headrace {
namespace {

constexpr uint64_t kCardBytes = 24 * kGiB, kCardReserveBytes = 512 * kMiB;

struct ModelFacts {
  int64_t parameters = 0;
  DType dtype = DType::kBF16;                   // of --dtype auto
  uint64_t stored_bytes = 0, loaded_bytes = 0;  // loaded: as --weights has them
  uint64_t kv_bytes_per_token = 0;              // in the type of --dtype auto
  int64_t tokens_in_card = 0;                   // weights and KV cache both on a 24 GiB device
  struct Type {
    int tensors = 0;
    uint64_t stored_bytes = 0, loaded_bytes = 0;
  };
  std::map<std::string, Type> types;  // by stored type
};

ModelFacts facts_of(const Checkpoint& model, WeightPolicy policy) {
  ModelFacts facts;
  const ModelConfig& c = model.config();
  facts.dtype = computed_in(policy, model.natural_dtype());
  const uint64_t element = dtype_bytes(facts.dtype);
  for (const TensorInfo& tensor : model.tensors()) {
    const int64_t elements = tensor.rows() * tensor.cols();
    facts.parameters += elements;
    facts.stored_bytes += tensor.stored_bytes;
    const bool matrix = tensor.shape.size() == 2;
    const uint64_t loaded_bytes =
        matrix ? weight_bytes(loaded_type(tensor, {facts.dtype, policy}), tensor.rows(), tensor.cols())
               : static_cast<uint64_t>(elements) * element;
    facts.loaded_bytes += loaded_bytes;
    ModelFacts::Type& type = facts.types[tensor.stored_type];
    ++type.tensors;
    type.stored_bytes += tensor.stored_bytes;
    type.loaded_bytes += loaded_bytes;
  }
  facts.kv_bytes_per_token = static_cast<uint64_t>(c.kv_values()) * element;
  const uint64_t taken = facts.loaded_bytes + kCardReserveBytes;
  if (taken < kCardBytes) facts.tokens_in_card = static_cast<int64_t>((kCardBytes - taken) / facts.kv_bytes_per_token);
  return facts;
}

std::string shape_text(const TensorInfo& tensor) {
  std::string text;
  for (int64_t size : tensor.shape) text += (text.empty() ? "" : " x ") + std::to_string(size);
  return text;
}

std::string what_fits(const ModelFacts& facts, int64_t context_tokens) {
  if (facts.tokens_in_card >= context_tokens)
    return "the weights and the KV cache of all " + format_count(context_tokens) + " tokens";
  if (facts.tokens_in_card == 0) return "not the weights: they take " + format_bytes(facts.loaded_bytes);
  return "the weights and " + format_count(facts.tokens_in_card) + " tokens of KV cache; the rest goes to host memory";
}

void print_text(const Checkpoint& model, const ModelFacts& facts, bool tensors) {
  const ModelConfig& c = model.config();
  std::string types;
  for (const auto& [type, sum] : facts.types) {
    types += str(types.empty() ? "" : ", ", sum.tensors, " ", type, " (", format_bytes(sum.stored_bytes), ")");
  }
  std::string text = model.path() + "\n";
  const auto row = [&text](const char* name, const std::string& value) {
    char head[24];
    std::snprintf(head, sizeof head, "  %-12s", name);
    text += head + value + "\n";
  };
  row("model", str(c.family, ", ", format_count(facts.parameters), " parameters, ", model.format()));
  if (c.images) row("images", "not read: the decoder alone is loaded");
  row("shape", str(layers_text(c), ", vocabulary ", format_count(c.vocab), c.tied_head ? ", tied head" : ""));
  row("context", str(format_count(c.max_positions), " tokens, rope theta ", c.rope.theta, ", scaling ",
                     rope_scaling_name(c.rope.scaling)));
  row("tensors", str(model.tensors().size(), ": ", types));
  row("weights", str(format_bytes(facts.stored_bytes), " stored, ", format_bytes(facts.loaded_bytes),
                     " loaded, computed in ", dtype_name(facts.dtype)));
  row("KV cache", str(format_bytes(facts.kv_bytes_per_token), " a token, ",
                      format_bytes(facts.kv_bytes_per_token * static_cast<uint64_t>(c.max_positions)), " for ",
                      format_count(c.max_positions)));
  row("24 GiB hold", what_fits(facts, c.max_positions));
  for (size_t i = 0; tensors && i < model.tensors().size(); ++i) {
    const TensorInfo& tensor = model.tensors()[i];
    text += str("  ", tensor.name, "  [", shape_text(tensor), "]  ", tensor.stored_type, "  ",
                format_bytes(tensor.stored_bytes), "\n");
  }
  std::fputs(visible(text).c_str(), stdout);
}

void print_json(const Checkpoint& model, const ModelFacts& facts, bool tensors) {
  using nlohmann::ordered_json;
  const ModelConfig& c = model.config();
  const AttentionSpec& attention = c.attention();
  ordered_json out = {{"path", model.path()},
                      {"format", model.format()},
                      {"family", c.family},
                      {"parameters", facts.parameters},
                      {"layers", c.layer_count()},
                      {"hidden", c.hidden},
                      {"heads", attention.heads},
                      {"kv_heads", attention.kv_heads},
                      {"head_dim", attention.head_dim},
                      {"ffn", c.layers.front().ffn.width},
                      {"vocab", c.vocab},
                      {"max_positions", c.max_positions},
                      {"rope_theta", c.rope.theta},
                      {"rope_scaling", rope_scaling_name(c.rope.scaling)},
                      {"stored_bytes", facts.stored_bytes},
                      {"loaded_bytes", facts.loaded_bytes},
                      {"kv_bytes_per_token", facts.kv_bytes_per_token},
                      {"tokens_in_24_gib", facts.tokens_in_card}};
  if (const std::optional<ExpertsSpec>& experts = c.layers.front().ffn.experts) {
    out["experts"] = {{"count", experts->count}, {"used", experts->used}, {"ffn", experts->width}};
    if (experts->shared) out["experts"]["shared_ffn"] = c.layers.front().ffn.width;
  }
  for (const auto& [type, sum] : facts.types) {
    out["types"][type] = {{"tensors", sum.tensors}, {"bytes", sum.stored_bytes}, {"loaded_bytes", sum.loaded_bytes}};
  }
  for (size_t i = 0; tensors && i < model.tensors().size(); ++i) {
    const TensorInfo& tensor = model.tensors()[i];
    out["tensors"].push_back(
        {{"name", tensor.name}, {"shape", tensor.shape}, {"type", tensor.stored_type}, {"bytes", tensor.stored_bytes}});
  }
  std::puts(out.dump(-1, ' ', false, ordered_json::error_handler_t::replace).c_str());
}

void print_prompt(const Checkpoint& model, const InspectArgs& args) {
  const std::string& file = args.chat_template_file;
  const std::string source = file.empty() ? model.chat_template() : read_document(file);
  if (source.empty())
    throw_error(ExitCode::kBadInput, file.empty() ? model.path() : file, "has no chat template",
                "give one with --chat-template-file");
  const jinja::Template chat(source, file.empty() ? model.path() + ", chat template" : file);
  const auto messages = parse_chat_messages(read_document(args.render), args.render);
  std::string prompt;
  for (const TextPart& part :
       render_chat(chat, messages, model.load_tokenizer(), {.wish = {.thinking = args.thinking}}))
    prompt += part.text;
  std::fputs(visible(prompt).c_str(), stdout);
}

}  // namespace

ExitCode run_command(const InspectArgs& args) {
  const std::unique_ptr<Checkpoint> model = open_checkpoint(args.model);
  if (!args.render.empty()) {
    print_prompt(*model, args);
    return ExitCode::kDone;
  }
  const ModelFacts facts = facts_of(*model, args.weights);
  if (args.json) {
    print_json(*model, facts, args.tensors);
  } else {
    print_text(*model, facts, args.tensors);
  }
  return ExitCode::kDone;
}

}  // namespace headrace
