// headrace profile: prints a table with bars group by group, or one document on stdout; writes the requested files;
// keeps the result for headrace plan and for reports.
#include "runtime/commands/profile.h"

#include <cstdlib>
#include <string_view>

#include "cache/base.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/print/interrupt.h"
#include "cli/print/result_file.h"
#include "cli/print/tables.h"
#include "runtime/commands/profile_store.h"

namespace headrace {
namespace {

// By the locale, as in the C library.
BarStyle bar_style() {
  for (const char* const name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* const value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string_view text(value);
    const bool utf8 = text.find("UTF-8") != text.npos || text.find("utf8") != text.npos;
    return utf8 ? BarStyle::kBlocks : BarStyle::kAscii;
  }
  return BarStyle::kAscii;
}

std::string in_format(const ProfileReport& report, ProfileFormat format) {
  return format == ProfileFormat::kJson       ? profile_json(report)
         : format == ProfileFormat::kCsv      ? profile_csv(report)
         : format == ProfileFormat::kMarkdown ? profile_markdown(report)
                                              : "";
}

// The start of an earlier profile's file in this format.
std::string beginning(ProfileFormat format) {
  return format == ProfileFormat::kJson       ? json_beginning("headrace profile")
         : format == ProfileFormat::kCsv      ? kProfileCsvHeading
         : format == ProfileFormat::kMarkdown ? kProfileMarkdownBeginning
                                              : "";
}

// A failure is a line only: the figures have been printed.
void keep(const ProfileReport& report, Console* console, bool quiet) {
  const std::string path = kept_profile_path();
  const std::string why = path.empty() ? "neither XDG_CACHE_HOME nor HOME is set" : report.why_not_kept();
  if (!why.empty()) return console->progress().print_line("note: the result is not kept: " + why);
  try {
    const KeptProfiles before = read_kept_profiles(path);
    keep_profile(path, profile_json(report));
    if (quiet) return;
    if (!before.ignored.empty()) console->progress().print_line("note: replaced: " + before.ignored);
    console->progress().print_line("kept in " + path);
  } catch (const Error& error) {
    console->progress().print_line("note: " + first_line(error));
  }
}

}  // namespace

ExitCode run_command(const ProfileArgs& args) {
  ResultFile file(args.results, beginning(args.results_format)), page(args.html, kProfileHtmlBeginning);
  const Interrupt interrupt;
  Console console(args.output, /*streams_text=*/false);
  ProfileOptions options = args.profile;
  options.interrupt = interrupt.flag();
  const bool table = args.format == ProfileFormat::kTable;
  const BarStyle bars = bar_style();
  ProfileReport so_far;
  bool printed_heading = false;
  const auto print_group = [&](const ProfileReport& report) {
    if (!table || report.rows.empty()) return;
    if (!printed_heading) console.print(profile_heading(report));
    printed_heading = true;
    console.print(profile_table(report, report.rows.back().group, bars));
  };
  ProfileHooks hooks;
  hooks.on_device = [&](const Device& device) {
    console.note_device(device);
    so_far.gpu = device.backend() == Backend::kCuda;
  };
  hooks.on_group = [&](ProfileGroup group) {
    print_group(so_far);
    so_far.rows.clear();
    console.progress().set_label("");
    console.progress().begin(str("measuring ", profile_group_title(group, so_far.gpu)), "figures", 0);
  };
  hooks.on_row = [&](const ProfileReport& report) {
    so_far = report;
    console.progress().update(static_cast<int64_t>(report.rows.size()));
  };
  const ProfileReport report = run_profile(options, hooks);
  console.progress().end();
  print_group(so_far);
  if (table) console.print(profile_footing(report));
  if (!table) console.print(in_format(report, args.format));
  if (!args.results.empty()) file.write(in_format(report, args.results_format));
  if (!args.html.empty()) page.write(profile_html(report));
  keep(report, &console, args.output.quiet);
  console.finish();
  return report.interrupted ? ExitCode::kInterrupted : ExitCode::kDone;
}

}  // namespace headrace
