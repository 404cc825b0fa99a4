// A file of requests in OpenAI's batch form, one JSON object a line, and the results of such a batch. Thread: one.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/base/input_file.h"
#include "runtime/commands/results_file.h"
#include "runtime/commands/shared_rows.h"

namespace headrace {

// A part of a batch: the requests whose identity hashes to `index` of `count`, independent of their order.
struct Shard {
  int64_t index = 0, count = 0;  // 0: the whole batch is one
};
// Parses "2/8", or "auto": the variables of a Slurm job array. Throws Error(kUsage) that names the text or the
// variable.
Shard parse_shard(const std::string& text);
// The file of a shard's results: "out.jsonl.part-2-of-8"; `path` itself for a whole batch.
std::string shard_path(const std::string& path, const Shard& shard);

class RequestFile {
 public:
  struct Line {
    int64_t number;            // from 1
    uint64_t offset, bytes;    // without the newline
    std::string custom_id;     // empty: the line has none, or cannot be parsed
    std::vector<size_t> like;  // one number for each length of its text's beginnings; equal numbers: equal beginnings
    uint64_t text_bytes;       // 0: the line cannot be parsed
    std::optional<int64_t> max_tokens;
  };

  // Reads the file ("-": standard input). Throws Error(kBadInput): it cannot be read, is not UTF-8 text, has no
  // request, or has one custom_id twice; Error(kInterrupted) if `interrupt` is set while a request's file is converted.
  explicit RequestFile(const std::string& path, const std::atomic<bool>* interrupt = nullptr);

  const std::vector<Line>& lines() const { return lines_; }
  bool owns(const Line& line, const Shard& shard) const;  // whether the line belongs to the shard
  std::string read(const Line& line) const;               // its text
  std::string source(const Line& line) const;             // "requests.jsonl: line 7"
  std::string name(const Line& line) const;               // its custom_id, or "line 7"

 private:
  void add(std::string_view text, uint64_t offset);

  std::string path_;
  const std::atomic<bool>* interrupt_;
  const std::unique_ptr<ByteSource> source_;
  std::vector<Line> lines_;
  std::unordered_map<std::string, int64_t> numbers_;        // custom_id -> line
  std::vector<std::unordered_map<uint64_t, size_t>> seen_;  // a length of beginnings -> hash -> first line
};

struct NewRequest {
  std::string custom_id, model, system, user;  // system: empty: none
  int64_t max_tokens = -1;                     // -1: none
};
// A line of such a file, for /v1/chat/completions, without its newline. All text is UTF-8.
std::string make_request_line(const NewRequest& request);

// Sorts requests so that those with the same beginning are neighbours and one can use the rows of the previous one;
// groups keep the order in which they first appear.
void order_by_beginnings(std::vector<RequestFile::Line>* lines);

// The common beginning of each line with the previous one. `max_tokens`: for a line that has none.
std::vector<SharedPrompt> shared_prompts(const std::vector<RequestFile::Line>& lines, int64_t max_tokens);

// The lines that runtime/requests/response.h writes. A line's name is its custom_id; empty: it has none.
const LineForm& request_lines();

}  // namespace headrace
