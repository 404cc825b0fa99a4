#include "cli/print/engines_progress.h"

#include <algorithm>

#include "cache/base.h"
#include "cli/print/format.h"

namespace headrace {

EnginesProgress::EnginesProgress(ProgressBar* bar, Mutex* mutex, size_t engines) : bar_(*bar), mutex_(*mutex) {
  if (engines < 2) return;
  for (size_t i = 0; i < engines; ++i) engines_.emplace_back(this);
}

Progress& EnginesProgress::of(size_t engine) {
  if (engines_.empty()) return bar_;
  return engines_.at(engine);
}

void EnginesProgress::set_label(size_t engine, std::string_view label) {
  if (engines_.empty()) {
    bar_.set_label(label);
  } else {
    engines_.at(engine).label = visible_name(std::string(label));
  }
}

std::string EnginesProgress::line() const {
  std::string text;
  for (const One& engine : engines_) {
    if (engine.stage.empty()) continue;
    text += str(text.empty() ? "" : " | ", engine.label, engine.label.empty() ? "" : " ", engine.stage);
    if (engine.total > 0) text += str(" ", std::clamp<int64_t>(engine.done * 100 / engine.total, 0, 100), "%");
  }
  return text;
}

void EnginesProgress::One::begin(std::string_view name, std::string_view, int64_t all) {
  const MutexLock lock(all_->mutex_);
  stage = name;
  done = 0;
  total = all;
}

void EnginesProgress::One::update(int64_t now) {
  const MutexLock lock(all_->mutex_);
  done = now;
  all_->bar_.show([this] { return all_->line(); });
}

void EnginesProgress::One::end() {
  const MutexLock lock(all_->mutex_);
  stage.clear();
}

}  // namespace headrace
