#include "runtime/model/files/gguf_parts.h"

#include <algorithm>
#include <iterator>
#include <regex>
#include <set>
#include <string_view>
#include <utility>

#include "runtime/base/file_hints.h"

namespace headrace {
namespace {

constexpr int64_t kMaxParts = 99999;  // the names have room for no more
constexpr char kFetch[] = "Download all parts of the model to one folder.";

std::string five_digits(int64_t number) {
  const std::string digits = std::to_string(number);
  return std::string(5 - std::min<size_t>(5, digits.size()), '0') + digits;
}

GgufFile parsed(const InputFile& file) {
  if (file.size() == 0) throw_error(ExitCode::kBadInput, file.name(), "is empty (0 bytes)");
  const std::string begin = file.text(0, std::min<uint64_t>(8, file.size()));
  if (!begin.starts_with("GGUF"))
    throw_error(ExitCode::kBadInput, file.name(), "is not a GGUF file: it begins with \"" + printable(begin) + "\"",
                "give a Hugging Face directory (not a file in it) or a .gguf file");
  return parse_gguf(file);
}

}  // namespace

std::vector<std::string> gguf_part_names(const std::string& path) {
  static const std::regex kPart("(.*)-([0-9]{5})-of-([0-9]{5})\\.gguf");
  std::smatch match;
  const size_t slash = path.rfind('/') + 1;  // 0: there is none
  const std::string name = path.substr(slash);
  if (!std::regex_match(name, match, kPart)) return {path};
  const int64_t number = std::stoll(match[2]), count = std::stoll(match[3]);
  if (number < 1 || number > count) return {path};
  std::vector<std::string> names;
  for (int64_t i = 1; i <= count; ++i) {
    names.push_back(path.substr(0, slash) + match[1].str() + "-" + five_digits(i) + "-of-" + match[3].str() + ".gguf");
  }
  return names;
}

GgufParts::GgufParts(const std::string& path) {
  const std::vector<std::string> names = gguf_part_names(path);
  for (const std::string& name : names) {
    if (names.size() > 1 && !is_there(name)) {
      throw_error(ExitCode::kBadInput, name,
                  str("is missing: ", path, " is one of the model's ", names.size(), " parts"), kFetch);
    }
    begins_.push_back(files_.empty() ? 0 : size());
    files_.emplace_back(name);
  }
  for (size_t i = 0; i < files_.size(); ++i) add_header(i);
  if (files_.size() > 1) check_tensors();
}

void GgufParts::add_header(size_t number) {
  GgufFile part = parsed(files_[number]);
  const GgufFields fields(part);
  const int64_t count = fields.integer_or("split.count", 0, kMaxParts, 1),
                of_it = fields.integer_or("split.no", 0, kMaxParts, 0);
  if (std::max<int64_t>(count, 1) != static_cast<int64_t>(files_.size()) || of_it != static_cast<int64_t>(number)) {
    throw_error(ExitCode::kBadInput, part.source,
                str("is part ", of_it + 1, " of ", count, " by its metadata, but part ", number + 1, " of ",
                    files_.size(), " by its name"),
                "Parts are named NAME-00001-of-00003.gguf. " + std::string(kFetch));
  }
  for (GgufTensor& tensor : part.tensors) {
    tensor.begin += begins_[number];
    if (number > 0) header_.tensors.push_back(std::move(tensor));
  }
  if (number == 0) header_ = std::move(part);
}

// Parts of two models, or of two ways to divide one, have tensors twice or lack some.
void GgufParts::check_tensors() const {
  std::set<std::string_view> names;
  for (const GgufTensor& tensor : header_.tensors) {
    if (names.insert(tensor.name).second) continue;
    throw_error(
        ExitCode::kBadInput, range(tensor.begin, 0).source->name(),
        "has tensor \"" + printable(tensor.name) + "\", and an earlier part has it, too: they are of two splits",
        kFetch);
  }
  const auto found = static_cast<int64_t>(header_.tensors.size());
  const int64_t declared = GgufFields(header_).integer_or("split.tensors.count", 0, INT32_MAX, found);
  if (declared == found) return;
  throw_error(ExitCode::kBadInput, name(),
              str("split.tensors.count is ", declared, ", but the ", files_.size(), " parts have ", found,
                  " tensors: they are of two splits"),
              kFetch);
}

ByteRange GgufParts::range(uint64_t begin, uint64_t bytes) const {
  const auto after = std::upper_bound(begins_.begin(), begins_.end(), begin);
  const auto part = static_cast<size_t>(std::distance(begins_.begin(), after)) - 1;
  return {&files_[part], begin - begins_[part], bytes};
}

void GgufParts::read(uint64_t offset, void* to, uint64_t bytes) const {
  const ByteRange in = range(offset, bytes);
  in.source->read(in.begin, to, bytes);
}

std::vector<FileStamp> GgufParts::stamps() const {
  std::vector<FileStamp> stamps;
  for (const InputFile& file : files_) stamps.push_back(file.stamp());
  return stamps;
}

}  // namespace headrace
