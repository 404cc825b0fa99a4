// The commands of batches: batch, batch merge and batch make.
#include <string>
#include <utility>

#include "cli/flags/flag_groups.h"
#include "cli/flags/parser.h"

namespace headrace {

void Parser::add_batch() {
  batch_app = app.add_subcommand("batch", "Answer a file of requests in OpenAI's batch form");
  add_flags(
      *batch_app, "Batch",
      {{"-i,--input", "FILE", text_value(&batch.requests),
        "Requests, one JSON object a line: custom_id, method, url (/v1/chat/completions or /v1/completions), body"},
       {"-o,--output", "FILE", text_value(&batch.results),
        "Append one line per request to FILE; a rerun skips requests that FILE already answers. -: to stdout",
        "HEADRACE_BATCH_OUTPUT"},
       {"--shard", "I/N",
        [this](const std::string& value) {
          batch.shard = parse_shard(value);
          return std::string();
        },
        "Answer part I of N, from 0, and append to FILE.part-I-of-N; auto: by the Slurm job array"},
       {"--in-order", &batch.in_order,
        "Keep the order of the requests. By default those that begin alike follow one another"}});
  add_common(*batch_app, &batch.engine, &batch.generate, &batch.output);
  exclude_each_other(*batch_app, {"--json", "--output"});
  add_flags(*batch_app, "Memory and device", {devices_flag(&batch.devices)});
  exclude_each_other(*batch_app, {"--device", "--devices"});
  merge_app = batch_app->add_subcommand("merge", "Check that the parts of a batch are complete, and join them");
  add_flags(*merge_app, "Batch",
            {{"-i,--input", "FILE", text_value(&batch_merge.requests), "Requests"},
             {"-o,--output", "FILE", text_value(&batch_merge.results), "Results: joins FILE.part-I-of-N into FILE",
              "HEADRACE_BATCH_OUTPUT"}});
}

void Parser::add_make() {
  make_app = batch_app->add_subcommand("make", "Write a file of requests, one for each document");
  make_app->add_option("documents", batch_make.paths, "Documents or folders")->type_name("FILE|DIR...")->required();
  add_flags(*make_app, "Batch",
            {{"--instruction", "TEXT", utf8_value(&batch_make.instruction),
              "Instruction, appended to each text after an empty line [Write a short summary of the text above.]"},
             system_flag(&batch_make.system),
             {"--request-model", "NAME", utf8_value(&batch_make.model), "The model that the requests name [headrace]"},
             {"-n,--predict,--max-tokens", "N", int_value(&batch_make.max_tokens, -1, int64_t{1} << 40),
              str("max_tokens of each request; -1: none [", kSummaryTokens, "]")},
             {"-o,--output", "FILE", text_value(&batch_make.requests),
              "Write the requests to FILE, which is overwritten [stdout]", "HEADRACE_MAKE_OUTPUT"}});
}

Command Parser::finish_batch() {
  if (batch.requests.empty()) usage_error("batch", "-i/--input is required: a file of requests");
  if (batch.results.empty()) usage_error("batch", "-o/--output is required: a file for the results");
  check_devices(batch.engine, batch.devices);
  if (batch.devices.size() > 1 && batch.in_order) {
    contradiction("--in-order keeps the order of the requests, but several --devices answer them at the same time");
  }
  check_common("batch", batch.engine, batch.generate);
  return std::move(batch);
}

Command Parser::finish_merge() {
  if (batch_merge.requests.empty()) usage_error("batch merge", "-i/--input is required: the file of requests");
  if (batch_merge.results.empty() || batch_merge.results == "-")
    usage_error("batch merge", "-o/--output is required: the name that the shards had");
  return std::move(batch_merge);
}

Command Parser::finish_make() {
  if (batch_make.requests == "-") batch_make.requests.clear();
  if (batch_make.max_tokens == 0) usage_error("batch make", "-n/--predict: '0' is neither -1 nor at least 1");
  return std::move(batch_make);
}

}  // namespace headrace
