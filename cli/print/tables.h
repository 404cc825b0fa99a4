// The text output of headrace bench, bench quality, plan and profile, and profile's page. Each is in the source of its
// name. Lines end in newlines. Pure; any thread.
#pragma once

#include <string>

#include "runtime/commands/bench.h"
#include "runtime/commands/plan.h"
#include "runtime/commands/profile.h"
#include "runtime/commands/quality/draft_needle.h"
#include "runtime/commands/quality/perplexity.h"
#include "runtime/commands/quality/quality.h"
#include "runtime/model/files/shapes.h"

namespace headrace {

// ---- bench_table.cc ----

// The model, the machine and its link, and the column names.
std::string bench_heading(const BenchReport& report);
std::string bench_line(const BenchReport& report, const BenchRow& row);

// "llama-3.1-8b       8.03 B  32 layers of 4,096, …"
std::string shape_line(const Shape& shape);

// ---- quality_table.cc ----

// The model, the machine and the column names.
std::string quality_heading(const QualityReport& report);
std::string quality_line(const QualityRow& row);
std::string needle_heading();
std::string needle_line(const NeedleRow& row);
// After the rows: the means over several documents, sentences found, and whether all lossless texts were equal.
std::string quality_summary(const QualityReport& report);

// The same for --perplexity; the summary is empty for one document.
std::string perplexity_heading(const PerplexityReport& report);
std::string perplexity_line(const PerplexityRow& row);
std::string perplexity_summary(const PerplexityReport& report);

// The same for --draft-needle.
std::string draft_needle_heading(const DraftNeedleReport& report);
std::string draft_needle_line(const DraftNeedleRow& row);
std::string draft_needle_summary(const DraftNeedleReport& report);

// ---- plan_table.cc ----

// Whether it fits and how fast it is, the tiers, and other settings beside it; or what would fit.
std::string format_plan(const PlanReport& report);
// Where memory goes, and what each pass moves; empty if it does not fit.
std::string format_plan_details(const PlanReport& report);

// ---- profile_table.cc ----

enum class BarStyle { kBlocks, kAscii };  // for a terminal with UTF-8, or any

std::string profile_heading(const ProfileReport& report);  // the machine
// The figures of one group, each beside a bar of its share of the group's greatest; empty if there are none.
std::string profile_table(const ProfileReport& report, ProfileGroup group, BarStyle bars);
std::string profile_footing(const ProfileReport& report);  // the PCIe link, and deviations

// ---- profile_html.cc ----

// One self-contained page: charts as inline SVG, and a table of all figures. Well-formed XML, so tests can check it.
std::string profile_html(const ProfileReport& report);
inline constexpr const char* kProfileHtmlBeginning =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
    "<meta name=\"generator\" content=\"headrace profile\"/>";

}  // namespace headrace
