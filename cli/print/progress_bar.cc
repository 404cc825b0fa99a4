#include "cli/print/progress_bar.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "cache/base.h"
#include "cli/print/format.h"

namespace headrace {
namespace {

constexpr std::string_view kEraseLine = "\r\x1b[K";

int terminal_columns() {
  winsize size = {};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

std::string amount(int64_t value, std::string_view unit) {
  return unit == "bytes" ? format_bytes(static_cast<uint64_t>(std::max<int64_t>(0, value))) : format_count(value);
}

}  // namespace

ProgressOptions progress_options_for_stderr(bool quiet, bool text_on_stdout) {
  ProgressOptions options;
  const char* term = std::getenv("TERM");
  const bool terminal = ::isatty(STDERR_FILENO) != 0 && term != nullptr && std::string_view(term) != "dumb";
  options.style = quiet ? ProgressStyle::kNone : terminal ? ProgressStyle::kBar : ProgressStyle::kLines;
  options.hide_decode = text_on_stdout && terminal && ::isatty(STDOUT_FILENO) != 0;
  options.columns = terminal_columns();
  return options;
}

ProgressBar::ProgressBar(ProgressOptions options) : options_(std::move(options)) {}

std::chrono::steady_clock::time_point ProgressBar::now() const {
  return options_.now ? options_.now() : std::chrono::steady_clock::now();
}

void ProgressBar::write(std::string_view text) const {
  if (options_.write) {
    options_.write(text);
  } else {
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
  }
}

void ProgressBar::begin(std::string_view stage, std::string_view unit, int64_t total) {
  clear();
  stage_ = stage;
  unit_ = unit;
  total_ = total;
  done_ = skipped_ = 0;
  shown_ = false;
  active_ = options_.style != ProgressStyle::kNone && !(options_.hide_decode && stage == "decode");
  began_ = last_ = now();
}

void ProgressBar::skip(int64_t done) {
  skipped_ = done;
  update(done);
}

void ProgressBar::update(int64_t done) {
  if (!active_) return;
  done_ = done;
  const auto time = now();
  if (!due(time)) return;
  shown_ = true;
  const double seconds = std::chrono::duration<double>(time - began_).count();
  draw(options_.style == ProgressStyle::kBar ? bar_line(done, seconds) : status(done, seconds));
}

void ProgressBar::show(const std::function<std::string()>& status) {
  if (options_.style == ProgressStyle::kNone) return;
  const auto time = now();
  if (last_ == std::chrono::steady_clock::time_point()) last_ = time;  // the first interval begins
  if (!due(time)) return;
  std::string text = status();
  const auto width = static_cast<size_t>(std::max(0, options_.columns - 1));
  if (options_.style == ProgressStyle::kBar && text.size() > width) text.resize(width);
  draw(text);
}

bool ProgressBar::due(std::chrono::steady_clock::time_point time) {
  const bool bar = options_.style == ProgressStyle::kBar;
  if (time - last_ < (bar ? options_.bar_interval : options_.line_interval)) return false;
  last_ = time;
  return true;
}

void ProgressBar::draw(const std::string& text) {
  const bool bar = options_.style == ProgressStyle::kBar;
  write(bar ? std::string(kEraseLine) + text : text + "\n");
  drawn_ = bar;
}

// Ends the display with a line that stays; a stage too short to be shown leaves none.
void ProgressBar::end() {
  if (!active_) return;
  active_ = false;
  clear();
  if (!shown_ || options_.style != ProgressStyle::kLines) return;
  const double seconds = std::chrono::duration<double>(now() - began_).count();
  write(str(label_.empty() ? "" : label_ + " ", stage_, ": ", amount(done_, unit_), unit_ == "bytes" ? "" : " " + unit_,
            " in ", format_duration(seconds), "\n"));
}

void ProgressBar::clear() {
  if (drawn_) write(kEraseLine);
  drawn_ = false;
}

void ProgressBar::set_label(std::string_view label) { label_ = visible_name(label); }

void ProgressBar::print_line(const std::string& line) {
  if (options_.style == ProgressStyle::kNone) return;
  clear();
  write(visible(line) + "\n");
}

// "prefill 45%, 3,460 of 7,713 tokens, 162 tokens/s, 0:26 left"
std::string ProgressBar::status(int64_t done, double seconds) const {
  std::string text = label_.empty() ? stage_ : label_ + " " + stage_;
  const bool known = total_ > 0, bytes = unit_ == "bytes";
  if (known) text += str(" ", std::clamp<int64_t>(done * 100 / total_, 0, 100), "%");
  text += ", " + amount(done, unit_);
  if (known) text += " of " + amount(total_, unit_);
  if (!bytes) text += " " + unit_;
  if (seconds <= 0 || done <= skipped_) return text;
  const double rate = static_cast<double>(done - skipped_) / seconds;
  text += ", " + (bytes ? format_bytes(static_cast<uint64_t>(rate)) + "/s" : format_rate(rate) + " " + unit_ + "/s");
  if (known) text += ", " + format_time_left(static_cast<double>(std::max<int64_t>(0, total_ - done)) / rate) + " left";
  return text;
}

// The status and a bar in the rest of the line; never a full line, which would wrap.
std::string ProgressBar::bar_line(int64_t done, double seconds) const {
  std::string text = status(done, seconds);
  const int width = options_.columns - 1;
  const int room = std::min(30, width - static_cast<int>(text.size()) - 3);
  if (total_ > 0 && room >= 5) {
    const double share = std::clamp(static_cast<double>(done) / static_cast<double>(total_), 0.0, 1.0);
    const auto filled = static_cast<size_t>(std::lround(share * room));
    text = "[" + std::string(filled, '#') + std::string(static_cast<size_t>(room) - filled, '.') + "] " + text;
  }
  if (static_cast<int>(text.size()) > width) text.resize(static_cast<size_t>(std::max(0, width)));
  return text;
}

}  // namespace headrace
