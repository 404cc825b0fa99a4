// Flags, values and commands that are mistyped, or another program's.
#include "cli/flags/check_flags.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/cli/flags/args_fixture.h"

namespace headrace {
namespace {

std::string of_generate(std::vector<std::string> more) {
  more.insert(more.begin(), {"generate", "-m", "model", "-p", "x"});
  return refusal(more);
}

TEST(CheckFlags, NameWhatHeadraceDoesInPlaceOfLlamaCpp) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"-ngl", "99"}, "-ngl is a flag of llama.cpp. Here weights are on the GPU as far as they fit"},
      {{"--n-gpu-layers=99"}, "--n-gpu-layers is a flag of llama.cpp"},
      {{"-fa"}, "-fa is a flag of llama.cpp. Here attention"},
      {{"-hf", "org/name"}, "hf download ORG/NAME, then -m ORG/NAME"},
      {{"-b", "512"}, "-b is a flag of llama.cpp"},
      {{"-ub", "512"}, "-ub is a flag of llama.cpp"},
      {{"--mlock"}, "--host-mem SIZE limits pinned memory"},
      {{"-ot", "exps=CPU"}, "are streamed from host memory"},
      {{"--n-cpu-moe", "4"}, "--weights-place host"},
      {{"--mmproj", "mmproj.gguf"}, "--mmproj is a flag of llama.cpp. Here images are not read"},
      {{"-np", "4"}, "one sequence runs at a time"},
  };
  for (const auto& [flags, wanted] : cases) EXPECT_NE(of_generate(flags).find(wanted), std::string::npos) << wanted;
}

TEST(CheckFlags, SuggestWhatWasMeant) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--ctx_size", "8K"}, "'--ctx_size' is not one of its flags; did you mean '--ctx-size'?"},
      {{"--wieghts=q4_k"}, "'--wieghts' is not one of its flags; did you mean '--weights'?"},
      {{"-ctx", "8K"}, "'-ctx' is not one of its flags; did you mean '-ctk'?"},
      {{"--no-such-flag"}, "'--no-such-flag' is not one of its flags\n"},
      {{"--verify", "losless"}, "'losless' is not one of auto, lossless, approximate, full; did you mean 'lossless'?"},
      {{"--device", "cudda"}, "is not one of auto, cuda, cpu, cuda:N; did you mean 'cuda'?"},
      {{"--preset", "SpecPV"}, "did you mean 'specpv'?"},
      {{"--verify", "never"}, "'never' is not one of auto, lossless, approximate, full\n"},
  };
  for (const auto& [flags, wanted] : cases) {
    EXPECT_NE((of_generate(flags) + "\n").find(wanted), std::string::npos) << wanted << "\n" << of_generate(flags);
  }
  EXPECT_NE(refusal({"sumarize", "a"}).find("; did you mean 'summarize'?"), std::string::npos);
  EXPECT_NE(refusal({"cache", "prun", "x"}).find("list, verify, prune; did you mean 'prune'?"), std::string::npos);
}

// CLI11 alone would read -qh as -q -h, and -fFILE as -f FILE.
TEST(CheckFlags, OfOneDashMatchExactly) {
  for (const char* flag : {"-qh", "-hq", "-fx", "-mx", "-qq"}) {
    EXPECT_NE(of_generate({flag}).find("'" + std::string(flag) + "' is not one of its flags"), std::string::npos)
        << flag << ": " << of_generate({flag});
  }
  const auto args = std::get<GenerateArgs>(parse_args({"generate", "-m", "m", "-p", "x", "-n12", "-c8K"}));
  EXPECT_EQ(args.generate.max_tokens, 12);
  EXPECT_EQ(args.engine.ctx_size, 8192);
}

TEST(CheckFlags, LeaveValuesAndFileNamesAlone) {
  const auto args = std::get<GenerateArgs>(parse_args({"generate", "-m", "-ngl", "-p", "--verfy", "-n", "-1"}));
  EXPECT_EQ(args.engine.model, "-ngl");
  EXPECT_EQ(args.prompt, "--verfy");
  EXPECT_EQ(args.generate.max_tokens, -1);
  EXPECT_EQ(std::get<SummarizeArgs>(parse_args({"summarize", "-m", "m", "--", "-fa"})).paths,
            std::vector<std::string>{"./-fa"});
  EXPECT_TRUE(std::holds_alternative<HelpArgs>(parse_args({"generate", "-ngl", "--help"})));
}

}  // namespace
}  // namespace headrace
