// libFuzzer: any bytes as a chat template: an Error(kBadInput), or a text within its limit in which the words of the
// message are marked as its own.
#include "cache/base.h"
#include "runtime/base/utf8.h"
#include "runtime/text/jinja/template.h"

namespace headrace::jinja {
namespace {

const char* const kMessages = R"([{"role": "system", "content": "S\u00e9"},
  {"role": "user", "content": " \u0001QQQ \u0002\n", "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, 2.5, null]}}}]}])";

void run(std::string_view source) {
  Limits limits;
  limits.steps = 100'000;
  limits.output_bytes = 100'000;
  try {
    const Value messages = from_json(nlohmann::ordered_json::parse(kMessages), Origin::kMessage, "fuzz");
    const Text text = Template(source, "fuzz")
                          .render({{"messages", messages}, {"bos_token", Value::text("<s>")}}, limits,
                                  [](const std::string& format) { return format; });
    CHECK(text.size() <= limits.output_bytes, text.size());
    CHECK(is_utf8(text.bytes()));
    size_t bytes = 0;
    for (const Text::Run& part : text.runs()) {
      bytes += part.bytes.size();
      const bool is_template = part.origin == Origin::kTemplate && source.find("QQQ") == std::string_view::npos;
      CHECK(!is_template || source.find("Q") != std::string_view::npos || source.find("\\") != std::string_view::npos ||
                part.bytes.find("QQQ") == std::string_view::npos,
            part.bytes);
    }
    CHECK(bytes == text.size());
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kBadInput, error.what());
  }
}

}  // namespace
}  // namespace headrace::jinja

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  headrace::jinja::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
