#include "runtime/server/worker.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "offload/host/clock.h"

namespace headrace {
namespace {

constexpr double kProgressMs = 50;  // between two pieces of progress

// The engine's progress as pieces of an answer.
class FeedProgress : public Progress {
 public:
  FeedProgress(Feed& feed, bool wanted) : feed_(feed), wanted_(wanted) {}

  void begin(std::string_view stage, std::string_view, int64_t total) override {
    prefill_ = stage == "prefill";
    if (!prefill_) return;
    began_ = HostClock::now();
    now_ = {.total = total};
    reported_ms_ = 0;
    feed_.progress(now_);
  }
  void update(int64_t done) override {
    if (!prefill_ || !wanted_) return;
    now_.processed = done;
    now_.ms = ms_since(began_);
    if (done < now_.total && now_.ms < reported_ms_ + kProgressMs) return;
    reported_ms_ = now_.ms;
    feed_.progress(now_);
  }
  void skip(int64_t done) override {
    now_.cached = done;
    update(done);
  }
  void end() override { prefill_ = false; }

 private:
  Feed& feed_;
  const bool wanted_;
  bool prefill_ = false;
  HostClock::time_point began_;
  PrefillProgress now_;
  double reported_ms_ = 0;
};

// A prompt of as many tokens keeps its rows with memory for the whole context. A GPU keeps groups of as many.
constexpr int64_t kLongPrompt = 2048;
// A CPU keeps the rows of shorter ones, too, with memory for this many tokens: where it saves more than planning costs.
constexpr int64_t kShortPlan = 2 * kLongPrompt, kMinKept = 256;

void choose_keep(int64_t prompt_tokens, Backend backend, GenerateOptions* run) {
  if (run->keep == KeepRows::kNone || prompt_tokens >= kLongPrompt) return;
  if (backend != Backend::kCpu || prompt_tokens < kMinKept) {
    run->keep = KeepRows::kNone;
  } else if (run->max_tokens >= 0) {
    run->keep_tokens = std::max(kShortPlan, prompt_tokens + run->max_tokens);
  }
}

double seconds_between(Job::Clock::time_point from, Job::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

void Worker::load(Progress* progress) {
  GenerateOptions one = usual_;
  one.max_tokens = 1;
  one.label.clear();
  one.interrupt = queue_.closed();
  engine_.generate({0}, one, progress);
}

// The place in the queue is free before the client has its answer and can ask again.
void Worker::run() {
  while (const std::shared_ptr<Job> job = queue_.pop()) {
    std::exception_ptr fatal;
    std::optional<Failure> failure;
    GenerateResult result;
    try {
      result = answer(*job);
      if (result.finish_reason == FinishReason::kInterrupted)
        failure = *queue_.closed() ? server_stops() : client_left();
    } catch (const Error& error) {
      failure = failure_of(error);
      if (error.code() == ExitCode::kInternal) fatal = std::current_exception();
    } catch (const std::bad_alloc&) {
      failure = out_of_memory();
    } catch (...) {
      failure = Failure{.message = "the program ran into an error"};
      fatal = std::current_exception();
    }
    queue_.done();
    if (failure) {
      if (events_.on_failure) events_.on_failure(*job, *failure);
      job->feed.fail(*failure);
    } else {
      if (events_.on_result) events_.on_result(*job, result);
      job->feed.finish(std::move(result));
    }
    if (fatal) std::rethrow_exception(fatal);
  }
}

GenerateResult Worker::answer(Job& job) {
  const Job::Clock::time_point began = Job::Clock::now();
  GenerateOptions options = usual_;
  job.request.apply(&options);
  options.interrupt = &job.cancelled;
  options.label = job.id;
  choose_keep(static_cast<int64_t>(job.prompt.size()), engine_.device().backend(), &options);
  std::vector<AnswerToken> tokens;  // whose text is next
  std::optional<ThinkingPlace> place;
  if (job.request.stream) {
    const bool apart = job.request.kind != RequestKind::kCompletion && job.request.reasoning_apart;
    if (apart) place = engine_.thinking_after(job.prompt);
    if (place && !job.request.tools.tools.empty()) place->show_calls();
    options.on_token = [&tokens](const AnswerToken& token) { tokens.push_back(token); };
    options.on_text = [&](std::string_view text) {
      job.feed.text(place ? place->push(text) : ThinkingPlace::Parts{.thinking = {}, .answer = std::string(text)},
                    std::exchange(tokens, {}));
    };
  }
  FeedProgress progress(job.feed, job.request.return_progress);
  GenerateResult result;
  try {
    result = engine_.generate(job.prompt, options, &progress);
  } catch (...) {
    metrics_.failed(seconds_between(job.arrived, began), seconds_between(began, Job::Clock::now()));
    throw;
  }
  job.feed.text(place ? place->finish(result.thinking.cut) : ThinkingPlace::Parts(), std::move(tokens));
  metrics_.ran(result, seconds_between(job.arrived, began), seconds_between(began, Job::Clock::now()));
  return result;
}

}  // namespace headrace
