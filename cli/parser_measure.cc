// The commands that measure or foretell: bench, bench quality, plan and profile.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/flag_groups.h"
#include "cli/parser.h"

namespace headrace {
namespace {

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

// "-1", which other commands take, leaves open what of the context is the prompt.
SetFlag output_value(int64_t* out) {
  return [out](const std::string& value) {
    const std::string wrong = int_value(out, 1, int64_t{1} << 40)(value);
    return value == "-1" ? wrong + ": a plan is of a prompt, which is the context less so many" : wrong;
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

}  // namespace

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
             {"-o,--output", "FILE", text_value(&bench.results), nullptr,
              "Write the JSON object to FILE as well; an earlier result in FILE is replaced; -: as --json",
              "HEADRACE_BENCH_OUTPUT"},
             trace_flag(&options->engine),
             {"-q,--quiet", "", nullptr, &bench.output.quiet, "No progress"}});
}

void Parser::finish_bench() {
  BenchOptions& options = bench.bench;
  options.engine.device.threads = static_cast<int>(bench_threads);
  take_stdout_name(&bench.results, &bench.output);
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
             {"-o,--output", "FILE", text_value(&quality.results), nullptr,
              "Write the JSON object to FILE as well; an earlier result in FILE is replaced; -: as --json",
              "HEADRACE_QUALITY_OUTPUT"},
             {"-q,--quiet", "", nullptr, &quality.output.quiet, "No progress"}});
}

void Parser::finish_quality() {
  if (quality.quality.documents.empty()) usage_error("bench quality", "--documents is needed: one text file or more");
  take_stdout_name(&quality.results, &quality.output);
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
            {{"-n,--predict,--max-tokens", "N", output_value(&options->output_tokens), nullptr,
              "How many of the context's tokens are output, at least 1; the rest are the prompt [256]"}});
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
  add_flags(
      *profile_app, "Work",
      {{"--quick", "", nullptr, &options->quick,
        "Fewer sizes and rounds: some seconds in the place of most of a minute"},
       {"--disk", "DIR[:SIZE]", folder_value(&options->disk, &options->disk_file_bytes), nullptr,
        "Measure the disk of this folder, in a file of up to SIZE that has no name and leaves nothing [2GiB; 1GiB "
        "with --quick]"},
       {"--disk-seconds", "S", double_value(&options->disk_seconds, 0.01, 60), nullptr,
        "How long each of the disk's tests takes: a rented disk may be faster for a moment than it stays [0.75; "
        "0.4 with --quick]"}});
  add_flags(*profile_app, "Memory and device", device_flags(&options->device, &profile_threads));
  add_list_devices(*profile_app, "Memory and device");
  add_flags(
      *profile_app, "Output",
      {{"--format", "FORM", choice_value<ProfileFormat>(&profile.format, formats), nullptr,
        "What goes to stdout: table, json, csv or md [table]"},
       {"--json", "", nullptr, &profile.output.json, "The same as --format json"},
       {"-o,--output", "FORM|FILE", text_value(&profile.results), nullptr,
        "json, csv or md: as --format; FILE.json, FILE.csv or FILE.md: write that file as well; an earlier result "
        "in it is replaced",
        "HEADRACE_PROFILE_OUTPUT"},
       {"--html", "FILE", text_value(&profile.html), nullptr,
        "Write a page with charts, which needs nothing else; an earlier one in FILE is replaced"},
       {"-q,--quiet", "", nullptr, &profile.output.quiet, "No progress"}});
}

// -o's value is a form for stdout or a file's name, which says its form by its end: "json" is the one, "./json.json"
// and "p.json" are the other.
void Parser::finish_profile() {
  ProfileArgs& p = profile;
  p.profile.device.threads = static_cast<int>(profile_threads);
  std::optional<ProfileFormat> printed;
  const auto print = [&](ProfileFormat format) {
    if (printed && *printed != format) {
      usage_error("profile", "--format, --json and -o FORM exclude each other, unless they say the same");
    }
    printed = format;
  };
  if (profile_app->count("--output") > 1) {
    usage_error("profile", "-o stands more than once: it writes one file, or says one form (--format does, beside it)");
  }
  if (profile_app->count("--format") > 0) print(p.format);
  if (p.output.json) print(ProfileFormat::kJson);
  bool understood = p.results.empty();
  for (const auto& [name, format] : {std::pair<std::string, ProfileFormat>("json", ProfileFormat::kJson),
                                     std::pair<std::string, ProfileFormat>("csv", ProfileFormat::kCsv),
                                     std::pair<std::string, ProfileFormat>("md", ProfileFormat::kMarkdown)}) {
    if (p.results == name) {
      print(format);
      p.results.clear();
      understood = true;
    } else if (p.results.ends_with("." + name)) {
      p.results_format = format;
      understood = true;
    }
  }
  if (!understood) {
    usage_error("profile",
                "-o: '" + p.results + "' is none of json, csv and md, nor a file ending in .json, .csv or .md");
  }
  p.format = printed.value_or(ProfileFormat::kTable);
}

}  // namespace headrace
