#include "runtime/prefix/known_weights.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "runtime/prefix/identity.h"

namespace headrace {
namespace {

using nlohmann::ordered_json;

constexpr const char* kFileName = "headrace-weights.json";
constexpr int kFormat = 1;
constexpr size_t kMostEntries = 32;
constexpr uint64_t kMostBytes = kMiB;
constexpr int64_t kSettledNs = 2'000'000'000;  // file systems count time in steps of up to two seconds

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

ordered_json files_json(const std::vector<FileStamp>& files) {
  ordered_json out = ordered_json::array();
  for (const FileStamp& file : files) {
    out.push_back({file.path, file.device, file.inode, file.bytes, file.modified_ns, file.changed_ns});
  }
  return out;
}

std::string beside(const std::string& path) { return path + PrefixStore::kTemporarySuffix; }

// The entries of the file; none: there is none, or none that this program could have written.
ordered_json read_entries(const std::string& path) {
  try {
    const ordered_json json = ordered_json::parse(read_small_file(path, kMostBytes));
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
  for (const FileStamp& file : files) {
    if (std::max(file.modified_ns, file.changed_ns) > read_from_ns - kSettledNs) return false;
    if (stamp_of(file.path) != file) return false;  // it was changed meanwhile, or another one has its name
  }
  return true;
}

void write_down(const std::string& path, const ordered_json& files, const PrefixKey& fingerprint, ordered_json old) {
  ordered_json entries = ordered_json::array();
  entries.push_back({{"files", files}, {"fingerprint", key_text(fingerprint)}});
  for (ordered_json& entry : old) {
    if (entries.size() < kMostEntries && entry.is_object() && entry.value("files", ordered_json()) != files) {
      entries.push_back(std::move(entry));
    }
  }
  const ordered_json json = {{"format", kFormat}, {"numerics", kNumericsVersion}, {"weights", std::move(entries)}};
  try {
    const auto replace = ordered_json::error_handler_t::replace;
    replace_file(path, beside(path), json.dump(1, ' ', false, replace) + "\n");
  } catch (const Error&) {  // then the next start reads them again
  }
}

}  // namespace

PrefixKey known_fingerprint(const TensorSource& source, int threads, const PrefixStore& store) {
  const std::vector<FileStamp> stamps = source.files();
  if (stamps.empty()) return weights_fingerprint(source, threads);
  const std::string path = store.folder() + "/" + kFileName;
  const ordered_json files = files_json(stamps);
  ordered_json entries = read_entries(path);
  std::error_code ignored;
  if (store.writes()) std::filesystem::remove(beside(path), ignored);  // of a start that was killed
  if (const std::optional<PrefixKey> known = find(entries, files)) return *known;
  const int64_t start = now_ns();
  const PrefixKey fingerprint = weights_fingerprint(source, threads);
  if (store.writes() && settled(stamps, start)) write_down(path, files, fingerprint, std::move(entries));
  return fingerprint;
}

}  // namespace headrace
