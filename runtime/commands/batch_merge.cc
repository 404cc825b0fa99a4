#include "runtime/commands/batch_merge.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "cache/base.h"
#include "offload/disk/file.h"
#include "runtime/base/input_file.h"
#include "runtime/commands/request_file.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

// "out.jsonl.part-2-of-8" beside `results`. None: another file.
std::optional<Shard> shard_of(const std::string& name, const std::string& results) {
  const std::string begin = fs::path(results).filename().string() + ".part-";
  if (!name.starts_with(begin)) return std::nullopt;
  const size_t of = name.find("-of-", begin.size());
  if (of == std::string::npos) return std::nullopt;
  Shard shard;
  const auto number = [&name](size_t from, size_t to, int64_t* out) {
    const auto [end, error] = std::from_chars(name.data() + from, name.data() + to, *out);
    return error == std::errc() && end == name.data() + to;
  };
  if (!number(begin.size(), of, &shard.index) || !number(of + 4, name.size(), &shard.count)) return std::nullopt;
  return shard;
}

// How many shards there are. Throws unless all of them, and no others, have a file.
int64_t count_shards(const std::string& results) {
  const fs::path folder = fs::path(results).parent_path();
  std::set<int64_t> counts, found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder.empty() ? "." : folder)) {
    const std::optional<Shard> shard = shard_of(entry.path().filename().string(), results);
    if (!shard) continue;
    counts.insert(shard->count);
    found.insert(shard->index);
  }
  if (counts.empty()) throw_error(ExitCode::kBadInput, results, str("has no part: no file ", results, ".part-I-of-N"));
  if (counts.size() > 1) {
    throw_error(ExitCode::kBadInput, results,
                str("has parts of ", *counts.begin(), " and of ", *counts.rbegin(), " shards"),
                "Remove those that do not belong to this batch");
  }
  for (int64_t index = 0; index < *counts.begin(); ++index) {
    if (!found.contains(index)) {
      throw_error(ExitCode::kBadInput, shard_path(results, {index, *counts.begin()}), "is missing",
                  "Run this shard, then merge again");
    }
  }
  return *counts.begin();
}

struct Answers {
  std::unordered_map<std::string, std::string> lines;  // custom_id -> line
  std::vector<std::string> nameless;
  int64_t failed = 0;
};

void read_part(const std::string& path, Answers* answers) {
  const InputFile file(path);                         // an error unless it is a regular file
  const ResultsFile lock(path, {}, request_lines());  // not while a run writes it
  for (LineReader lines(file, kMaxResultBytes); lines.next();) {
    const std::string text(lines.text());
    const std::optional<ResultLine> line = request_lines().parse(text);
    if (!line) break;  // what a crash left: the file has no other such line
    answers->failed += line->failed ? 1 : 0;
    if (line->name.empty()) {
      answers->nameless.push_back(text);
    } else if (!answers->lines.emplace(line->name, text).second) {
      throw_error(ExitCode::kBadInput, path,
                  str("line ", lines.number(), " answers the request '", line->name, "' again"));
    }
  }
}

}  // namespace

MergeOutcome merge_batch(const std::string& requests, const std::string& results) {
  if (fs::exists(results)) {
    throw_error(ExitCode::kUsage, results, "exists",
                "Give -o the name that the shards were given, and move this file away");
  }
  RequestFile file(requests);
  MergeOutcome outcome{.shards = count_shards(results)};
  Answers answers;
  for (int64_t index = 0; index < outcome.shards; ++index) {
    read_part(shard_path(results, {index, outcome.shards}), &answers);
  }
  std::string merged, first_missing;
  int64_t missing = 0, nameless = 0;
  for (const RequestFile::Line& line : file.lines()) {
    if (line.custom_id.empty()) {
      ++nameless;
      continue;
    }
    const auto found = answers.lines.find(line.custom_id);
    if (found == answers.lines.end()) {
      if (missing++ == 0) first_missing = line.custom_id;
      continue;
    }
    merged += found->second + "\n";
    answers.lines.erase(found);
  }
  if (missing > 0) {
    throw_error(ExitCode::kBadInput, results,
                str("lacks ", missing, " of ", file.lines().size(), " answers, first '", first_missing, "'"),
                "Run the shards again: they answer what is missing. Nothing was written");
  }
  if (!answers.lines.empty()) {
    throw_error(ExitCode::kBadInput, results,
                str("has parts with an answer to '", answers.lines.begin()->first,
                    "', which is not among the requests of ", requests));
  }
  if (nameless != static_cast<int64_t>(answers.nameless.size())) {
    throw_error(ExitCode::kBadInput, results,
                str("has ", answers.nameless.size(), " error lines for ", nameless, " lines without a custom_id"),
                "Run the shards again. Nothing was written");
  }
  for (const std::string& line : answers.nameless) merged += line + "\n";
  replace_file(results, unused_name(results), merged);
  outcome.requests = static_cast<int64_t>(file.lines().size());
  outcome.failed = answers.failed;
  return outcome;
}

}  // namespace headrace
