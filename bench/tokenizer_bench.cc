// How long a text takes to become tokens: tokenizer_bench MODEL TEXT_FILE. Prints one JSON object: best and median of
// nine.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "bench/machine.h"
#include "runtime/document.h"
#include "runtime/model/checkpoint.h"

namespace headrace {
namespace {

void run(const char* model, const char* file) {
  const Tokenizer tokenizer = open_checkpoint(model)->load_tokenizer();
  const std::string text = read_document(file);
  std::vector<double> seconds;
  size_t tokens = 0;
  for (int i = 0; i < 9; ++i) {
    const auto start = std::chrono::steady_clock::now();
    tokens = tokenizer.encode(text, AddBos::kYes, SpecialTokens::kAsText).size();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  const nlohmann::json out = {{"program", "headrace tokenizer_bench"},
                              {"machine", bench::machine_json()},
                              {"model", model},
                              {"file", file},
                              {"bytes", text.size()},
                              {"tokens", tokens},
                              {"best_s", seconds[0]},
                              {"median_s", seconds[4]}};
  std::printf("%s\n", out.dump(1).c_str());
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: tokenizer_bench MODEL TEXT_FILE\n");
    return 2;
  }
  try {
    headrace::run(argv[1], argv[2]);
  } catch (const headrace::Error& error) {
    std::fprintf(stderr, "tokenizer_bench: %s\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
