#include "tests/runtime/model/files/hostile.h"

#include <gtest/gtest.h>

#include <vector>

#include "runtime/model/files/open_checkpoint.h"

namespace headrace::testing_support {

void open_and_read(const std::string& path) {
  const std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(path);
  for (const TensorInfo& info : checkpoint->tensors()) {
    std::vector<char> out(static_cast<size_t>(info.rows() * info.cols()) * 4);
    checkpoint->read_rows(info, 0, info.rows(), DType::kF32, out.data());
  }
  checkpoint->chat_template();
}

void expect_refused(const std::string& label, const std::string& path, const std::string& file,
                    const std::string& expected) {
  try {
    open_and_read(path);
    ADD_FAILURE() << label << ": accepted";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.code(), ExitCode::kBadInput) << label << ": " << text;
    EXPECT_NE(text.find(file), std::string::npos) << label << " lacks the file: " << text;
    EXPECT_NE(text.find(expected), std::string::npos) << label << " lacks \"" << expected << "\": " << text;
    EXPECT_LT(text.size(), 2000u) << label;
  }
}

std::string deep(const std::string& open, const std::string& close, int levels) {
  std::string out;
  for (int i = 0; i < levels; ++i) out += open;
  out += "1";
  for (int i = 0; i < levels; ++i) out += close;
  return out;
}

}  // namespace headrace::testing_support
