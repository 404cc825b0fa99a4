#include "cli/flags/check_flags.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "cli/flags/parser.h"
#include "runtime/base/nearest.h"

namespace headrace {
namespace {

struct Foreign {
  std::array<std::string_view, 4> names;
  const char* instead;
};

// Flags of llama.cpp that people type from habit.
constexpr Foreign kLlamaFlags[] = {
    {{"-ngl", "--n-gpu-layers", "--gpu-layers"},
     "weights are on the GPU as far as they fit, else in host memory: leave it out; --vram SIZE limits the GPU's "
     "memory"},
    {{"-fa", "--flash-attn"}, "attention is always computed in blocks: leave it out"},
    {{"-hf", "-hfr", "--hf-repo"}, "nothing is fetched: hf download ORG/NAME, then -m ORG/NAME"},
    {{"-b", "--batch-size"}, "prefill takes as many tokens at once as memory allows: leave it out"},
    {{"-ub", "--ubatch-size"}, "prefill takes as many tokens at once as memory allows: leave it out"},
    {{"--mlock"}, "weights are read and never paged out: leave it out; --host-mem SIZE limits pinned memory"},
    {{"--mmap", "--no-mmap"}, "weights are read, not mapped: leave it out"},
    {{"-ot", "--override-tensor"},
     "weights that do not fit the GPU are streamed from host memory: leave it out; --weights-place host does so with "
     "all"},
    {{"-ncmoe", "--n-cpu-moe", "-cmoe", "--cpu-moe"},
     "weights that do not fit the GPU are streamed from host memory: leave it out; --weights-place host does so with "
     "all"},
    {{"-np", "--parallel"}, "one sequence runs at a time: leave it out; the requests of serve wait (--queue N)"},
    {{"-mm", "--mmproj"}, "images are not read: leave it out; the decoder of -m alone is loaded"},
    {{"-nkvo", "--no-kv-offload"}, "--kv host keeps the KV cache in host memory"},
};

const CLI::Option* find_flag(const CLI::App& command, std::string_view name) {
  for (const auto& [alias, long_name] : kFlagAliases) {
    if (name == alias) name = long_name;
  }
  return command.get_option_no_throw(std::string(name));
}

bool takes_value(const CLI::Option& option) { return option.get_expected_max() > 0; }

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

[[noreturn]] void refuse_flag(const CLI::App& command, const std::string& path, const std::string& name) {
  for (const Foreign& foreign : kLlamaFlags) {
    if (std::find(foreign.names.begin(), foreign.names.end(), name) != foreign.names.end())
      usage_error(path, str(name, " is a flag of llama.cpp. Here ", foreign.instead));
  }
  std::vector<std::string> names;
  for (const CLI::Option* const option : command.get_options()) {
    if (option->get_group().empty()) continue;
    for (std::string& known : typed_names(*option)) names.push_back(std::move(known));
  }
  usage_error(path, str("'", name, "' is not one of its flags", did_you_mean(name, names)));
}

}  // namespace

std::vector<std::string> typed_names(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const auto& [alias, long_name] : kFlagAliases) {
    if (option.check_name(std::string(long_name))) names.emplace_back(alias);
  }
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

void check_flags(const CLI::App& command, const std::string& path, std::span<const std::string> args) {
  std::string unknown;
  for (size_t i = 0; i < args.size() && args[i] != "--"; ++i) {
    const std::string& arg = args[i];
    if (arg == "-h" || arg == "--help") throw CLI::CallForHelp();
    if (arg == "--help-all") throw HelpWithAllFlags();
    const auto is_named = [&arg](const CLI::App* below) { return below->get_name() == arg; };
    if (!command.get_subcommands(is_named).empty()) break;  // its flags follow
    if (arg.size() < 2 || arg[0] != '-' || is_digit(arg[1])) continue;
    const size_t equals = arg.starts_with("--") ? arg.find('=') : std::string::npos;
    const std::string name = arg.substr(0, equals);
    if (const CLI::Option* const option = find_flag(command, name)) {
      if (takes_value(*option) && equals == std::string::npos) ++i;
      continue;
    }
    const CLI::Option* const joined = arg[1] == '-' ? nullptr : find_flag(command, arg.substr(0, 2));
    const bool number = joined != nullptr && takes_value(*joined) && is_digit(arg[2]);  // "-n256"
    if (!number && unknown.empty()) unknown = name;
  }
  if (!unknown.empty()) refuse_flag(command, path, unknown);
}

}  // namespace headrace
