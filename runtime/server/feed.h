// The way back of one request's answer: the engine's thread puts text and progress in, the server's I/O thread takes
// them out. Text that nobody takes is collected: at most one answer.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "offload/host/thread_annotations.h"
#include "runtime/engine/result.h"
#include "runtime/requests/response.h"
#include "runtime/server/failure.h"

namespace headrace {

// What has happened since the last News.
struct News {
  std::optional<PrefillProgress> progress{};  // the latest; the first: the engine has begun
  std::string thinking{}, text{};
  std::vector<AnswerToken> tokens{};       // with log-probabilities, if the request asked for them
  std::optional<GenerateResult> result{};  // the last of all: this one or a failure
  std::optional<Failure> failure{};

  bool empty() const { return !progress && thinking.empty() && text.empty() && tokens.empty() && !result && !failure; }
};

class Feed {
 public:
  void progress(const PrefillProgress& progress);
  void text(const ThinkingPlace::Parts& text, std::vector<AnswerToken> tokens);
  void finish(GenerateResult result);
  void fail(Failure failure);  // nothing if it has ended

  // `call`: once after each take() that something has followed, on the thread that brings it. Empty: nothing.
  void call_with_news(std::function<void()> call);
  News take();

 private:
  void ring() REQUIRES(mutex_);

  Mutex mutex_;
  std::function<void()> call_ GUARDED_BY(mutex_);
  News news_ GUARDED_BY(mutex_);
  bool ended_ GUARDED_BY(mutex_) = false, rung_ GUARDED_BY(mutex_) = false;
};

}  // namespace headrace
