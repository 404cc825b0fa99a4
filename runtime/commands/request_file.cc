#include "runtime/commands/request_file.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "cache/base.h"
#include "runtime/base/encoding.h"
#include "runtime/base/json_file.h"
#include "runtime/base/sha256.h"
#include "runtime/requests/request.h"

namespace headrace {
namespace {

using nlohmann::json;

constexpr int64_t kMaxShards = 1'000'000;
constexpr uint64_t kMaxLineBytes = 256 * kMiB, kHeadBytes = 256;
// Beginnings are compared at these lengths. A shorter common beginning is not worth its rows.
constexpr size_t kFirstBeginning = 1024, kBeginningGrowth = 2;

bool whole_number(std::string_view text, int64_t* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

int64_t slurm_number(const char* name, std::optional<int64_t> fallback = std::nullopt) {
  const char* const text = std::getenv(name);
  if (text == nullptr && fallback) return *fallback;
  int64_t number = 0;
  if (text == nullptr || !whole_number(text, &number)) {
    throw_error(ExitCode::kUsage, "--shard auto",
                text == nullptr ? str(name, " is not set") : str(name, " is '", text, "', not a whole number"),
                "Run it in a Slurm job array, or give --shard I/N");
  }
  return number;
}

bool may_begin_line(std::string_view text) {
  LineStart at(text);
  return at.literal("{\"id\":\"batch_req_") && at.key() && at.literal("\",\"custom_id\":");
}

std::optional<ResultLine> parse_line(std::string_view text) {
  if (!may_begin_line(text)) return std::nullopt;
  const json line = json_or_null(text);
  if (!line.is_object() || !line.contains("response") || !line.contains("error")) return std::nullopt;
  const json& id = line["custom_id"];
  const json& response = line["response"];
  if (!(id.is_string() || id.is_null()) || !(response.is_object() || response.is_null())) return std::nullopt;
  const std::string key = line["id"].get<std::string>().substr(std::string_view("batch_req_").size());
  if (key.size() != kKeyDigits) return std::nullopt;
  const bool done = response.is_object() && response.value("status_code", json()) == 200;
  return ResultLine{key, id.is_string() ? id.get<std::string>() : "", !done};
}

}  // namespace

Shard parse_shard(const std::string& text) {
  Shard shard;
  if (text == "auto") {
    const int64_t first = slurm_number("SLURM_ARRAY_TASK_MIN"), step = slurm_number("SLURM_ARRAY_TASK_STEP", 1);
    shard.count = slurm_number("SLURM_ARRAY_TASK_COUNT");
    shard.index = (slurm_number("SLURM_ARRAY_TASK_ID") - first) / std::max<int64_t>(step, 1);
  } else {
    const size_t slash = text.find('/');
    const std::string_view all = text;
    if (slash == std::string::npos || !whole_number(all.substr(0, slash), &shard.index) ||
        !whole_number(all.substr(slash + 1), &shard.count)) {
      throw_error(ExitCode::kUsage, "--shard", str("'", text, "' is neither I/N such as 0/4 nor auto"));
    }
  }
  if (shard.count < 1 || shard.count > kMaxShards || shard.index < 0 || shard.index >= shard.count) {
    throw_error(ExitCode::kUsage, "--shard",
                str("'", text, "' is shard ", shard.index, " of ", shard.count,
                    ": shards count from 0, and there are 1 to ", kMaxShards));
  }
  return shard;
}

std::string shard_path(const std::string& path, const Shard& shard) {
  return shard.count == 0 || path == kStandardOutput ? path : str(path, ".part-", shard.index, "-of-", shard.count);
}

RequestFile::RequestFile(const std::string& path, const std::atomic<bool>* interrupt)
    : path_(stream_name(path)), interrupt_(interrupt), source_(open_source(path)) {
  const std::string head = source_->text(0, std::min(source_->size(), kHeadBytes));
  refuse_other_encoding(path_, head);
  const uint64_t mark = head.starts_with("\xef\xbb\xbf") ? 3 : 0;
  for (LineReader lines(*source_, kMaxLineBytes); lines.next();) {
    const uint64_t skipped = lines.number() == 1 ? mark : 0;
    add(lines.text().substr(skipped), lines.offset() + skipped);
  }
  const int64_t count = std::erase_if(lines_, [](const Line& line) { return line.bytes == 0; });
  if (lines_.empty()) throw_error(ExitCode::kBadInput, path_, str("has no request in ", count, " lines"));
}

// An empty line is not a request, but it counts in line numbers.
void RequestFile::add(std::string_view text, uint64_t offset) {
  Line line{.number = static_cast<int64_t>(lines_.size()) + 1,
            .offset = offset,
            .bytes = text.size(),
            .custom_id = "",
            .like = {},
            .text_bytes = 0,
            .max_tokens = {}};
  if (text.find_first_not_of(" \t\r") == std::string_view::npos) line.bytes = 0;
  std::string content;
  try {
    if (line.bytes > 0) {
      const Request request = parse_batch_line(text, source(line), &line.custom_id, {.interrupt = interrupt_}).request;
      content = request.text();
      line.max_tokens = request.max_tokens;
    }
  } catch (const Error& error) {  // another is reported when the line is answered
    if (error.code() == ExitCode::kInterrupted) throw;
  }
  if (!line.custom_id.empty()) {
    const auto [found, added] = numbers_.emplace(line.custom_id, line.number);
    if (!added) {
      throw_error(
          ExitCode::kBadInput, path_,
          str("lines ", found->second, " and ", line.number, " have the same custom_id: ", json(line.custom_id).dump()),
          "Each request needs a custom_id of its own");
    }
  }
  line.text_bytes = content.size();
  size_t level = 0;
  for (size_t length = kFirstBeginning; length <= content.size(); length *= kBeginningGrowth, ++level) {
    if (level == seen_.size()) seen_.emplace_back();
    const uint64_t hash = std::hash<std::string_view>()(std::string_view(content).substr(0, length));
    line.like.push_back(seen_[level].emplace(hash, lines_.size()).first->second);
  }
  lines_.push_back(std::move(line));
}

bool RequestFile::owns(const Line& line, const Shard& shard) const {
  if (shard.count <= 1) return true;
  const std::string digest = sha256_hex(line.custom_id.empty() ? read(line) : line.custom_id);
  return static_cast<int64_t>(std::stoull(digest.substr(0, 15), nullptr, 16)) % shard.count == shard.index;
}

std::string RequestFile::read(const Line& line) const { return source_->text(line.offset, line.bytes); }

std::string RequestFile::source(const Line& line) const { return str(path_, ": line ", line.number); }

std::string RequestFile::name(const Line& line) const {
  return line.custom_id.empty() ? str("line ", line.number) : line.custom_id;
}

std::string make_request_line(const NewRequest& request) {
  using nlohmann::ordered_json;
  ordered_json messages = ordered_json::array();
  if (!request.system.empty()) messages.push_back({{"role", "system"}, {"content", request.system}});
  messages.push_back({{"role", "user"}, {"content", request.user}});
  ordered_json body = {{"model", request.model}, {"messages", messages}};
  if (request.max_tokens > 0) body["max_tokens"] = request.max_tokens;
  const ordered_json line = {
      {"custom_id", request.custom_id}, {"method", "POST"}, {"url", "/v1/chat/completions"}, {"body", body}};
  return line.dump(-1, ' ', false, ordered_json::error_handler_t::replace);  // a file's name may be any bytes
}

void order_by_beginnings(std::vector<RequestFile::Line>* lines) {
  // At a length that it does not reach, a line is ordered by its own place.
  const auto place = [](const RequestFile::Line& line, size_t level) {
    return level < line.like.size() ? line.like[level] : static_cast<size_t>(line.number - 1);
  };
  std::stable_sort(lines->begin(), lines->end(), [&place](const RequestFile::Line& a, const RequestFile::Line& b) {
    const size_t levels = std::max(a.like.size(), b.like.size()) + 1;
    for (size_t level = 0; level < levels; ++level) {
      const size_t left = place(a, level), right = place(b, level);
      if (left != right) return left < right;
    }
    return false;
  });
}

std::vector<SharedPrompt> shared_prompts(const std::vector<RequestFile::Line>& lines, int64_t max_tokens) {
  std::vector<SharedPrompt> prompts;
  const RequestFile::Line* before = nullptr;
  for (const RequestFile::Line& line : lines) {
    SharedPrompt prompt{.bytes = line.text_bytes, .shared = 0, .answer_tokens = line.max_tokens.value_or(max_tokens)};
    const size_t levels = before == nullptr ? 0 : std::min(before->like.size(), line.like.size());
    size_t length = kFirstBeginning;
    for (size_t level = 0; level < levels && before->like[level] == line.like[level]; ++level) {
      prompt.shared = length;
      length *= kBeginningGrowth;
    }
    prompts.push_back(prompt);
    before = &line;
  }
  return prompts;
}

const LineForm& request_lines() {
  static const LineForm form{may_begin_line, parse_line};
  return form;
}

}  // namespace headrace
