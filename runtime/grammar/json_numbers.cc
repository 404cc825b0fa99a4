// Numbers with bounds (json_parts.h): decimal texts compare digit by digit.
#include <algorithm>
#include <utility>
#include <vector>

#include "cache/base.h"
#include "runtime/grammar/json_parts.h"

namespace headrace {
namespace {

using Bound = NumberBounds::Bound;

constexpr int32_t kMaxDigits = 17;  // that no bound asks for, so that no answer is digits alone

ByteSet digits(char first, char last) { return byte_range(first, last); }

// A magnitude, 0 or greater: "12.5" is 12 and 5. The whole part has no leading zeros, the fraction none at its end.
struct Decimal {
  std::string whole = "0", fraction;
  bool zero() const { return whole == "0" && fraction.empty(); }
  bool operator==(const Decimal&) const = default;
};
struct Limit {
  Decimal at;
  bool exclusive = false;
};
// Of magnitudes. No high: none.
struct Magnitudes {
  Limit low{};
  std::optional<Limit> high;
};

Decimal decimal(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  const size_t point = std::min(text.find('.'), text.size());
  Decimal d{.whole = std::string(text.substr(0, point)),
            .fraction = std::string(text.substr(std::min(point + 1, text.size())))};
  d.whole.erase(0, std::min(d.whole.find_first_not_of('0'), d.whole.size()));
  if (d.whole.empty()) d.whole = "0";
  d.fraction.erase(d.fraction.find_last_not_of('0') + 1);
  return d;
}

bool whole_less(const std::string& a, const std::string& b) {
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}
bool less(const Decimal& a, const Decimal& b) {
  return a.whole != b.whole ? whole_less(a.whole, b.whole) : a.fraction < b.fraction;
}

std::string plus_one(std::string whole) {
  size_t i = whole.size();
  while (i > 0 && whole[i - 1] == '9') whole[--i] = '0';
  if (i == 0) return "1" + whole;
  ++whole[i - 1];
  return whole;
}
std::string minus_one(std::string whole) {  // of 1 or more
  size_t i = whole.size();
  while (whole[i - 1] == '0') whole[--i] = '9';
  --whole[i - 1];
  const size_t first = whole.find_first_not_of('0');
  return first == std::string::npos ? "0" : whole.substr(first);
}

// The magnitudes of the numbers of one sign within the bounds. None: there are none.
std::optional<Magnitudes> magnitudes(const NumberBounds& bounds, bool negative) {
  const std::optional<Bound>& near = negative ? bounds.high : bounds.low;
  const std::optional<Bound>& far = negative ? bounds.low : bounds.high;
  const auto beyond_zero = [&](const Bound& bound) { return bound.digits.starts_with('-') == negative; };
  Magnitudes m;
  if (near) {
    const Decimal at = decimal(near->digits);
    if (beyond_zero(*near) || at.zero()) m.low = {at, near->exclusive};
  }
  if (far) {
    const Decimal at = decimal(far->digits);
    if (!beyond_zero(*far) && !at.zero()) return std::nullopt;
    m.high = Limit{at, far->exclusive};
    if (less(at, m.low.at) || (at == m.low.at && (far->exclusive || m.low.exclusive))) return std::nullopt;
  }
  return m;
}

// Whole numbers of one length from `low` to `high`, which have it, from the digit at `i` on.
int32_t between(Grammar* g, std::string_view low, std::string_view high, int32_t next) {
  if (low.empty()) return next;
  const auto free = [&](size_t count) {
    for (int32_t node = next;; --count) {
      if (count == 0) return node;
      node = g->bytes(digits('0', '9'), node);
    }
  };
  const std::string nines(low.size() - 1, '9'), zeros(low.size() - 1, '0');
  if (low[0] == high[0]) return g->bytes(digits(low[0], low[0]), between(g, low.substr(1), high.substr(1), next));
  std::vector<int32_t> choices = {g->bytes(digits(low[0], low[0]), between(g, low.substr(1), nines, next)),
                                  g->bytes(digits(high[0], high[0]), between(g, zeros, high.substr(1), next))};
  const char first = static_cast<char>(low[0] + 1), last = static_cast<char>(high[0] - 1);
  if (first <= last) choices.push_back(g->bytes(digits(first, last), free(low.size() - 1)));
  return g->split(choices);
}

// Whole numbers from `low` on, up to `high` if there is one; none: no such number.
std::optional<int32_t> whole_range(Grammar* g, const std::string& low, const std::optional<std::string>& high,
                                   int32_t next) {
  if (high && whole_less(*high, low)) return std::nullopt;
  std::vector<int32_t> choices;
  const size_t longest = high ? high->size() : low.size();
  for (size_t length = low.size(); length <= longest; ++length) {
    const std::string first = length == low.size() ? low : "1" + std::string(length - 1, '0');
    const std::string last = high && length == high->size() ? *high : std::string(length, '9');
    choices.push_back(between(g, first, last, next));
  }
  if (!high) {
    const auto least = static_cast<int32_t>(low.size());
    const int32_t more = g->loop(g->bytes(digits('0', '9'), kReturnNode), least, std::max(least, kMaxDigits), next);
    choices.push_back(g->bytes(digits('1', '9'), more));
  }
  return g->split(choices);
}

// ---- fractions ------------------------------------------------------------------------------------------------------

// Where a fraction is: equal so far to the digits of a limit, or free of it.
struct Tight {
  const Limit* low;   // null: greater already
  const Limit* high;  // null: less already
};

char digit_at(const Limit& limit, size_t i) { return i < limit.at.fraction.size() ? limit.at.fraction[i] : '0'; }
// Whether the digits so far may be all.
bool may_end(const Tight& tight, size_t i) {
  const auto rest = [i](const Limit& limit) { return i < limit.at.fraction.size(); };
  if (tight.low != nullptr && (rest(*tight.low) || tight.low->exclusive)) return false;
  return tight.high == nullptr || rest(*tight.high) || !tight.high->exclusive;
}

int32_t more_digits(Grammar* g, int32_t next) { return g->loop(g->bytes(digits('0', '9'), kReturnNode), 0, -1, next); }

// The digits of a fraction from the one at `i` on. None: there is no such fraction.
std::optional<int32_t> fraction(Grammar* g, const Tight& tight, size_t i, int32_t next) {
  if (tight.low == nullptr && tight.high == nullptr) return more_digits(g, next);
  const size_t known = std::max(tight.low != nullptr ? tight.low->at.fraction.size() : 0,
                                tight.high != nullptr ? tight.high->at.fraction.size() : 0);
  std::vector<int32_t> choices;
  if (may_end(tight, i)) choices.push_back(next);
  const char least = tight.low != nullptr ? digit_at(*tight.low, i) : '0';
  const char most = tight.high != nullptr ? digit_at(*tight.high, i) : '9';
  for (char digit = least; digit <= most; ++digit) {
    const Tight then{.low = tight.low != nullptr && digit == least ? tight.low : nullptr,
                     .high = tight.high != nullptr && digit == most ? tight.high : nullptr};
    // Behind all known digits only zeros stay tight: a greater digit frees the number of a low limit.
    const bool settled = i >= known && then.low == tight.low && then.high == tight.high;
    if (settled) {
      std::vector<int32_t> behind;
      if (may_end(tight, i)) behind.push_back(next);
      if (tight.high == nullptr) behind.push_back(g->bytes(digits('1', '9'), more_digits(g, next)));
      return g->loop(g->bytes(digits('0', '0'), kReturnNode), 0, kMaxDigits, g->split(behind));
    }
    if (const std::optional<int32_t> rest = fraction(g, then, i + 1, next)) {
      choices.push_back(g->bytes(digits(digit, digit), *rest));
    }
  }
  if (choices.empty()) return std::nullopt;
  return g->split(choices);
}

// Behind the whole part: nothing, or a point and at least a digit.
std::optional<int32_t> point(Grammar* g, const Tight& tight, int32_t next) {
  std::vector<int32_t> choices;
  if (may_end(tight, 0)) choices.push_back(next);
  // The first digit is one more than may_end() would need: "1." is no number.
  std::vector<int32_t> first;
  const char least = tight.low != nullptr ? digit_at(*tight.low, 0) : '0';
  const char most = tight.high != nullptr ? digit_at(*tight.high, 0) : '9';
  for (char digit = least; digit <= most; ++digit) {
    const Tight then{.low = tight.low != nullptr && digit == least ? tight.low : nullptr,
                     .high = tight.high != nullptr && digit == most ? tight.high : nullptr};
    if (const std::optional<int32_t> rest = fraction(g, then, 1, next)) {
      first.push_back(g->bytes(digits(digit, digit), *rest));
    }
  }
  if (!first.empty()) choices.push_back(g->literal(".", g->split(first)));
  if (choices.empty()) return std::nullopt;
  return g->split(choices);
}

// A magnitude with or without a fraction.
void add_magnitudes(Grammar* g, const Magnitudes& m, bool whole_only, int32_t next, std::vector<int32_t>* out) {
  const auto add = [&](const std::optional<int32_t>& node) {
    if (node) out->push_back(*node);
  };
  const Limit& low = m.low;
  const bool rises = low.exclusive || !low.at.fraction.empty();
  if (whole_only) {
    std::optional<std::string> high;
    if (m.high) {
      const bool falls = m.high->exclusive && m.high->at.fraction.empty();
      if (falls && m.high->at.whole == "0") return;
      high = falls ? minus_one(m.high->at.whole) : m.high->at.whole;
    }
    return add(whole_range(g, rises ? plus_one(low.at.whole) : low.at.whole, high, next));
  }
  const Limit* const high = m.high ? &*m.high : nullptr;
  const bool same = high != nullptr && high->at.whole == low.at.whole;
  if (const auto rest = point(g, {.low = &low, .high = same ? high : nullptr}, next)) {
    out->push_back(g->literal(low.at.whole, *rest));
  }
  if (same) return;
  std::optional<std::string> last;
  if (high != nullptr) {
    if (const auto rest = point(g, {.low = nullptr, .high = high}, next)) {
      out->push_back(g->literal(high->at.whole, *rest));
    }
    last = minus_one(high->at.whole);
  }
  add(whole_range(g, plus_one(low.at.whole), last, *point(g, {}, next)));
}

std::optional<int32_t> bounded(Grammar* g, const NumberBounds& bounds, bool whole_only, int32_t next) {
  std::vector<int32_t> choices, below;
  if (const auto m = magnitudes(bounds, false)) add_magnitudes(g, *m, whole_only, next, &choices);
  if (auto m = magnitudes(bounds, true)) {
    if (m->low.at.zero()) m->low.exclusive = true;  // no "-0"
    const bool none = m->high && m->high->at.zero();
    if (!none) add_magnitudes(g, *m, whole_only, next, &below);
  }
  if (!below.empty()) choices.push_back(g->literal("-", g->split(below)));
  if (choices.empty()) return std::nullopt;
  return g->split(choices);
}

bool less(const Bound& a, const Bound& b) {
  const bool below = a.digits.starts_with('-');
  if (below != b.digits.starts_with('-')) return below;
  return below ? less(decimal(b.digits), decimal(a.digits)) : less(decimal(a.digits), decimal(b.digits));
}

}  // namespace

void NumberBounds::narrow_low(Bound bound) {
  const bool same = low && !less(*low, bound) && !less(bound, *low);
  if (same) bound.exclusive = bound.exclusive || low->exclusive;
  if (!low || same || less(*low, bound)) low = std::move(bound);
}

void NumberBounds::narrow_high(Bound bound) {
  const bool same = high && !less(*high, bound) && !less(bound, *high);
  if (same) bound.exclusive = bound.exclusive || high->exclusive;
  if (!high || same || less(bound, *high)) high = std::move(bound);
}

std::optional<int32_t> json_integer(Grammar* g, const NumberBounds& bounds, int32_t next) {
  return bounded(g, bounds, true, next);
}

std::optional<int32_t> json_number(Grammar* g, const NumberBounds& bounds, int32_t next) {
  if (bounds.any()) return bounded(g, bounds, false, next);
  constexpr int32_t kMaxExponentDigits = 2;  // a double holds it
  const int32_t digit = g->bytes(digits('0', '9'), kReturnNode);
  const int32_t exponent = g->loop(digit, 1, kMaxExponentDigits, next);
  const int32_t power = g->bytes(byte_set("eE"), g->split({exponent, g->bytes(byte_set("+-"), exponent)}));
  const int32_t end = g->split({next, power});
  const int32_t behind = g->split({end, g->literal(".", g->loop(digit, 1, kMaxDigits, end))});
  const int32_t whole =
      g->split({g->literal("0", behind), g->bytes(digits('1', '9'), g->loop(digit, 0, kMaxDigits, behind))});
  return g->split({whole, g->literal("-", whole)});
}

}  // namespace headrace
