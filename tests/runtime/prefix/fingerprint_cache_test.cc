// Fingerprints that are known are those of the same files, and no others.
#include "runtime/prefix/fingerprint_cache.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "runtime/model/files/open_checkpoint.h"
#include "runtime/prefix/cache_key.h"
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
  ByteRange stored_range(const TensorInfo&) const override {
    ++reads;
    return {&bytes_, 0, bytes_.size()};
  }
  std::vector<FileStamp> files() const override { return files_; }
  mutable int reads = 0;

 private:
  const std::vector<FileStamp> files_;
  const std::string content_;
  const MemoryBytes bytes_{content_, "t"};
};

// A file that nobody has touched for long.
FileStamp old_file() { return *stamp_of("/bin/sh"); }

class FingerprintCache : public ::testing::Test {
 protected:
  // How often `source` was read for its fingerprint, which is right.
  static int reads_for(const Counted& source, const PrefixStore& store) {
    const int before = source.reads;
    const PrefixKey key = cached_fingerprint(source, 1, store);
    const int reads = source.reads - before;
    EXPECT_EQ(key, weights_fingerprint(source, 1));
    return reads;
  }
  const TemporaryFolder folder_;
  const std::string file_ = folder_ / "headrace-weights.json";
};

TEST_F(FingerprintCache, AreReadOnce) {
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

TEST_F(FingerprintCache, AreThoseOfTheSameFileAlone) {
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
TEST_F(FingerprintCache, AreNotThoseOfAFileThatWasJustWritten) {
  const PrefixStore store({.folder = folder_.path()});
  const Counted source({*stamp_of(folder_.write("weights", "x"))});
  EXPECT_EQ(reads_for(source, store), 1);
  EXPECT_EQ(reads_for(source, store), 1);
  EXPECT_FALSE(std::filesystem::exists(file_));
  const Counted none({});  // of no file, as random weights are
  EXPECT_EQ(reads_for(none, store), 1);
  EXPECT_EQ(reads_for(none, store), 1);
}

TEST_F(FingerprintCache, WhatIsTornOrForeignIsAsNone) {
  const PrefixStore store({.folder = folder_.path()});
  const Counted source({old_file()});
  EXPECT_EQ(reads_for(source, store), 1);
  const std::string whole = folder_.read("headrace-weights.json");
  std::string numerics = whole;
  numerics.replace(numerics.find("\"numerics\": "), 12, "\"numerics\": 9");
  for (const std::string& text :
       {std::string(), whole.substr(0, whole.size() / 2), std::string("[]"), numerics, std::string("{\"format\":2}"),
        str("{\"format\":2,\"numerics\":", kNumericsVersion, ",\"weights\":[1,{\"files\":2}]}")}) {
    folder_.write("headrace-weights.json", text);
    EXPECT_EQ(reads_for(source, store), 1) << text;
    EXPECT_EQ(reads_for(source, store), 0) << text;  // written anew
  }
}

// The times that a file system keeps may not tell of a change: here none does, and what the file held is another.
TEST_F(FingerprintCache, AreThoseOfTheSameSampleAlone) {
  const PrefixStore store({.folder = folder_.path()});
  const Counted source({old_file()});
  EXPECT_EQ(reads_for(source, store), 1);
  std::string record = folder_.read("headrace-weights.json");
  const std::string sample = std::to_string(*sampled_checksum("/bin/sh"));
  ASSERT_NE(record.find(sample), std::string::npos);
  record.replace(record.find(sample), sample.size(), "1");
  const size_t key = record.find("fingerprint\": \"") + 15;
  record[key] = record[key] == '0' ? '1' : '0';  // of other weights
  folder_.write("headrace-weights.json", record);
  EXPECT_EQ(reads_for(source, store), 1);
  EXPECT_EQ(reads_for(source, store), 0);
}

TEST_F(FingerprintCache, ASampleIsOfEverySlice) {
  const std::string path = folder_.write("large", "");
  constexpr uint64_t kBytes = 40 * kMiB + 5;
  std::filesystem::resize_file(path, kBytes);  // of holes
  std::set<uint64_t> seen = {*sampled_checksum(path)};
  EXPECT_TRUE(seen.count(*sampled_checksum(path)));
  char content = 0;
  for (const uint64_t at : {uint64_t{0}, uint64_t{4095}, 16 * kMiB, 32 * kMiB + 7, kBytes - 4096, kBytes - 1}) {
    const auto time = std::filesystem::last_write_time(path);
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(static_cast<int64_t>(at)).put(++content);
    std::filesystem::last_write_time(path, time);
    EXPECT_TRUE(seen.insert(*sampled_checksum(path)).second) << at;
  }
  std::filesystem::resize_file(path, kBytes - 1);
  EXPECT_TRUE(seen.insert(*sampled_checksum(path)).second);
  const std::string small = folder_.write("small", std::string(100'000, 'a'));
  const std::optional<uint64_t> before = sampled_checksum(small);
  folder_.write("small", std::string(50'000, 'a') + "b" + std::string(49'999, 'a'));
  EXPECT_NE(sampled_checksum(small), before);
  EXPECT_FALSE(sampled_checksum(folder_ / "none"));
}

TEST_F(FingerprintCache, TheLastOnesAreRemembered) {
  const PrefixStore store({.folder = folder_.path()});
  const auto source = [](size_t number) { return Counted(std::vector<FileStamp>(number, old_file())); };
  for (size_t i = 1; i <= kMaxCachedFingerprints; ++i) EXPECT_EQ(reads_for(source(i), store), 1);
  EXPECT_EQ(reads_for(source(1), store), 0);
  EXPECT_EQ(reads_for(source(kMaxCachedFingerprints + 1), store), 1);
  EXPECT_EQ(reads_for(source(2), store), 0);
  EXPECT_EQ(reads_for(source(kMaxCachedFingerprints + 1), store), 0);
  EXPECT_EQ(reads_for(source(1), store), 1);  // it was the oldest
}

// JSON cannot hold such a path: an entry of it could not be found, and would push another out at each start.
TEST_F(FingerprintCache, APathThatIsNotUtf8IsNotWrittenDown) {
  const PrefixStore store({.folder = folder_ / "cache"});
  const std::string path = folder_ / "\xff\xfe";
  std::error_code error;
  std::filesystem::create_symlink("/bin/sh", path, error);
  if (error) GTEST_SKIP() << "the file system takes no such name";
  const Counted source({*stamp_of(path)}), other({old_file()});
  EXPECT_EQ(reads_for(other, store), 1);
  const std::string record = folder_.read("cache/headrace-weights.json");
  for (int twice = 0; twice < 2; ++twice) EXPECT_EQ(reads_for(source, store), 1);
  EXPECT_EQ(folder_.read("cache/headrace-weights.json"), record);
}

TEST_F(FingerprintCache, AChangeIsRefused) {
  const std::string path = folder_.write("weights", "x");
  const std::vector<FileStamp> files = {old_file(), *stamp_of(path)};
  refuse_changed(files);
  refuse_changed({});
  folder_.write("weights", "xy");
  try {
    refuse_changed(files);
    FAIL() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
  }
  std::filesystem::remove(path);
  EXPECT_THROW(refuse_changed(files), Error);
}

TEST_F(FingerprintCache, AReaderWritesNothing) {
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

// Two shards that hold the same tensors: which is read from where, the index says.
TEST(ModelFiles, AnIndexIsOneOfThem) {
  const TemporaryFolder folder;
  std::filesystem::copy(testing::tiny_model("llama31"), folder.path(), std::filesystem::copy_options::recursive);
  std::string bytes = folder.read("model.safetensors");
  std::vector<std::string> names;
  const auto whole = open_checkpoint(folder.path());
  for (const TensorInfo& tensor : whole->tensors()) names.push_back(tensor.name);
  std::filesystem::remove(folder / "model.safetensors");
  folder.write("1.safetensors", bytes);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);  // of the last tensor
  folder.write("2.safetensors", bytes);
  const auto open = [&](const std::string& of_first, const std::string& of_others) {
    std::string map;
    for (const std::string& name : names) {
      map += str(map.empty() ? "" : ",", "\"", name, "\":\"", name == names.front() ? of_first : of_others, "\"");
    }
    folder.write("model.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
    return open_checkpoint(folder.path());
  };
  const auto checkpoint = open("2.safetensors", "1.safetensors");
  const std::string index = folder / "model.safetensors.index.json";
  std::filesystem::last_write_time(index, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  const std::vector<FileStamp> files = open_checkpoint(folder.path())->files();
  const auto swapped = open("1.safetensors", "2.safetensors");
  ASSERT_EQ(files.size(), 3u);
  EXPECT_NE(swapped->files(), files);
  EXPECT_NE(weights_fingerprint(*swapped, 1), weights_fingerprint(*checkpoint, 1));
}

}  // namespace
}  // namespace headrace
