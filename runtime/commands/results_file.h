// The results of a batch: a file with one JSON line per document or request. Each line is on the disk before the next
// document begins, so a crash loses none, and a rerun finds it by its key. Owns the open file and its lock. Thread:
// one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/base.h"

namespace headrace {

constexpr size_t kKeyDigits = 64;                    // of job_key()
constexpr uint64_t kMaxResultBytes = 256 * kMiB;     // of a line
inline constexpr const char* kStandardOutput = "-";  // as the path of results

// Reads a text from its start as pieces of a line. Each step is true if the text has the piece, or ends within it.
class LineStart {
 public:
  explicit LineStart(std::string_view text) : rest_(text) {}
  bool literal(std::string_view expected);
  bool key();     // kKeyDigits hexadecimal digits
  bool string();  // the content of a JSON string, up to its closing quote

 private:
  std::string_view rest_;
};

struct ResultLine {
  std::string key;   // kKeyDigits hexadecimal digits
  std::string name;  // of the document or request, with U+FFFD for bytes that are not UTF-8
  bool failed = false;
};

// The lines of one kind of results.
struct LineForm {
  bool (*may_begin)(std::string_view text);                   // whether `text` may be the start of such a line
  std::optional<ResultLine> (*parse)(std::string_view text);  // a whole line without its newline; none: not such a line
};
const LineForm& document_lines();                   // of result_json() and error_json() (runtime/commands/report.h)
std::string name_in_line(const std::string& name);  // as a line has it

class ResultsFile {
 public:
  // Opens, locks and reads the file without changing it; of kStandardOutput nothing is read, so nothing is skipped.
  // Throws Error: kStorage for the file system, kBadInput if the file holds something other than such lines, kUsage if
  // another run writes to it.
  ResultsFile(const std::string& path, const std::vector<std::string>& names, const LineForm& form = document_lines());
  ~ResultsFile();  // removes the file if it was created here and begin() was not called
  ResultsFile(const ResultsFile&) = delete;
  ResultsFile& operator=(const ResultsFile&) = delete;

  // Call once the model is open: removes a line that a crash left incomplete, and the error lines of `names`, which are
  // retried. If the folder is not writable, error lines before the last result stay.
  void begin();
  // True if an unused line with this key exists, which is then used: two equal documents need two lines.
  bool take(const std::string& key);
  // Adds the newline. The line is on the disk when append() returns. Throws Error(kStorage), also if another program
  // replaced the file or changed its size. REQUIRES: begin().
  void append(std::string line);
  int64_t found() const { return found_; }
  // The key of the last line with a result that has this name; null: none.
  const std::string* key_of(const std::string& name) const;

 private:
  void open_and_lock();
  void load(const std::vector<std::string>& names);
  void check_unchanged() const;
  void drop_lines();

  std::string path_;
  const LineForm& form_;
  int fd_ = -1;
  bool made_ = false, began_ = false;
  bool regular_ = false;                                // not a pipe or a device
  uint64_t bytes_ = 0;                                  // of the file when this run last read or wrote it
  uint64_t end_ = 0;                                    // end of the last line that stays
  bool lacks_newline_ = false;                          // the last line that stays
  std::vector<std::pair<uint64_t, uint64_t>> dropped_;  // from, to: lines before end_ to remove
  int64_t found_ = 0;                                   // lines with a result when opened
  std::unordered_map<std::string, int64_t> done_;       // key -> unused lines
  std::unordered_map<std::string, std::string> keys_;   // name -> key
};

}  // namespace headrace
