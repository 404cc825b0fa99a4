// Checks of a refusal: the Error that an action throws, its exit code, place and text. Header only.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cache/base.h"

namespace headrace::testing_support {

template <typename Action>
void expect_error(ExitCode code, const std::string& where, const std::vector<std::string>& parts, Action&& action) {
  try {
    action();
    ADD_FAILURE() << "no error; expected one at " << where << (parts.empty() ? "" : ": " + parts.front());
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.code(), code) << text;
    EXPECT_EQ(error.info().where.rfind(where, 0), 0u) << where << " in: " << text;
    for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  }
}

// The Error that an action throws, with this exit code; none, and a failure, if it throws none.
template <typename Action>
std::optional<Error> caught(ExitCode code, Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error;
  }
  ADD_FAILURE() << "no error";
  return std::nullopt;
}

// Its message; empty if there is none.
template <typename Action>
std::string error_of(ExitCode code, Action&& action) {
  const std::optional<Error> error = caught(code, action);
  return error ? error->what() : "";
}

// Its parts; empty if there is none.
template <typename Action>
ErrorInfo refusal_of(ExitCode code, Action&& action) {
  const std::optional<Error> error = caught(code, action);
  return error ? error->info() : ErrorInfo{};
}

// A number after these words, read as a user would who follows the advice.
inline uint64_t amount_after(const std::string& text, const std::string& words) {
  const size_t at = text.find(words);
  EXPECT_NE(at, std::string::npos) << words << " in " << text;
  if (at == std::string::npos) return 0;
  const size_t from = at + words.size(), end = text.find('B', from);
  uint64_t bytes = 0;
  EXPECT_TRUE(parse_bytes(text.substr(from, end + 1 - from), &bytes)) << text;
  return bytes;
}

}  // namespace headrace::testing_support
