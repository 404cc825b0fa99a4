#include "runtime/prefix/store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <new>
#include <utility>

#include "cache/base.h"
#include "offload/host/checksum.h"
#include "offload/host/clock.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLockName = "headrace-prefix-cache.lock";
constexpr uint64_t kMaxManifestBytes = 4 * kMiB;

int64_t modified_ns(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return 0;
  return int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

// The names of the files are private, too. Errors are reported when the folder turns out to be missing.
void make_private_folder(const std::string& name) {
  std::error_code ignored;
  fs::path folder = fs::path(name).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // "a/b/"
  if (folder.has_parent_path()) fs::create_directories(folder.parent_path(), ignored);
  ::mkdir(folder.c_str(), 0700);
}

}  // namespace

std::string error_line(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    return "no memory is left";
  } catch (const std::exception& known) {
    return first_line(known);
  }
}

struct PrefixStore::Found {
  std::set<PrefixKey> manifests, data;
  std::vector<std::string> temporaries;
  bool sure = true;  // the whole folder was listed, and every manifest read
};

PrefixStore::PrefixStore(const PrefixCacheOptions& options, Use use) : options_(options), use_(use) { refresh(); }

std::string PrefixStore::path_of(const PrefixKey& key, const char* suffix) const {
  return options_.folder + "/" + key_text(key) + suffix;
}

// ---- the folder -----------------------------------------------------------------------------------------------------

// The folder may have been removed meanwhile, and created again by another process.
bool PrefixStore::lock_stands(const std::string& path) const {
  struct stat mine {
  }, named{};
  return lock_ && ::fstat(lock_.fd(), &mine) == 0 && ::stat(path.c_str(), &named) == 0 && mine.st_ino == named.st_ino &&
         mine.st_dev == named.st_dev;
}

bool PrefixStore::is_one(const std::string& folder) {
  std::error_code error;
  return fs::exists(folder + "/" + kLockName, error);
}

void PrefixStore::take_lock() {
  const std::string path = options_.folder + "/" + kLockName;
  if (use_ == Use::kLook || lock_stands(path)) return;
  lock_ = File();
  note_.clear();
  try {
    std::error_code error;
    make_private_folder(options_.folder);
    const bool there = fs::exists(path, error);
    File file;
    try {
      file = File::open(path, there ? FileAccess::kReadWrite : FileAccess::kCreate, FileCaching::kBuffered);
    } catch (const Error&) {
      if (there || !fs::exists(path, error)) throw;  // else another process has just created it
      file = File::open(path, FileAccess::kReadWrite, FileCaching::kBuffered);
    }
    if (file.try_lock()) {
      lock_ = std::move(file);
    } else {
      why_not_ = "another run writes there";
      note_ = options_.folder + ": " + why_not_ + "; saved prefixes are read, but none is saved";
    }
  } catch (const Error& error) {
    why_not_ = first_line(error);
    note_ = "prefix cache: nothing is saved: " + why_not_;
  }
}

void PrefixStore::look(Found* found) const {
  std::error_code error;
  for (fs::directory_iterator it(options_.folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const fs::path inner = it->path().stem();
    if (it->path().extension() == kTemporarySuffix && parse_key(inner.stem().string())) {
      found->temporaries.push_back(it->path().string());
      continue;
    }
    const std::optional<PrefixKey> key = parse_key(inner.string());
    if (!key) continue;
    if (it->path().extension() == kManifestSuffix) found->manifests.insert(*key);
    if (it->path().extension() == kDataSuffix) found->data.insert(*key);
  }
  found->sure = !error;
}

void PrefixStore::take_manifest(const PrefixKey& key, int64_t used_ns, Found* found) {
  const std::string path = manifest_path(key);
  std::string wrong;
  std::optional<PrefixBlock> block;
  uint64_t bytes = 0;
  bool unread = false;
  std::error_code ignored;
  if (const fs::file_status status = fs::status(path, ignored); fs::exists(status) && !fs::is_regular_file(status)) {
    damaged_.push_back({path, "is not a regular file"});  // opening a FIFO would wait for a writer
    found->manifests.erase(key);
    return;
  }
  try {
    const File file = File::open(path, FileAccess::kRead, FileCaching::kBuffered);
    bytes = file.size();
    if (bytes > kMaxManifestBytes) wrong = "is too large";
    std::string text(wrong.empty() ? bytes : 0, '\0');
    file.read(0, std::as_writable_bytes(std::span(text)));
    if (wrong.empty()) block = decode_manifest(text, path, &wrong);
    if (block && block->key != key) block.reset(), wrong = "has another block's name";
    std::error_code error;
    const uint64_t data_bytes = block ? fs::file_size(data_path(key), error) : 0;
    if (block && (error || data_bytes != block->data_bytes())) {
      block.reset();
      wrong = error ? "has no data beside it" : "has data of another size beside it";
    }
  } catch (const Error& error) {
    if (error.info().where == path && error.info().what.starts_with("is of format")) throw;
    wrong = error.info().what;  // it may also have just been removed
    unread = true;
  }
  if (block) {
    const uint64_t data_bytes = block->data_bytes();
    return index_.add({.block = std::move(*block), .bytes = bytes + data_bytes, .used_ns = used_ns});
  }
  damaged_.push_back({path, wrong, unread});
  found->sure = found->sure && !unread;
  found->manifests.erase(key);
}

void PrefixStore::refresh() {
  take_lock();
  Found found;
  look(&found);
  damaged_.clear();
  for (const auto& [key, entry] : std::map(index_.entries())) {
    if (found.sure && (!found.manifests.contains(key) || !found.data.contains(key))) index_.remove(key);
  }
  for (const PrefixKey& key : std::set(found.manifests)) {
    const int64_t used_ns = modified_ns(manifest_path(key));
    if (index_.find(key) == nullptr) {
      take_manifest(key, used_ns, &found);
    } else {
      index_.touch(key, used_ns);
    }
  }
  for (const Damaged& one : damaged_) {
    const auto same = [&](const Damaged& other) { return other.file == one.file; };
    if (std::none_of(unreported_.begin(), unreported_.end(), same)) unreported_.push_back(one);
  }
  std::error_code ignored;
  leftover_bytes_ = 0;
  for (const std::string& path : leftovers(found)) {
    const uint64_t bytes = fs::file_size(path, ignored);
    if (!ignored && (!writes() || fs::remove(path, ignored))) leftover_bytes_ += bytes;
  }
}

// Manifests before their data. Empty if something may be hidden: a file that could not be read because of an error is
// not a leftover.
std::vector<std::string> PrefixStore::leftovers(const Found& found) {
  std::vector<std::string> paths;
  const std::vector<PrefixKey> orphans = index_.orphans();
  for (const PrefixKey& key : orphans) index_.remove(key);
  if (!found.sure) return paths;
  paths = found.temporaries;
  for (const PrefixKey& key : orphans) paths.push_back(manifest_path(key));
  for (const Damaged& damage : damaged_) paths.push_back(damage.file);
  for (const PrefixKey& key : found.data) {
    if (index_.find(key) == nullptr) paths.push_back(data_path(key));
  }
  return paths;
}

// ---- blocks ---------------------------------------------------------------------------------------------------------

void PrefixStore::used(std::span<const PrefixKey> keys) {
  const int64_t now = wall_now_ns();
  for (const PrefixKey& key : keys) {
    index_.touch(key, now);
    ::utimensat(AT_FDCWD, manifest_path(key).c_str(), nullptr, 0);  // a reader may, too, if the system permits it
  }
}

// The manifest first: data without a manifest is a leftover, but a manifest without data is damage.
void PrefixStore::remove_files(const PrefixKey& key) noexcept {
  std::error_code ignored;
  fs::remove(manifest_path(key), ignored);
  fs::remove(data_path(key), ignored);
}

void PrefixStore::drop(std::span<const PrefixKey> keys) {
  for (const PrefixKey& key : keys) {
    for (const PrefixKey& one : index_.with_descendants(key)) {
      if (writes()) remove_files(one);
      index_.remove(one);
    }
  }
}

std::vector<PrefixStore::Damaged> PrefixStore::verify() const {
  std::vector<Damaged> bad = damaged_;
  for (const auto& [key, entry] : index_.entries()) {
    const PrefixBlock& block = entry.block;
    try {
      const File file = File::open(data_path(key), FileAccess::kRead, FileCaching::kBuffered);
      std::vector<std::byte> data(block.part_bytes);
      for (size_t part = 0; part < block.checksums.size(); ++part) {
        file.read(part * block.part_bytes, data);
        if (checksum(data) == block.checksums[part]) continue;
        bad.push_back({file.path(), str("the ", block.part_bytes, " bytes at offset ", part * block.part_bytes,
                                        " are not those that were written")});
        break;
      }
    } catch (const Error& error) {
      bad.push_back({error.info().where, error.info().what});
    }
  }
  return bad;
}

uint64_t PrefixStore::limit_bytes() const {
  const uint64_t free = folder_free_bytes(options_.folder);
  if (options_.limit_bytes == 0) return (free + index_.bytes()) / 2;
  return std::min(options_.limit_bytes, free - free / 64 + index_.bytes());  // reserve for file-system overhead
}

// None: not even without them.
std::optional<std::vector<PrefixKey>> PrefixStore::drops_for(uint64_t bytes, const std::set<PrefixKey>& keep) const {
  const uint64_t limit = limit_bytes();
  if (bytes > limit) return std::nullopt;
  std::vector<PrefixKey> drops = index_.to_drop(limit - bytes, keep);
  uint64_t left = index_.bytes();
  for (const PrefixKey& key : drops) left -= index_.find(key)->bytes;
  if (left > limit - bytes) return std::nullopt;
  return drops;
}

bool PrefixStore::make_room(uint64_t bytes, const std::set<PrefixKey>& keep) {
  const std::optional<std::vector<PrefixKey>> drops = drops_for(bytes, keep);
  if (drops) drop(*drops);
  return drops.has_value();
}

uint64_t PrefixStore::keep_to_limit() {
  const uint64_t before = index_.bytes(), limit = options_.limit_bytes;
  if (writes() && limit > 0 && before > limit) drop(index_.to_drop(limit, {}));
  return before - index_.bytes();
}

int64_t PrefixStore::prune(uint64_t limit_bytes) {
  const std::vector<PrefixKey> drops = index_.to_drop(limit_bytes, {});
  drop(drops);
  sync_folder(options_.folder);
  return static_cast<int64_t>(drops.size());
}

void PrefixStore::add(const PrefixBlock& block) {
  index_.add({.block = block, .bytes = file_bytes(block), .used_ns = wall_now_ns()});
}

File PrefixStore::open_data(const PrefixKey& key) const {
  return File::open(data_path(key), FileAccess::kRead, FileCaching::kDirect);
}

// ---- writing --------------------------------------------------------------------------------------------------------

PrefixBlockWriter::PrefixBlockWriter(const PrefixStore& store, PrefixBlock block)
    : data_path_(store.data_path(block.key)), manifest_path_(store.manifest_path(block.key)), block_(std::move(block)) {
  const std::string temporary = data_path_ + PrefixStore::kTemporarySuffix;
  remove_file(temporary);
  file_ = File::open(temporary, FileAccess::kCreate, FileCaching::kDirect);
  try {
    file_.allocate(block_.data_bytes());
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
}

PrefixBlockWriter::~PrefixBlockWriter() {
  if (file_) ::unlink(file_.path().c_str());
}

void PrefixBlockWriter::write(uint64_t part, std::span<const std::byte> data) {
  CHECK(part < block_.checksums.size() && data.size() == block_.part_bytes, "part ", part, ", bytes=", data.size());
  block_.checksums[part] = checksum(data);
  file_.write(part * block_.part_bytes, data);
  written_.fetch_add(1, std::memory_order_release);
}

void PrefixBlockWriter::commit() {
  CHECK(written_.load(std::memory_order_acquire) == block_.checksums.size());
  file_.sync();
  rename_file(file_.path(), data_path_);
  file_ = File();
  try {
    replace_file(manifest_path_, manifest_path_ + PrefixStore::kTemporarySuffix, encode_manifest(block_));
  } catch (...) {
    std::error_code ignored;
    fs::remove(data_path_, ignored);
    throw;
  }
}

}  // namespace headrace
