#include "offload/spill/read_depth.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "cache/base.h"

namespace headrace {
namespace {

constexpr double kNearlyAll = 0.97;

std::string two_decimals(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", value);
  return text;
}

}  // namespace

ReadDepth choose_depth(std::span<const DepthRate> rates, const std::string& how) {
  std::map<int, double> best_of;  // 0: tried, and not known
  double best = 0;
  for (const DepthRate& rate : rates) {
    const bool stands = rate.requests >= kMinRequests;
    if (rate.depth < kMinReadDepth || (stands && rate.gb_per_s <= 0)) continue;
    double& known = best_of[rate.depth];
    if (stands) known = std::max(known, rate.gb_per_s);
    best = std::max(best, known);
  }
  if (best_of.empty()) return {};
  const auto unknown = [](const auto& of) { return of.second <= 0; };
  if (std::any_of(best_of.begin(), best_of.end(), unknown)) {
    return {.depth = kMinReadDepth, .why = how + ": too few reads to tell"};
  }
  ReadDepth chosen{.depth = 0, .why = how + ":"};
  const char* separator = " ";
  for (const auto& [depth, rate] : best_of) {
    if (chosen.depth == 0 && rate >= kNearlyAll * best) chosen.depth = depth;
    chosen.why += str(separator, depth, *separator == ' ' ? " at once " : " ", two_decimals(rate));
    separator = ", ";
  }
  chosen.why += " GB/s";
  return chosen;
}

}  // namespace headrace
