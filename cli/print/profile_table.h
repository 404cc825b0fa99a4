// The text output of headrace profile. Pure; any thread.
#pragma once

#include <string>

#include "runtime/commands/profile.h"

namespace headrace {

enum class BarStyle { kBlocks, kAscii };  // for a terminal with UTF-8, or any

std::string profile_heading(const ProfileReport& report);  // the machine; lines with newlines
// The figures of one group, each beside a bar of its share of the group's greatest; empty if there are none.
std::string profile_table(const ProfileReport& report, ProfileGroup group, BarStyle bars);
std::string profile_footing(const ProfileReport& report);  // the PCIe link, and deviations

}  // namespace headrace
