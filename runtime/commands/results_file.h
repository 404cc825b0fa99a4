// The results of a batch: a file with one JSON line a document (runtime/commands/report.h). A line is on the disk
// before the next document begins, so that a crash loses none, and a rerun finds it again by its key. Owns the open
// file and its lock. Thread: one.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace headrace {

class ResultsFile {
 public:
  // Opens, locks and reads the file, and changes nothing in it. Throws Error: kStorage for the file system, kBadInput
  // for a file that holds something else than results, kUsage if another run writes to it.
  ResultsFile(const std::string& path, const std::vector<std::string>& files);
  ~ResultsFile();  // without begin(), a file that was made here is removed
  ResultsFile(const ResultsFile&) = delete;
  ResultsFile& operator=(const ResultsFile&) = delete;

  // Once the model is open: removes the line that a crash left unfinished, and the error lines of `files`, which are
  // tried again. Where the folder cannot be written, error lines before the last result stay.
  void begin();
  // True if a line with this key was there and is not yet taken: two equal documents need two lines.
  bool take(const std::string& key);
  // Adds the newline. The line is on the disk when append() returns. Throws Error(kStorage), also if another program
  // replaced the file or changed its size. REQUIRES: begin().
  void append(std::string line);
  int64_t found() const { return found_; }

 private:
  void open_and_lock();
  void load(const std::vector<std::string>& files);
  void check_unchanged() const;
  void drop_lines();

  std::string path_;
  int fd_ = -1;
  bool made_ = false, began_ = false;
  bool regular_ = false;                                // not a pipe or a device, which keep nothing
  uint64_t bytes_ = 0;                                  // of the file when this run last read or wrote it
  uint64_t end_ = 0;                                    // of the last line that stays
  bool lacks_newline_ = false;                          // that line
  std::vector<std::pair<uint64_t, uint64_t>> dropped_;  // from, to: the lines before end_ that go
  int64_t found_ = 0;                                   // lines with a result when opened
  std::unordered_map<std::string, int64_t> done_;       // key -> lines not yet taken
};

}  // namespace headrace
