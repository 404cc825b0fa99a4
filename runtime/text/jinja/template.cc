#include "runtime/text/jinja/template.h"

#include <array>
#include <ctime>

#include "runtime/text/jinja/evaluator.h"
#include "runtime/text/jinja/parser.h"

namespace headrace::jinja {

struct Template::Impl {
  std::string name;
  Block block;
};

Template::Template(std::string_view source, std::string name) {
  auto impl = std::make_unique<Impl>();
  impl->name = std::move(name);
  impl->block = Parser(tokens_of(source, impl->name), impl->name).parse();
  impl_ = std::move(impl);
}

Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;
Template::~Template() = default;

Text Template::render(const Variables& variables, const Limits& limits, const Runtime::Clock& clock) const {
  Runtime runtime(impl_->name, limits, clock);
  return Evaluator(runtime, variables).run(impl_->block);
}

Runtime::Clock local_time() {
  return [](const std::string& format) {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    localtime_r(&now, &parts);
    std::array<char, 512> text;
    const size_t length = std::strftime(text.data(), text.size(), format.c_str(), &parts);
    return std::string(text.data(), length);
  };
}

}  // namespace headrace::jinja
