// A compiled regular expression (PCRE2: UTF-8, Unicode properties, JIT if the machine allows it). Owns the compiled
// code; immutable, any thread. Each matching thread needs its own Scratch.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace headrace {

class Regex {
 public:
  enum class Syntax { kPattern, kLiteral };

  // kPattern: as the reference's engine reads it (runtime/text/oniguruma.h). Throws Error(kBadInput) that names
  // `source`, the pattern, and the construct that is not supported.
  Regex(std::string_view pattern, Syntax syntax, const std::string& source);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class Regex;
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

  struct Match {
    size_t begin, end;
  };
  // The first match at or after `from`; it may be empty. `text` must be valid UTF-8; the pattern sees nothing outside
  // it. Throws Error(kBadInput) if the engine gives up (excessive backtracking).
  bool find(std::string_view text, size_t from, Scratch* scratch, Match* match) const;
  const std::string& pattern() const;  // empty: a literal

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
