// Systems of the papers as modes of one engine, on the same target, device and texts: for each text, system, prompt
// length, temperature and KV mode a run, and a line of JSON as soon as it has ended. Lines that the output has already
// are not run again, so that a run can be continued.
//   systems_bench MODEL SYSTEMS TEXT... --out FILE [--model eagle3=DIR]... [--tokens 1024,4096,16384]
//                 [--kv device,host] [--temp 0,1] [-n 128] [--device cuda] [--only NAME]... [--instruction TEXT]
//                 [--minutes 8] [--answers] [--vram 22GiB]
// SYSTEMS: lines "name | flags", flags of headrace and three of its own (bench/systems.txt). A system whose draft has
// no --model is left out. With --minutes no run is begun after so long. --answers: rows have the text of the answer.
// bench/tables/partial.py makes tables of results, bench/papers.py runs this program for the tables of the papers.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <span>

#include "bench/program.h"
#include "bench/speculation_rows.h"
#include "cli/flags/flag_groups.h"
#include "offload/host/checksum.h"
#include "offload/host/clock.h"
#include "runtime/commands/report_json.h"

namespace headrace::bench {
namespace {

struct Args : TextArgs {
  std::string systems, out;
  std::vector<std::string> models, only;
  double minutes = 0;  // 0: no limit
  bool answers = false;
  uint64_t vram_bytes = 0;
};

struct System {
  std::string name, flags;
  DraftOptions draft{};
  VerifyOptions verify{};
  int64_t budget_share = 0;  // 0: the budget of `verify`
  bool chain = false;        // of pending tokens
  int64_t new_tokens = 0;    // 0: those of the program
};

System parse_system(const std::string& line) {
  const auto trimmed = [](std::string text) {
    text.erase(0, text.find_first_not_of(' '));
    return text.erase(text.find_last_not_of(' ') + 1);
  };
  const size_t bar = line.find('|');
  if (bar == std::string::npos) throw_error(ExitCode::kBadInput, line, "is not 'name | flags'");
  System system{.name = trimmed(line.substr(0, bar)), .flags = trimmed(line.substr(bar + 1))};
  CLI::App app(system.name);
  add_flags(app, "", draft_flags(&system.draft));
  add_flags(app, "", verify_flags(&system.verify));
  add_flags(app, "", block_flags(&system.verify));
  app.add_option("--budget-share", system.budget_share)->check(CLI::PositiveNumber);
  app.add_option("-n", system.new_tokens)->check(CLI::PositiveNumber);
  app.add_option_function<std::string>("--pending", [&](const std::string&) { system.chain = true; })
      ->check(CLI::IsMember({"chain"}));
  try {
    app.parse(system.flags);
  } catch (const CLI::ParseError& error) {
    throw_error(ExitCode::kBadInput, system.name, error.what());
  }
  return system;
}

// Those whose drafts are there.
std::vector<System> read_systems(const Args& args) {
  std::map<std::string, std::string> paths;
  for (const std::string& model : args.models) {
    const size_t equals = model.find('=');
    if (equals == std::string::npos) throw_error(ExitCode::kUsage, "--model", model + " is not NAME=PATH");
    paths[model.substr(0, equals)] = model.substr(equals + 1);
  }
  std::ifstream file(args.systems);
  if (!file) throw_error(ExitCode::kBadInput, args.systems, "cannot be opened");
  std::vector<System> systems;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.front() == '#') continue;
    System system = parse_system(line);
    const bool wanted =
        args.only.empty() || std::find(args.only.begin(), args.only.end(), system.name) != args.only.end();
    if (!wanted || (!system.draft.model.empty() && paths.count(system.draft.model) == 0)) continue;
    if (!system.draft.model.empty()) system.draft.model = paths[system.draft.model];
    systems.push_back(std::move(system));
  }
  return systems;
}

std::string hash_of(const std::vector<int32_t>& ids) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(checksum(std::as_bytes(std::span(ids)))));
  return text;
}

EngineOptions engine_options(const Args& args) {
  EngineOptions options = engine_options(static_cast<const TextArgs&>(args));
  options.device.vram_bytes = args.vram_bytes;
  return options;
}

class Bench {
 public:
  explicit Bench(const Args& args) : args_(args), systems_(read_systems(args)), engine_(engine_options(args)) {}

  void run() {
    std::ifstream before(args_.out);
    for (std::string line; std::getline(before, line);) {
      const nlohmann::json row = nlohmann::json::parse(line, nullptr, false);
      if (row.is_object() && row.contains("system") && !row.contains("error")) done_.insert(key_of(row));
    }
    out_.open(args_.out, std::ios::app);
    if (!out_) throw_error(ExitCode::kStorage, args_.out, "cannot be written");
    add({{"program", "systems_bench"},
         {"machine", machine_json(read_machine(), engine_.device().name())},
         {"model", engine_.model_path()},
         {"new_tokens", args_.new_tokens}});
    for (const std::string& text : args_.texts) {
      for (const System& system : systems_) {
        try {
          run(text, system);
        } catch (const Error& error) {  // a draft that does not fit: the others go on
          add({{"failed", system.name}, {"error", error.what()}});
        }
      }
    }
  }

 private:
  void run(const std::string& text, const System& system) {
    bool opened = false;
    for (const int64_t tokens : args_.tokens) {
      for (const float temperature : args_.temperatures) {
        for (const std::string& kv : args_.kv) {
          nlohmann::ordered_json row = {{"system", system.name},
                                        {"text", std::filesystem::path(text).stem().string()},
                                        {"context", tokens},
                                        {"kv", kv},
                                        {"temperature", temperature}};
          if (done_.count(key_of(row)) > 0 || late()) continue;
          if (!opened) open(system);
          opened = true;
          measure(text, system, row);
        }
      }
    }
  }

  bool late() const { return args_.minutes > 0 && seconds_since(start_) > 60 * args_.minutes; }

  // A short run loads the draft and warms up.
  void open(const System& system) {
    engine_.use_draft(system.draft);
    GenerateOptions options{.max_tokens = 24, .ignore_eos = true};
    options.verify = system.verify;
    engine_.generate(engine_.encode({"", "Say something about the sea and the ships on it."}), options, nullptr);
  }

  void measure(const std::string& text, const System& system, nlohmann::ordered_json row) {
    const auto tokens = row["context"].get<int64_t>();
    const std::vector<int32_t>& prompt = prompt_for(text, tokens);
    GenerateOptions options{.max_tokens = system.new_tokens > 0 ? system.new_tokens : args_.new_tokens,
                            .kv = kv_mode(row["kv"]),
                            .ignore_eos = true};
    options.sampling.temperature = row["temperature"];
    options.verify = system.verify;
    if (system.budget_share > 0) options.verify->budget = tokens / system.budget_share / kPrefixTile * kPrefixTile;
    if (system.chain) options.pending = {.width = 0};
    row["flags"] = system.flags;
    row["prompt_tokens"] = prompt.size();
    try {
      const GenerateResult result = engine_.generate(prompt, options, nullptr);
      const Timings& t = result.timings;
      row["budget"] = options.verify->budget.value_or(0);
      row["partial_kv_bytes"] = result.plan.partial_bytes;
      row["draft_window"] = result.draft_window.rows;
      row["tokens_per_s_with_prefill"] =
          1e3 * static_cast<double>(result.token_ids.size()) / std::max(1e-3, t.ttft_ms + t.decode_ms);
      row["answer"] = hash_of(result.token_ids);
      if (args_.answers) row["answer_text"] = result.text;
      row.update(row_of(result));
      const Speculation::Kind& full = result.speculation.of(StepMode::kFull);
      const Speculation::Kind& refresh = result.speculation.of(StepMode::kRefresh);
      row["full_passes"] = result.speculation.happened() ? full.steps + refresh.steps : t.decode_steps;
    } catch (const Error& error) {
      row["error"] = error.what();
    }
    add(row);
  }

  const std::vector<int32_t>& prompt_for(const std::string& text, int64_t tokens) {
    std::vector<int32_t>& prompt = prompts_[{text, tokens}];
    if (prompt.empty()) prompt = prompt_of(engine_, text, tokens, args_.instruction);
    return prompt;
  }

  template <typename Row>
  static std::string key_of(const Row& row) {
    std::string key;
    for (const char* field : {"system", "text", "context", "kv", "temperature"}) key += row.at(field).dump() + "|";
    return key;
  }

  // Flushed: a line is kept at once.
  void add(const nlohmann::ordered_json& row) { out_ << line_text(row) << std::endl; }

  const Args args_;
  const std::vector<System> systems_;
  Engine engine_;
  std::map<std::pair<std::string, int64_t>, std::vector<int32_t>> prompts_;
  std::set<std::string> done_;
  std::ofstream out_;
  const HostClock::time_point start_ = HostClock::now();
};

void add_options(CLI::App& app, Args& args) {
  args.tokens = {1024, 4096, 16384};
  args.kv = {"device", "host"};
  args.temperatures = {0.0f, 1.0f};
  app.add_option("target", args.model)->required();
  app.add_option("systems", args.systems)->required();
  add_text_flags(app, args);
  app.add_option("--out", args.out)->required();
  app.add_option("--model", args.models, "NAME=PATH of a draft")->allow_extra_args(false);
  app.add_option("--only", args.only, "a system's name")->allow_extra_args(false);
  app.add_option("--minutes", args.minutes);
  app.add_flag("--answers", args.answers);
  add_size(app, "--vram", &args.vram_bytes);
}

}  // namespace
}  // namespace headrace::bench

int main(int argc, char** argv) {
  using namespace headrace::bench;
  Args args;
  CLI::App app("Systems of the papers as modes of one engine", "systems_bench");
  add_options(app, args);
  return parse_and_run(app, argc, argv, [&] { Bench(args).run(); });
}
