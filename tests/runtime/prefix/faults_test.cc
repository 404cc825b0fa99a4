// What goes wrong on the way to the disk and back: what is there afterwards is whole or nothing, and a later save
// works.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "offload/disk/file_faults.h"
#include "runtime/prefix/loader.h"
#include "runtime/prefix/store.h"
#include "tests/runtime/prefix/blocks.h"
#include "tests/runtime/prefix/saving.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using testing::blocks_of;
using testing::counted_tokens;
using testing::files_in;
using testing::key_of;
using testing::kRoot;
using testing::made_up_byte;
using testing::save_blocks;

const std::vector<int32_t>& prompt() {
  static const std::vector<int32_t> tokens = counted_tokens(1400);
  return tokens;
}

// In the way of all files while it lives.
class Faults : public FileFaults {
 public:
  Faults() : before_(set_file_faults(this)) {}
  ~Faults() override { set_file_faults(before_); }

 private:
  FileFaults* before_;
};

// Temporary folders lie in memory while it lives, where there is one for that: nothing waits for a disk.
class InMemory {
 public:
  InMemory() {
    if (const char* const value = std::getenv("TMPDIR")) before_ = value;
    if (std::filesystem::is_directory("/dev/shm")) ::setenv("TMPDIR", "/dev/shm", 1);
  }
  ~InMemory() { before_.empty() ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", before_.c_str(), 1); }

 private:
  std::string before_;
};

// Nothing but whole blocks, of this prompt's beginning, with the bytes that were given.
void expect_whole(const std::string& folder) {
  const PrefixStore store({.folder = folder});
  ASSERT_TRUE(store.writes()) << store.note();
  EXPECT_TRUE(store.verify().empty());
  size_t rows_blocks = 0;
  for (const PrefixBlock& block : blocks_of(prompt())) {
    const PrefixEntry* const entry = store.index().find(block.key);
    if (entry == nullptr) break;
    ++rows_blocks;
    const File file = File::open(store.data_path(block.key), FileAccess::kRead, FileCaching::kBuffered);
    for (size_t part = 0; part < block.checksums.size(); ++part) {
      std::byte data[kPageBytes];
      file.read(part * kPageBytes, data);
      EXPECT_EQ(data[0], made_up_byte(block, part));
      EXPECT_EQ(data[kPageBytes - 1], made_up_byte(block, part));
    }
  }
  EXPECT_EQ(store.index().entries().size(), rows_blocks);   // a beginning, without gaps
  EXPECT_EQ(files_in(folder).size(), 2 * rows_blocks + 1);  // and nothing beside it
  EXPECT_EQ(segments_for(store.index().match(kRoot, prompt(), 1).rows), static_cast<int64_t>(rows_blocks));
}

void expect_save_works(const std::string& folder) {
  PrefixStore store({.folder = folder});
  std::vector<PrefixBlock> missing;
  for (const PrefixBlock& block : blocks_of(prompt())) {
    if (store.index().find(block.key) == nullptr) missing.push_back(block);
  }
  if (!missing.empty()) {
    EXPECT_EQ(save_blocks(store, missing), "");
  }
  EXPECT_EQ(store.index().match(kRoot, prompt(), 1).rows, 1399);
}

// The n-th operation of a kind fails.
class FailAt final : public Faults {
 public:
  FailAt(FileOp op, int n, int error) : op_(op), left_(n), error_(error) {}
  FileFault before(FileOp op, const std::string&, uint64_t, uint64_t) override {
    if (op != op_ || left_-- != 0) return {};
    failed = true;
    return {.error = error_};
  }
  std::atomic<bool> failed{false};

 private:
  const FileOp op_;
  std::atomic<int> left_;
  const int error_;
};

// How often a save of the prompt's three blocks, of two parts each, does something: a file for the data of a block and
// one for its manifest.
constexpr std::pair<FileOp, int> kOperations[] = {
    {FileOp::kRemove, 6}, {FileOp::kOpen, 6},   {FileOp::kAllocate, 3},   {FileOp::kWrite, 9},
    {FileOp::kSync, 6},   {FileOp::kRename, 6}, {FileOp::kSyncFolder, 1},
};
constexpr int64_t kAllOperations = 37;

TEST(PrefixFaults, AnErrorAnywhereLeavesWhatIsWhole) {
  const InMemory memory;
  int64_t all = 0;
  for (const auto& [op, times] : kOperations) {
    all += times;
    for (int n = 0; n <= times; ++n) {
      const TemporaryFolder folder;
      {
        PrefixStore store({.folder = folder.path()});
        FailAt faults(op, n, n % 2 == 0 ? EIO : ENOSPC);
        const std::string failure = save_blocks(store, blocks_of(prompt()));
        // Each of them occurs, and no more.
        EXPECT_EQ(faults.failed, n < times) << "operation " << static_cast<int>(op) << ", time " << n;
        EXPECT_EQ(failure.empty(), n == times) << failure;
        if (n < times) {
          EXPECT_NE(failure.find(n % 2 == 0 ? "EIO" : "ENOSPC"), std::string::npos) << failure;
        }
      }
      for (const std::string& name : files_in(folder.path())) EXPECT_FALSE(name.ends_with(".tmp")) << name;
      expect_whole(folder.path());
      expect_save_works(folder.path());
    }
  }
  EXPECT_EQ(all, kAllOperations);
}

// What is done to files, in order: "write NAME".
class Recorder final : public Faults {
 public:
  FileFault before(FileOp op, const std::string& path, uint64_t, uint64_t) override {
    const char* const what = op == FileOp::kWrite        ? "write "
                             : op == FileOp::kSync       ? "sync "
                             : op == FileOp::kRename     ? "rename "
                             : op == FileOp::kSyncFolder ? "sync folder "
                                                         : nullptr;
    const std::lock_guard lock(mutex_);
    if (what != nullptr) done_.push_back(what + std::filesystem::path(path).filename().string());
    return {};
  }
  std::vector<std::string> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(done_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> done_;
};

// The order that a crash of the machine needs (docs/design.md, section 9): nothing has its name before it is on the
// disk, and a manifest comes after its data. A kill of the process alone shows none of it, as the system keeps what was
// written.
TEST(PrefixFaults, NothingIsRenamedBeforeItIsSynced) {
  const TemporaryFolder folder;
  PrefixStore store({.folder = folder.path()});
  const std::vector<PrefixBlock> blocks = blocks_of(prompt());
  ASSERT_EQ(blocks.size(), 3u);
  std::vector<std::string> wanted;
  for (const PrefixBlock& block : blocks) wanted.insert(wanted.end(), 2, "write " + key_text(block.key) + ".kv.tmp");
  for (const PrefixBlock& block : blocks) {
    const std::string data = key_text(block.key) + ".kv.tmp", manifest = key_text(block.key) + ".seg.tmp";
    wanted.insert(wanted.end(), {"sync " + data, "rename " + data});
    wanted.insert(wanted.end(), {"write " + manifest, "sync " + manifest, "rename " + manifest});
  }
  const std::string folder_synced = "sync folder " + std::filesystem::path(folder.path()).filename().string();
  wanted.push_back(folder_synced);
  Recorder recorder;
  EXPECT_EQ(save_blocks(store, blocks), "");
  EXPECT_EQ(recorder.take(), wanted);
  EXPECT_EQ(store.prune(0), 3);
  EXPECT_EQ(recorder.take(), std::vector{folder_synced});
}

class ShortTransfers final : public Faults {
 public:
  FileFault before(FileOp op, const std::string&, uint64_t, uint64_t bytes) override {
    if (op != FileOp::kRead && op != FileOp::kWrite) return {};
    return {.at_most = bytes > kPageBytes    ? kPageBytes
                       : bytes == kPageBytes ? bytes
                                             : std::max<uint64_t>(1, bytes / 3)};
  }
};

TEST(PrefixFaults, ShortReadsAndWritesAreTakenUpAgain) {
  const TemporaryFolder folder;
  const ShortTransfers faults;
  expect_save_works(folder.path());
  expect_whole(folder.path());
}

class KillAt final : public Faults {
 public:
  explicit KillAt(int64_t n) : left_(n) {}
  // A write is cut in the middle.
  FileFault before(FileOp op, const std::string&, uint64_t, uint64_t bytes) override {
    const int64_t left = left_--;
    if (left == 1 && op == FileOp::kWrite) return {.at_most = std::max<uint64_t>(1, bytes / 2 / 512 * 512)};
    if (left <= 0) ::kill(::getpid(), SIGKILL);
    return {};
  }

 private:
  std::atomic<int64_t> left_;
};

TEST(PrefixFaults, KilledAtAnyPointTheSaveIsThereOrNot) {
  const InMemory memory;
  std::set<size_t> seen;  // how much there was
  const TemporaryFolder parent;
  for (int64_t point = 0; point <= kAllOperations; ++point) {
    const std::string folder = parent / std::to_string(point);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      PrefixStore store({.folder = folder});
      const KillAt faults(point);
      save_blocks(store, blocks_of(prompt()));
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (point < kAllOperations) {
      ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << point << ": " << status;
    } else {
      ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    }
    expect_whole(folder);
    seen.insert(files_in(folder).size());
    expect_save_works(folder);
    std::filesystem::remove_all(folder);
  }
  EXPECT_EQ(seen, (std::set<size_t>{1, 3, 5, 7}));  // none, and every number of whole blocks
}

// ---- and back -------------------------------------------------------------------------------------------------------

class FlipBit final : public Faults {
 public:
  explicit FlipBit(uint64_t offset) : offset_(offset) {}
  FileFault before(FileOp, const std::string&, uint64_t, uint64_t) override { return {}; }
  void after_read(const std::string& path, uint64_t offset, std::span<std::byte> data) override {
    if (path.ends_with(".kv") && offset == offset_) data[17] ^= std::byte{4};
  }

 private:
  const uint64_t offset_;
};

class Loading : public ::testing::Test {
 protected:
  Loading() : store_({.folder = folder_.path()}) {
    EXPECT_EQ(save_blocks(store_, blocks_of(prompt())), "");
    for (const PrefixBlock& block : blocks_of(prompt())) {
      files_.push_back(store_.open_data(block.key));
    }
    for (size_t part = 0; part < 2; ++part) {
      for (size_t i = 0; i < files_.size(); ++i) {
        const PrefixBlock& block = store_.index().find(blocks_of(prompt())[i].key)->block;
        reads_.push_back({.file = &files_[i],
                          .offset = part * kPageBytes,
                          .bytes = kPageBytes,
                          .checksum = block.checksums[part],
                          .block = i});
      }
    }
  }
  // How many parts came, each of which is right.
  size_t load(std::string* failure) {
    const std::unique_ptr<Device> device = open_device({.choice = DeviceChoice::kCpu, .threads = 1});
    const std::unique_ptr<Stream> stream = device->make_stream("test", StreamRole::kCopy);
    PrefixLoader loader(*device, reads_);
    for (size_t i = 0; i < reads_.size(); ++i) {
      const std::byte* const data = loader.next();
      if (data == nullptr) {
        *failure = loader.failure();
        EXPECT_EQ(loader.current().block, reads_[i].block);
        return i;
      }
      EXPECT_EQ(data[5], made_up_byte(blocks_of(prompt())[reads_[i].block], reads_[i].offset / kPageBytes));
      loader.done(*stream);
    }
    return reads_.size();
  }

  const TemporaryFolder folder_;
  PrefixStore store_;
  std::vector<File> files_;
  std::vector<PrefixLoader::Read> reads_;
};

TEST_F(Loading, BringsAllPartsInOrder) {
  std::string failure;
  EXPECT_EQ(load(&failure), 6u) << failure;
}

TEST_F(Loading, AFlippedBitIsNamed) {
  const FlipBit faults(kPageBytes);
  std::string failure;
  EXPECT_EQ(load(&failure), 3u);
  EXPECT_NE(failure.find(".kv: the 4096 bytes at offset 4096 are not those that were written"), std::string::npos)
      << failure;
}

TEST_F(Loading, AnErrorIsNamed) {
  const FailAt faults(FileOp::kRead, 0, EIO);
  std::string failure;
  EXPECT_LT(load(&failure), 6u);
  EXPECT_NE(failure.find("EIO"), std::string::npos) << failure;
}

TEST_F(Loading, VerifyNamesTheFile) {
  EXPECT_TRUE(store_.verify().empty());
  const PrefixKey key = blocks_of(prompt())[1].key;
  std::string data = folder_.read(key_text(key) + ".kv");
  data[5000] = static_cast<char>(data[5000] ^ 1);
  folder_.write(key_text(key) + ".kv", data);
  const std::vector<PrefixStore::Damaged> bad = store_.verify();
  ASSERT_EQ(bad.size(), 1u);
  EXPECT_EQ(bad[0].file, store_.data_path(key));
}

}  // namespace
}  // namespace headrace
