// A chat template in Jinja, as transformers renders it: jinja2 in its immutable sandbox with trim_blocks,
// lstrip_blocks, loop controls, `generation` blocks, raise_exception, strftime_now and a tojson that escapes no HTML.
// There is no include, import, extends or block. Immutable once made; any thread may render.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/text/jinja/runtime.h"
#include "runtime/text/jinja/value.h"

namespace headrace::jinja {

using Variables = std::vector<std::pair<std::string, Value>>;

Runtime::Clock local_time();  // strftime of the local time, at the call

class Template {
 public:
  // `name`: of the source, for errors. Throws Error(kBadInput) at "name:line" if it is no template.
  Template(std::string_view source, std::string name);
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;
  ~Template();

  // The text, in which every byte knows whether it came from messages (Text::runs). Throws Error(kBadInput) at
  // "name:line" if the template fails, refuses the messages or exceeds a limit.
  Text render(const Variables& variables, const Limits& limits = {}, const Runtime::Clock& clock = local_time()) const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace headrace::jinja
