#include "offload/read_depth.h"

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
  std::map<int, double> best_of;
  double best = 0;
  for (const DepthRate& rate : rates) {
    if (rate.depth < kLeastReadDepth) continue;
    double& known = best_of[rate.depth];
    known = std::max(known, rate.gb_per_s);
    best = std::max(best, rate.gb_per_s);
  }
  if (best <= 0) return {};
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
