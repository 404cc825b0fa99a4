// A profile as one self-contained HTML page: charts as inline SVG, and a table of all figures. Well-formed XML, so
// tests can check it. Pure; any thread.
#pragma once

#include <string>

#include "runtime/commands/profile.h"

namespace headrace {

inline constexpr const char* kProfileHtmlBeginning =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
    "<meta name=\"generator\" content=\"headrace profile\"/>";

std::string profile_html(const ProfileReport& report);

}  // namespace headrace
