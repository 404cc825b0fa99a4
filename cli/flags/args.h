// The command line as values: the command and its options. Every flag has an environment variable HEADRACE_*. Parsing
// reads argv and the environment, and checks whether a folder with a colon in its name exists. Thread: one.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "cli/flags/manual.h"
#include "cli/print/summary_text.h"
#include "runtime/commands/bench.h"
#include "runtime/commands/plan.h"
#include "runtime/commands/profile.h"
#include "runtime/commands/quality/quality.h"
#include "runtime/commands/request_file.h"
#include "runtime/engine/engine.h"
#include "runtime/server/server_options.h"
#include "runtime/text/document.h"

namespace headrace {

struct OutputArgs {
  bool json = false;           // one object per run on stdout instead of text
  bool quiet = false;          // no progress and no report
  bool hide_thinking = false;  // of text on stdout
  std::string preset;          // --preset; empty: none
};

struct GenerateArgs {
  EngineOptions engine;
  GenerateOptions generate;
  OutputArgs output;
  std::string prompt, file, system;
};

constexpr int64_t kSummaryTokens = 1024;  // -n of summarize
constexpr int64_t kLeastSummary = 256;    // room that a document must leave with that -n

struct SummarizeArgs {
  EngineOptions engine;
  GenerateOptions generate{.max_tokens = kSummaryTokens};
  OutputArgs output;
  std::vector<DeviceOptions> devices;  // --devices; empty: engine.device
  std::vector<std::string> paths;
  std::string instruction = "Write a short summary of the text above.", system;
  Truncate truncate = Truncate::kNone;
  bool split = false;   // --long split
  std::string results;  // -o; empty: text on stdout
  SummaryFormat format = SummaryFormat::kText;
  std::string out_dir;  // --out-dir: a file for each document; empty: none
  Shard shard;
};

struct BatchArgs {
  EngineOptions engine;
  GenerateOptions generate;  // defaults: options that a request does not set
  OutputArgs output;
  std::vector<DeviceOptions> devices;  // --devices; empty: engine.device
  std::string requests, results;       // -i, -o
  Shard shard;
  bool in_order = false;
};

struct BatchMergeArgs {
  std::string requests, results;
};

struct BatchMakeArgs {
  std::vector<std::string> paths;
  std::string instruction = "Write a short summary of the text above.", system, model = "headrace";
  std::string requests;  // -o; empty: stdout
  int64_t max_tokens = kSummaryTokens;
};

struct ServeArgs {
  EngineOptions engine;
  GenerateOptions generate;  // defaults: options that a request does not set
  OutputArgs output;
  ServerOptions server;
};

struct ChatArgs {
  EngineOptions engine;
  GenerateOptions generate;
  OutputArgs output;
  std::vector<std::string> paths;  // of documents
  std::string system;
  Truncate truncate = Truncate::kNone;
  bool split = false;  // --long split
};

struct InspectArgs {
  std::string model;
  WeightPolicy weights = WeightPolicy::kKeep;
  bool json = false, tensors = false;
  std::string render;              // --render: a file of messages; instead of what the model is
  std::string chat_template_file;  // empty: the model's own
  bool thinking = false;
};

struct BenchArgs {
  BenchOptions bench;
  OutputArgs output;
  std::string results;  // -o: also writes the JSON object to a file
};

struct QualityArgs {
  QualityOptions quality;
  bool perplexity = false;               // instead of what partial verification gets wrong
  bool draft_needle = false;             // the same
  int64_t most_tokens = 0;               // -p with --perplexity; 0: not given
  std::optional<PrefillType> against{};  // --against, with --perplexity
  OutputArgs output;
  std::string results;  // -o: also writes the JSON object to a file
};

struct PlanArgs {
  PlanOptions plan;
  std::vector<std::string> words;  // a shape or model, a card, a context, in any order
  bool details = false;
  OutputArgs output;
};

enum class CacheAction { kList, kVerify, kPrune };
struct CacheArgs {
  CacheAction action = CacheAction::kList;
  std::string folder;
  uint64_t limit_bytes = 0;  // prune: most bytes to keep
  bool json = false;
};

enum class ProfileFormat { kTable, kJson, kCsv, kMarkdown };

struct ProfileArgs {
  ProfileOptions profile;
  OutputArgs output;
  ProfileFormat format = ProfileFormat::kTable;  // on stdout: --format, --json, -o FORMAT
  std::string results;                           // -o FILE: also to a file, in the format of its suffix
  ProfileFormat results_format = ProfileFormat::kJson;
  std::string html;  // --html
};

struct HelpArgs {
  std::string text;  // to stdout
};

struct ManualArgs {  // --write-manual
  std::string folder;
  std::vector<ManualFile> files;
};

struct DevicesArgs {};  // --list-devices
struct ShapesArgs {};   // --list-shapes

using Command = std::variant<HelpArgs, ManualArgs, DevicesArgs, ShapesArgs, GenerateArgs, SummarizeArgs, ChatArgs,
                             BatchArgs, BatchMergeArgs, BatchMakeArgs, ServeArgs, InspectArgs, BenchArgs, QualityArgs,
                             PlanArgs, CacheArgs, ProfileArgs>;

// Throws Error(kUsage) that names the flag and the value.
Command parse_args(const std::vector<std::string>& args);  // argv without the program's name

}  // namespace headrace
