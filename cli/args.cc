#include "cli/args.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <utility>

#include "cli/flags.h"

namespace headrace {
namespace {

// llama.cpp's flags of one dash and several letters, which CLI11 would read as several flags.
constexpr std::array<std::pair<const char*, const char*>, 5> kAliases = {{
    {"-ctk", "--cache-type-k"},
    {"-ctv", "--cache-type-v"},
    {"-dev", "--device"},
    {"-md", "--model-draft"},
    {"-sys", "--system"},
}};

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

SetFlag prefix_cache_value(PrefixCacheOptions* out) {
  return [out](const std::string& value) {
    return parse_prefix_cache(value, out) ? std::string() : "'" + value + "' is no folder, or folder:SIZE";
  };
}

Flag prefix_cache_flag(EngineOptions* o) {
  return {"--prefix-cache", "DIR[:SIZE]", prefix_cache_value(&o->prefix_cache), nullptr,
          "Keep the KV cache of prompts in this folder, and take from there what a prompt begins with; at most SIZE "
          "[half of what is free]"};
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

// The shape of the trees; auto leaves it to the program.
SetFlag tree_value(std::optional<TreeShape>* out) {
  return [out](const std::string& value) {
    *out = parse_tree(value);  // its error names the flag
    return std::string();
  };
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
       "beams:4,16,16,16,16 or chain:N; at most 128 nodes [auto]"},
      {"--spec-draft-n-max", "N", int_value(n_max, 1, kMaxTreeNodes - 1), nullptr,
       "The most tokens a draft proposes in a step [the tree's]"},
      {"--draft-window", "TOKENS", int_value(&o->window, 0, int64_t{1} << 40), nullptr,
       "The last tokens that a draft attends to, beside the first few; 0: all [the draft's own]"},
      {"--draft-rope-theta", "BASE", double_value(&o->rope_theta, 1, 1e12), nullptr,
       "The draft's rotary base [the draft's own]"},
  };
}

// A number of tokens, or auto.
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
       "The tokens from one look at the whole KV cache to the next: auto, or 1 to 192 [auto]"},
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

std::vector<Flag> bench_flags(BenchOptions* o) {
  constexpr int64_t kMost = int64_t{1} << 30;
  return {
      {"-p,--prompt-tokens", "LIST", list_value<int64_t>(&o->prompt_tokens, tokens_value), nullptr,
       "Lengths of the prompt, made up from the seed: 16K,61440 [4096]"},
      {"-n,--decode-tokens", "N", int_value(&o->decode_tokens, 1, kMost), nullptr,
       "Decode steps after each prompt [32]"},
      {"--kv", "LIST", list_value<KvMode>(&o->kv, kv_value), nullptr,
       "Where the KV cache lives: any of auto, device and host, with commas between [auto]"},
      {"--repeat", "N", int_value(&o->repeat, 1, 1000), nullptr,
       "Runs a row, of which the median counts; a short one before each length warms up and is not counted [1]"},
      {"-s,--seed", "N", seed_value(&o->seed), nullptr, "The same seed makes the same weights and prompts [0]"},
  };
}

SetFlag temperature_value(float* out) { return float_value(out, 0, 100); }

std::vector<Flag> quality_flags(QualityOptions* o) {
  constexpr int64_t kMost = int64_t{1} << 30;
  return {
      {"-p,--prompt-tokens", "TOKENS", tokens_value(&o->prompt_tokens), nullptr,
       "A longer document is cut to so many, request included [4096]"},
      {"-n,--decode-tokens", "N", int_value(&o->decode_tokens, 1, kMost), nullptr, "The most tokens of a text [256]"},
      {"--budgets", "LIST", list_value<int64_t>(&o->budgets, budget_value), nullptr,
       "What --partial-budget is compared at [512,1K,2K,4K]"},
      {"--intervals", "LIST", list_value<int64_t>(&o->intervals, interval_value), nullptr,
       "What --refresh-interval is compared at; numbers and auto; sentences are looked for with the first [20,64]"},
      {"--temps", "LIST", list_value<float>(&o->temperatures, temperature_value), nullptr,
       "Temperatures; sentences are looked for at the first [0,0.8]"},
      {"--instruction", "TEXT", utf8_value(&o->instruction), nullptr,
       "Put after each document, behind an empty line [Write a short summary of the text above.]"},
      {"--ignore-eos", "", nullptr, &o->ignore_eos, "Texts go on after an end token"},
      {"-s,--seed", "N", seed_value(&o->seed), nullptr, "The same seed gives the same texts and numbers [0]"},
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

// Values whose type the table cannot set directly, and the model's flags that are negations.
struct Late {
  int64_t threads = 0, top_k = 0, draft_tokens = 0;
  bool no_chat_template = false;
};

// Thrown as soon as the flag is read, as help is: what else is missing does not matter.
struct ListDevices {};
struct ListShapes {};

void add_list_devices(CLI::App& app, const std::string& heading) {
  app.add_flag_callback(
         "--list-devices", [] { throw ListDevices(); }, "Say which devices there are, and end")
      ->trigger_on_parse()
      ->group(heading);
}

void add_common(CLI::App& app, EngineOptions* engine, GenerateOptions* generate, OutputArgs* output, Late* late) {
  add_flags(app, "Model", model_flags(engine));
  add_flags(app, "Model", template_flags(engine));
  add_flags(
      app, "Model",
      {{"--no-chat-template", "", nullptr, &late->no_chat_template, "The prompt as it is, no template around it"}});
  add_flags(app, "Position", rope_flags(&engine->rope));
  add_flags(app, "Memory and device", context_flags(engine));
  add_flags(app, "Memory and device", memory_flags(engine, &late->threads));
  add_flags(app, "Memory and device", {prefix_cache_flag(engine)});
  add_list_devices(app, "Memory and device");
  add_flags(app, "Draft", draft_flags(&engine->draft, &late->draft_tokens));
  add_flags(app, "Verification", verify_flags(&engine->verify));
  add_flags(app, "Verification", block_flags(&engine->verify));
  add_flags(app, "Text", sampling_flags(generate, &late->top_k));
  add_flags(app, "Output", output_flags(output));
  add_flags(app, "Output", {trace_flag(engine)});
}

[[noreturn]] void usage_error(const std::string& command, const std::string& what) {
  throw_error(ExitCode::kUsage, "headrace" + (command.empty() ? "" : " " + command), what,
              "headrace" + (command.empty() ? "" : " " + command) + " --help lists the flags");
}

void check_verify(const std::string& command, const EngineOptions& engine) {
  const VerifyOptions& verify = engine.verify;
  const VerifyMode usual = engine.draft.type == SpecType::kNone ? VerifyMode::kFull : VerifyMode::kLossless;
  if (verify.mode.value_or(usual) == VerifyMode::kFull && verify != VerifyOptions{.mode = verify.mode}) {
    usage_error(command, "--partial-budget, --refresh-interval and --block-* mean nothing with --verify full" +
                             std::string(verify.mode ? "" : ", which goes without saying without --spec-type"));
  }
}

void finish_common(const std::string& command, const Late& late, const std::string& system, EngineOptions* engine,
                   GenerateOptions* generate) {
  engine->device.threads = static_cast<int>(late.threads);
  engine->use_chat_template = !late.no_chat_template;
  engine->draft.most_tokens = late.draft_tokens;
  generate->sampling.top_k = static_cast<int32_t>(late.top_k);
  if (engine->model.empty()) usage_error(command, "-m/--model is needed");
  if (generate->max_tokens == 0) usage_error(command, "-n/--predict: '0' is neither -1 nor at least 1");
  if (late.no_chat_template + !engine->chat_template.empty() + !engine->chat_template_file.empty() > 1) {
    usage_error(command, "--chat-template, --chat-template-file and --no-chat-template exclude each other");
  }
  if (command != "bench quality") check_verify(command, *engine);
  if (late.no_chat_template && !system.empty()) {
    usage_error(command, "--system needs a chat template, and --no-chat-template is given");
  }
}

// All commands side by side; what is not chosen stays as it was made.
struct Parser {
  CLI::App app{"Headrace: long-context text generation whose KV cache need not fit the GPU", "headrace"};
  GenerateArgs generate;
  SummarizeArgs summarize;
  InspectArgs inspect;
  BenchArgs bench;
  QualityArgs quality;
  PlanArgs plan;
  CacheArgs cache;
  ProfileArgs profile;
  Late generate_late, summarize_late;
  Late quality_late, plan_late;
  int64_t bench_threads = 0, profile_threads = 0;
  CLI::App *generate_app = nullptr, *summarize_app = nullptr, *inspect_app = nullptr, *bench_app = nullptr,
           *quality_app = nullptr, *plan_app = nullptr, *cache_app = nullptr, *profile_app = nullptr;

  Parser();
  void add_generate();
  void add_summarize();
  void add_inspect();
  void add_bench();
  void add_quality();
  void add_plan();
  void add_profile();
  void finish_profile();
  void finish_plan();
  void add_cache();
  void finish_bench();
  void finish_quality();
  Command chosen();
};

Parser::Parser() {
  app.require_subcommand(1);
  app.set_version_flag("--version", "headrace " HEADRACE_VERSION);
  add_list_devices(app, "Options");
  app.footer(
      "Every flag has an environment variable: --ctx-size is HEADRACE_CTX_SIZE.\n"
      "headrace COMMAND --help lists a command's flags.");
  add_generate();
  add_summarize();
  add_inspect();
  add_bench();
  add_quality();
  add_plan();
  add_cache();
  add_profile();
}

void Parser::add_generate() {
  generate_app = app.add_subcommand("generate", "Answer a prompt");
  add_flags(*generate_app, "Prompt",
            {{"-p,--prompt", "TEXT", utf8_value(&generate.prompt), nullptr, "The prompt; with -f it follows the file"},
             {"-f,--file", "FILE", text_value(&generate.file), nullptr, "A file with the prompt; -: standard input"},
             {"--system,--system-prompt", "TEXT", utf8_value(&generate.system), nullptr, "-sys: the system message"}});
  add_common(*generate_app, &generate.engine, &generate.generate, &generate.output, &generate_late);
}

void Parser::add_summarize() {
  summarize_app = app.add_subcommand("summarize", "Summarize documents, one after the other");
  summarize_app->add_option("documents", summarize.paths, "Text files, folders, or - for standard input")
      ->type_name("FILE|DIR...")
      ->required();
  add_flags(*summarize_app, "Summary",
            {{"--instruction", "TEXT", utf8_value(&summarize.instruction), nullptr,
              "Put after each text, behind an empty line [Write a short summary of the text above.]"},
             {"--system,--system-prompt", "TEXT", utf8_value(&summarize.system), nullptr, "-sys: the system message"},
             {"--truncate", "WHERE",
              choice_value<Truncate>(&summarize.truncate, {{"none", Truncate::kNone}, {"middle", Truncate::kMiddle}}),
              nullptr, "What a document that is too long loses: none (it is an error) or middle [none]"},
             {"-o,--output", "FILE", text_value(&summarize.results), nullptr,
              "Write one JSON line a document to FILE; a rerun skips those that are there"}});
  add_common(*summarize_app, &summarize.engine, &summarize.generate, &summarize.output, &summarize_late);
}

void Parser::add_inspect() {
  inspect_app = app.add_subcommand("inspect", "Say what a model is, how large, and what fits where");
  inspect_app->add_option("model", inspect.model, "A directory, a .gguf file or org/name")
      ->type_name("MODEL")
      ->envname("HEADRACE_MODEL")
      ->required();
  add_flags(*inspect_app, "Output",
            {{"--tensors", "", nullptr, &inspect.tensors, "List every tensor"},
             {"--json", "", nullptr, &inspect.json, "One JSON object on stdout"}});
}

void Parser::add_bench() {
  BenchOptions* const options = &bench.bench;
  bench_app = app.add_subcommand("bench", "Measure what a model costs: prefill and decode, by length and KV mode");
  add_flags(*bench_app, "Model", model_flags(&options->engine));
  add_flags(*bench_app, "Model",
            {{"--shape", "NAME", text_value(&options->shape), nullptr,
              "Random weights in the shape of a well-known model, or of a config.json, instead of a model"}});
  bench_app
      ->add_flag_callback(
          "--list-shapes", [] { throw ListShapes(); }, "Say which shapes there are, and end")
      ->trigger_on_parse()
      ->group("Model");
  add_flags(*bench_app, "Position", rope_flags(&options->engine.rope));
  add_flags(*bench_app, "Work", bench_flags(options));
  add_flags(*bench_app, "Memory and device", memory_flags(&options->engine, &bench_threads));
  add_list_devices(*bench_app, "Memory and device");
  add_flags(*bench_app, "Output",
            {{"--json", "", nullptr, &bench.output.json, "One JSON object on stdout instead of the table"},
             {"-o,--output", "FILE", text_value(&bench.results), nullptr, "Write the JSON object to FILE as well"},
             trace_flag(&options->engine),
             {"-q,--quiet", "", nullptr, &bench.output.quiet, "No progress"}});
}

void Parser::finish_bench() {
  BenchOptions& options = bench.bench;
  options.engine.device.threads = static_cast<int>(bench_threads);
  if (options.engine.model.empty() == options.shape.empty()) {
    usage_error("bench", options.shape.empty() ? "-m/--model or --shape is needed (--list-shapes names the shapes)"
                                               : "-m/--model (or HEADRACE_MODEL) and --shape exclude each other");
  }
}

void Parser::add_quality() {
  QualityOptions* const options = &quality.quality;
  EngineOptions* const engine = &options->engine;
  quality_app = bench_app->add_subcommand(
      "quality", "Measure what the part of the KV cache gets wrong: overturned tokens, texts, hidden sentences");
  add_flags(*quality_app, "Model", model_flags(engine));
  add_flags(*quality_app, "Model", template_flags(engine));
  add_flags(*quality_app, "Model",
            {{"--no-chat-template", "", nullptr, &quality_late.no_chat_template, "No template around the prompts"}});
  add_flags(*quality_app, "Position", rope_flags(&engine->rope));
  quality_app->add_option("--documents", options->documents, "Text files or folders, or - for standard input")
      ->type_name("FILE|DIR...")
      ->envname("HEADRACE_DOCUMENTS")
      ->group("Work");
  add_flags(*quality_app, "Work", quality_flags(options));
  add_flags(*quality_app, "Memory and device", memory_flags(engine, &quality_late.threads));
  add_list_devices(*quality_app, "Memory and device");
  add_flags(*quality_app, "Draft", draft_flags(&engine->draft, &quality_late.draft_tokens));
  add_flags(*quality_app, "Verification", block_flags(&engine->verify));
  add_flags(*quality_app, "Output",
            {{"--json", "", nullptr, &quality.output.json, "One JSON object on stdout instead of the table"},
             {"-o,--output", "FILE", text_value(&quality.results), nullptr, "Write the JSON object to FILE as well"},
             {"-q,--quiet", "", nullptr, &quality.output.quiet, "No progress"}});
}

void Parser::add_cache() {
  cache_app = app.add_subcommand("cache", "See to the folder of --prefix-cache: list, verify, prune");
  cache_app->require_subcommand(1);
  const auto add = [&](const char* name, CacheAction action, const char* help) {
    CLI::App* const command = cache_app->add_subcommand(name, help);
    command->callback([this, action] { cache.action = action; });
    command->add_option("folder", cache.folder, "The folder")->type_name("DIR")->required();
    add_flags(*command, "Output", {{"--json", "", nullptr, &cache.json, "One JSON object on stdout"}});
    return command;
  };
  add("list", CacheAction::kList, "Say which prompts' KV caches are kept, how large and when they last served");
  add("verify", CacheAction::kVerify, "Read everything and compare checksums; exit code 5 where something is damaged");
  add_flags(*add("prune", CacheAction::kPrune, "Remove what was not used for longest, and leftovers"), "Size",
            {{"--to", "SIZE", bytes_value(&cache.limit_bytes), nullptr, "Keep so much [nothing]"}});
}

void Parser::finish_quality() {
  if (quality.quality.documents.empty()) usage_error("bench quality", "--documents is needed: one text file or more");
  GenerateOptions unused;
  finish_common("bench quality", quality_late, "", &quality.quality.engine, &unused);
}

void Parser::add_plan() {
  PlanOptions* const options = &plan.plan;
  EngineOptions* const engine = &options->engine;
  plan_app = app.add_subcommand("plan", "Say what a run would take and where it would lie, before anything is there");
  add_flags(*plan_app, "Model", model_flags(engine));
  add_flags(*plan_app, "Model",
            {{"--shape", "NAME", text_value(&options->shape), nullptr,
              "The shape of a well-known model, or of a config.json, instead of a model (bench --list-shapes)"}});
  add_flags(*plan_app, "Position", rope_flags(&engine->rope));
  add_flags(*plan_app, "Memory and device", context_flags(engine));
  add_flags(*plan_app, "Memory and device",
            {{"-n,--predict,--max-tokens", "N", int_value(&options->output_tokens, 1, int64_t{1} << 40), nullptr,
              "How many of the context's tokens are output [256]"}});
  add_flags(*plan_app, "Memory and device", memory_flags(engine, &plan_late.threads));
  add_list_devices(*plan_app, "Memory and device");
  add_flags(*plan_app, "Rates",
            {{"--gpu", "CARD", text_value(&options->gpu), nullptr,
              "A card that is not here, by its data sheet: rtx4090, rtx3090, rtx5090, h100, ..."},
             {"--profile", "FILE", text_value(&options->profile), nullptr,
              "What headrace profile measured [~/.cache/headrace/profile.json]"}});
  add_flags(*plan_app, "Draft", draft_flags(&engine->draft, &plan_late.draft_tokens));
  add_flags(*plan_app, "Verification", verify_flags(&engine->verify));
  add_flags(*plan_app, "Verification", block_flags(&engine->verify));
  add_flags(*plan_app, "Output",
            {{"--json", "", nullptr, &plan.output.json, "One JSON object on stdout instead of the table"},
             {"-q,--quiet", "", nullptr, &plan.output.quiet, "No notes"}});
}

void Parser::finish_plan() {
  PlanOptions& options = plan.plan;
  options.engine.device.threads = static_cast<int>(plan_late.threads);
  options.engine.draft.most_tokens = plan_late.draft_tokens;
  if (options.engine.model.empty() == options.shape.empty()) {
    usage_error("plan", options.shape.empty() ? "-m/--model or --shape is needed (bench --list-shapes names the shapes)"
                                              : "-m/--model (or HEADRACE_MODEL) and --shape exclude each other");
  }
  if (!options.gpu.empty() && options.engine.device.choice == DeviceChoice::kCpu) {
    usage_error("plan", "--gpu and --device cpu exclude each other");
  }
  check_verify("plan", options.engine);
}

void Parser::add_profile() {
  ProfileOptions* const options = &profile.profile;
  const std::vector<std::pair<std::string, ProfileFormat>> formats = {{"table", ProfileFormat::kTable},
                                                                      {"json", ProfileFormat::kJson},
                                                                      {"csv", ProfileFormat::kCsv},
                                                                      {"md", ProfileFormat::kMarkdown}};
  profile_app = app.add_subcommand("profile", "Measure this machine: the link to the GPU, memory, kernels, a disk");
  add_flags(*profile_app, "Work",
            {{"--quick", "", nullptr, &options->quick,
              "Fewer sizes and rounds: some seconds in the place of most of a minute"},
             {"--disk", "DIR", text_value(&options->disk), nullptr,
              "Measure the disk of this folder, in a file of up to 2 GiB that has no name and leaves nothing"}});
  add_flags(*profile_app, "Memory and device", device_flags(&options->device, &profile_threads));
  add_list_devices(*profile_app, "Memory and device");
  add_flags(
      *profile_app, "Output",
      {{"--format", "FORM", choice_value<ProfileFormat>(&profile.format, formats), nullptr,
        "What goes to stdout: table, json, csv or md [table]"},
       {"--json", "", nullptr, &profile.output.json, "The same as --format json"},
       {"-o,--output", "FILE", text_value(&profile.results), nullptr,
        "Write FILE as well: FILE.json, FILE.csv or FILE.md"},
       {"--html", "FILE", text_value(&profile.html), nullptr, "Write a page with charts, which needs nothing else"},
       {"-q,--quiet", "", nullptr, &profile.output.quiet, "No progress"}});
}

void Parser::finish_profile() {
  profile.profile.device.threads = static_cast<int>(profile_threads);
  if (profile.output.json && profile_app->count("--format") > 0 && profile.format != ProfileFormat::kJson) {
    usage_error("profile", "--json and another --format exclude each other");
  }
  if (profile.output.json) profile.format = ProfileFormat::kJson;
  if (profile.results.empty()) return;
  for (const auto& [end, format] : {std::pair(".json", ProfileFormat::kJson), std::pair(".csv", ProfileFormat::kCsv),
                                    std::pair(".md", ProfileFormat::kMarkdown)}) {
    if (!profile.results.ends_with(end)) continue;
    profile.results_format = format;
    return;
  }
  usage_error("profile", "-o: '" + profile.results + "' ends in none of .json, .csv and .md, which say what it holds");
}

Command Parser::chosen() {
  if (profile_app->parsed()) {
    finish_profile();
    return std::move(profile);
  }
  if (plan_app->parsed()) {
    finish_plan();
    return std::move(plan);
  }
  if (quality_app->parsed()) {
    finish_quality();
    return std::move(quality);
  }
  if (cache_app->parsed()) return std::move(cache);
  if (bench_app->parsed()) {
    finish_bench();
    return std::move(bench);
  }
  if (generate_app->parsed()) {
    if (generate_app->count("--prompt") > 0 && generate.prompt.empty()) usage_error("generate", "-p/--prompt is empty");
    finish_common("generate", generate_late, generate.system, &generate.engine, &generate.generate);
    return std::move(generate);
  }
  if (summarize_app->parsed()) {
    finish_common("summarize", summarize_late, summarize.system, &summarize.engine, &summarize.generate);
    if (!summarize.results.empty() && summarize.output.json) {
      usage_error("summarize", "-o writes JSON lines already; --json is for stdout");
    }
    return std::move(summarize);
  }
  return std::move(inspect);
}

constexpr std::array<std::string_view, 7> kCommands = {"generate", "summarize", "inspect", "bench",
                                                       "plan",     "profile",   "cache"};
bool is_command(const std::string& name) {
  return std::find(kCommands.begin(), kCommands.end(), name) != kCommands.end();
}

}  // namespace

Command parse_args(const std::vector<std::string>& args) {
  std::vector<std::string> reversed;  // as CLI11 takes them
  bool only_names = false;            // after --, where all is a file's name
  for (const std::string& arg : args) {
    if (arg == "--" && !only_names) {
      only_names = true;
      continue;
    }
    std::string name = only_names && arg.size() > 1 && arg.front() == '-' ? "./" + arg : arg;
    for (const auto& [alias, long_name] : kAliases) {
      if (!only_names && arg == alias) name = long_name;
    }
    reversed.push_back(std::move(name));
  }
  std::reverse(reversed.begin(), reversed.end());
  if (!args.empty() && !args.front().starts_with('-') && !is_command(args.front())) {
    usage_error("",
                "'" + args.front() + "' is no command: generate, summarize, inspect, bench, plan, profile or cache");
  }
  const auto parser = std::make_unique<Parser>();
  const std::string command = !args.empty() && is_command(args.front()) ? args.front() : "";
  const bool quality = command == "bench" && args.size() > 1 && args[1] == "quality";
  try {
    parser->app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    if (quality) return HelpArgs{parser->quality_app->help("headrace bench")};
    return HelpArgs{command.empty() ? parser->app.help() : parser->app.get_subcommand(command)->help("headrace")};
  } catch (const CLI::CallForVersion& version) {
    return HelpArgs{std::string(version.what()) + "\n"};
  } catch (const ListDevices&) {
    return DevicesArgs{};
  } catch (const ListShapes&) {
    return ShapesArgs{};
  } catch (const CLI::ParseError& error) {
    usage_error(quality ? "bench quality" : command, error.what());
  }
  if (parser->quality_app->parsed() && !quality) {
    usage_error("bench", "quality stands right behind bench, before all flags");
  }
  return parser->chosen();
}

}  // namespace headrace
