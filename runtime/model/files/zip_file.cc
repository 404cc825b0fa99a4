// By PKWARE's APPNOTE 6.3: 4.3.7 (local header), 4.3.12 (central directory), 4.3.14 to 4.3.16 (its end), 4.5.3 (zip64).
#include "runtime/model/files/zip_file.h"

#include <cstring>
#include <unordered_set>

#include "cache/base.h"

namespace headrace {
namespace {

constexpr uint32_t kLocalMagic = 0x04034b50, kCentralMagic = 0x02014b50, kEndMagic = 0x06054b50;
constexpr uint32_t kEnd64Magic = 0x06064b50, kLocator64Magic = 0x07064b50;
constexpr uint64_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56, kLocator64Bytes = 20;
constexpr uint64_t kMaxComment = 65535;
constexpr uint32_t kIn64 = 0xffffffff;  // "the zip64 field has it"

class Archive {
 public:
  explicit Archive(const ByteSource& file) : file_(file) {}

  std::vector<ZipEntry> entries() const {
    Directory directory = find_directory();
    std::vector<ZipEntry> out;
    std::unordered_set<std::string> names;
    // An entry takes 46 bytes: a count beyond what the directory's bytes hold is a lie that the walk finds out.
    for (uint64_t i = 0, at = directory.begin; i < directory.entries; ++i) {
      out.push_back(read_entry(&at, directory.end));
      if (!names.insert(out.back().name).second) refuse("two entries are named \"" + printable(out.back().name) + "\"");
    }
    return out;
  }

 private:
  struct Directory {
    uint64_t begin, end, entries;
  };

  [[noreturn]] void refuse(const std::string& what) const {
    throw_error(ExitCode::kBadInput, file_.name(), "zip: " + what);
  }

  void need(uint64_t at, uint64_t bytes, uint64_t end, const char* what) const {
    if (at > end || bytes > end - at) refuse(str(what, " at byte ", at, " does not fit: there are ", end, " bytes"));
  }
  template <typename T>
  T load(uint64_t at) const {
    T value;
    file_.read(at, &value, sizeof value);
    return value;
  }

  Directory find_directory() const {
    const uint64_t end = find_end();
    if (load<uint16_t>(end + 4) != 0 || load<uint16_t>(end + 6) != 0) refuse("archives of several disks are not read");
    Directory out{};
    out.entries = load<uint16_t>(end + 10);
    uint64_t size = load<uint32_t>(end + 12);
    out.begin = load<uint32_t>(end + 16);
    out.end = end;
    if (end >= kLocator64Bytes && load<uint32_t>(end - kLocator64Bytes) == kLocator64Magic) {
      const uint64_t at = load<uint64_t>(end - kLocator64Bytes + 8);
      need(at, kEnd64Bytes, end - kLocator64Bytes, "the zip64 end of the directory");
      if (load<uint32_t>(at) != kEnd64Magic) refuse(str("no zip64 end of the directory at byte ", at));
      out.entries = load<uint64_t>(at + 32);
      size = load<uint64_t>(at + 40);
      out.begin = load<uint64_t>(at + 48);
      out.end = at;
    }
    need(out.begin, size, out.end, "the directory");
    out.end = out.begin + size;
    return out;
  }

  // The end record lies before a comment of unknown length: the last place that looks like it and fits.
  uint64_t find_end() const {
    if (file_.size() < kEndBytes) refuse(str("is ", file_.size(), " bytes: too short"));
    const uint64_t last = file_.size() - kEndBytes, first = last > kMaxComment ? last - kMaxComment : 0;
    const std::string tail = file_.text(first, file_.size() - first);
    for (uint64_t at = last - first + 1; at-- > 0;) {
      uint32_t magic;
      uint16_t comment;
      std::memcpy(&magic, tail.data() + at, sizeof magic);
      std::memcpy(&comment, tail.data() + at + 20, sizeof comment);
      if (magic == kEndMagic && at + kEndBytes + comment == tail.size()) return first + at;
    }
    refuse("the end of the directory is missing: the file is cut short or not a zip archive");
  }

  ZipEntry read_entry(uint64_t* at, uint64_t end) const {
    need(*at, kCentralBytes, end, "an entry of the directory");
    const uint64_t header = *at;
    if (load<uint32_t>(header) != kCentralMagic) refuse(str("no entry of the directory at byte ", header));
    const uint64_t name_bytes = load<uint16_t>(header + 28), extra_bytes = load<uint16_t>(header + 30),
                   comment_bytes = load<uint16_t>(header + 32);
    need(header, kCentralBytes + name_bytes + extra_bytes + comment_bytes, end, "an entry of the directory");
    *at = header + kCentralBytes + name_bytes + extra_bytes + comment_bytes;

    ZipEntry out;
    out.name = file_.text(header + kCentralBytes, name_bytes);
    const std::string label = "entry \"" + printable(out.name) + "\" ";
    const uint16_t flags = load<uint16_t>(header + 8), method = load<uint16_t>(header + 10);
    if ((flags & 1) != 0) refuse(label + "is encrypted");
    if (method != 0) refuse(str(label, "is compressed (method ", method, "); only stored entries are read"));
    const std::string extra = file_.text(header + kCentralBytes + name_bytes, extra_bytes);
    const Sizes sizes = read_sizes(header, extra, label);
    if (sizes.stored != sizes.whole)
      refuse(str(label, "is stored in ", sizes.stored, " bytes, but declares ", sizes.whole));
    need(sizes.local, kLocalBytes, file_.size(), "a local header");
    if (load<uint32_t>(sizes.local) != kLocalMagic) refuse(str(label, "has no header at byte ", sizes.local));
    out.begin = sizes.local + kLocalBytes + load<uint16_t>(sizes.local + 26) + load<uint16_t>(sizes.local + 28);
    out.bytes = sizes.whole;
    need(out.begin, out.bytes, file_.size(), "an entry's data");
    return out;
  }

  struct Sizes {
    uint64_t whole, stored, local;
  };
  // The three that may be in the zip64 extra field, where they follow one another, each only if it is needed.
  Sizes read_sizes(uint64_t header, std::string_view extra, const std::string& label) const {
    Sizes out = {load<uint32_t>(header + 24), load<uint32_t>(header + 20), load<uint32_t>(header + 42)};
    std::string_view in64;
    while (extra.size() >= 4) {
      uint16_t id, bytes;
      std::memcpy(&id, extra.data(), sizeof id);
      std::memcpy(&bytes, extra.data() + 2, sizeof bytes);
      if (bytes > extra.size() - 4) refuse(label + "has an extra field that is cut short");
      if (id == 1) in64 = extra.substr(4, bytes);
      extra.remove_prefix(4 + static_cast<size_t>(bytes));
    }
    for (uint64_t* value : {&out.whole, &out.stored, &out.local}) {
      if (*value != kIn64) continue;
      if (in64.size() < sizeof *value) refuse(label + "lacks its zip64 sizes");
      std::memcpy(value, in64.data(), sizeof *value);
      in64.remove_prefix(sizeof *value);
    }
    return out;
  }

  const ByteSource& file_;
};

}  // namespace

std::vector<ZipEntry> parse_zip(const ByteSource& file) { return Archive(file).entries(); }

}  // namespace headrace
