// The page of headrace serve in headless Chromium, with the real model: tests/serve_page.py, which needs Python alone.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <sstream>
#include <string>

#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

// Where PATH has one of these programs; empty: nowhere.
std::string find_program(std::initializer_list<const char*> names) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    for (const char* name : names) {
      std::string file = folder + "/" + name;
      if (::access(file.c_str(), X_OK) == 0) return file;
    }
  }
  return "";
}

std::string find_chromium() {
  if (const char* const named = std::getenv("HEADRACE_BROWSER")) return named;
  return find_program({"chromium", "chromium-browser", "google-chrome", "chrome-headless-shell"});
}

constexpr int kNoBrowser = 77;  // the status of serve_page.py if the browser does not start

TEST(PageProgram, EveryStateInABrowser) {
  const char* const model = std::getenv("HEADRACE_TEST_GGUF");
  ASSERT_NE(model, nullptr) << "HEADRACE_TEST_GGUF names no file: run tests/run.sh, which fetches the model";
  const std::string chromium = find_chromium(), python = find_program({"python3"});
  if (chromium.empty()) GTEST_SKIP() << "the page in a browser: no chromium here (bash tests/install.sh page)";
  if (python.empty()) GTEST_SKIP() << "the page in a browser: no python3 here";
  const TemporaryFolder folder;
  const std::string command = "'" + python +
                              "' '" HEADRACE_SOURCE_DIR "/tests/serve_page.py' '" HEADRACE_PROGRAM "' '" + model +
                              "' '" + chromium + "' '" + folder.path() + "' 2>&1";
  FILE* const output = ::popen(command.c_str(), "r");
  ASSERT_NE(output, nullptr);
  std::string text;
  std::array<char, 4096> buffer{};
  for (size_t count; (count = std::fread(buffer.data(), 1, buffer.size(), output)) > 0;)
    text.append(buffer.data(), count);
  const int status = ::pclose(output);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoBrowser) {
    GTEST_SKIP() << "the page in a browser: " << chromium << " does not start here";
  }
  EXPECT_EQ(status, 0) << text;
}

}  // namespace
}  // namespace headrace
