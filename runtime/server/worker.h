// Runs the requests of the queue on the engine, one after the other. Owns nothing. Thread: the one that owns the
// engine.
#pragma once

#include <functional>
#include <utility>

#include "runtime/engine/engine.h"
#include "runtime/server/job_queue.h"
#include "runtime/server/metrics.h"

namespace headrace {

struct WorkerEvents {  // called on the worker's thread; each may be empty
  std::function<void(const Job& job, const GenerateResult& result)> on_result;
  std::function<void(const Job& job, const Failure& failure)> on_failure;
};

class Worker {
 public:
  // `usual`: options that a request does not set.
  Worker(Engine& engine, JobQueue& queue, ServerMetrics& metrics, const GenerateOptions& usual, WorkerEvents events)
      : engine_(engine), queue_(queue), metrics_(metrics), usual_(usual), events_(std::move(events)) {}

  // Loads the weights, by a run of one token. Returns early if the queue is closed.
  void load(Progress* progress);
  // Until the queue is closed. An error of one request (input, budgets, memory, storage) is its answer; any other ends
  // the worker, after its request has had it.
  void run();

 private:
  GenerateResult answer(Job& job);

  Engine& engine_;
  JobQueue& queue_;
  ServerMetrics& metrics_;
  const GenerateOptions& usual_;
  const WorkerEvents events_;
};

}  // namespace headrace
