#include "cli/parser.h"

#include <utility>

#include "cli/flag_groups.h"

namespace headrace {
namespace {

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

}  // namespace

void add_list_devices(CLI::App& app, const std::string& heading) {
  app.add_flag_callback(
         "--list-devices", [] { throw ListDevices(); }, "Say which devices there are, and end")
      ->trigger_on_parse()
      ->group(heading);
}

void usage_error(const std::string& command, const std::string& what) {
  throw_error(ExitCode::kUsage, "headrace" + (command.empty() ? "" : " " + command), what,
              "headrace" + (command.empty() ? "" : " " + command) + " --help lists the flags");
}

void take_stdout_name(std::string* results, OutputArgs* output) {
  if (*results != "-") return;
  results->clear();
  output->json = true;
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

Parser::Parser() {
  app.require_subcommand(1);
  app.set_version_flag("--version", "headrace " HEADRACE_VERSION);
  add_list_devices(app, "Options");
  app.footer(
      "Every flag has an environment variable: --ctx-size is HEADRACE_CTX_SIZE. What the command line says counts.\n"
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
              "Write one JSON line a document to FILE; a rerun skips those that are there; -: as --json"}});
  add_common(*summarize_app, &summarize.engine, &summarize.generate, &summarize.output, &summarize_late);
}

void Parser::add_inspect() {
  inspect_app = app.add_subcommand("inspect", "Say what a model is, how large, and what fits where");
  inspect_app->add_option("model", inspect.model, "A directory, a .gguf file or org/name")
      ->type_name("MODEL")
      ->envname("HEADRACE_MODEL");
  add_flags(*inspect_app, "Output",
            {{"--tensors", "", nullptr, &inspect.tensors, "List every tensor"},
             {"--json", "", nullptr, &inspect.json, "One JSON object on stdout"}});
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

void Parser::finish_cache() {
  if (!cache.folder.empty()) return;
  usage_error("cache " + innermost()->get_name(), "DIR is empty: the folder that --prefix-cache was given is needed");
}

CLI::App* Parser::innermost() {
  CLI::App* command = nullptr;
  for (CLI::App* at = &app; !at->get_subcommands().empty();) command = at = at->get_subcommands().front();
  return command;
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
  if (cache_app->parsed()) {
    finish_cache();
    return std::move(cache);
  }
  if (bench_app->parsed()) {
    finish_bench();
    return std::move(bench);
  }
  if (generate_app->parsed()) {
    if (generate_app->count("--prompt") > 0 && generate.prompt.empty()) usage_error("generate", "-p/--prompt is empty");
    if (generate_app->count("--file") > 0 && generate.file.empty()) {
      usage_error("generate", "-f/--file is empty: a file's name, or - for standard input");
    }
    finish_common("generate", generate_late, generate.system, &generate.engine, &generate.generate);
    return std::move(generate);
  }
  if (summarize_app->parsed()) {
    finish_common("summarize", summarize_late, summarize.system, &summarize.engine, &summarize.generate);
    take_stdout_name(&summarize.results, &summarize.output);
    if (!summarize.results.empty() && summarize.output.json) {
      usage_error("summarize", "-o writes JSON lines already; --json is for stdout");
    }
    return std::move(summarize);
  }
  if (inspect.model.empty()) usage_error("inspect", "a model is needed: a directory, a .gguf file or org/name");
  return std::move(inspect);
}

}  // namespace headrace
