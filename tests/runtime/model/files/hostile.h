// What the tests of hostile files share. Plain functions.
#pragma once

#include <string>

namespace headrace::testing_support {

// Opens a model and reads every weight and the chat template, as loading would.
void open_and_read(const std::string& path);
// open_and_read must end in Error(kBadInput) whose message holds the file's name and `expected`.
void expect_refused(const std::string& label, const std::string& path, const std::string& file,
                    const std::string& expected);
// `levels` times `open`, a 1, and as many times `close`.
std::string deep(const std::string& open, const std::string& close, int levels);

}  // namespace headrace::testing_support
