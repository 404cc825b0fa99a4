// Models that llama-gguf-split has divided: the parts are one model, whichever is named, and parts that do not belong
// together are refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "runtime/model/files/open_checkpoint.h"
#include "tests/runtime/model/files/model_files.h"
#include "tests/support/refusal.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using testing_support::expect_error;
using testing_support::GgufWriter;
using testing_support::raw_bytes;
using testing_support::small_gguf;
using testing_support::small_gguf_tensors;

std::string part_name(const std::string& stem, int number, int count) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "-%05d-of-%05d.gguf", number, count);
  return stem + digits;
}

struct Split {
  int count = 3;
  size_t first = 4;  // tensors of the first part; the others have equal numbers
  int tensors = -1;  // that the metadata declare; -1: the right number
};

// As the tool divides a model: the first part alone has the metadata, all have three keys of the split.
std::vector<std::string> write_parts(const TemporaryFolder& folder, const std::string& stem, const Split& split = {}) {
  constexpr uint32_t kU16 = 2;
  const GgufWriter whole = small_gguf("llama");
  const std::vector<GgufWriter::Tensor> tensors = small_gguf_tensors("llama");
  const size_t others = static_cast<size_t>(split.count) - 1, left = tensors.size() - split.first;
  std::vector<std::string> paths;
  size_t next = 0;
  for (int i = 0; i < split.count; ++i) {
    GgufWriter part = i == 0 ? whole : GgufWriter();
    part.tensors().clear();
    part.add_raw("split.no", kU16, raw_bytes(static_cast<uint16_t>(i)));
    part.add_raw("split.count", kU16, raw_bytes(static_cast<uint16_t>(split.count)));
    part.add_i32("split.tensors.count", split.tensors < 0 ? static_cast<int32_t>(tensors.size()) : split.tensors);
    const size_t end = i == 0 ? split.first : split.first + left * static_cast<size_t>(i) / others;
    for (; next < end; ++next) part.add_tensor(tensors[next]);
    paths.push_back(folder.write(part_name(stem, i + 1, split.count), part.finish()));
  }
  return paths;
}

std::vector<std::string> weights_of(const Checkpoint& checkpoint) {
  std::vector<std::string> all;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    std::vector<float> values(static_cast<size_t>(tensor.rows() * tensor.cols()));
    checkpoint.read_rows(tensor, 0, tensor.rows(), DType::kF32, values.data());
    all.push_back(tensor.name +
                  std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
    EXPECT_EQ(checkpoint.stored_range(tensor).text().size(), tensor.stored_bytes) << tensor.name;
  }
  std::sort(all.begin(), all.end());
  return all;
}

TEST(GgufParts, AreOneModelWhicheverIsNamed) {
  const TemporaryFolder folder;
  const std::string whole = folder.write("whole.gguf", small_gguf("llama").finish());
  const std::vector<std::string> weights = weights_of(*open_gguf(whole));
  for (const Split& split : {Split{}, Split{.count = 2, .first = 0}}) {
    const TemporaryFolder parts;
    for (const std::string& path : write_parts(parts, "m", split)) {
      const std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(path);
      EXPECT_EQ(weights_of(*checkpoint), weights) << path;
      EXPECT_EQ(checkpoint->files().size(), static_cast<size_t>(split.count));
    }
    EXPECT_EQ(weights_of(*open_checkpoint(parts.path())), weights);
  }
}

TEST(GgufParts, AMissingOneIsNamed) {
  const TemporaryFolder folder;
  const std::vector<std::string> parts = write_parts(folder, "m");
  for (const std::string& missing : {parts[1], parts[0]}) {
    std::filesystem::rename(missing, missing + ".away");
    for (const std::string& asked : {parts[2], folder.path()})
      expect_error(ExitCode::kBadInput, missing, {"is missing", "3 parts"}, [&] { open_checkpoint(asked); });
    std::filesystem::rename(missing + ".away", missing);
  }
}

TEST(GgufParts, OfTwoSplitsAreRefused) {
  const TemporaryFolder folder, other;
  const std::vector<std::string> parts = write_parts(folder, "m");
  const auto replace = [&](const std::string& with) {
    std::filesystem::copy_file(with, parts[1], std::filesystem::copy_options::overwrite_existing);
  };
  const auto refused = [&](const std::string& file, const std::vector<std::string>& says) {
    expect_error(ExitCode::kBadInput, file, says, [&] { open_checkpoint(parts[0]); });
  };
  replace(parts[2]);
  refused(parts[1], {"part 3 of 3 by its metadata", "part 2 of 3 by its name"});
  replace(write_parts(other, "two", {.count = 2})[1]);
  refused(parts[1], {"part 2 of 2 by its metadata", "part 2 of 3 by its name"});
  replace(write_parts(other, "less", {.first = 2})[1]);
  refused(parts[1], {"has tensor", "two splits"});
  replace(write_parts(other, "more", {.first = 6})[1]);
  refused(parts[2], {"has tensor", "two splits"});
  replace(folder.write("whole.gguf", small_gguf("llama").finish()));
  refused(parts[1], {"part 1 of 1 by its metadata"});
  std::filesystem::copy_file(parts[2], folder / "renamed.gguf");
  expect_error(ExitCode::kBadInput, folder / "renamed.gguf",
               {"part 3 of 3 by its metadata", "NAME-00001-of-00003.gguf"},
               [&] { open_checkpoint(folder / "renamed.gguf"); });
  const std::vector<std::string> wrong = write_parts(other, "wrong", {.tensors = 99});
  expect_error(ExitCode::kBadInput, wrong[0], {"split.tensors.count is 99"}, [&] { open_checkpoint(wrong[2]); });
}

// A repository may have a folder for each type of weights, with the parts of one model in it.
TEST(GgufParts, OfAFolderAreOneOfItsModels) {
  const TemporaryFolder folder;
  const ScopedVariable cache("HF_HUB_CACHE", folder.path());
  const std::string snapshot = folder / "models--org--m/snapshots/abc/";
  const std::string first = write_parts(folder, "models--org--m/snapshots/abc/Q8_0/m")[0];
  EXPECT_EQ(open_checkpoint("org/m")->path(), first);
  const std::string second = write_parts(folder, "models--org--m/snapshots/abc/Q4_K_M/m")[0];
  expect_error(ExitCode::kBadInput, snapshot.substr(0, snapshot.size() - 1),
               {"has 2 GGUF models", "\n  " + second + "\n  " + first}, [] { open_checkpoint("org/m"); });
}

}  // namespace
}  // namespace headrace
