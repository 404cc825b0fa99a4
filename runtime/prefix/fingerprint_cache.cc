#include "runtime/prefix/fingerprint_cache.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "offload/host/checksum.h"
#include "offload/host/clock.h"
#include "runtime/base/json_file.h"
#include "runtime/prefix/cache_key.h"

namespace headrace {
namespace {

using nlohmann::ordered_json;

constexpr const char* kFileName = "headrace-weights.json";
constexpr int kFormat = 2;
constexpr uint64_t kMaxBytes = 8 * kMiB;
constexpr uint64_t kWholeBytes = 4 * kMiB, kSampledSliceBytes = 16 * kMiB, kSampleBytes = 4 * kKiB;  // of samples
constexpr int64_t kSettledNs = 2'000'000'000;  // the time resolution of file systems is up to two seconds

// False: the file was changed or replaced.
bool stands(const FileStamp& file) { return stamp_of(file.path) == file; }

// Null: one cannot be read.
ordered_json files_json(const std::vector<FileStamp>& files) {
  ordered_json out = ordered_json::array();
  for (const FileStamp& file : files) {
    const std::optional<uint64_t> sample = sampled_checksum(file.path);
    if (!sample) return {};
    out.push_back({file.path, file.device, file.inode, file.bytes, file.modified_ns, file.changed_ns, *sample});
  }
  return out;
}

std::string beside(const std::string& path) { return path + PrefixStore::kTemporarySuffix; }

// The entries of the file; none: it does not exist, or this program cannot have written it.
ordered_json read_entries(const std::string& path) {
  try {
    const ordered_json json = parse_ordered_json(read_small_file(path, kMaxBytes), path);
    if (json.at("format") == kFormat && json.at("numerics") == kNumericsVersion && json.at("weights").is_array()) {
      return json.at("weights");
    }
  } catch (const Error&) {
  } catch (const nlohmann::json::exception&) {
  }
  return ordered_json::array();
}

std::optional<PrefixKey> find(const ordered_json& entries, const ordered_json& files) {
  for (const ordered_json& entry : entries) {
    if (!entry.is_object() || entry.value("files", ordered_json()) != files) continue;
    if (entry.contains("fingerprint") && entry["fingerprint"].is_string()) {
      return parse_key(entry["fingerprint"].get<std::string>());
    }
  }
  return std::nullopt;
}

bool settled(const std::vector<FileStamp>& files, int64_t read_from_ns) {
  return std::all_of(files.begin(), files.end(), [&](const FileStamp& file) {
    return std::max(file.modified_ns, file.changed_ns) <= read_from_ns - kSettledNs && stands(file);
  });
}

void write_down(const std::string& path, const ordered_json& files, const PrefixKey& fingerprint, ordered_json old) {
  ordered_json entries = ordered_json::array();
  entries.push_back({{"files", files}, {"fingerprint", key_text(fingerprint)}});
  for (ordered_json& entry : old) {
    if (entries.size() < kMaxCachedFingerprints && entry.is_object() && entry.value("files", ordered_json()) != files) {
      entries.push_back(std::move(entry));
    }
  }
  const ordered_json json = {{"format", kFormat}, {"numerics", kNumericsVersion}, {"weights", std::move(entries)}};
  try {
    replace_file(path, beside(path), json.dump(1) + "\n");
  } catch (const Error&) {                    // then the next start reads the weights again
  } catch (const ordered_json::exception&) {  // a path that is not UTF-8, under which no entry could be found
  }
}

}  // namespace

std::optional<uint64_t> sampled_checksum(const std::string& path) {
  std::ifstream in;
  in.rdbuf()->pubsetbuf(nullptr, 0);  // only a page is needed
  in.open(path, std::ios::binary | std::ios::ate);
  const std::streamoff end = in ? static_cast<std::streamoff>(in.tellg()) : -1;
  if (end < 0) return std::nullopt;
  const auto bytes = static_cast<uint64_t>(end);
  std::vector<uint64_t> sums = {bytes};
  std::vector<char> buffer;
  const auto add = [&](uint64_t from, uint64_t most) {
    buffer.resize(std::min(most, bytes - from));
    in.seekg(static_cast<std::streamoff>(from));
    in.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    sums.push_back(checksum(std::as_bytes(std::span(buffer))));
  };
  if (bytes <= kWholeBytes) {
    add(0, bytes);
  } else {
    for (uint64_t slice = 0; slice < bytes; slice += kSampledSliceBytes) add(slice, kSampleBytes);
    add(bytes - kSampleBytes, kSampleBytes);
  }
  if (!in) return std::nullopt;
  return checksum(std::as_bytes(std::span(sums)));
}

void refuse_changed(const std::vector<FileStamp>& files) {
  for (const FileStamp& file : files) {
    if (stands(file)) continue;
    throw_error(ExitCode::kBadInput, file.path, "was changed while it was read",
                "run it again once nothing writes to it");
  }
}

PrefixKey cached_fingerprint(const TensorSource& source, int threads, const PrefixStore& store) {
  const std::vector<FileStamp> stamps = source.files();
  if (stamps.empty()) return weights_fingerprint(source, threads);
  const std::string path = store.folder() + "/" + kFileName;
  const ordered_json files = files_json(stamps);
  ordered_json entries = read_entries(path);
  std::error_code ignored;
  if (store.writes()) std::filesystem::remove(beside(path), ignored);  // left by a killed start
  if (files.is_null()) return weights_fingerprint(source, threads);
  if (const std::optional<PrefixKey> known = find(entries, files)) return *known;
  const int64_t start = wall_now_ns();
  const PrefixKey fingerprint = weights_fingerprint(source, threads);
  if (store.writes() && settled(stamps, start) && files_json(stamps) == files)
    write_down(path, files, fingerprint, std::move(entries));
  return fingerprint;
}

}  // namespace headrace
