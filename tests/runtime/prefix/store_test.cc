// The folder: what is whole is found, what is not is removed by who may, one writes, and SIZE holds.
#include "runtime/prefix/store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "offload/device/device.h"
#include "offload/disk/file_faults.h"
#include "runtime/prefix/saver.h"
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
using testing::save_blocks;

TEST(PrefixStore, FindsWhatAnEarlierOneHasSaved) {
  const TemporaryFolder folder;
  const std::vector<int32_t> prompt = counted_tokens(1400);
  {
    PrefixStore store({.folder = folder / "new/cache"});
    EXPECT_TRUE(store.writes()) << store.note();
    EXPECT_EQ(save_blocks(store, blocks_of(prompt)), "");
    EXPECT_EQ(store.index().match(kRoot, prompt, 1).rows, 1399);
    EXPECT_EQ(store.leftover_bytes(), 0u);
  }
  struct stat made {};
  ASSERT_EQ(::stat((folder / "new/cache").c_str(), &made), 0);
  EXPECT_EQ(made.st_mode & 077, 0u);  // nor are the names, which are hashes of tokens
  PrefixStore store({.folder = folder / "new/cache"});
  EXPECT_EQ(store.index().match(kRoot, prompt, 1).rows, 1399);
  EXPECT_TRUE(store.damaged().empty());
  EXPECT_TRUE(store.verify().empty());
  EXPECT_EQ(files_in(store.folder()).size(), 7u);  // three blocks and the lock
  for (const auto& [key, entry] : store.index().entries()) {
    struct stat info {};
    ASSERT_EQ(::stat(store.data_path(key).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 077, 0u);  // a prompt is nobody else's to read
    EXPECT_EQ(entry.bytes, static_cast<uint64_t>(info.st_size) + std::filesystem::file_size(store.manifest_path(key)));
  }
}

// A block with a value that is not finite is not saved, nor is what comes behind it; what lies before it is.
TEST(PrefixStore, KeepsNoBlockThatIsNotFinite) {
  const std::vector<int32_t> prompt = counted_tokens(1536);
  const std::vector<PrefixBlock> blocks = blocks_of(prompt);
  const std::unique_ptr<Device> device = open_device({.choice = DeviceChoice::kCpu, .threads = 1});
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8}) {
    for (const size_t bad : {0, 1, 2}) {
      const TemporaryFolder folder;
      PrefixStore store({.folder = folder.path()});
      PinnedBuffer zeros = device->allocate_pinned(kPageBytes, "a part"),
                   other = device->allocate_pinned(kPageBytes, "");
      std::memset(zeros.data(), 0, kPageBytes);
      std::memset(other.data(), 0, kPageBytes);
      const DType first = low_bit(type) ? type : DType::kF32, last = low_bit(type) ? DType::kF16 : type;
      if (low_bit(type)) {  // any values are finite; the parameters after them may not be
        std::memset(zeros.data(), 0xff, 2800);
        std::memset(other.data(), 0xff, 2800);
      }
      const uint64_t size = dtype_bytes(last), infinity = last == DType::kF32   ? 0x7f800000
                                                          : last == DType::kF16 ? 0x7c00
                                                                                : 0x7f80;
      std::memcpy(other.data() + 3000, &infinity, size);
      std::memset(other.data() + 3600, 0xff, 100);  // no element
      PrefixSaver saver(*device, store, blocks);
      std::vector<PrefixSaver::Source> sources;
      for (size_t block = 0; block < blocks.size(); ++block) {
        for (size_t part = 0; part < 2; ++part) {
          const std::byte* const data = (block == bad && part == 1 ? other : zeros).data();
          sources.push_back({.block = block, .part = part, .data = data, .elements = {{first, 2800}, {last, 800}}});
        }
      }
      saver.save(device->make_event(), sources);
      for (uint64_t written = 0; !saver.wait_some(1000, &written);) {
      }
      EXPECT_EQ(saver.failure(), "");
      EXPECT_EQ(saver.not_finite_from(), blocks[bad].first_row);
      ASSERT_EQ(saver.saved().size(), bad);
      for (size_t block = 0; block < bad; ++block) EXPECT_EQ(saver.saved()[block].key, blocks[block].key);
    }
  }
}

TEST(PrefixStore, OneProcessWritesTheOthersRead) {
  const TemporaryFolder folder;
  const std::vector<int32_t> prompt = counted_tokens(600);
  auto writer = std::make_unique<PrefixStore>(PrefixCacheOptions{.folder = folder.path()});
  PrefixStore reader({.folder = folder.path()});
  EXPECT_TRUE(writer->writes());
  EXPECT_FALSE(reader.writes());
  EXPECT_NE(reader.note().find("another run writes there"), std::string::npos) << reader.note();
  EXPECT_EQ(save_blocks(*writer, blocks_of(prompt)), "");
  EXPECT_EQ(reader.index().match(kRoot, prompt, 1).rows, 0);
  reader.refresh();
  EXPECT_EQ(reader.index().match(kRoot, prompt, 1).rows, 599);
  const PrefixKey first = blocks_of(prompt)[0].key;
  reader.drop(std::span(&first, 1));  // for itself alone
  EXPECT_TRUE(reader.index().entries().empty());
  EXPECT_EQ(files_in(folder.path()).size(), 5u);
  writer.reset();
  reader.refresh();
  EXPECT_TRUE(reader.writes());
  EXPECT_EQ(reader.note(), "");
  EXPECT_EQ(reader.index().entries().size(), 2u);
}

TEST(PrefixStore, LeftoversGoWithTheNextWriterAndNothingElseDoes) {
  const TemporaryFolder folder;
  const std::vector<int32_t> prompt = counted_tokens(1536);
  const std::vector<PrefixBlock> blocks = blocks_of(prompt);
  {
    PrefixStore store({.folder = folder.path()});
    EXPECT_EQ(save_blocks(store, blocks), "");
  }
  const std::string name = key_text(key_of(77)), second = key_text(blocks[1].key);
  folder.write(name + ".kv", "data without a manifest");
  folder.write(name + ".kv.tmp", "data that was not ready");
  folder.write(second + ".seg.tmp", "a manifest that was not ready");
  folder.write("notes.txt", "somebody's own");
  folder.write("x.kv", "somebody's own, too");
  folder.write(second + ".seg", folder.read(second + ".seg").substr(0, 100));  // torn
  uint64_t leftovers = 0;
  {
    const PrefixStore looks({.folder = folder.path()}, PrefixStore::Use::kLook);
    ASSERT_EQ(looks.damaged().size(), 1u);
    EXPECT_EQ(looks.damaged()[0].file, folder / (second + ".seg"));
    EXPECT_EQ(looks.index().match(kRoot, prompt, 1).rows, 512);
    EXPECT_EQ(files_in(folder.path()).size(), 12u);
    leftovers = looks.leftover_bytes();
  }
  uint64_t before = 0, after = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder.path())) before += file.file_size();
  const PrefixStore store({.folder = folder.path()});
  for (const auto& file : std::filesystem::directory_iterator(folder.path())) after += file.file_size();
  EXPECT_EQ(before - after, leftovers);
  EXPECT_EQ(store.leftover_bytes(), leftovers);
  EXPECT_EQ(store.index().match(kRoot, prompt, 1).rows, 512);
  EXPECT_EQ(files_in(folder.path()),
            (std::vector<std::string>{key_text(blocks[0].key) + ".kv", key_text(blocks[0].key) + ".seg",
                                      "headrace-prefix-cache.lock", "notes.txt", "x.kv"}));
}

TEST(PrefixStore, DataThatIsCutOffIsNotThere) {
  const TemporaryFolder folder;
  const std::vector<int32_t> prompt = counted_tokens(512);
  const std::vector<PrefixBlock> blocks = blocks_of(prompt);
  {
    PrefixStore store({.folder = folder.path()});
    EXPECT_EQ(save_blocks(store, blocks), "");
    std::filesystem::resize_file(store.data_path(blocks[0].key), kPageBytes);
  }
  const PrefixStore store({.folder = folder.path()});
  EXPECT_TRUE(store.index().entries().empty());
  ASSERT_EQ(store.damaged().size(), 1u);
  EXPECT_EQ(store.damaged()[0].what, "has data of another size beside it");
  EXPECT_EQ(files_in(folder.path()).size(), 1u);
}

// What an error keeps from being read for the moment may be whole: it is said, and nothing is removed.
TEST(PrefixStore, WhatCannotBeReadNowStays) {
  const TemporaryFolder folder;
  const std::vector<int32_t> prompt = counted_tokens(1536);
  const std::vector<PrefixBlock> blocks = blocks_of(prompt);
  {
    PrefixStore store({.folder = folder.path()});
    EXPECT_EQ(save_blocks(store, blocks), "");
  }
  const std::vector<std::string> files = files_in(folder.path());
  class Refuses : public FileFaults {
   public:
    explicit Refuses(std::string path) : path_(std::move(path)), before_(set_file_faults(this)) {}
    ~Refuses() override { set_file_faults(before_); }
    FileFault before(FileOp op, const std::string& path, uint64_t, uint64_t) override {
      FileFault fault;
      if (op == FileOp::kOpen && path == path_) fault.error = EMFILE;
      return fault;
    }

   private:
    const std::string path_;
    FileFaults* const before_;
  };
  {
    const Refuses refuses(folder / (key_text(blocks[0].key) + ".seg"));
    const PrefixStore store({.folder = folder.path()});
    EXPECT_TRUE(store.writes());
    EXPECT_EQ(store.index().match(kRoot, prompt, 1).rows, 0);
    ASSERT_EQ(store.damaged().size(), 1u);
    EXPECT_TRUE(store.damaged()[0].unread);
    EXPECT_EQ(files_in(folder.path()), files);
  }
  const PrefixStore store({.folder = folder.path()});
  EXPECT_EQ(store.index().match(kRoot, prompt, 1).rows, 1535);
  EXPECT_TRUE(store.damaged().empty());
}

// What the disk has is the limit where SIZE is more: what was not used for longest goes before the disk is full.
TEST(PrefixStore, SizeIsNoMoreThanTheDiskHas) {
  const TemporaryFolder folder;
  PrefixStore store({.folder = folder.path(), .limit_bytes = uint64_t{1} << 60});
  EXPECT_EQ(save_blocks(store, blocks_of(counted_tokens(1024))), "");
  EXPECT_LT(store.limit_bytes(), uint64_t{1} << 59);
  EXPECT_GT(store.limit_bytes(), store.index().bytes());
}

TEST(PrefixStore, SizeHolds) {
  const TemporaryFolder folder;
  const std::vector<PrefixBlock> a = blocks_of(counted_tokens(1024)), b = blocks_of(counted_tokens(1024, 9000));
  PrefixStore store({.folder = folder.path(), .limit_bytes = 44 * kKiB});  // of blocks with 8 KiB and 2 KiB beside them
  EXPECT_TRUE(store.make_room(20 * kKiB, {}));
  EXPECT_EQ(save_blocks(store, a), "");
  EXPECT_TRUE(store.make_room(20 * kKiB, {}));
  EXPECT_EQ(save_blocks(store, b), "");
  EXPECT_EQ(store.index().entries().size(), 4u);
  store.used(std::vector{a[0].key, a[1].key});
  EXPECT_FALSE(store.make_room(60 * kKiB, {}));
  EXPECT_EQ(store.index().entries().size(), 4u);
  EXPECT_FALSE(store.make_room(40 * kKiB, {a[1].key, b[1].key}));
  EXPECT_EQ(store.index().entries().size(), 4u);
  EXPECT_TRUE(store.make_room(20 * kKiB, {}));
  EXPECT_EQ(store.index().match(kRoot, counted_tokens(1024), 1).rows, 1023);
  EXPECT_EQ(store.index().match(kRoot, counted_tokens(1024, 9000), 1).rows, 0);
  EXPECT_EQ(files_in(folder.path()).size(), 5u);
  {
    PrefixStore reader({.folder = folder.path(), .limit_bytes = 12 * kKiB});
    EXPECT_EQ(reader.keep_to_limit(), 0u);  // it may not
    EXPECT_EQ(store.keep_to_limit(), 0u);
  }
  EXPECT_EQ(store.prune(12 * kKiB), 1);
  EXPECT_EQ(store.prune(0), 1);
  EXPECT_EQ(files_in(folder.path()).size(), 1u);
}

TEST(PrefixStore, AFolderThatCannotBeUsedIsANote) {
  const TemporaryFolder folder;
  const PrefixStore file({.folder = folder.write("a file", "")});
  EXPECT_FALSE(file.writes());
  EXPECT_NE(file.note().find("a file"), std::string::npos) << file.note();
  PrefixStore gone({.folder = folder / "cache"});
  EXPECT_TRUE(gone.writes());
  std::filesystem::remove_all(folder / "cache");
  EXPECT_NE(save_blocks(gone, blocks_of(counted_tokens(600))), "");
  const PrefixStore another({.folder = folder / "cache"});
  gone.refresh();  // its lock was of a folder that is no more
  EXPECT_FALSE(gone.writes());
  EXPECT_TRUE(another.writes());
}

TEST(PrefixStore, ANewerFormatIsRefusedAndLeftAlone) {
  const TemporaryFolder folder;
  std::string text = encode_manifest(blocks_of(counted_tokens(512))[0]);
  const uint32_t version[2] = {9, ~9u};
  std::memcpy(text.data() + 8, version, sizeof version);
  const std::string name = key_text(key_of(5)) + ".seg";
  folder.write(name, text);
  for (const PrefixStore::Use use : {PrefixStore::Use::kRun, PrefixStore::Use::kLook}) {
    try {
      const PrefixStore store({.folder = folder.path()}, use);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kStorage);
      EXPECT_EQ(error.info().where, folder / name);
    }
  }
  EXPECT_EQ(folder.read(name), text);
}

}  // namespace
}  // namespace headrace
