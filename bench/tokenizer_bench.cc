// The time to tokenize a text: tokenizer_bench MODEL TEXT_FILE. Prints one JSON object: best and median of nine.
#include <algorithm>
#include <string>
#include <vector>

#include "bench/figures.h"
#include "bench/machine.h"
#include "bench/program.h"
#include "runtime/model/files/open_checkpoint.h"
#include "runtime/text/document.h"

namespace headrace::bench {
namespace {

nlohmann::ordered_json run(const std::string& model, const std::string& file) {
  const Tokenizer tokenizer = open_checkpoint(model)->load_tokenizer();
  const std::string text = read_document(file);
  std::vector<double> seconds;
  size_t tokens = 0;
  for (int i = 0; i < 9; ++i) {
    const Clock::time_point start = Clock::now();
    tokens = tokenizer.encode(text, AddBos::kYes, SpecialTokens::kAsText).size();
    seconds.push_back(seconds_since(start));
  }
  return {{"program", "tokenizer_bench"},
          {"machine", machine_json()},
          {"model", model},
          {"file", file},
          {"bytes", text.size()},
          {"tokens", tokens},
          {"best_s", *std::min_element(seconds.begin(), seconds.end())},
          {"median_s", median(seconds)}};
}

}  // namespace
}  // namespace headrace::bench

int main(int argc, char** argv) {
  using namespace headrace::bench;
  std::string model, file;
  CLI::App app("How long a text takes to become tokens", "tokenizer_bench");
  app.add_option("model", model)->required();
  app.add_option("text_file", file)->required();
  return run_program(app, argc, argv, [&] { return run(model, file); });
}
