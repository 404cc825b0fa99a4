#include "runtime/text/oniguruma.h"

#include <optional>
#include <utility>
#include <vector>

#include "cache/base.h"
#include "runtime/text/oniguruma_class.h"

namespace headrace {
namespace {

using oniguruma::Reader;
using oniguruma::Set;

class Translator {
 public:
  Translator(std::string_view pattern, const RefusePattern& refuse) : reader_{pattern, 0, refuse} {}

  std::string translate() {
    while (!reader_.done()) read_one();
    if (groups_.size() > 1) reader_.fail("a group without ')'");
    close_group();
    return std::move(out_);
  }

 private:
  struct Group {
    size_t begin = 0;       // in out_
    bool caseless = false;  // at its end; the options of a group last to its end
    bool dotall = false;
    std::string ends;  // what closes it
  };

  bool caseless() const { return groups_.back().caseless; }
  void read_one();
  void read_escape();
  void read_group();
  void read_options();
  void open_group(const char* how);
  void close_group();
  bool read_quantifier();
  std::optional<std::string> take_interval();
  void literal(char32_t character);
  // One thing that a quantifier may follow.
  void atom(const std::string& text) {
    atom_ = out_.size();
    out_ += text;
    quantified_ = false;
  }
  // A place in the text: nothing to repeat.
  void place(const std::string& text) {
    out_ += text;
    atom_.reset();
  }

  Reader reader_;
  std::string out_;
  std::vector<Group> groups_{Group{}};
  std::optional<size_t> atom_;  // where the last atom begins in out_
  bool quantified_ = false;     // it has a quantifier
  char32_t before_ = 0;         // the literal directly before, under (?i)
};

void Translator::read_one() {
  const char next = reader_.text[reader_.at];
  if (read_quantifier()) return;
  if (next == '|' || next == '[' || next == '.') before_ = 0;
  if (reader_.take("\\")) return read_escape();
  if (reader_.take("(")) return read_group();
  if (reader_.take("[")) return atom(oniguruma::read_class(&reader_, caseless()));
  if (reader_.take(".")) return atom(groups_.back().dotall ? "(?s:.)" : "[^\\n]");
  if (reader_.take("^")) return place("(?m:^)");
  if (reader_.take("$")) return place("(?m:$)");
  if (reader_.take("|")) return place("|");
  if (reader_.take(")")) {
    if (groups_.size() == 1) reader_.fail("')' without a group");
    return close_group();
  }
  literal(reader_.character());
}

// Some letters fold to several: "ß" and "ss", "ﬆ" and "st". PCRE2 folds each character to one.
void Translator::literal(char32_t c) {
  if (caseless()) {
    const auto lower = [](char32_t x) { return x >= 'A' && x <= 'Z' ? x + 32 : x; };
    const char32_t first = lower(before_), second = lower(c);
    const bool folds = (first == 's' && (second == 's' || second == 't')) ||
                       (first == 'f' && (second == 'f' || second == 'i' || second == 'l'));
    if (folds || oniguruma::folds_oddly(c)) reader_.fail("letters under (?i) that fold to others in number");
    before_ = c;
  }
  atom(oniguruma::escaped(c));
}

void Translator::read_escape() {
  const std::string word = str("[", oniguruma::kWordMembers, "]");
  if (reader_.take("A")) return place("\\A");
  if (reader_.take("z")) return place("\\z");
  if (reader_.take("Z")) return place("\\Z");
  if (reader_.take("b")) return place("(?:(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + "))");
  if (reader_.take("B")) return place("(?:(?<=" + word + ")(?=" + word + ")|(?<!" + word + ")(?!" + word + "))");
  if (reader_.take("R")) return atom("\\R");
  if (reader_.take("O")) return atom("(?s:.)");
  if (reader_.take("N")) return atom("[^\\n]");
  Set set;
  bool cased = false;
  char32_t character = 0;
  if (oniguruma::take_set_escape(&reader_, false, &set, &cased)) {
    if (cased && caseless()) reader_.fail("a set of one case of a letter under (?i)");
    before_ = 0;
    return atom(oniguruma::class_of(set));
  }
  if (oniguruma::take_character_escape(&reader_, false, &character)) return literal(character);
  reader_.fail(str("the escape \\", reader_.shown()));
}

void Translator::open_group(const char* how) {
  Group group = groups_.back();
  group.begin = out_.size();
  group.ends = ")";
  groups_.push_back(std::move(group));
  out_ += how;
  atom_.reset();
}

void Translator::close_group() {
  const Group group = groups_.back();
  out_ += group.ends;
  groups_.pop_back();
  atom_ = group.begin;
  quantified_ = false;
}

void Translator::read_group() {
  for (const char* how : {"?:", "?=", "?!", "?>", "?<=", "?<!"})
    if (reader_.take(how)) return open_group(str("(", how).c_str());
  if (reader_.take("?#")) {
    const size_t end = reader_.text.find(')', reader_.at);
    if (end == std::string_view::npos) reader_.fail("a comment without ')'");
    reader_.at = end + 1;
    return;
  }
  if (reader_.take("?<")) {  // a name: nothing here refers to one
    const size_t end = reader_.text.find('>', reader_.at);
    if (end == std::string_view::npos) reader_.fail("a name without '>'");
    reader_.at = end + 1;
    return open_group("(?:");
  }
  if (reader_.take("?")) return read_options();
  if (reader_.next_is("*")) reader_.fail("a callout (*…)");
  open_group("(?:");
}

// "(?im-i:" is a group; "(?i)" lasts to the end of the group around it, further alternatives included. m is PCRE2's s.
void Translator::read_options() {
  bool on = true, caseless_now = caseless(), dotall_now = groups_.back().dotall;
  while (!reader_.done() && !reader_.next_is(":") && !reader_.next_is(")")) {
    if (reader_.take("-")) {
      on = false;
    } else if (reader_.take("i")) {
      caseless_now = on;
    } else if (reader_.take("m")) {
      dotall_now = on;
    } else {
      reader_.fail(str("the group (?", reader_.shown()));
    }
  }
  const bool alone = reader_.take(")");
  if (!alone && !reader_.take(":")) reader_.fail("options without ')'");
  const char* const how = caseless_now ? "(?i:" : "(?-i:";
  if (alone) {
    out_ += how;
    groups_.back().ends += ")";
    atom_.reset();
  } else {
    open_group(how);
  }
  groups_.back().caseless = caseless_now;
  groups_.back().dotall = dotall_now;
}

// "{2,3}", "{,3}", as PCRE2 has them; nothing if the brace is only a brace.
std::optional<std::string> Translator::take_interval() {
  size_t at = reader_.at + 1;
  const auto number = [&] {
    const size_t begin = at;
    while (at < reader_.text.size() && reader_.text[at] >= '0' && reader_.text[at] <= '9') ++at;
    return std::string(reader_.text.substr(begin, at - begin));
  };
  const std::string least = number();
  const bool comma = at < reader_.text.size() && reader_.text[at] == ',';
  if (comma) ++at;
  const std::string most = comma ? number() : least;
  if (at >= reader_.text.size() || reader_.text[at] != '}' || (least.empty() && most.empty())) return std::nullopt;
  if (least.size() > 5 || most.size() > 5) reader_.fail("a repetition of more than 65535");
  if (!least.empty() && !most.empty() && std::stoi(least) > std::stoi(most))
    reader_.fail("a repetition {n,m} with n > m");
  reader_.at = at + 1;
  return str("{", least.empty() ? "0" : least, comma ? "," : "", comma ? most : "", "}");
}

// A quantifier repeats whatever stands before it, quantifiers included. "+" after an interval is a second one; "?"
// after {n} is not used by anyone, and its meaning is disputed.
bool Translator::read_quantifier() {
  std::string quantifier;
  const bool interval = reader_.next_is("{");
  if (interval) {
    const std::optional<std::string> taken = take_interval();
    if (!taken) return false;
    quantifier = *taken;
    if (reader_.next_is("?") && quantifier.find(',') == std::string::npos) reader_.fail("{n}?");
  } else {
    const char c = reader_.text[reader_.at];
    if (c != '*' && c != '+' && c != '?') return false;
    ++reader_.at;
    quantifier = c;
  }
  if (!atom_) reader_.fail("a quantifier after nothing that it could repeat");
  if (reader_.take("?")) {
    quantifier += '?';
  } else if (!interval && reader_.take("+")) {
    quantifier += '+';
  }
  if (quantified_) {
    out_.insert(*atom_, "(?:");
    out_ += ')';
  }
  out_ += quantifier;
  quantified_ = true;
  before_ = 0;
  return true;
}

}  // namespace

std::string to_pcre2(std::string_view pattern, const RefusePattern& refuse) {
  return Translator(pattern, refuse).translate();
}

}  // namespace headrace
