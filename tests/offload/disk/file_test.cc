// Files: what is written is read, temporary ones leave nothing, and every failure is an Error(kStorage) that names file
// and cause.
#include "offload/disk/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "cache/base.h"
#include "offload/disk/file_faults.h"
#include "offload/host/checksum.h"
#include "tests/support/file_faults.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using testing::failing;
using testing::ScriptedFaults;

std::vector<std::byte> pattern(uint64_t bytes) {
  std::vector<std::byte> data(bytes);
  uint32_t state = 7;
  for (std::byte& byte : data) byte = static_cast<std::byte>((state = state * 1664525u + 1013904223u) >> 24);
  return data;
}

template <typename Call>
std::string storage_error(const Call& call) {
  return testing_support::error_of(ExitCode::kStorage, call);
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(File, WhatIsWrittenIsRead) {
  const TemporaryFolder folder;
  const std::vector<std::byte> data = pattern(10000);
  {
    const File file = File::open(folder / "a", FileAccess::kCreate, FileCaching::kBuffered);
    file.write(5, data);
    file.sync();
    EXPECT_EQ(file.size(), 10005u);
    struct stat info {};
    ASSERT_EQ(::stat((folder / "a").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
  }
  rename_file(folder / "a", folder / "b");
  sync_folder(folder.path());
  const File file = File::open(folder / "b", FileAccess::kRead, FileCaching::kBuffered);
  std::vector<std::byte> got(10000);
  file.read(5, got);
  EXPECT_EQ(got, data);
  EXPECT_TRUE(remove_file(folder / "b"));
  EXPECT_FALSE(remove_file(folder / "b"));
  EXPECT_GT(folder_free_bytes(folder.path()), kMiB);
}

TEST(File, TemporaryOnesLeaveNothing) {
  const TemporaryFolder folder;
  for (const FileCaching caching : {FileCaching::kDirect, FileCaching::kBuffered}) {
    File file = File::temporary(folder.path(), caching);
    file.allocate(3 * kMiB);
    EXPECT_EQ(file.size(), 3 * kMiB);
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
    auto* const page = static_cast<std::byte*>(std::aligned_alloc(File::kAlign, File::kAlign));
    std::fill(page, page + File::kAlign, std::byte{42});
    file.write(kMiB, {page, File::kAlign});
    std::fill(page, page + File::kAlign, std::byte{0});
    const File moved = std::move(file);
    moved.read(kMiB, {page, File::kAlign});
    EXPECT_EQ(page[17], std::byte{42});
    std::free(page);
    EXPECT_TRUE(caching == FileCaching::kDirect || !moved.direct());
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// A file system that knows neither O_TMPFILE nor O_DIRECT.
TEST(File, TemporaryOnesDoWithoutTheSystemsHelp) {
  const TemporaryFolder folder;
  int refusals = 0;
  const ScriptedFaults faults([&](FileOp op, const std::string& path, uint64_t, uint64_t) {
    return FileFault{.error = op == FileOp::kOpen && path == folder.path() && ++refusals > 0 ? EOPNOTSUPP : 0};
  });
  const File file = File::temporary(folder.path(), FileCaching::kDirect);
  EXPECT_EQ(refusals, 1);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  std::vector<std::byte> none;
  file.write(0, none);
}

TEST(File, ALockIsExclusive) {
  const TemporaryFolder folder;
  const File first = File::open(folder / "lock", FileAccess::kCreate, FileCaching::kBuffered);
  EXPECT_TRUE(first.try_lock());
  {
    const File second = File::open(folder / "lock", FileAccess::kReadWrite, FileCaching::kBuffered);
    EXPECT_FALSE(second.try_lock());
  }
  EXPECT_TRUE(first.try_lock());
}

TEST(File, WhatIsNotThereIsNamed) {
  const TemporaryFolder folder;
  const std::string gone = folder / "gone";
  for (const std::string& text :
       {storage_error([&] { File::open(gone, FileAccess::kRead, FileCaching::kBuffered); }),
        storage_error([&] { File::temporary(gone, FileCaching::kDirect); }), storage_error([&] { sync_folder(gone); }),
        storage_error([&] { folder_free_bytes(gone); }), storage_error([&] { rename_file(gone, folder / "x"); })}) {
    EXPECT_TRUE(has(text, gone)) << text;
    EXPECT_TRUE(has(text, "(ENOENT)")) << text;
  }
  folder.write("file", "x");
  EXPECT_TRUE(has(storage_error([&] { folder_free_bytes(folder / "file"); }), "(ENOTDIR)"));
  EXPECT_TRUE(has(storage_error([&] { File::open(folder / "file", FileAccess::kCreate, FileCaching::kBuffered); }),
                  "(EEXIST)"));
}

TEST(File, AFileThatEndsEarlyIsNamed) {
  const TemporaryFolder folder;
  folder.write("short", "12345");
  const File file = File::open(folder / "short", FileAccess::kRead, FileCaching::kBuffered);
  std::vector<std::byte> to(8);
  const std::string text = storage_error([&] { file.read(2, to); });
  EXPECT_TRUE(has(text, "short: ends at 5, not at 10")) << text;
}

TEST(File, FaultsAreNamedByFileOffsetAndCause) {
  const TemporaryFolder folder;
  File file = File::open(folder / "f", FileAccess::kCreate, FileCaching::kBuffered);
  std::vector<std::byte> data = pattern(5000);
  file.write(0, data);
  {
    const ScriptedFaults faults(failing(FileOp::kRead, 0, EIO));
    const std::string text = storage_error([&] { file.read(1024, {data.data(), 100}); });
    EXPECT_TRUE(has(text, "f: reading 100 bytes at offset 1024 failed: Input/output error (EIO)")) << text;
  }
  {
    const ScriptedFaults faults(failing(FileOp::kWrite, 0, ENOSPC));
    const std::string text = storage_error([&] { file.write(4096, data); });
    EXPECT_TRUE(has(text, "writing 5000 bytes at offset 4096 failed: No space left on device (ENOSPC)")) << text;
    EXPECT_TRUE(has(text, "The disk is full")) << text;
  }
  {
    const ScriptedFaults faults(failing(FileOp::kAllocate, 0, ENOSPC));
    EXPECT_TRUE(has(storage_error([&] { file.allocate(kGiB); }), "has no room for 1.00 GiB"));
  }
  for (const FileOp op : {FileOp::kSync, FileOp::kSyncFolder, FileOp::kRename, FileOp::kRemove, FileOp::kOpen}) {
    const ScriptedFaults faults(failing(op, 0, EIO));
    const std::string text = storage_error([&] {
      file.sync();
      sync_folder(folder.path());
      File::open(folder / "f", FileAccess::kRead, FileCaching::kBuffered);
      rename_file(folder / "f", folder / "f");
      remove_file(folder / "f");
    });
    EXPECT_TRUE(has(text, "(EIO)")) << text;
  }
}

// The new text, or, whatever fails, the old one; and nothing beside it.
TEST(File, IsReplacedWholeOrNotAtAll) {
  const TemporaryFolder folder;
  replace_file(folder / "f", folder / "f.new", "first");
  EXPECT_EQ(folder.read("f"), "first");
  folder.write("f.new", "of a run that was killed");
  for (const FileOp op : {FileOp::kRemove, FileOp::kOpen, FileOp::kWrite, FileOp::kSync, FileOp::kRename}) {
    const ScriptedFaults faults(failing(op, 0, EIO));
    EXPECT_TRUE(has(storage_error([&] { replace_file(folder / "f", folder / "f.new", "second"); }), "(EIO)"));
    EXPECT_EQ(folder.read("f"), "first");
    EXPECT_EQ(std::filesystem::exists(folder / "f.new"), op == FileOp::kRemove);
  }
  replace_file(folder / "f", folder / "f.new", "");
  EXPECT_EQ(folder.read("f"), "");
  EXPECT_FALSE(std::filesystem::exists(folder / "f.new"));
  std::filesystem::permissions(folder / "f", std::filesystem::perms(0640));
  replace_file(folder / "f", unused_name(folder / "f"), "third");
  EXPECT_EQ(std::filesystem::status(folder / "f").permissions(), std::filesystem::perms(0640));
  EXPECT_NE(unused_name(folder / "f"), unused_name(folder / "f"));
}

// What is done in part is taken up again, to the byte.
TEST(File, ShortReadsAndWritesAreTakenUpAgain) {
  const TemporaryFolder folder;
  const File file = File::open(folder / "f", FileAccess::kCreate, FileCaching::kBuffered);
  const std::vector<std::byte> data = pattern(10000);
  int calls = 0;
  const ScriptedFaults faults([&](FileOp op, const std::string&, uint64_t, uint64_t) {
    if (op != FileOp::kRead && op != FileOp::kWrite) return FileFault{};
    return ++calls % 3 == 0 ? FileFault{.error = EINTR} : FileFault{.at_most = 1001};
  });
  file.write(3, data);
  std::vector<std::byte> got(10000 + 16, std::byte{99});
  file.read(3, {got.data() + 8, 10000});
  EXPECT_GT(calls, 20);
  EXPECT_TRUE(std::equal(data.begin(), data.end(), got.begin() + 8));
  for (const size_t guard : {0u, 7u, 10008u, 10015u}) EXPECT_EQ(got[guard], std::byte{99}) << guard;
}

TEST(Checksum, IsXxh3AndSeesEveryBit) {
  EXPECT_EQ(checksum({}), 0x2d06800538d394c2u);  // of nothing, as its specification has it
  std::vector<std::byte> data = pattern(4096);
  const uint64_t sum = checksum(data);
  for (size_t bit = 0; bit < 8 * data.size(); bit += 37) {
    data[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    EXPECT_NE(checksum(data), sum) << bit;
    data[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
  }
  EXPECT_EQ(checksum(data), sum);
}

}  // namespace
}  // namespace headrace
