// headrace generate: one prompt, one answer.
#include <unistd.h>

#include <string>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/print/interrupt.h"
#include "runtime/commands/report.h"
#include "runtime/text/document.h"

namespace headrace {
namespace {

std::string read_prompt(const GenerateArgs& args, const Interrupt& interrupt) {
  const ReadOptions reading{.limit = {}, .interrupt = interrupt.flag()};
  if (!args.file.empty()) {
    std::string text = document_text(args.file, reading);
    return args.prompt.empty() ? text : text + "\n\n" + args.prompt;
  }
  if (!args.prompt.empty()) return args.prompt;
  if (::isatty(STDIN_FILENO) != 0) {
    throw_error(ExitCode::kUsage, "headrace generate", "there is no prompt",
                "Give -p TEXT or -f FILE, or pipe it to standard input");
  }
  return document_text("-", reading);
}

}  // namespace

ExitCode run_command(const GenerateArgs& args) {
  const Interrupt interrupt;
  const std::string prompt = read_prompt(args, interrupt);
  Console console(args.output, /*streams_text=*/true);
  Engine engine(console.with_rates(args.engine));
  console.note_engine(engine);
  check_document_size(args.file.empty() ? "prompt" : args.file, prompt.size(), engine.document_limit());
  GenerateOptions options = args.generate;
  options.interrupt = interrupt.flag();
  const std::vector<int32_t> ids =
      args.engine.use_chat_template ? engine.encode({args.system, prompt}) : engine.encode_plain(prompt);
  options.on_text = console.text_sink(engine, ids);
  const GenerateResult result = engine.generate(ids, options, &console.progress());
  if (args.output.json) console.print(result_json(result));
  console.end_text();
  console.note_cut(result, options);
  console.note_result(result);
  console.report(result, engine.describe(), options.max_tokens);
  console.report_faster(engine, args.engine, result, options.max_tokens);
  if (const auto trace = engine.write_trace()) console.report_trace(*trace);
  console.finish();
  return result.finish_reason == FinishReason::kInterrupted ? ExitCode::kInterrupted : ExitCode::kDone;
}

}  // namespace headrace
