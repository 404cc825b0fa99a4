// Progress on stderr: a bar with rate and time left on a terminal, plain lines at intervals otherwise. Writes only its
// own lines; clear() removes the bar before other output. Thread: one.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "runtime/base/progress.h"

namespace headrace {

enum class ProgressStyle { kNone, kLines, kBar };

struct ProgressOptions {
  ProgressStyle style = ProgressStyle::kNone;
  bool hide_decode = false;  // the streamed text on the same terminal shows the progress
  int columns = 80;
  std::chrono::milliseconds bar_interval{100}, line_interval{5000};
  std::function<std::chrono::steady_clock::time_point()> now;  // empty: the real clock
  std::function<void(std::string_view)> write;                 // empty: stderr
};

// kBar if stderr is a capable terminal (TERM is not "dumb"), else kLines; kNone if quiet. Columns from the terminal.
ProgressOptions progress_options_for_stderr(bool quiet, bool text_on_stdout);

class ProgressBar : public Progress {
 public:
  explicit ProgressBar(ProgressOptions options);
  ~ProgressBar() override { clear(); }

  void begin(std::string_view stage, std::string_view unit, int64_t total) override;
  void update(int64_t done) override;
  void skip(int64_t done) override;  // excluded from the rate
  void end() override;

  // A status of the caller's in the place of a stage, at the same intervals; `status` is called when it is shown.
  void show(const std::function<std::string()>& status);

  // A prefix for each stage's name: "[2/5] GPL-3". Empty: none.
  void set_label(std::string_view label);
  // Removes the bar, so that other output can be written; the next update shows it again.
  void clear();
  // Prints a line of the program on the same stream, except with kNone.
  void print_line(const std::string& line);

 private:
  std::chrono::steady_clock::time_point now() const;
  void write(std::string_view text) const;
  bool due(std::chrono::steady_clock::time_point time);  // true: the next interval begins
  void draw(const std::string& text);
  std::string status(int64_t done, double seconds) const;
  std::string bar_line(int64_t done, double seconds) const;

  ProgressOptions options_;
  std::string label_, stage_, unit_;
  int64_t total_ = 0, done_ = 0, skipped_ = 0;
  bool active_ = false, shown_ = false, drawn_ = false;
  std::chrono::steady_clock::time_point began_, last_;
};

}  // namespace headrace
