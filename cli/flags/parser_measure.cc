// The commands that measure or predict: bench, bench quality, plan and profile.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/flags/flag_groups.h"
#include "cli/flags/parser.h"
#include "cli/flags/presets.h"
#include "cli/print/format.h"
#include "runtime/commands/plan_words.h"

namespace headrace {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 30;

std::vector<Flag> bench_flags(BenchOptions* o) {
  return {
      {"-p,--prompt-tokens", "LIST", list_value<int64_t>(&o->prompt_tokens, tokens_value),
       "Prompt lengths, such as 16K,61440; the prompts are random tokens [4096]"},
      {"-n,--decode-tokens", "N", int_value(&o->decode_tokens, 1, kMaxTokens), "Decode steps after each prompt [32]"},
      {"--kv", "LIST", list_value<KvMode>(&o->kv, kv_value),
       "Where the KV cache is stored: a list of auto, device and host, separated by commas [auto]"},
      {"--repeat", "N", int_value(&o->repeat, 1, 1000),
       "Runs per row, of which the median is printed; a short run before each length is not counted [1]"},
      {"-s,--seed", "N", seed_value(&o->seed), "Random seed; the same seed gives the same weights and prompts [0]"},
  };
}

Flag shape_flag(std::string* shape, const std::string& list) {
  return {"--shape", "NAME", SetFlag(text_value(shape), shape_names()),
          "Use a well-known model's sizes, or those of a config.json, with random weights instead of a model" + list};
}

std::vector<Flag> result_flags(OutputArgs* output, std::string* file, const std::string& variable) {
  return {{"--json", &output->json, "Print one JSON object instead of the table"},
          {"-o,--output", "FILE", text_value(file),
           "Also write the JSON object to FILE, which may hold an earlier result; -: the same as --json", variable},
          {"-q,--quiet", &output->quiet, "Print no progress"}};
}

SetFlag temperature_value(float* out) { return float_value(out, 0, 100); }

// -1, which other commands accept, is checked in finish_plan(): as a variable's value it is ignored.
SetFlag output_value(int64_t* out) {
  return [out](const std::string& value) {
    if (value == "-1") *out = -1;
    return value == "-1" ? std::string() : int_value(out, 1, int64_t{1} << 40)(value);
  };
}

SetFlag copy_or_blocks_value(PartialKind* out) {  // auto would not say what was measured
  return choice_value<PartialKind>(
      out, {{"blocks", PartialKind::kBlocks}, {"int4", PartialKind::kInt4}, {"int8", PartialKind::kInt8}});
}

std::vector<Flag> quality_flags(QualityOptions* o) {
  return {
      {"-p,--prompt-tokens", "TOKENS", tokens_value(&o->prompt_tokens),
       "Maximum prompt length, instruction included; longer documents are cut [4096; with --perplexity not cut]"},
      {"-n,--decode-tokens", "N", int_value(&o->decode_tokens, 1, kMaxTokens), "Maximum tokens per text [256]"},
      {"--partial-kv", "LIST", list_value<PartialKind>(&o->partial, copy_or_blocks_value),
       "Kinds of --partial-kv to compare: int8, int4, blocks [blocks]", "HEADRACE_QUALITY_PARTIAL_KV"},
      {"--budgets", "LIST", list_value<int64_t>(&o->budgets, budget_value),
       "Values of --partial-budget to compare, for blocks [512,1K,2K,4K]"},
      {"--intervals", "LIST", list_value<int64_t>(&o->intervals, interval_value),
       "Values of --refresh-interval to compare, numbers or auto; the search for hidden sentences uses the first "
       "[20,64]"},
      {"--temps", "LIST", list_value<float>(&o->temperatures, temperature_value),
       "Temperatures to compare; the search for hidden sentences uses the first [0,0.8]"},
      {"--instruction", "TEXT", utf8_value(&o->instruction),
       "Instruction, appended to each document after an empty line [Write a short summary of the text above.]"},
      {"--ignore-eos", &o->ignore_eos, "Continue after an end token"},
      {"-s,--seed", "N", seed_value(&o->seed), "Random seed; the same seed gives the same texts and numbers [0]"},
  };
}

// A shape's weights are random blocks of the type: loading has none to quantise.
void check_model_or_shape(const std::string& command, const std::string& shape, const WeightMixture* weights,
                          EngineOptions* engine) {
  if (engine->model.empty() && shape.empty()) {
    usage_error(command, "-m/--model or --shape is needed (headrace bench --list-shapes prints the shapes)");
  }
  if (weights == nullptr) return;
  if (!shape.empty()) engine->weights = WeightPolicy::kKeep;
  if (shape.empty() && !quantised_type(engine->weights))
    contradiction("--weights: " + weights_of_a_file(weights->name));
}

}  // namespace

void Parser::add_bench() {
  BenchOptions* const options = &bench.bench;
  bench_app = app.add_subcommand("bench", "Measure a model's prefill and decode speed by prompt length and KV mode");
  add_flags(*bench_app, "Model", model_flags(&options->engine, &options->shape_weights));
  add_flags(*bench_app, "Model", {shape_flag(&options->shape, "")});
  exclude_each_other(*bench_app, {"--model", "--shape"});
  bench_app
      ->add_flag_callback(
          "--list-shapes", [] { throw ListShapes(); }, "Print the shapes and exit")
      ->trigger_on_parse()
      ->group("Model");
  add_flags(*bench_app, "Position", rope_flags(&options->engine.rope));
  add_flags(*bench_app, "Work", bench_flags(options));
  add_flags(*bench_app, "Memory and device",
            {weights_place_flag(&options->engine), weights_substitute_flag(&options->engine)});
  add_flags(*bench_app, "Memory and device", memory_flags(&options->engine));
  add_list_devices(*bench_app);
  add_flags(*bench_app, "Output", result_flags(&bench.output, &bench.results, "HEADRACE_BENCH_OUTPUT"));
  add_flags(*bench_app, "Output", {trace_flag(&options->engine)});
}

Command Parser::finish_bench() {
  resolve_stdout(&bench.results, &bench.output);
  check_plan_names("", bench.bench.shape);
  check_model_or_shape("bench", bench.bench.shape, bench.bench.shape_weights, &bench.bench.engine);
  return std::move(bench);
}

void Parser::add_quality() {
  QualityOptions* const options = &quality.quality;
  EngineOptions* const engine = &options->engine;
  quality_app = bench_app->add_subcommand(
      "quality", "Measure what partial verification gets wrong (tokens, texts, hidden sentences), or the perplexity");
  add_flags(*quality_app, "Model", model_flags(engine));
  add_flags(*quality_app, "Model", template_flags(engine));
  exclude_templates(*quality_app);
  add_flags(*quality_app, "Position", rope_flags(&engine->rope));
  quality_app->add_option("--documents", options->documents, "Text files or folders, or - for standard input")
      ->type_name("FILE|DIR...")
      ->envname("HEADRACE_DOCUMENTS")
      ->group("Work");
  add_flags(
      *quality_app, "Work",
      {{"--perplexity", &quality.perplexity,
        "Measure only how well the model predicts the documents: each is one context, the first token is not "
        "predicted"},
       {"--against", "TYPE",
        choice_value<std::optional<PrefillType>>(
            &quality.against,
            {{"auto", PrefillType::kAuto}, {"bf16", PrefillType::kCompute}, {"int8", PrefillType::kInt8}}),
        "With --perplexity: score with this --prefill-type, too, and compare the two distributions of each token"},
       {"--draft-needle", &quality.draft_needle,
        "Measure only how a draft ranks the tokens of a number that is hidden in the documents"}});
  add_flags(*quality_app, "Work", quality_flags(options));
  add_flags(*quality_app, "Memory and device", {weights_place_flag(engine)});
  add_flags(*quality_app, "Memory and device", memory_flags(engine));
  add_list_devices(*quality_app);
  add_flags(*quality_app, "Draft", draft_flags(&engine->draft));
  add_flags(*quality_app, "Verification", block_flags(&engine->verify));
  add_flags(*quality_app, "Verification", {preset_flag(&quality.output.preset)});
  add_flags(*quality_app, "Output", result_flags(&quality.output, &quality.results, "HEADRACE_QUALITY_OUTPUT"));
  CLI::Option* const perplexity = quality_app->get_option("--perplexity");
  CLI::Option* const needle = quality_app->get_option("--draft-needle");
  quality_app->get_option("--against")->needs(perplexity);
  for (CLI::Option* option : quality_app->get_options()) {  // those that would have no effect
    const std::string &heading = option->get_group(), name = option->get_single_name();
    const bool of_text = heading == "Work" && name != "perplexity" && name != "against" && name != "documents" &&
                         name != "prompt-tokens";
    if (of_text || heading == "Draft" || heading == "Verification" || name.find("chat-template") != std::string::npos ||
        name == "thinking") {
      perplexity->excludes(option);
    }
    const bool of_needle = name == "draft-needle" || name == "documents" || name == "prompt-tokens" || name == "seed";
    if ((heading == "Work" && !of_needle) || heading == "Verification") needle->excludes(option);
  }
}

Command Parser::finish_quality() {
  resolve_stdout(&quality.results, &quality.output);
  if (quality.quality.documents.empty()) usage_error("bench quality", "--documents is needed: one text file or more");
  check_model("bench quality", quality.quality.engine);
  const DraftOptions& draft = quality.quality.engine.draft;
  const bool ranks = draft.type != SpecType::kNone && draft.type != SpecType::kAuto && draft.type != SpecType::kNgram &&
                     !draft.look_up;
  if (quality.draft_needle && !ranks) {
    usage_error("bench quality",
                "--draft-needle needs a draft that ranks a vocabulary: --spec-type draft-mtp, or draft-eagle3, "
                "draft-longspec or draft-simple with -md, and no look-up beside it");
  }
  if (quality_app->count("--prompt-tokens") > 0) quality.most_tokens = quality.quality.prompt_tokens;
  return std::move(quality);
}

void Parser::add_plan() {
  PlanOptions* const options = &plan.plan;
  EngineOptions* const engine = &options->engine;
  plan_app = app.add_subcommand("plan", "Predict the memory and time of a run, without loading the model");
  std::vector<std::string> named = shape_names();
  for (std::string& card : card_names()) named.push_back(std::move(card));
  CLI::Option* const words =
      plan_app
          ->add_option("words", plan.words,
                       "A model or shape, a card and a context, in any order: qwen3-14b rtx4090 128K")
          ->type_name("MODEL|SHAPE|GPU|TOKENS...");
  offer_words(words, named);
  add_flags(*plan_app, "Model", model_flags(engine, &options->shape_weights));
  add_flags(*plan_app, "Model", {shape_flag(&options->shape, " (bench --list-shapes)")});
  exclude_each_other(*plan_app, {"--model", "--shape"});
  add_flags(*plan_app, "Position", rope_flags(&engine->rope));
  add_flags(*plan_app, "Memory and device", context_flags(engine));
  add_flags(*plan_app, "Memory and device",
            {{"-n,--predict,--max-tokens", "N", output_value(&options->output_tokens),
              "Output tokens, at least 1; the rest of the context is the prompt [256]"}});
  add_flags(*plan_app, "Memory and device", memory_flags(engine));
  add_list_devices(*plan_app);
  add_flags(
      *plan_app, "Rates",
      {{"--gpu", "CARD", SetFlag(text_value(&options->gpu), card_names()),
        "Plan for another GPU, from its data sheet (rtx4090, rtx3060, rtx4070laptop, l4, ...) or from its figures: "
        "vram=12GiB,bandwidth=360,link=13,tflops=25,tops=102"},
       {"--profile", "FILE", text_value(&options->profile),
        "Measurements of headrace profile [~/.cache/headrace/profile.json]"}});
  add_flags(*plan_app, "Draft", draft_flags(&engine->draft));
  add_flags(*plan_app, "Verification", verify_flags(&engine->verify));
  add_flags(*plan_app, "Verification", block_flags(&engine->verify));
  add_flags(*plan_app, "Verification", {preset_flag(&plan.output.preset)});
  add_flags(*plan_app, "Output",
            {{"--details", &plan.details, "Print also where memory goes, and what each kind of pass moves and takes"},
             {"--json", &plan.output.json, "Print one JSON object with all of it"},
             {"-q,--quiet", &plan.output.quiet, "Print no notes"}});
  exclude_each_other(*plan_app, {"--details", "--json"});
}

namespace {

// What a word sets may be set once. An environment variable that sets it is ignored, as beside a flag.
void take_word(const std::string& word, PlanOptions* o) {
  const auto once = [&word](bool given, const char* what) {
    if (given) contradiction(str("'", word, "' names ", what, ", and another one is given"));
  };
  int64_t tokens = 0;
  if (!is_card_word(word) && parse_tokens(word, &tokens) && tokens > 0) {
    once(o->engine.ctx_size > 0, "a context");
    o->engine.ctx_size = tokens;
    return;
  }
  const PlanWord kind = plan_word(word);
  if (kind == PlanWord::kCard) {
    once(!o->gpu.empty(), "a card");
    o->gpu = word;
    return;
  }
  once(!o->engine.model.empty() || !o->shape.empty(), "a model");
  (kind == PlanWord::kShape ? o->shape : o->engine.model) = word;
}

}  // namespace

Command Parser::finish_plan() {
  PlanOptions& options = plan.plan;
  for (const std::string& word : plan.words) take_word(word, &options);
  check_plan_names(options.gpu, options.shape);
  if (!options.gpu.empty() && options.engine.device.choice == DeviceChoice::kCpu) {
    contradiction("--gpu and --device cpu exclude each other");
  }
  if (options.output_tokens < 0) {
    contradiction("-n/--predict: '-1' is not a whole number of at least 1: plan needs to know the prompt's length");
  }
  check_verify(options.engine);
  check_model_or_shape("plan", options.shape, options.shape_weights, &options.engine);
  return std::move(plan);
}

void Parser::add_profile() {
  ProfileOptions* const options = &profile.profile;
  const std::vector<std::pair<std::string, ProfileFormat>> formats = {{"table", ProfileFormat::kTable},
                                                                      {"json", ProfileFormat::kJson},
                                                                      {"csv", ProfileFormat::kCsv},
                                                                      {"md", ProfileFormat::kMarkdown}};
  profile_app = app.add_subcommand("profile", "Measure this machine: the link to the GPU, memory, kernels, a disk");
  add_flags(
      *profile_app, "Work",
      {{"--quick", &options->quick, "Measure fewer sizes, less often: in seconds instead of most of a minute"},
       {"--disk", "DIR[:SIZE]", folder_value(&options->disk, &options->disk_file_bytes),
        "Measure the disk of DIR with a temporary file of at most SIZE [2GiB; 1GiB with --quick]"},
       {"--disk-seconds", "S", double_value(&options->disk_seconds, 0.01, 60),
        "Duration of each disk test; a rented disk may be faster in its first seconds [0.75; 0.4 with --quick]"}});
  add_flags(*profile_app, "Memory and device", device_flags(&options->device));
  add_list_devices(*profile_app);
  add_flags(*profile_app, "Output",
            {{"--format", "FORM", choice_value<ProfileFormat>(&profile.format, formats),
              "Format of the output on stdout: table, json, csv or md [table]"},
             {"--json", &profile.output.json, "The same as --format json"},
             {"-o,--output", "FORM|FILE", SetFlag(text_value(&profile.results), {"json", "csv", "md"}),
              "json, csv or md: the same as --format. FILE.json, FILE.csv or FILE.md: write that file as well; it is "
              "overwritten",
              "HEADRACE_PROFILE_OUTPUT"},
             {"--html", "FILE", text_value(&profile.html),
              "Write a self-contained page with charts to FILE; it is overwritten"},
             {"-q,--quiet", &profile.output.quiet, "Print no progress"}});
}

// The value of -o is a format for stdout ("json"), or a file name whose suffix is its format ("./json.json").
Command Parser::finish_profile() {
  ProfileArgs& p = profile;
  std::optional<ProfileFormat> printed;
  const auto print = [&](ProfileFormat format) {
    if (printed && *printed != format) {
      contradiction("--format, --json and -o FORM exclude each other, unless they name the same format");
    }
    printed = format;
  };
  if (profile_app->count("--output") > 1) {
    usage_error("profile", "-o is given more than once: it writes one file or names one format (see --format)");
  }
  if (profile_app->count("--format") > 0) print(p.format);
  if (p.output.json) print(ProfileFormat::kJson);
  bool known = p.results.empty();
  for (const auto& [name, format] : {std::pair<std::string, ProfileFormat>("json", ProfileFormat::kJson),
                                     std::pair<std::string, ProfileFormat>("csv", ProfileFormat::kCsv),
                                     std::pair<std::string, ProfileFormat>("md", ProfileFormat::kMarkdown)}) {
    if (p.results == name) {
      print(format);
      p.results.clear();
      known = true;
    } else if (p.results.ends_with("." + name)) {
      p.results_format = format;
      known = true;
    }
  }
  if (!known) {
    usage_error("profile",
                "-o: '" + p.results + "' is neither json, csv or md nor a file name that ends in .json, .csv or .md");
  }
  p.format = printed.value_or(ProfileFormat::kTable);
  return std::move(profile);
}

}  // namespace headrace
