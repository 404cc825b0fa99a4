// Fingerprints that are known are those of the same files, and no others.
#include "runtime/prefix/known_weights.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/prefix/identity.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

// One tensor of one byte, said to come from `files`; counts how often it is read.
class Counted final : public TensorSource {
 public:
  explicit Counted(std::vector<FileStamp> files, char content = 'a') : files_(std::move(files)), content_(1, content) {
    set_tensors({{"t", {1}, "U8", 1}});
  }
  void read_rows(const TensorInfo&, int64_t, int64_t, DType, void*) const override {}
  std::string_view stored_bytes(const TensorInfo&) const override {
    ++reads;
    return content_;
  }
  std::vector<FileStamp> files() const override { return files_; }
  void release_pages(const TensorInfo&) const override {}
  mutable int reads = 0;

 private:
  const std::vector<FileStamp> files_;
  const std::string content_;
};

// A file that nobody has touched for long.
FileStamp old_file() { return *stamp_of("/bin/sh"); }

class KnownWeights : public ::testing::Test {
 protected:
  // How often `source` was read for its fingerprint, which is right.
  static int reads_for(const Counted& source, const PrefixStore& store) {
    const int before = source.reads;
    const PrefixKey key = known_fingerprint(source, 1, store);
    const int reads = source.reads - before;
    EXPECT_EQ(key, weights_fingerprint(source, 1));
    return reads;
  }
  const TemporaryFolder folder_;
  const std::string file_ = folder_ / "headrace-weights.json";
};

TEST_F(KnownWeights, AreReadOnce) {
  const PrefixStore store({.folder = folder_.path()});
  const Counted source({old_file()}), again({old_file()}), other({old_file(), old_file()}, 'b');
  EXPECT_EQ(reads_for(source, store), 1);
  EXPECT_EQ(reads_for(again, store), 0);
  EXPECT_EQ(reads_for(other, store), 1);
  EXPECT_EQ(reads_for(other, store), 0);
  folder_.write("headrace-weights.json.tmp", "of a start that was killed");
  EXPECT_EQ(reads_for(again, store), 0);
  EXPECT_FALSE(std::filesystem::exists(file_ + ".tmp"));
}

TEST_F(KnownWeights, AreThoseOfTheSameFileAlone) {
  const PrefixStore store({.folder = folder_.path()});
  EXPECT_EQ(reads_for(Counted({old_file()}), store), 1);
  const auto changed = [](auto change) {
    FileStamp stamp = old_file();
    change(stamp);
    return stamp;
  };
  // Written to, replaced, moved: each is read, and, as the file on the disk is not that, not written down.
  for (int twice = 0; twice < 2; ++twice) {
    EXPECT_EQ(reads_for(Counted({changed([](FileStamp& s) { --s.modified_ns; })}, 'b'), store), 1);
    EXPECT_EQ(reads_for(Counted({changed([](FileStamp& s) { --s.changed_ns; })}, 'b'), store), 1);
    EXPECT_EQ(reads_for(Counted({changed([](FileStamp& s) { ++s.bytes; })}, 'b'), store), 1);
    EXPECT_EQ(reads_for(Counted({changed([](FileStamp& s) { ++s.inode; })}, 'b'), store), 1);
    EXPECT_EQ(reads_for(Counted({changed([](FileStamp& s) { s.path = "/bin/nowhere"; })}, 'b'), store), 1);
  }
  EXPECT_EQ(reads_for(Counted({old_file()}), store), 0);
}

// What was written a moment ago may be written again within the same tick of the clock.
TEST_F(KnownWeights, AreNotThoseOfAFileThatWasJustWritten) {
  const PrefixStore store({.folder = folder_.path()});
  const Counted source({*stamp_of(folder_.write("weights", "x"))});
  EXPECT_EQ(reads_for(source, store), 1);
  EXPECT_EQ(reads_for(source, store), 1);
  EXPECT_FALSE(std::filesystem::exists(file_));
  const Counted none({});  // of no file, as random weights are
  EXPECT_EQ(reads_for(none, store), 1);
  EXPECT_EQ(reads_for(none, store), 1);
}

TEST_F(KnownWeights, WhatIsTornOrForeignIsAsNone) {
  const PrefixStore store({.folder = folder_.path()});
  const Counted source({old_file()});
  EXPECT_EQ(reads_for(source, store), 1);
  const std::string whole = folder_.read("headrace-weights.json");
  std::string numerics = whole;
  numerics.replace(numerics.find("\"numerics\": "), 12, "\"numerics\": 9");
  for (const std::string& text :
       {std::string(), whole.substr(0, whole.size() / 2), std::string("[]"), numerics, std::string("{\"format\":1}"),
        std::string("{\"format\":1,\"numerics\":2,\"weights\":[1,{\"files\":2}]}")}) {
    folder_.write("headrace-weights.json", text);
    EXPECT_EQ(reads_for(source, store), 1) << text;
    EXPECT_EQ(reads_for(source, store), 0) << text;  // written anew
  }
}

TEST_F(KnownWeights, AReaderWritesNothing) {
  const PrefixStore writer({.folder = folder_.path()}), reader({.folder = folder_.path()});
  ASSERT_FALSE(reader.writes());
  const Counted source({old_file()});
  EXPECT_EQ(reads_for(source, reader), 1);
  EXPECT_FALSE(std::filesystem::exists(file_));
  EXPECT_EQ(reads_for(source, writer), 1);
  EXPECT_EQ(reads_for(source, reader), 0);
}

// Models that lie in files say which; a change of one shows.
TEST(ModelFiles, AreNamedByTheCheckpoint) {
  const TemporaryFolder folder;
  std::filesystem::copy(testing::tiny_model("llama31"), folder / "model");
  const std::vector<FileStamp> files = open_checkpoint(folder / "model")->files();
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0].path, folder / "model/model.safetensors");
  EXPECT_EQ(files[0], *stamp_of(folder / "model/model.safetensors"));
  std::string bytes = folder.read("model/model.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  folder.write("model/model.safetensors", bytes);
  EXPECT_NE(open_checkpoint(folder / "model")->files(), files);
}

}  // namespace
}  // namespace headrace
