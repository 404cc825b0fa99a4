#include "runtime/server/feed.h"

#include <unistd.h>

#include <iterator>
#include <utility>

#include "runtime/server/eventfd.h"

namespace headrace {

Feed::Feed() : descriptor_(open_eventfd()) {}
Feed::~Feed() { ::close(descriptor_); }

void Feed::ring() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(descriptor_, &one, sizeof one);  // fails only if it is readable
}

void Feed::progress(const PrefillProgress& progress) {
  const MutexLock lock(mutex_);
  news_.progress = progress;
  ring();
}

void Feed::text(std::string_view text, std::vector<AnswerToken> tokens) {
  const MutexLock lock(mutex_);
  news_.text += text;
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
  uint64_t rings = 0;
  [[maybe_unused]] const ssize_t read = ::read(descriptor_, &rings, sizeof rings);
  return std::exchange(news_, News());
}

}  // namespace headrace
