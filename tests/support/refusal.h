// What a refusal must say: the Error that an action throws, its exit code, where it is and what it names. Header only.
#pragma once

#include <gtest/gtest.h>

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

// What the Error says that an action throws, with this exit code; empty, and a failure, if it throws none.
template <typename Action>
std::string error_of(ExitCode code, Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

}  // namespace headrace::testing_support
