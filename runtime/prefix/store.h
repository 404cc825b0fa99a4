// Saved prefixes in a folder (docs/design.md, section 9): a data file and a manifest a block, both named by the block's
// key. Crash safety: data goes to a temporary file, is synced and renamed, and only then is the manifest written, in
// the same way; so that a manifest stands beside whole data, and what has no manifest is a leftover, removed by the
// next writer. One process writes, the one that has the lock; others read. Nothing but files of these names is touched.
//
// Owns the lock and the index. Thread: one at a time; while a PrefixBlockWriter of it writes, another may use it.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
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

// What an exception that a thread has carried says, on one line.
std::string error_line(const std::exception_ptr& error);

struct PrefixCacheOptions {
  std::string folder;        // empty: none
  uint64_t limit_bytes = 0;  // 0: half of what the disk has, with what the cache holds
};

class PrefixStore {
 public:
  enum class Use { kRun, kLook };  // kLook: no lock, nothing is written or removed

  // Makes the folder if it is not there. What keeps it from being used or written is a note, and the program goes on.
  // Throws Error(kStorage) for a format newer than this program's.
  explicit PrefixStore(const PrefixCacheOptions& options, Use use = Use::kRun);

  const std::string& folder() const { return options_.folder; }
  bool writes() const { return static_cast<bool>(lock_); }
  // What the folder's state means for this program, in a line; empty: nothing.
  const std::string& note() const { return note_; }
  const std::string& why_not() const { return why_not_; }  // it does not write
  // Whether `folder` has been a store's: its lock is there.
  static bool is_one(const std::string& folder);
  const PrefixIndex& index() const { return index_; }
  struct Damaged {
    std::string file, what;
    bool unread = false;  // it could not be read for the moment: it may be whole, and is left alone
  };
  // Manifests that could not be taken, as found by the last refresh(). A writer has removed those that it could read.
  const std::vector<Damaged>& damaged() const { return damaged_; }
  // The same of every refresh() since the last call.
  std::vector<Damaged> take_unreported() { return std::exchange(unreported_, {}); }

  // Of files of blocks that are not whole, or that no prompt leads to, as the last refresh() found them: what a writer
  // has removed; for who only looks, what may be what a run is saving now.
  uint64_t leftover_bytes() const { return leftover_bytes_; }

  // Looks what the folder holds now, and takes the lock if it is free; a writer removes what is not whole.
  void refresh();
  void used(std::span<const PrefixKey> keys);
  // The blocks and all that continues them go, as far as this process may write; from its index in any case.
  void drop(std::span<const PrefixKey> keys);
  // Reads all data and compares checksums; what is damaged, manifests included. `on_block` may be empty.
  std::vector<Damaged> verify(const std::function<void(uint64_t bytes)>& on_block) const;
  // Whether so many bytes more have room beside `keep`, once all else may go.
  bool has_room(uint64_t bytes, const std::set<PrefixKey>& keep) const { return drops_for(bytes, keep).has_value(); }
  // Makes that room; false: there is none, and nothing was dropped.
  bool make_room(uint64_t bytes, const std::set<PrefixKey>& keep);
  // A limit that was given may be lower than an earlier run's. Returns the bytes that went for it; a reader removes
  // nothing.
  uint64_t keep_to_limit();
  // Blocks go until at most so many bytes are left. Returns how many went.
  int64_t prune(uint64_t limit_bytes);
  void add(const PrefixBlock& block);  // it is on the disk
  // What was given, or half of what the disk has; no more than it has, with what the cache holds.
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

// One block on its way to the disk. Destroyed before commit(): nothing of it remains.
class PrefixBlockWriter {
 public:
  // Makes the temporary file and takes its space. `block.checksums` has as many elements as there are parts.
  PrefixBlockWriter(const PrefixStore& store, PrefixBlock block);
  ~PrefixBlockWriter();
  PrefixBlockWriter(const PrefixBlockWriter&) = delete;
  PrefixBlockWriter& operator=(const PrefixBlockWriter&) = delete;

  const PrefixBlock& block() const { return block_; }
  // Whole pages in memory that is aligned to them. Different parts from any thread at once.
  void write(uint64_t part, std::span<const std::byte> data);
  // All parts are written: data, then the manifest. The folder is synced by whoever commits the last.
  void commit();

 private:
  const std::string data_path_, manifest_path_;
  PrefixBlock block_;
  File file_;
  std::atomic<uint64_t> written_{0};
};

}  // namespace headrace
