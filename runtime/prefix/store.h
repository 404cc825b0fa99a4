// Saved prefixes in a folder (docs/design.md, section 9): a data file and a manifest per block, both named by the
// block's key. Crash safety: data is written to a temporary file, synced and renamed, and only then is the manifest
// written in the same way. So a manifest implies complete data, and a file without a manifest is a leftover that the
// next writer removes. One process writes, the holder of the lock; others read. Only files with such names are touched.
//
// Owns the lock and the index. Thread: one at a time; another may use it while one of its PrefixBlockWriters writes.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "offload/disk/file.h"
#include "runtime/prefix/index.h"

namespace headrace {

// The message of an exception from a thread, on one line.
std::string error_line(const std::exception_ptr& error);

struct PrefixCacheOptions {
  std::string folder;        // empty: no prefix cache
  uint64_t limit_bytes = 0;  // 0: half of the free space of the disk and the cache together
};

class PrefixStore {
 public:
  enum class Use { kRun, kLook };  // kLook: takes no lock, writes and removes nothing

  // Creates the folder if it does not exist. If it cannot be used or written, a note says why and the program
  // continues. Throws Error(kStorage) for a newer format.
  explicit PrefixStore(const PrefixCacheOptions& options, Use use = Use::kRun);

  const std::string& folder() const { return options_.folder; }
  bool writes() const { return static_cast<bool>(lock_); }
  // The consequence of the folder's state for this program, one line; empty: none.
  const std::string& note() const { return note_; }
  const std::string& why_not() const { return why_not_; }  // why it does not write
  // Whether `folder` is a prefix cache: it has a lock file.
  static bool is_one(const std::string& folder);
  const PrefixIndex& index() const { return index_; }
  struct Damaged {
    std::string file, what;
    bool unread = false;  // temporarily unreadable: it may be complete, and is kept
  };
  // Manifests that the last refresh() rejected. A writer has removed those that it could read.
  const std::vector<Damaged>& damaged() const { return damaged_; }
  // The same for every refresh() since the last call.
  std::vector<Damaged> take_unreported() { return std::exchange(unreported_, {}); }

  // Bytes of incomplete or unreachable blocks, as the last refresh() found them: a writer has removed them; for a
  // reader they may be what another run is saving now.
  uint64_t leftover_bytes() const { return leftover_bytes_; }

  // Reads the folder again and takes the lock if it is free; a writer removes incomplete blocks.
  void refresh();
  void used(std::span<const PrefixKey> keys);
  // Removes the blocks and their descendants from the index, and, if this process may write, from the folder.
  void drop(std::span<const PrefixKey> keys);
  // Reads all data and compares checksums; returns the damaged files, manifests included.
  std::vector<Damaged> verify() const;
  // Whether `bytes` more fit beside `keep` if everything else is evicted.
  bool has_room(uint64_t bytes, const std::set<PrefixKey>& keep) const { return drops_for(bytes, keep).has_value(); }
  // Evicts to make that room; false: impossible, and nothing was dropped.
  bool make_room(uint64_t bytes, const std::set<PrefixKey>& keep);
  // Evicts down to the limit, which may be lower than an earlier run's. Returns the freed bytes; a reader removes
  // nothing.
  uint64_t keep_to_limit();
  // Evicts until at most `limit_bytes` are left. Returns the number of removed blocks.
  int64_t prune(uint64_t limit_bytes);
  void add(const PrefixBlock& block);  // a block that is on disk
  // The given limit, or half of the available space; at most the available space. Available: free on disk, and used by
  // the cache.
  uint64_t limit_bytes() const;

  File open_data(const PrefixKey& key) const;  // direct; throws Error(kStorage)
  std::string data_path(const PrefixKey& key) const { return path_of(key, kDataSuffix); }
  std::string manifest_path(const PrefixKey& key) const { return path_of(key, kManifestSuffix); }

  static constexpr const char *kDataSuffix = ".kv", *kManifestSuffix = ".seg", *kTemporarySuffix = ".tmp";

 private:
  struct Found;
  std::string path_of(const PrefixKey& key, const char* suffix) const;
  bool lock_stands(const std::string& path) const;
  void take_lock();
  void look(Found* found) const;
  void take_manifest(const PrefixKey& key, int64_t used_ns, Found* found);
  std::vector<std::string> leftovers(const Found& found);
  void remove_files(const PrefixKey& key) noexcept;
  std::optional<std::vector<PrefixKey>> drops_for(uint64_t bytes, const std::set<PrefixKey>& keep) const;

  PrefixCacheOptions options_;
  const Use use_;
  File lock_;
  std::string note_, why_not_;
  PrefixIndex index_;
  std::vector<Damaged> damaged_, unreported_;
  uint64_t leftover_bytes_ = 0;
};

// Writes one block to disk. If destroyed before commit(), it leaves nothing.
class PrefixBlockWriter {
 public:
  // Creates the temporary file and allocates its space. `block.checksums` has one element per part.
  PrefixBlockWriter(const PrefixStore& store, PrefixBlock block);
  ~PrefixBlockWriter();
  PrefixBlockWriter(const PrefixBlockWriter&) = delete;
  PrefixBlockWriter& operator=(const PrefixBlockWriter&) = delete;

  const PrefixBlock& block() const { return block_; }
  // Whole pages in page-aligned memory. Different parts may be written from different threads.
  void write(uint64_t part, std::span<const std::byte> data);
  // Call when all parts are written: completes data, then manifest. The last committer syncs the folder.
  void commit();

 private:
  const std::string data_path_, manifest_path_;
  PrefixBlock block_;
  File file_;
  std::atomic<uint64_t> written_{0};
};

}  // namespace headrace
