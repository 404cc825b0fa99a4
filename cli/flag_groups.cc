#include "cli/flag_groups.h"

#include <utility>

namespace headrace {
namespace {

constexpr int kMostGpus = 64;

// auto, cpu, cuda or cuda:N.
SetFlag device_value(DeviceOptions* out) {
  return [out](const std::string& value) {
    const SetFlag name = choice_value<DeviceChoice>(
        &out->choice, {{"auto", DeviceChoice::kAuto}, {"cuda", DeviceChoice::kCuda}, {"cpu", DeviceChoice::kCpu}});
    out->cuda_index = -1;
    if (!value.starts_with("cuda:")) {
      const std::string wrong = name(value);
      return wrong.empty() ? wrong : wrong + ", cuda:N";
    }
    int64_t index = 0;
    const std::string wrong = int_value(&index, 0, kMostGpus - 1)(value.substr(5));
    if (!wrong.empty()) return "'" + value + "': " + wrong;
    out->choice = DeviceChoice::kCuda;
    out->cuda_index = static_cast<int>(index);
    return std::string();
  };
}

// The shape of the trees; auto leaves it to the program.
SetFlag tree_value(std::optional<TreeShape>* out) {
  return [out](const std::string& value) {
    *out = parse_tree(value);  // its error names the flag
    return std::string();
  };
}

std::vector<Flag> cache_type_flags(EngineOptions* o) {
  return {
      {"--cache-type-k", "TYPE", dtype_value(&o->cache_type_k, {"bf16", "f16", "f32"}), nullptr,
       "-ctk: what keys are kept in: bf16, f16 or f32 [the weights' type]"},
      {"--cache-type-v", "TYPE", dtype_value(&o->cache_type_v, {"bf16", "f16", "f32"}), nullptr,
       "-ctv: what values are kept in [the weights' type]"},
      {"--spill", "DIR[:SIZE]", folder_value(&o->spill.folder, &o->spill.limit_bytes), nullptr,
       "What host memory cannot hold of the KV cache lives on this folder's disk, in SIZE at most, while a run lasts"},
  };
}

}  // namespace

std::vector<Flag> model_flags(EngineOptions* o) {
  return {
      {"-m,--model", "MODEL", text_value(&o->model), nullptr,
       "A Hugging Face directory, a .gguf file, or org/name in the local Hugging Face hub cache"},
      {"--dtype", "TYPE", dtype_value(&o->dtype, {"auto", "bf16", "f32"}), nullptr,
       "What the weights are held and computed in: auto, bf16 or f32 [auto]"},
  };
}

std::vector<Flag> template_flags(EngineOptions* o) {
  return {
      {"--chat-template", "NAME", text_value(&o->chat_template), nullptr,
       "chatml, llama2, llama3, mistral or qwen3 instead of the model's own"},
      {"--chat-template-file", "FILE", text_value(&o->chat_template_file), nullptr,
       "A Jinja template to recognise instead of the model's own"},
  };
}

std::vector<Flag> rope_flags(RopeOverrides* r) {
  const std::vector<std::pair<std::string, std::optional<RopeScaling>>> scalings = {
      {"none", RopeScaling::kNone}, {"linear", RopeScaling::kLinear}, {"yarn", RopeScaling::kYarn}};
  return {
      {"--rope-scaling", "KIND", choice_value<std::optional<RopeScaling>>(&r->scaling, scalings), nullptr,
       "none, linear or yarn [the model's own]"},
      {"--rope-scale", "FACTOR", double_value(&r->factor, 1, 1024), nullptr,
       "The context grows by this factor (linear, yarn) [the model's own]"},
      {"--rope-freq-base", "BASE", double_value(&r->theta, 1, 1e12), nullptr, "The rotary base [the model's own]"},
      {"--yarn-orig-ctx", "TOKENS", tokens_value(&r->original_positions), nullptr,
       "The context that the model was trained with [the model's own]"},
  };
}

SetFlag kv_value(KvMode* out) {
  return choice_value<KvMode>(out, {{"auto", KvMode::kAuto}, {"device", KvMode::kDevice}, {"host", KvMode::kHost}});
}

std::vector<Flag> context_flags(EngineOptions* o) {
  return {
      {"-c,--ctx-size", "TOKENS", tokens_value(&o->ctx_size), nullptr,
       "The most tokens a run may hold, prompt and answer; 128K is 131072 [the model's own]"},
      {"--kv", "MODE", kv_value(&o->kv), nullptr,
       "Where the KV cache lives: auto (on the device while there is room), device or host [auto]"},
  };
}

Flag prefix_cache_flag(EngineOptions* o) {
  return {"--prefix-cache", "DIR[:SIZE]", folder_value(&o->prefix_cache.folder, &o->prefix_cache.limit_bytes), nullptr,
          "Keep the KV cache of prompts in this folder, and take from there what a prompt begins with; at most SIZE "
          "[half of what is free]"};
}

std::vector<Flag> device_flags(DeviceOptions* o, int64_t* threads) {
  return {
      {"--vram", "SIZE", bytes_value(&o->vram_bytes), nullptr,
       "A hard limit for device memory, like 24GiB [what is free, less 512MiB]"},
      {"--host-mem", "SIZE", bytes_value(&o->host_mem_bytes), nullptr,
       "A hard limit for pinned host memory [60% of what is available]"},
      {"--device", "DEVICE", device_value(o), nullptr,
       "-dev: auto, cuda, cuda:N (--list-devices numbers them) or cpu [auto]"},
      {"-t,--threads", "N", int_value(threads, 1, 1024), nullptr, "CPU threads [all cores]"},
  };
}

std::vector<Flag> memory_flags(EngineOptions* o, int64_t* threads) {
  std::vector<Flag> flags = cache_type_flags(o);
  for (Flag& flag : device_flags(&o->device, threads)) flags.push_back(std::move(flag));
  return flags;
}

std::vector<Flag> draft_flags(DraftOptions* o, int64_t* n_max) {
  return {
      {"--spec-type", "KIND",
       choice_value<SpecType>(&o->type, {{"none", SpecType::kNone},
                                         {"draft-eagle3", SpecType::kEagle3},
                                         {"draft-longspec", SpecType::kLongSpec},
                                         {"draft-simple", SpecType::kSimple},
                                         {"ngram-simple", SpecType::kNgram}}),
       nullptr,
       "What guesses ahead; the text stays the same: none, draft-eagle3, draft-longspec, draft-simple (any small model "
       "with the same vocabulary) or ngram-simple [none]"},
      {"--model-draft", "MODEL", text_value(&o->model), nullptr, "-md: the draft, as -m takes it"},
      {"--tree", "SHAPE", tree_value(&o->tree), nullptr,
       "What a draft proposes in a step: auto, eagle2:NODES,DEPTH,TOPK, opt:NODES,DEPTH,THRESHOLD, "
       "beams:4,16,16,16,16 or chain:N; at most 128 nodes. auto chooses by measured times; with --verify approximate, "
       "where the text depends on it, it is fixed: 64 nodes on a GPU, 4 on the CPU [auto]"},
      {"--spec-draft-n-max", "N", int_value(n_max, 1, kMaxTreeNodes - 1), nullptr,
       "The most tokens a draft proposes in a step [the tree's]"},
      {"--draft-window", "TOKENS", int_value(&o->window, 0, int64_t{1} << 40), nullptr,
       "The last tokens that a draft attends to, beside the first few; 0: all [the draft's own]"},
      {"--draft-rope-theta", "BASE", double_value(&o->rope_theta, 1, 1e12), nullptr,
       "The draft's rotary base [the draft's own]"},
  };
}

SetFlag interval_value(int64_t* out) {
  return [out](const std::string& value) {
    if (value != "auto") return int_value(out, 1, kMostPending)(value);
    *out = kAutoInterval;
    return std::string();
  };
}

SetFlag budget_value(int64_t* out) {
  return [out](const std::string& value) {
    const std::string wrong = tokens_value(out)(value);
    if (!wrong.empty()) return wrong;
    return partial_budget_fits(*out) ? std::string() : "'" + value + "' is no multiple of 64 up to 16K";
  };
}

std::vector<Flag> verify_flags(VerifyOptions* o) {
  const std::vector<std::pair<std::string, std::optional<VerifyMode>>> modes = {
      {"lossless", VerifyMode::kLossless}, {"approximate", VerifyMode::kApproximate}, {"full", VerifyMode::kFull}};
  return {
      {"--verify", "MODE", choice_value<std::optional<VerifyMode>>(&o->mode, modes), nullptr,
       "What judges a guess: lossless (a part of the KV cache at first, all of it before the text is said), "
       "approximate "
       "(the part alone) or full [lossless; full without --spec-type]"},
      {"--partial-budget", "TOKENS", budget_value(&o->budget), nullptr,
       "How many tokens of the context the part holds, beside its beginning and end [4K]"},
      {"--refresh-interval", "N", interval_value(&o->interval), nullptr,
       "How many tokens may be pending when the whole KV cache is looked at: auto, or 1 to 192. auto chooses by "
       "measured times; with --verify approximate it is 20 [auto]"},
  };
}

std::vector<Flag> block_flags(VerifyOptions* o) {
  return {
      {"--block-score", "HOW",
       choice_value<BlockScore>(&o->score, {{"quest", BlockScore::kQuest}, {"specpv", BlockScore::kSpecPv}}), nullptr,
       "How blocks are ranked: quest or specpv [quest]"},
      {"--block-reduce", "HOW",
       choice_value<BlockReduce>(
           &o->reduce, {{"mean", BlockReduce::kMean}, {"max", BlockReduce::kMax}, {"last", BlockReduce::kLast}}),
       nullptr, "What of the queries' scores counts: mean, max or last [mean]"},
  };
}

std::vector<Flag> sampling_flags(GenerateOptions* o, int64_t* top_k) {
  SamplingSettings* s = &o->sampling;
  return {
      {"-n,--predict,--max-tokens", "N", int_value(&o->max_tokens, -1, int64_t{1} << 40), nullptr,
       "The most tokens to write; -1: until the context is full [256]"},
      {"--temp", "T", float_value(&s->temperature, 0, 100), nullptr, "Temperature; 0 takes the likeliest token [0]"},
      {"--top-k", "K", int_value(top_k, 0, INT32_MAX), nullptr, "Only the K likeliest tokens; 0: all [0]"},
      {"--top-p", "P", float_value(&s->top_p, 1e-6f, 1), nullptr,
       "Only the likeliest tokens whose probabilities sum to P [1]"},
      {"--min-p", "P", float_value(&s->min_p, 0, 1), nullptr,
       "Only tokens at least P times as likely as the likeliest [0]"},
      {"-s,--seed", "N", seed_value(&s->seed), nullptr, "The same seed gives the same text [0]"},
      {"--ignore-eos", "", nullptr, &o->ignore_eos, "Go on after an end token"},
  };
}

std::vector<Flag> output_flags(OutputArgs* o) {
  return {
      {"--json", "", nullptr, &o->json, "One JSON object a run on stdout, with ids, timings, memory and transfers"},
      {"-q,--quiet", "", nullptr, &o->quiet, "Neither progress nor report"},
  };
}

Flag trace_flag(EngineOptions* o) {
  return {"--trace", "FILE", text_value(&o->device.trace_path), nullptr,
          "Write what compute and links did, and when, for ui.perfetto.dev or chrome://tracing"};
}

}  // namespace headrace
