// Multiples of a number (json_parts.h): digits from the left change a remainder.
#include <algorithm>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "runtime/grammar/json_parts.h"

namespace headrace {
namespace {

constexpr size_t kMaxFactorDigits = 9;
constexpr int64_t kMaxFactor = 1 << 16, kMaxFineFactor = 1 << 11;

// The factor is `units` of 10^-places.
struct Factor {
  int64_t units = 0;
  int places = 0;
};

std::optional<Factor> factor_of(std::string_view text) {
  Factor f;
  size_t digits = 0;
  bool behind_point = false;
  for (const char c : text) {
    if (c == '.') {
      behind_point = true;
      continue;
    }
    if (c < '0' || c > '9' || ++digits > kMaxFactorDigits) return std::nullopt;
    f.units = 10 * f.units + (c - '0');
    f.places += behind_point ? 1 : 0;
  }
  for (; f.places > 0 && f.units % 10 == 0; --f.places) f.units /= 10;
  return f.units > 0 ? std::optional(f) : std::nullopt;
}

// Remainders of whole numbers that the same digits take to 0 have the same class. [units], classes from 0 on.
std::vector<int32_t> classes_of_remainders(int64_t units) {
  const auto count = static_cast<size_t>(units);
  std::vector<int32_t> classes(count, 1);
  classes[0] = 0;
  for (size_t known = 0;;) {
    std::map<std::vector<int32_t>, int32_t> numbers;
    std::vector<int32_t> finer(count);
    for (size_t r = 0; r < count; ++r) {
      std::vector<int32_t> all = {classes[r]};
      for (size_t digit = 0; digit < 10; ++digit) all.push_back(classes[(10 * r + digit) % count]);
      finer[r] = numbers.try_emplace(std::move(all), static_cast<int32_t>(numbers.size())).first->second;
    }
    classes = std::move(finer);
    if (numbers.size() == known) return classes;
    known = numbers.size();
  }
}

// "", or a digit of each choice: `to(digit)`.
template <typename To>
int32_t digits_to(Grammar* g, int first, const To& to, std::vector<int32_t> choices) {
  for (int digit = first; digit < 10; ++digit)
    choices.push_back(g->bytes(byte_range('0' + digit, '0' + digit), to(digit)));
  return g->split(std::move(choices));
}

// The places behind the point, from the last. Node [i][r]: i places are read, and the number so far has remainder r.
std::vector<int32_t> fraction_nodes(Grammar* g, const Factor& f, int32_t next) {
  std::vector<int32_t> after;
  for (int read = f.places; read > 0; --read) {
    int64_t scale = 1;
    for (int i = read; i < f.places; ++i) scale *= 10;
    std::vector<int32_t> here;
    for (int64_t r = 0; r < f.units; ++r) {
      const auto to = [&](int digit) { return after[static_cast<size_t>((10 * r + digit) % f.units)]; };
      std::vector<int32_t> choices;
      if (r * scale % f.units == 0) choices.push_back(next);
      here.push_back(read == f.places ? g->split(choices) : digits_to(g, 0, to, choices));
    }
    after = std::move(here);
  }
  std::vector<int32_t> points;  // by the remainder of the whole part
  for (int64_t r = 0; f.places > 0 && r < f.units; ++r) {
    const auto to = [&](int digit) { return after[static_cast<size_t>((10 * r + digit) % f.units)]; };
    points.push_back(g->literal(".", digits_to(g, 0, to, {})));
  }
  return points;
}

}  // namespace

std::optional<int32_t> json_multiple(Grammar* g, std::string_view text, bool whole, int32_t next) {
  std::optional<Factor> f = factor_of(text);
  if (!f) return std::nullopt;
  int64_t scale = 1;  // of the whole part
  for (int i = 0; i < f->places; ++i) scale *= 10;
  if (whole) *f = {.units = f->units / std::gcd(f->units, scale), .places = 0};
  if (whole) scale = 1;
  if (f->units > (f->places > 0 ? kMaxFineFactor : kMaxFactor)) return std::nullopt;
  const std::vector<int32_t> points = fraction_nodes(g, *f, next);
  std::vector<int32_t> classes(static_cast<size_t>(f->units));
  std::iota(classes.begin(), classes.end(), 0);
  if (f->places == 0) classes = classes_of_remainders(f->units);
  std::vector<int32_t> nodes(static_cast<size_t>(*std::max_element(classes.begin(), classes.end())) + 1);
  for (int32_t& node : nodes) node = g->later();
  const auto node_of = [&](int64_t r) {
    return nodes[static_cast<size_t>(classes[static_cast<size_t>(r % f->units)])];
  };
  std::vector<bool> settled(nodes.size());
  std::vector<int32_t> zero;
  for (int64_t r = 0; r < f->units; ++r) {
    const auto index = static_cast<size_t>(classes[static_cast<size_t>(r)]);
    if (settled[index]) continue;
    settled[index] = true;
    std::vector<int32_t> ends;
    if (r * scale % f->units == 0) ends.push_back(next);
    if (!points.empty()) ends.push_back(points[static_cast<size_t>(r)]);
    if (r == 0) zero = ends;
    g->settle(nodes[index], digits_to(
                                g, 0, [&](int digit) { return node_of(10 * r + digit); }, ends));
  }
  const int32_t first = digits_to(g, 1, node_of, {g->literal("0", g->split(zero))});
  return g->split({first, g->literal("-", first)});
}

}  // namespace headrace
