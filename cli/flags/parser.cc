#include "cli/flags/parser.h"

#include <utility>

#include "cli/flags/flag_groups.h"
#include "cli/flags/presets.h"

namespace headrace {
namespace {

#ifdef HEADRACE_HAVE_CUDA
constexpr char kVersion[] = "headrace " HEADRACE_VERSION " (CPU and CUDA)";
#else
constexpr char kVersion[] = "headrace " HEADRACE_VERSION " (CPU only, built without CUDA)";
#endif

constexpr size_t kMaxDevices = 64;

void add_engine(CLI::App& app, EngineOptions* engine, GenerateOptions* generate, OutputArgs* output) {
  add_flags(app, "Model", model_flags(engine));
  add_flags(app, "Model", template_flags(engine));
  exclude_templates(app);
  add_flags(app, "Position", rope_flags(&engine->rope));
  add_flags(app, "Memory and device", context_flags(engine));
  add_flags(app, "Memory and device", memory_flags(engine));
  add_flags(app, "Memory and device", {prefix_cache_flag(engine)});
  add_list_devices(app);
  add_flags(app, "Draft", draft_flags(&engine->draft));
  add_flags(app, "Verification", verify_flags(&engine->verify));
  add_flags(app, "Verification", block_flags(&engine->verify));
  add_flags(app, "Text", sampling_flags(generate));
  add_flags(app, "Verification", {preset_flag(&output->preset)});
  add_flags(app, "Output", {trace_flag(engine)});
}

Flag truncate_flag(Truncate* truncate) {
  return {"--truncate", "WHERE",
          choice_value<Truncate>(truncate, {{"none", Truncate::kNone}, {"middle", Truncate::kMiddle}}),
          "What to cut from a document that is too long: none (report an error) or middle [none]"};
}

Flag long_flag(bool* split, const std::string& what) {
  return {"--long", "HOW", choice_value<bool>(split, {{"refuse", false}, {"split", true}}),
          "What to do with a document that is too long: refuse it, or split it, summarize the parts, " + what +
              " [refuse]"};
}

// For the build; hidden from the help.
void add_write_manual(CLI::App& app) {
  app.add_option_function<std::string>("--write-manual", [](const std::string& folder) { throw WriteManual{folder}; })
      ->trigger_on_parse()
      ->group("");
}

void add_help_all(CLI::App& app) {
  app.add_flag_callback(
         "--help-all", [] { throw HelpWithAllFlags(); }, "Print all flags and exit")
      ->trigger_on_parse()
      ->group(app.get_help_ptr()->get_group());
  for (CLI::App* const below : app.get_subcommands({})) add_help_all(*below);
}

}  // namespace

void add_common(CLI::App& app, EngineOptions* engine, GenerateOptions* generate, OutputArgs* output) {
  add_engine(app, engine, generate, output);
  add_flags(app, "Output", output_flags(output));
}

Flag system_flag(std::string* system) {
  return {"--system,--system-prompt", "TEXT", utf8_value(system), "System message"};
}

void check_common(const std::string& command, const EngineOptions& engine, const GenerateOptions& generate) {
  check_verify(engine);
  check_model(command, engine);
  if (generate.max_tokens == 0) usage_error(command, "-n/--predict: '0' is neither -1 nor at least 1");
  if (engine.thinking && generate.reasoning_budget == 0) {
    contradiction("--thinking asks for what --reasoning-budget 0 forbids: leave one of them out");
  }
}

// Of different kinds, the bits of an answer would depend on the device that took it.
void check_devices(const EngineOptions& engine, const std::vector<DeviceOptions>& devices) {
  if (devices.size() > kMaxDevices) {
    contradiction(str("--devices lists ", devices.size(), " devices, more than ", kMaxDevices));
  }
  for (size_t i = 1; i < devices.size(); ++i) {
    if (devices[i].choice != devices[0].choice) contradiction("--devices mixes cpu and cuda: list one kind");
    for (size_t j = 0; j < i && devices[i].choice == DeviceChoice::kCuda; ++j) {
      if (devices[i].cuda_index != devices[j].cuda_index) continue;
      contradiction(str("--devices lists cuda:", devices[i].cuda_index, " twice"));
    }
  }
  if (devices.size() > 1 && !engine.device.trace_path.empty()) {
    contradiction("--trace writes a trace of one device, but --devices lists several");
  }
}

void usage_error(const std::string& command, const std::string& what) {
  const std::string program = "headrace" + (command.empty() ? "" : " " + command);
  throw_error(ExitCode::kUsage, program, what, program + " --help-all lists the flags");
}

void resolve_stdout(std::string* results, OutputArgs* output) {
  if (*results != "-") return;
  results->clear();
  output->json = true;
}

void contradiction(const std::string& what) { throw CLI::ExcludesError(what, CLI::ExitCodes::ExcludesError); }

void add_list_devices(CLI::App& app) {
  app.add_flag_callback(
         "--list-devices", [] { throw ListDevices(); }, "Print the devices and exit")
      ->trigger_on_parse()
      ->group(app.get_parent() == nullptr ? "Options" : "Memory and device");
}

void exclude_each_other(CLI::App& app, const std::vector<const char*>& flags) {
  for (size_t i = 0; i < flags.size(); ++i) {
    for (size_t j = i + 1; j < flags.size(); ++j) app.get_option(flags[i])->excludes(app.get_option(flags[j]));
  }
}

void exclude_templates(CLI::App& app) {
  exclude_each_other(app, {"--chat-template", "--chat-template-file", "--no-chat-template"});
  for (const char* flag : {"--chat-template", "--no-chat-template"}) exclude_each_other(app, {"--thinking", flag});
  exclude_each_other(app, {"--reasoning-effort", "--no-chat-template"});
}

void check_verify(const EngineOptions& engine) {
  const VerifyOptions& verify = engine.verify;
  if (verify.max_overturned < 1 && verify.mode != VerifyMode::kApproximate) {
    contradiction("--max-overturned has an effect with --verify approximate alone: other runs print no wrong token");
  }
  if (verify.mode == VerifyMode::kFull && verify.names_partial()) contradiction(kNoPartialSteps);
  const VerifyOptions usual_blocks;
  const bool of_blocks = verify.budget || verify.score != usual_blocks.score || verify.reduce != usual_blocks.reduce ||
                         verify.queries != usual_blocks.queries || verify.window != usual_blocks.window;
  if (of_blocks && copy_type(verify.partial)) {
    contradiction(str("--partial-budget and --block-* have no effect with --partial-kv ",
                      partial_kind_name(verify.partial), ", which copies the whole KV cache"));
  }
}

void check_model(const std::string& command, const EngineOptions& engine) {
  if (engine.model.empty()) usage_error(command, "-m/--model is required");
}

Parser::Parser() {
  app.require_subcommand(1);
  app.set_version_flag("--version", kVersion, "Print the version, and whether CUDA is built in, and exit");
  add_list_devices(app);
  add_write_manual(app);
  app.footer(
      "Every flag can be set by an environment variable: --ctx-size by HEADRACE_CTX_SIZE. The command line takes "
      "precedence. headrace COMMAND --help lists a command's usual flags, --help-all all of them.");
  add_generate();
  add_summarize();
  add_chat();
  add_batch();
  add_make();
  add_serve();
  add_inspect();
  add_bench();
  add_quality();
  add_plan();
  add_cache();
  add_profile();
  add_help_all(app);
}

void Parser::add_generate() {
  generate_app = app.add_subcommand("generate", "Answer a prompt");
  add_flags(*generate_app, "Prompt",
            {{"-p,--prompt", "TEXT", utf8_value(&generate.prompt), "Prompt; with -f it follows the file's text"},
             {"-f,--file", "FILE", text_value(&generate.file), "Read the prompt from FILE; -: standard input"},
             system_flag(&generate.system)});
  add_common(*generate_app, &generate.engine, &generate.generate, &generate.output);
  add_flags(*generate_app, "Output", {hide_thinking_flag(&generate.output)});
  exclude_each_other(*generate_app, {"--system", "--no-chat-template"});
}

void Parser::add_summarize() {
  summarize_app = app.add_subcommand("summarize", "Summarize documents, one after another");
  summarize_app
      ->add_option("documents", summarize.paths,
                   "Documents (text, PDF, DOCX, ODT, EPUB, HTML, RTF), folders, or - for standard input")
      ->type_name("FILE|DIR...")
      ->required();
  add_flags(
      *summarize_app, "Summary",
      {{"--instruction", "TEXT", utf8_value(&summarize.instruction),
        "Instruction, appended to each text after an empty line [Write a short summary of the text above.]"},
       system_flag(&summarize.system),
       truncate_flag(&summarize.truncate),
       long_flag(&summarize.split, "then their summaries"),
       {"-o,--output", "FILE", text_value(&summarize.results),
        "Append one JSON line per document to FILE; a rerun skips documents that FILE already has; -: the same as "
        "--json"},
       {"--summary-format", "FORM",
        choice_value<SummaryFormat>(&summarize.format, {{"text", SummaryFormat::kText},
                                                        {"md", SummaryFormat::kMarkdown},
                                                        {"csv", SummaryFormat::kCsv},
                                                        {"jsonl", SummaryFormat::kJsonLines}}),
        "Form of the summaries on stdout or in --out-dir: text, md, csv or jsonl [text; md with --out-dir]"},
       {"--out-dir", "DIR", text_value(&summarize.out_dir),
        "Write one file for each document to DIR, named after it; existing files are overwritten"},
       {"--shard", "I/N",
        [this](const std::string& value) {
          summarize.shard = parse_shard(value);
          return std::string();
        },
        "Summarize part I of N of the documents, from 0, and append to the file of -o with .part-I-of-N; auto: by the "
        "Slurm job array"}});
  add_common(*summarize_app, &summarize.engine, &summarize.generate, &summarize.output);
  add_flags(*summarize_app, "Output", {hide_thinking_flag(&summarize.output)});
  exclude_each_other(*summarize_app, {"--system", "--no-chat-template"});
  exclude_each_other(*summarize_app, {"--truncate", "--long"});
  exclude_each_other(*summarize_app, {"--summary-format", "--json"});
  exclude_each_other(*summarize_app, {"--out-dir", "--json"});
  exclude_each_other(*summarize_app, {"--summary-format", "--output"});
  exclude_each_other(*summarize_app, {"--out-dir", "--output"});
  add_flags(*summarize_app, "Memory and device", {devices_flag(&summarize.devices)});
  exclude_each_other(*summarize_app, {"--device", "--devices"});
}

void Parser::add_chat() {
  chat_app = app.add_subcommand("chat", "Answer questions about documents, one after another");
  chat_app->add_option("documents", chat.paths, "Documents or folders, which are read once, before the first question")
      ->type_name("FILE|DIR...");
  add_flags(*chat_app, "Chat",
            {system_flag(&chat.system), truncate_flag(&chat.truncate),
             long_flag(&chat.split, "and answer questions about the summaries")});
  exclude_each_other(*chat_app, {"--truncate", "--long"});
  add_common(*chat_app, &chat.engine, &chat.generate, &chat.output);
  add_flags(*chat_app, "Output", {hide_thinking_flag(&chat.output)});
}

void Parser::add_serve() {
  serve_app = app.add_subcommand("serve", "Answer requests of OpenAI's protocol over HTTP");
  ServerOptions* const s = &serve.server;
  add_flags(*serve_app, "Server",
            {{"--host", "HOST", text_value(&s->host),
              "Address to listen on; any but a loopback address needs --api-key-file [127.0.0.1]"},
             {"--port", "PORT", int_value(&s->port, 0, 65535), "Port to listen on; 0: any free one [8080]"},
             {"--api-key-file", "FILE", text_value(&s->api_key_file),
              "Require a key from FILE, which has one a line, with each request: \"Authorization: Bearer KEY\""},
             {"--queue", "N", int_value(&s->queue, 0, 1000),
              "Number of requests that may wait while another runs; further ones get status 429 [16]"},
             {"--queue-time", "SECONDS", double_value(&s->queue_seconds, 0.001, 1e6),
              "Longest time that a request may wait; after it the request gets status 503 [600]"},
             {"--read-time", "SECONDS", double_value(&s->read_seconds, 0.001, 1e6),
              "Longest time for a request to arrive, and for a client to accept a piece of its answer [30]"},
             {"--max-body", "SIZE", bytes_value(&s->body_bytes), "Longest body of a request [16MiB]"}});
  add_engine(*serve_app, &serve.engine, &serve.generate, &serve.output);
  add_flags(*serve_app, "Output", {quiet_flag(&serve.output)});
}

void Parser::add_inspect() {
  inspect_app = app.add_subcommand("inspect", "Print a model's structure and size, and the contexts that fit");
  inspect_app->add_option("model", inspect.model, "Directory, .gguf file or org/name")
      ->type_name("MODEL")
      ->envname("HEADRACE_MODEL");
  add_flags(*inspect_app, "Model",
            {{"--weights", "KIND", policy_value(&inspect.weights),
              "Print the size of the model when loaded with this --weights: keep, dtype, bf16, q8_0, q6_k, q5_k or "
              "q4_k [keep]"}});
  add_flags(*inspect_app, "Prompt",
            {{"--render", "FILE", text_value(&inspect.render),
              "Print the prompt that the chat template makes of the messages in FILE, and nothing else"},
             {"--chat-template-file", "FILE", text_value(&inspect.chat_template_file),
              "With --render: use the Jinja template in FILE instead of the model's"},
             {"--thinking", &inspect.thinking, "With --render: let the template ask the model to think"}});
  add_flags(*inspect_app, "Output",
            {{"--tensors", &inspect.tensors, "List every tensor"}, {"--json", &inspect.json, "Print one JSON object"}});
}

void Parser::add_cache() {
  cache_app = app.add_subcommand("cache", "List, verify or prune the prompts saved by --prefix-cache");
  cache_app->require_subcommand(1);
  const auto add = [&](const char* name, CacheAction action, const char* help) {
    CLI::App* const command = cache_app->add_subcommand(name, help);
    command->callback([this, action] { cache.action = action; });
    command->add_option("folder", cache.folder, "Folder of --prefix-cache")->type_name("DIR")->required();
    add_flags(*command, "Output", {{"--json", &cache.json, "Print one JSON object"}});
    return command;
  };
  add("list", CacheAction::kList, "List the saved prompts with their size and last use");
  add("verify", CacheAction::kVerify, "Read all files and verify their checksums; exit with code 5 if one is damaged");
  add_flags(*add("prune", CacheAction::kPrune, "Remove the least recently used prompts, and incomplete files"), "Size",
            {{"--to", "SIZE", bytes_value(&cache.limit_bytes), "Keep at most this much [nothing]"}});
}

Command Parser::chosen() {
  if (quality_app->parsed()) return finish_quality();  // a subcommand of bench, which is parsed as well
  if (generate_app->parsed()) return finish_generate();
  if (summarize_app->parsed()) return finish_summarize();
  if (chat_app->parsed()) return finish_chat();
  if (merge_app->parsed()) return finish_merge();
  if (make_app->parsed()) return finish_make();
  if (batch_app->parsed()) return finish_batch();
  if (serve_app->parsed()) return finish_serve();
  if (inspect_app->parsed()) return finish_inspect();
  if (bench_app->parsed()) return finish_bench();
  if (plan_app->parsed()) return finish_plan();
  if (cache_app->parsed()) return finish_cache();
  return finish_profile();
}

Command Parser::finish_generate() {
  check_common("generate", generate.engine, generate.generate);
  if (generate_app->count("--prompt") > 0 && generate.prompt.empty()) usage_error("generate", "-p/--prompt is empty");
  if (generate_app->count("--file") > 0 && generate.file.empty()) {
    usage_error("generate", "-f/--file is empty: give the name of a file, or - for standard input");
  }
  return std::move(generate);
}

Command Parser::finish_summarize() {
  resolve_stdout(&summarize.results, &summarize.output);
  if (!summarize.results.empty() && summarize.output.json) {
    contradiction("--json prints to stdout what -o writes to a file: give one of them");
  }
  check_devices(summarize.engine, summarize.devices);
  if (summarize.format == SummaryFormat::kJsonLines && summarize.out_dir.empty()) summarize.output.json = true;
  if (!summarize.out_dir.empty() && summarize_app->count("--summary-format") == 0) {
    summarize.format = SummaryFormat::kMarkdown;
  }
  const bool apart = !summarize.results.empty() || summarize.output.json || !summarize.out_dir.empty();
  if (summarize.devices.size() > 1 && !apart) {
    contradiction("--devices needs -o FILE or --json: as text the summaries of several devices would mix");
  }
  check_common("summarize", summarize.engine, summarize.generate);
  return std::move(summarize);
}

Command Parser::finish_chat() {
  for (const std::string& path : chat.paths) {
    if (path == "-")
      usage_error("chat", "'-' is not allowed: chat reads questions from standard input. Give the document as a file");
  }
  check_common("chat", chat.engine, chat.generate);
  return std::move(chat);
}

Command Parser::finish_serve() {
  check_common("serve", serve.engine, serve.generate);
  if (serve.server.host.empty()) usage_error("serve", "--host is empty: give an address, such as 127.0.0.1");
  serve.server.use_chat_template = serve.engine.use_chat_template;
  return std::move(serve);
}

Command Parser::finish_inspect() {
  if (inspect.model.empty()) usage_error("inspect", "a model is needed: a directory, a .gguf file or org/name");
  for (const char* flag : {"--chat-template-file", "--thinking"}) {
    if (inspect_app->get_option(flag)->count() > 0 && inspect.render.empty())
      usage_error("inspect", str(flag, " needs --render FILE"));
  }
  return std::move(inspect);
}

Command Parser::finish_cache() {
  if (cache.folder.empty()) {
    const std::string action = cache_app->get_subcommands().front()->get_name();
    usage_error("cache " + action, "DIR is empty: give the folder that --prefix-cache was given");
  }
  return std::move(cache);
}

}  // namespace headrace
