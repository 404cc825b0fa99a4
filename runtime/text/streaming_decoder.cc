#include "runtime/base/utf8.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/tokenizer_impl.h"

namespace headrace {

struct StreamingDecoder::Impl {
  const Tokenizer::Impl* tokenizer;
  SpecialTokens special;
  Utf8Filter filter;  // byte-level families: characters that span tokens
  std::string run;    // byte fallback: the bytes of an unfinished run, which is valid or invalid as a whole
  size_t strip_left;  // leading spaces still to be removed

  void end_run(std::string* out) {
    if (is_utf8(run)) {
      *out += run;
    } else {
      for (size_t i = 0; i < run.size(); ++i) *out += kReplacement;
    }
    run.clear();
  }

  std::string stripped(std::string text) {
    const std::string& strip = tokenizer->decoder.strip;
    size_t at = 0;
    for (; strip_left > 0 && at < text.size(); --strip_left) {
      if (text.compare(at, strip.size(), strip) != 0) {
        strip_left = 0;
        break;
      }
      at += strip.size();
    }
    return text.substr(at);
  }
};

StreamingDecoder::StreamingDecoder(const Tokenizer& tokenizer, SpecialTokens special)
    : impl_(
          std::make_unique<Impl>(Impl{tokenizer.impl_.get(), special, {}, {}, tokenizer.impl_->decoder.strip_count})) {}
StreamingDecoder::~StreamingDecoder() = default;
StreamingDecoder::StreamingDecoder(StreamingDecoder&&) noexcept = default;

std::string StreamingDecoder::push(int32_t id) {
  const Tokenizer::Impl& tokenizer = *impl_->tokenizer;
  // A model may have more logits than tokens; such an id has no text.
  if (id < 0 || static_cast<size_t>(id) >= tokenizer.names.size()) return {};
  const auto index = static_cast<size_t>(id);
  if (impl_->special == SpecialTokens::kParse && tokenizer.special[index]) return {};
  std::string out;
  if (tokenizer.is_byte[index]) {
    impl_->run += tokenizer.pieces[index];
    return out;
  }
  impl_->end_run(&out);
  if (tokenizer.decoder.byte_level) {
    impl_->filter.push(tokenizer.pieces[index], &out);
  } else {
    out += tokenizer.pieces[index];
  }
  return impl_->stripped(std::move(out));
}

std::string StreamingDecoder::finish() {
  std::string out;
  impl_->end_run(&out);
  impl_->filter.finish(&out);
  return impl_->stripped(std::move(out));
}

}  // namespace headrace
