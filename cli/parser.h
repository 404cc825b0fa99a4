// The commands with their flags: one CLI11 application, and the values that parsing it sets. cli/args.cc runs it. What
// the commands share is in flag_groups.h. Thread: one.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "cli/args.h"

namespace headrace {

// Values whose type the table cannot set directly, and the model's flags that are negations.
struct Late {
  int64_t threads = 0, top_k = 0, draft_tokens = 0;
  bool no_chat_template = false;
};

// Thrown as soon as the flag is read, as help is: what else is missing does not matter.
struct ListDevices {};
struct ListShapes {};

// What is wrong with a command line, and where its flags are listed. An empty command: the program itself.
[[noreturn]] void usage_error(const std::string& command, const std::string& what);
void add_list_devices(CLI::App& app, const std::string& heading);
// What several commands look at once all flags are read. Each throws Error(kUsage).
void check_verify(const std::string& command, const EngineOptions& engine);
void finish_common(const std::string& command, const Late& late, const std::string& system, EngineOptions* engine,
                   GenerateOptions* generate);

// "-o -" is the JSON on stdout, as with --json.
void take_stdout_name(std::string* results, OutputArgs* output);

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
  void add_cache();
  void finish_cache();
  // parser_measure.cc
  void add_plan();
  void add_profile();
  void finish_bench();
  void finish_quality();
  void finish_plan();
  void finish_profile();
  CLI::App* innermost();  // the command that was parsed, or the one below it
  Command chosen();
};

}  // namespace headrace
