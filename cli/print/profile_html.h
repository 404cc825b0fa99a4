// A profile as one page of HTML that needs nothing else: charts as inline SVG, and a table of all figures. Well-formed
// as XML is, so that it can be checked. Pure; any thread.
#pragma once

#include <string>

#include "runtime/commands/profile.h"

namespace headrace {

inline constexpr const char* kProfileHtmlBeginning =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
    "<meta name=\"generator\" content=\"headrace profile\"/>";

std::string profile_html(const ProfileReport& report);

}  // namespace headrace
