// The way back of one request's answer: the engine's thread puts text and progress in, the request's HTTP thread takes
// them out. Owns an eventfd, so that the HTTP thread can wait for news and for its socket together. Text that nobody
// takes is collected: at most one answer.
#pragma once

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
  std::string text{};
  std::vector<AnswerToken> tokens{};       // with log-probabilities, if the request asked for them
  std::optional<GenerateResult> result{};  // the last of all: this one or a failure
  std::optional<Failure> failure{};
};

class Feed {
 public:
  Feed();  // throws Error(kDoesNotFit) if the process has no descriptor left
  ~Feed();
  Feed(const Feed&) = delete;
  Feed& operator=(const Feed&) = delete;

  void progress(const PrefillProgress& progress);
  void text(std::string_view text, std::vector<AnswerToken> tokens);
  void finish(GenerateResult result);
  void fail(Failure failure);  // nothing if it has ended

  int descriptor() const { return descriptor_; }  // readable while there are news
  News take();

 private:
  void ring() REQUIRES(mutex_);

  const int descriptor_;
  Mutex mutex_;
  News news_ GUARDED_BY(mutex_);
  bool ended_ GUARDED_BY(mutex_) = false;
};

}  // namespace headrace
