#include "runtime/prefix/block.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "offload/host/checksum.h"
#include "runtime/base/sha256.h"

namespace headrace {
namespace {

static_assert(std::endian::native == std::endian::little, "manifests are little-endian");

constexpr std::string_view kMagic = "HDRPREFX";
constexpr uint64_t kMaxParts = 1 << 16, kMaxPartBytes = uint64_t{1} << 40, kMaxModelBytes = 1 << 12;

uint32_t format_of(PrefixBlockKind kind) { return kind == PrefixBlockKind::kStates ? 2 : 1; }

uint64_t checksum_of(std::string_view text) { return checksum(std::as_bytes(std::span(text))); }

std::string_view bytes_of(const PrefixKey& key) { return {reinterpret_cast<const char*>(key.data()), key.size()}; }

class Writer {
 public:
  template <typename T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  template <typename T>
  void put_all(const std::vector<T>& values) {
    text_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }
  void put_text(std::string_view text) { text_ += text; }
  std::string take() {
    put(checksum_of(text_));
    return std::move(text_);
  }

 private:
  std::string text_;
};

// Reads fields in order; beyond the end they are 0, and ok() is false.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}
  template <typename T>
  T get() {
    T value{};
    take(&value, sizeof value);
    return value;
  }
  template <typename T>
  std::vector<T> get_all(uint64_t count) {
    if (count > text_.size() / sizeof(T)) ok_ = false;
    std::vector<T> values(ok_ ? count : 0);
    if (ok_) take(values.data(), count * sizeof(T));
    return values;
  }
  std::string get_text(uint64_t bytes) {
    const std::vector<char> text = get_all<char>(bytes);
    return {text.begin(), text.end()};
  }
  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && text_.empty(); }

 private:
  void take(void* to, size_t bytes) {
    ok_ = ok_ && bytes <= text_.size();
    if (!ok_) return;
    if (bytes > 0) std::memcpy(to, text_.data(), bytes);
    text_.remove_prefix(bytes);
  }

  std::string_view text_;
  bool ok_ = true;
};

// What is wrong with a block whose manifest has a valid checksum; null: nothing. Our program wrote it, but nothing is
// used unchecked.
const char* wrong_with(const PrefixBlock& block) {
  if (block.kind > PrefixBlockKind::kStates) return "is of an unknown kind";
  if (block.first_row < 0 || block.first_row > INT32_MAX) return "has an impossible first row";
  const SegmentRange range = segment_range(segment_of(block.first_row));
  if (range.begin != block.first_row || block.rows < 1 || block.rows > range.rows) return "is not in a segment";
  if (block.part_bytes == 0 || block.part_bytes % kPageBytes != 0 || block.part_bytes > kMaxPartBytes) {
    return "has parts of an impossible size";
  }
  if (block.kind == PrefixBlockKind::kDraft) {
    return block.key == draft_key(block.parent, block.identity) ? nullptr : "does not have its content's name";
  }
  if (block.kind == PrefixBlockKind::kStates) {
    return block.key == states_key(block.parent) ? nullptr : "does not have its content's name";
  }
  if (std::any_of(block.tokens.begin(), block.tokens.end(), [](int32_t id) { return id < 0; })) {
    return "has a negative token";
  }
  return block.key == rows_key(block.parent, block.tokens) ? nullptr : "does not have its content's name";
}

PrefixKey hash_of(std::string_view what, const PrefixKey& first, std::string_view second) {
  Sha256 hash;
  hash.update(what);
  hash.update(bytes_of(first));
  hash.update(second);
  return hash.finish();
}

}  // namespace

PrefixKey prefix_root(const PrefixKey& identity) { return hash_of("headrace prefix: root ", identity, ""); }

PrefixKey rows_key(const PrefixKey& parent, std::span<const int32_t> tokens) {
  return hash_of("headrace prefix: rows ", parent, {reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes()});
}

PrefixKey draft_key(const PrefixKey& rows, const PrefixKey& draft_identity) {
  return hash_of("headrace prefix: draft ", rows, bytes_of(draft_identity));
}

PrefixKey states_key(const PrefixKey& rows) { return hash_of("headrace prefix: states ", rows, ""); }

std::string key_text(const PrefixKey& key) { return digest_text(key); }

std::optional<PrefixKey> parse_key(std::string_view text) {
  PrefixKey key{};
  if (text.size() != 2 * key.size()) return std::nullopt;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return std::nullopt;
    key[i / 2] = static_cast<uint8_t>(key[i / 2] << 4 | digit);
  }
  return key;
}

std::string encode_manifest(const PrefixBlock& block) {
  CHECK(wrong_with(block) == nullptr, wrong_with(block), ", first_row=", block.first_row, " rows=", block.rows);
  CHECK(block.checksums.size() <= kMaxParts && !block.checksums.empty(), "parts=", block.checksums.size());
  const std::string model = block.model.substr(0, kMaxModelBytes);
  Writer out;
  out.put_text(kMagic);
  out.put(format_of(block.kind));
  out.put(~format_of(block.kind));
  out.put(block.kind);
  out.put(static_cast<uint32_t>(model.size()));
  out.put(block.key);
  out.put(block.parent);
  out.put(block.identity);
  out.put(block.first_row);
  out.put(block.rows);
  out.put(block.part_bytes);
  out.put(static_cast<uint64_t>(block.checksums.size()));
  out.put(static_cast<uint64_t>(block.tokens.size()));
  out.put_text(model);
  out.put_all(block.tokens);
  out.put_all(block.checksums);
  return out.take();
}

uint64_t file_bytes(const PrefixBlock& block) { return block.data_bytes() + encode_manifest(block).size(); }

std::optional<PrefixBlock> decode_manifest(std::string_view bytes, const std::string& path, std::string* wrong) {
  const auto fail = [&](const char* what) {
    *wrong = what;
    return std::nullopt;
  };
  if (!bytes.starts_with(kMagic)) return fail("is not a manifest");
  Reader in(bytes.substr(kMagic.size(), bytes.size() < sizeof(uint64_t) ? 0 : std::string_view::npos));
  const uint32_t version = in.get<uint32_t>(), complement = in.get<uint32_t>();
  if (!in.ok() || complement != ~version) return fail("has an incomplete header");
  if (version > kPrefixFormat) {
    throw_error(ExitCode::kStorage, path, str("is of format ", version, ", this program knows up to ", kPrefixFormat),
                "A newer headrace has written it: use that one, or another --prefix-cache.");
  }
  if (version < 1) return fail("is of an unknown format");
  if (bytes.size() < kMagic.size() + sizeof(uint64_t)) return fail("is cut short");
  uint64_t stored = 0;
  const size_t end = bytes.size() - sizeof stored;
  std::memcpy(&stored, bytes.data() + end, sizeof stored);
  if (stored != checksum_of(bytes.substr(0, end))) return fail("has a wrong checksum");
  in = Reader(bytes.substr(kMagic.size() + 2 * sizeof(uint32_t), end - kMagic.size() - 2 * sizeof(uint32_t)));
  PrefixBlock block;
  block.kind = in.get<PrefixBlockKind>();
  if (in.ok() && version != format_of(block.kind)) return fail("is of another format than its kind");
  const uint32_t model_bytes = in.get<uint32_t>();
  block.key = in.get<PrefixKey>();
  block.parent = in.get<PrefixKey>();
  block.identity = in.get<PrefixKey>();
  block.first_row = in.get<int64_t>();
  block.rows = in.get<int64_t>();
  block.part_bytes = in.get<uint64_t>();
  const uint64_t parts = in.get<uint64_t>(), tokens = in.get<uint64_t>();
  if (!in.ok() || model_bytes > kMaxModelBytes || parts < 1 || parts > kMaxParts) return fail("has impossible sizes");
  if (tokens != (block.kind == PrefixBlockKind::kRows ? static_cast<uint64_t>(block.rows) : 0)) {
    return fail("has another number of tokens than of rows");
  }
  block.model = in.get_text(model_bytes);
  block.tokens = in.get_all<int32_t>(tokens);
  block.checksums = in.get_all<uint64_t>(parts);
  if (!in.at_end()) return fail("has a wrong length");
  if (const char* const what = wrong_with(block)) return fail(what);
  return block;
}

}  // namespace headrace
