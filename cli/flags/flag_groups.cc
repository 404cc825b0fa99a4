#include "cli/flags/flag_groups.h"

#include <utility>

#include "runtime/base/input_file.h"
#include "runtime/grammar/schema.h"

namespace headrace {
namespace {

constexpr int kMaxGpus = 64;

// auto, cpu, cuda or cuda:N.
SetFlag device_value(DeviceOptions* out) {
  const auto set = [out](const std::string& value) {
    const SetFlag name = choice_value<DeviceChoice>(
        &out->choice, {{"auto", DeviceChoice::kAuto}, {"cuda", DeviceChoice::kCuda}, {"cpu", DeviceChoice::kCpu}},
        ", cuda:N");
    out->cuda_index = -1;
    if (!value.starts_with("cuda:")) return name(value);
    const std::string wrong = int_value(&out->cuda_index, 0, kMaxGpus - 1)(value.substr(5));
    if (wrong.empty()) out->choice = DeviceChoice::kCuda;
    return wrong.empty() ? wrong : "'" + value + "': " + wrong;
  };
  return {set, {"auto", "cuda", "cpu"}};
}

// cpu or cuda:N. With auto or cuda two entries could be the same GPU.
SetFlag listed_device_value(DeviceOptions* out) {
  const auto set = [out](const std::string& value) {
    if (value == "cpu" || value.starts_with("cuda:")) return device_value(out)(value);
    return "'" + value + "' is not one of cpu, cuda:N";
  };
  return {set, {"cpu", "cuda:0", "cuda:0,cuda:1"}};
}

SetFlag tree_value(std::optional<TreeShape>* out) {
  const auto set = [out](const std::string& value) {
    *out = parse_tree(value);  // its error names the flag
    return std::string();
  };
  return {set, {"auto"}};
}

// A policy, and where `of_shape` is not null, the types of random weights, some of which have the name of a policy.
SetFlag weights_value(WeightPolicy* out, const WeightMixture** of_shape) {
  const auto set = [out, of_shape](const std::string& value) {
    const WeightMixture* const mixture = find_weight_mixture(value);
    if (of_shape != nullptr) *of_shape = mixture;
    const std::string also = of_shape == nullptr ? "" : str("; with --shape also ", weight_mixture_names());
    const std::string wrong = policy_value(out, also)(value);
    if (wrong.empty() || mixture == nullptr) return wrong;
    *out = WeightPolicy::kKeep;
    return of_shape != nullptr ? std::string() : weights_of_a_file(value);
  };
  return {set, policy_value(out).words()};
}

SetFlag scaling_value(std::optional<RopeScaling>* out) {
  return choice_value<std::optional<RopeScaling>>(
      out, {{"none", RopeScaling::kNone}, {"linear", RopeScaling::kLinear}, {"yarn", RopeScaling::kYarn}});
}

std::vector<Flag> cache_type_flags(EngineOptions* o) {
  return {
      {"--cache-type-k", "TYPE", cache_type_value(&o->cache_type_k),
       "Data type of the cached keys: bf16, f16, f32 or int8 (also q8_0) [the weights' type]"},
      {"--cache-type-v", "TYPE", cache_type_value(&o->cache_type_v),
       "Data type of the cached values [the weights' type]"},
      {"--spill", "DIR[:SIZE]", folder_value(&o->spill.folder, &o->spill.limit_bytes),
       "Put the part of the KV cache that exceeds host memory on disk, in a temporary file of at most SIZE in DIR"},
  };
}

}  // namespace

std::string weights_of_a_file(const std::string& name) {
  return str("'", name,
             "' is for the random weights of --shape (bench, plan); a file's weights are kept (keep), "
             "dequantised (dtype, bf16) or quantised (q8_0, q6_k, q5_k, q4_k)");
}

SetFlag policy_value(WeightPolicy* out, const std::string& also) {
  return choice_value<WeightPolicy>(out,
                                    {{"keep", WeightPolicy::kKeep},
                                     {"dtype", WeightPolicy::kDequantise},
                                     {"bf16", WeightPolicy::kBf16},
                                     {"q8_0", WeightPolicy::kQ8_0},
                                     {"q6_k", WeightPolicy::kQ6K},
                                     {"q5_k", WeightPolicy::kQ5K},
                                     {"q4_k", WeightPolicy::kQ4K}},
                                    also);
}

std::vector<Flag> model_flags(EngineOptions* o, const WeightMixture** of_shape) {
  const std::string types =
      of_shape == nullptr ? "" : "; with --shape, the type of the random weights: " + weight_mixture_names();
  return {
      {"-m,--model", "MODEL", text_value(&o->model),
       "Hugging Face directory, .gguf file, or org/name in the local Hugging Face hub cache"},
      {"--dtype", "TYPE", dtype_value(&o->dtype, {"auto", "bf16", "f32"}),
       "Data type of the weights and of the computation: auto, bf16 or f32 [auto]"},
      {"--weights", "KIND", weights_value(&o->weights, of_shape),
       "How weight matrices are loaded: keep (as the file has them), dtype (dequantised to --dtype), bf16 (dequantised "
       "to bf16), or q8_0, q6_k, q5_k, q4_k (quantised, where the file has not quantised them)" +
           types + " [keep]"},
      {"--prefill-type", "TYPE",
       choice_value<PrefillType>(
           &o->prefill, {{"auto", PrefillType::kAuto}, {"bf16", PrefillType::kCompute}, {"int8", PrefillType::kInt8}}),
       "Arithmetic for reading the prompt: int8, bf16 (the data type of the computation, also where it is f32), or "
       "auto "
       "(int8 if weights are quantised and the computation is not f32) [auto]"},
      {"--allow-damaged-weights", &o->allow_damaged_weights,
       "Only warn about weights that are NaN or infinite; without this flag they are an error"},
  };
}

std::vector<Flag> template_flags(EngineOptions* o) {
  const SetFlag name(text_value(&o->chat_template), {"chatml", "llama2", "llama3", "mistral", "qwen3"});
  return {
      {"--chat-template", "NAME", name,
       "Use this chat template instead of the model's: chatml, llama2, llama3, mistral or qwen3"},
      {"--chat-template-file", "FILE", text_value(&o->chat_template_file),
       "Use the Jinja template in FILE instead of the model's"},
      {"--thinking", &o->thinking, "Let the chat template ask the model to think before it answers"},
      {"--reasoning-effort", "LEVEL",
       choice_value(
           &o->reasoning_effort,
           std::vector<std::pair<std::string, std::string>>{{"low", "low"}, {"medium", "medium"}, {"high", "high"}}),
       "How much the chat template asks the model to think: low, medium or high [the template's]"},
      {"--no-chat-template", [o] { o->use_chat_template = false; }, "Pass the prompt to the model without a template"},
  };
}

std::vector<Flag> rope_flags(RopeOverrides* r) {
  return {
      {"--rope-scaling", "KIND", scaling_value(&r->scaling), "RoPE scaling: none, linear or yarn [the model's]"},
      {"--rope-scale", "FACTOR", double_value(&r->factor, 1, 1024),
       "Extend the context by this factor (linear, yarn) [the model's]"},
      {"--rope-freq-base", "BASE", double_value(&r->theta, 1, 1e12), "RoPE base frequency [the model's]"},
      {"--yarn-orig-ctx", "TOKENS", tokens_value(&r->original_positions),
       "Context length that the model was trained with [the model's]"},
  };
}

Flag prefix_cache_flag(EngineOptions* o) {
  return {"--prefix-cache", "DIR[:SIZE]", folder_value(&o->prefix_cache.folder, &o->prefix_cache.limit_bytes),
          "Save the KV cache of prompts in DIR, and load from there the longest saved prefix of a new prompt; use at "
          "most SIZE [half of the free space]"};
}

Flag devices_flag(std::vector<DeviceOptions>* out) {
  return {"--devices", "LIST", list_value<DeviceOptions>(out, listed_device_value),
          "Several devices, separated by commas, that share the work: cuda:0,cuda:1. --vram applies to each; "
          "--host-mem and the threads are divided among them"};
}

std::vector<Flag> device_flags(DeviceOptions* o) {
  return {
      {"--vram", "SIZE", bytes_value(&o->vram_bytes),
       "Hard limit for device memory, such as 24GiB or 24GB (GiB and G are binary, GB is decimal) [free memory less "
       "512MiB]"},
      {"--host-mem", "SIZE", bytes_value(&o->host_mem_bytes),
       "Hard limit for pinned host memory [60% of the available memory]"},
      {"--device", "DEVICE", device_value(o),
       "Device to run on: auto (a GPU if it can be used), cuda, cuda:N (--list-devices prints the numbers) or cpu "
       "[auto]"},
      {"-t,--threads", "N", int_value(&o->threads, 1, 1024), "CPU threads [all cores]"},
  };
}

std::vector<Flag> memory_flags(EngineOptions* o) {
  std::vector<Flag> flags = cache_type_flags(o);
  for (Flag& flag : device_flags(&o->device)) flags.push_back(std::move(flag));
  return flags;
}

// A kind of draft, and look-up beside one that has a model.
SetFlag spec_type_value(DraftOptions* o) {
  std::vector<std::pair<std::string, SpecType>> kinds = {{spec_type_name(SpecType::kAuto), SpecType::kAuto}};
  for (const SpecType type : kSpecTypes) kinds.emplace_back(spec_type_name(type), type);
  const auto set = [o, kinds](const std::string& value) -> std::string {
    const std::string beside = str(",", spec_type_name(SpecType::kNgram));
    DraftOptions read;
    read.look_up = value.ends_with(beside);
    const std::string kind = read.look_up ? value.substr(0, value.size() - beside.size()) : value;
    const std::string wrong = choice_value<SpecType>(&read.type, kinds)(kind);
    if (!wrong.empty()) return wrong;
    const bool has_model =
        read.type != SpecType::kNone && read.type != SpecType::kAuto && read.type != SpecType::kNgram;
    if (read.look_up && !has_model) {
      return "'" + value + "': look-up stands beside a draft with a model, such as draft-eagle3" + beside;
    }
    o->type = read.type;
    o->look_up = read.look_up;
    return {};
  };
  return {set, choice_value<SpecType>(&o->type, kinds).words()};
}

// window, or retrieval[:CHUNKS[,ROWS[,EVERY]]].
SetFlag draft_cache_value(std::optional<RetrievalShape>* out) {
  const auto set = [out](const std::string& value) {
    const std::string wrong = "'" + value + "' is none of window and retrieval[:CHUNKS[,ROWS[,EVERY]]]";
    out->reset();
    if (value == "window") return std::string();
    RetrievalShape shape;
    constexpr std::string_view kName = "retrieval";
    if (!value.starts_with(kName)) return wrong;
    std::string rest = value.substr(kName.size());
    if (!rest.empty() && (rest[0] != ':' || rest.size() == 1)) return wrong;
    const SetFlag parts[] = {int_value(&shape.chunks, 1, kMaxKeptBlocks), int_value(&shape.rows, 16, 256),
                             int_value(&shape.every, 1, 1024)};
    for (size_t i = 0; !rest.empty(); ++i) {
      if (i == std::size(parts)) return wrong;
      const size_t end = std::min(rest.find(',', 1), rest.size());
      const std::string error = parts[i](rest.substr(1, end - 1));
      if (!error.empty()) return error;
      rest.erase(0, end);
    }
    *out = shape;
    return std::string();
  };
  return {set, {"window", "retrieval"}};
}

std::vector<Flag> draft_flags(DraftOptions* o) {
  o->type = SpecType::kAuto;
  return {
      {"--spec-type", "KIND", spec_type_value(o),
       "Draft for speculative decoding, which makes decoding faster and leaves the text unchanged: none, draft-mtp (a "
       "block in the model's own file), "
       "draft-eagle3, draft-longspec, draft-simple (a small model with the same vocabulary) or ngram-simple (look-up "
       "in the text, no draft model); a draft model and look-up together: draft-eagle3,ngram-simple; auto is draft-mtp "
       "if the file has such a block, else none [auto]"},
      {"--model-draft", "MODEL", text_value(&o->model), "Draft model, in the forms that -m accepts"},
      {"--tree", "SHAPE", tree_value(&o->tree),
       "Shape of the tree of tokens that the draft proposes per step: auto, eagle2:NODES,DEPTH,TOPK, "
       "opt:NODES,DEPTH,THRESHOLD, "
       "beams:4,16,16,16,16 or chain:N; at most 128 nodes. auto chooses by measured times; with --verify approximate, "
       "whose text depends on it, auto is a fixed tree: 64 nodes on a GPU, 4 on the CPU [auto]"},
      {"--spec-draft-n-max", "N", int_value(&o->most_tokens, 1, kMaxTreeNodes - 1),
       "Maximum number of tokens that the draft proposes per step [the tree's]"},
      {"--draft-window", "TOKENS", int_value(&o->window, 0, int64_t{1} << 40),
       "Number of most recent tokens that the draft attends to, besides the first few; 0: all [the draft's; if the "
       "context is longer than an EAGLE-3 head was trained for, that length; of an MTP block 8,192 where the device "
       "lacks room for all]"},
      {"--draft-cache", "KIND", draft_cache_value(&o->retrieval),
       "What the draft attends to before its window: window (the first few tokens) or "
       "retrieval[:CHUNKS[,ROWS[,EVERY]]], the CHUNKS chunks of ROWS tokens that the model's last layer attends to "
       "most, chosen every EVERY steps; for draft-eagle3 and draft-simple [window; retrieval: 64 chunks of 32 tokens, "
       "with draft-simple 32, or as many as the draft was trained for, every 4 steps]"},
      {"--draft-rope-scaling", "KIND", scaling_value(&o->rope.scaling),
       "RoPE scaling of the draft: none, linear or yarn [the draft's]"},
      {"--draft-rope-scale", "FACTOR", double_value(&o->rope.factor, 1, 1024),
       "Extend the draft's context by this factor (linear, yarn) [the draft's]"},
      {"--draft-rope-theta", "BASE", double_value(&o->rope.theta, 1, 1e12),
       "RoPE base frequency of the draft [the draft's]"},
      {"--draft-yarn-orig-ctx", "TOKENS", tokens_value(&o->rope.original_positions),
       "Context length that the draft was trained with before YaRN, where its config names another [the draft's]"},
  };
}

// The file is read at once: a schema that is not supported is an error before the model is opened.
SetFlag schema_value(std::shared_ptr<const Grammar>* out) {
  return [out](const std::string& path) {
    *out = schema_grammar(read_small_file(path, kMaxSchemaBytes), path);
    return std::string();
  };
}

std::vector<Flag> sampling_flags(GenerateOptions* o) {
  SamplingSettings* s = &o->sampling;
  return {
      {"-n,--predict,--max-tokens", "N", int_value(&o->max_tokens, -1, int64_t{1} << 40),
       str("Maximum number of tokens to generate; -1: until the context is full [", o->max_tokens, "]")},
      {"--temp", "T", float_value(&s->temperature, 0, 100), "Temperature; 0 selects the most likely token [0]"},
      {"--top-k", "K", int_value(&s->top_k, 0, INT32_MAX), "Sample from the K most likely tokens; 0: all [0]"},
      {"--top-p", "P", float_value(&s->top_p, 1e-6f, 1),
       "Sample from the smallest set of tokens whose probabilities sum to P [1]"},
      {"--min-p", "P", float_value(&s->min_p, 0, 1),
       "Sample from tokens at least P times as likely as the most likely one [0]"},
      {"-s,--seed", "N", seed_value(&s->seed), "Random seed; the same seed gives the same text [0]"},
      {"--repeat-penalty", "F", float_value(&o->penalties.repetition, 0.01f, 100),
       "Divide the logit of each token that the text already has by F (multiply it, if it is negative); 1: off [1]"},
      {"--presence-penalty", "F", float_value(&o->penalties.presence, -100, 100),
       "Subtract F from the logit of each token that the answer already has [0]"},
      {"--frequency-penalty", "F", float_value(&o->penalties.frequency, -100, 100),
       "Subtract F from the logit of a token for each time that it is in the answer [0]"},
      {"--json-schema", "FILE", schema_value(&o->grammar),
       "Answer with JSON that is valid by the JSON schema in FILE; thinking before the answer is free"},
      {"--ignore-eos", &o->ignore_eos, "Continue after an end token"},
      {"--reasoning-budget", "N", int_value(&o->reasoning_budget, -1, INT32_MAX),
       "Maximum number of tokens of thinking, after which the answer begins; 0: no thinking; -1: no limit [-1]"},
  };
}

Flag hide_thinking_flag(OutputArgs* o) {
  return {"--hide-thinking", &o->hide_thinking, "Print the answer without the thinking before it"};
}

Flag quiet_flag(OutputArgs* o) { return {"-q,--quiet", &o->quiet, "Print neither progress nor report"}; }

std::vector<Flag> output_flags(OutputArgs* o) {
  return {
      {"--json", &o->json, "Print one JSON object per run to stdout, with token ids, timings, memory and transfers"},
      quiet_flag(o),
  };
}

Flag trace_flag(EngineOptions* o) {
  return {"--trace", "FILE", text_value(&o->device.trace_path),
          "Write a trace of computation and transfers for ui.perfetto.dev or chrome://tracing"};
}

}  // namespace headrace
