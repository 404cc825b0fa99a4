// A bench as a program: flags, one run, its result as JSON on stdout; errors on stderr after the program's name, with
// headrace's exit codes. Thread: the main thread.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "cache/base.h"
#include "offload/device/device.h"

namespace headrace::bench {

// A flag with one of these words as value.
template <typename T>
CLI::Option* add_choice(CLI::App& app, const std::string& flag, T* out, const std::map<std::string, T>& words) {
  return app.add_option_function<std::string>(flag, [out, words](const std::string& word) { *out = words.at(word); })
      ->check(CLI::IsMember(words));
}

inline void add_device(CLI::App& app, DeviceChoice* out) {
  add_choice<DeviceChoice>(app, "--device", out,
                           {{"auto", DeviceChoice::kAuto}, {"cuda", DeviceChoice::kCuda}, {"cpu", DeviceChoice::kCpu}});
}

// "4GiB"
inline void add_size(CLI::App& app, const std::string& flag, uint64_t* out) {
  app.add_option_function<std::string>(flag, [flag, out](const std::string& text) {
    if (!parse_bytes(text, out)) throw CLI::ValidationError(flag, "'" + text + "' is no size like 4GiB");
  });
}

// `app` has the program's name and its flags; `run` is called once they are parsed, and prints its results. Returns the
// exit code.
inline int parse_and_run(CLI::App& app, int argc, char** argv, const std::function<void()>& run) {
  try {
    app.parse(argc, argv);
    run();
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), error.what());
    return static_cast<int>(ExitCode::kUsage);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}

// The same for a program with one JSON object as its result.
inline int run_program(CLI::App& app, int argc, char** argv, const std::function<nlohmann::ordered_json()>& run) {
  return parse_and_run(app, argc, argv, [&] { std::printf("%s\n", run().dump(1).c_str()); });
}

}  // namespace headrace::bench
