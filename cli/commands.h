// The commands: each takes its parsed options and returns the exit code. They throw Error; main catches. Thread: one.
#pragma once

#include "cache/base.h"
#include "cli/flags/args.h"

namespace headrace {

ExitCode run_generate(const GenerateArgs& args);
ExitCode run_summarize(const SummarizeArgs& args);
ExitCode run_chat(const ChatArgs& args);
ExitCode run_batch_requests(const BatchArgs& args);
ExitCode run_batch_merge(const BatchMergeArgs& args);
ExitCode run_serve(const ServeArgs& args);
ExitCode run_inspect(const InspectArgs& args);
ExitCode run_bench(const BenchArgs& args);
ExitCode run_quality(const QualityArgs& args);
ExitCode run_plan(const PlanArgs& args);
ExitCode run_cache(const CacheArgs& args);
ExitCode run_profile(const ProfileArgs& args);
ExitCode run_shapes(const ShapesArgs& args);
ExitCode run_devices(const DevicesArgs& args);

}  // namespace headrace
