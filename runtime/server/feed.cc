#include "runtime/server/feed.h"

#include <iterator>
#include <utility>

namespace headrace {

void Feed::ring() {
  if (call_ && !std::exchange(rung_, true)) call_();
}

void Feed::call_with_news(std::function<void()> call) {
  const MutexLock lock(mutex_);
  call_ = std::move(call);
  rung_ = false;
  if (!news_.empty()) ring();
}

void Feed::progress(const PrefillProgress& progress) {
  const MutexLock lock(mutex_);
  news_.progress = progress;
  ring();
}

void Feed::text(const ThinkingPlace::Parts& text, std::vector<AnswerToken> tokens) {
  if (text.thinking.empty() && text.answer.empty() && tokens.empty()) return;
  const MutexLock lock(mutex_);
  news_.thinking += text.thinking;
  news_.text += text.answer;
  news_.tokens.insert(news_.tokens.end(), std::make_move_iterator(tokens.begin()),
                      std::make_move_iterator(tokens.end()));
  ring();
}

void Feed::finish(GenerateResult result) {
  const MutexLock lock(mutex_);
  if (std::exchange(ended_, true)) return;
  news_.result = std::move(result);
  ring();
}

void Feed::fail(Failure failure) {
  const MutexLock lock(mutex_);
  if (std::exchange(ended_, true)) return;
  news_.failure = std::move(failure);
  ring();
}

News Feed::take() {
  const MutexLock lock(mutex_);
  rung_ = false;
  return std::exchange(news_, News());
}

}  // namespace headrace
