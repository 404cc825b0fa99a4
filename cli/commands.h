// The commands, by the kind of their options: each returns the exit code. They throw Error; main catches. Thread: one.
#pragma once

#include "cache/base.h"
#include "cli/flags/args.h"

namespace headrace {

ExitCode run_command(const HelpArgs& args);
ExitCode run_command(const ManualArgs& args);
ExitCode run_command(const DevicesArgs& args);
ExitCode run_command(const ShapesArgs& args);
ExitCode run_command(const GenerateArgs& args);
ExitCode run_command(const SummarizeArgs& args);
ExitCode run_command(const ChatArgs& args);
ExitCode run_command(const BatchArgs& args);
ExitCode run_command(const BatchMergeArgs& args);
ExitCode run_command(const BatchMakeArgs& args);
ExitCode run_command(const ServeArgs& args);
ExitCode run_command(const InspectArgs& args);
ExitCode run_command(const BenchArgs& args);
ExitCode run_command(const QualityArgs& args);
ExitCode run_command(const PlanArgs& args);
ExitCode run_command(const CacheArgs& args);
ExitCode run_command(const ProfileArgs& args);

}  // namespace headrace
