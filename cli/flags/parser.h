// The flag table of all commands as one CLI11 application, and the values that parsing sets. args.cc runs it, help.cc
// prints it, manual.h has what else is written from it; shared flags are in flag_groups.h. Thread: one.
#pragma once

#include <CLI/CLI.hpp>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/flags/args.h"
#include "cli/flags/flags.h"

namespace headrace {

// llama.cpp's flags with one dash and several letters, which CLI11 would split into several flags.
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kFlagAliases = {{
    {"-ctk", "--cache-type-k"},
    {"-ctv", "--cache-type-v"},
    {"-dev", "--device"},
    {"-md", "--model-draft"},
    {"-sys", "--system"},
}};

// Thrown as soon as the flag is read, as for help: other errors of the command line are ignored.
struct ListDevices {};
struct ListShapes {};
struct HelpWithAllFlags {};
struct WriteManual {
  std::string folder;
};

// Names the command, the error and where the flags are listed. An empty command: the program itself.
[[noreturn]] void usage_error(const std::string& command, const std::string& what);
// "-o -" prints the JSON to stdout, like --json.
void resolve_stdout(std::string* results, OutputArgs* output);
// For flags that exclude each other. An environment variable that excludes a flag of the command line is ignored.
[[noreturn]] void contradiction(const std::string& what);

void add_list_devices(CLI::App& app);
// The flags of all commands that answer with an engine.
void add_common(CLI::App& app, EngineOptions* engine, GenerateOptions* generate, OutputArgs* output);
Flag system_flag(std::string* system);
void exclude_each_other(CLI::App& app, const std::vector<const char*>& flags);
void exclude_templates(CLI::App& app);
// Checks shared by several commands, after all flags have been read.
void check_verify(const EngineOptions& engine);
void check_model(const std::string& command, const EngineOptions& engine);
void check_common(const std::string& command, const EngineOptions& engine, const GenerateOptions& generate);
void check_devices(const EngineOptions& engine, const std::vector<DeviceOptions>& devices);

// Only the values of the parsed command change.
struct Parser {
  CLI::App app{"Headrace: text generation with long contexts, whose KV cache may exceed the GPU's memory", "headrace"};
  GenerateArgs generate;
  SummarizeArgs summarize;
  ChatArgs chat;
  BatchArgs batch;
  BatchMergeArgs batch_merge;
  BatchMakeArgs batch_make;
  ServeArgs serve;
  InspectArgs inspect;
  BenchArgs bench;
  QualityArgs quality;
  PlanArgs plan;
  CacheArgs cache;
  ProfileArgs profile;
  CLI::App *generate_app = nullptr, *summarize_app = nullptr, *chat_app = nullptr, *batch_app = nullptr,
           *merge_app = nullptr, *make_app = nullptr, *serve_app = nullptr, *inspect_app = nullptr,
           *bench_app = nullptr, *quality_app = nullptr, *plan_app = nullptr, *cache_app = nullptr,
           *profile_app = nullptr;

  Parser();
  Parser(const Parser&) = delete;  // the flags point to the values
  Parser& operator=(const Parser&) = delete;
  Command chosen();  // after parsing

 private:
  void add_generate();
  void add_summarize();
  void add_chat();
  void add_batch();
  void add_make();
  void add_serve();
  void add_inspect();
  void add_cache();
  Command finish_generate();
  Command finish_summarize();
  Command finish_chat();
  Command finish_batch();
  Command finish_merge();
  Command finish_make();
  Command finish_serve();
  Command finish_inspect();
  Command finish_cache();
  // parser_measure.cc
  void add_bench();
  void add_quality();
  void add_plan();
  void add_profile();
  Command finish_bench();
  Command finish_quality();
  Command finish_plan();
  Command finish_profile();
};

}  // namespace headrace
