#include "runtime/http/request_parser.h"

#include <boost/beast/core/string.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/verb.hpp>
#include <limits>
#include <string>
#include <utility>

namespace headrace {
namespace {

namespace http = boost::beast::http;
using ErrorCode = boost::beast::error_code;
using Text = boost::beast::string_view;

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// "/a%20b?c" -> "/a b"
std::string path_of(std::string_view target) {
  target = target.substr(0, target.find_first_of("?#"));
  std::string path;
  for (size_t i = 0; i < target.size(); ++i) {
    const bool escape = target[i] == '%' && i + 2 < target.size();
    const int high = escape ? hex_digit(target[i + 1]) : -1, low = escape ? hex_digit(target[i + 2]) : -1;
    if (high >= 0 && low >= 0) {
      path += static_cast<char>(high * 16 + low);
      i += 2;
    } else {
      path += target[i];
    }
  }
  return path;
}

std::string to_string(Text text) { return {text.data(), text.size()}; }

}  // namespace

class RequestParser::Impl final : public http::basic_parser<true> {
 public:
  HttpRequest request;
  bool reported = false;  // the header
  size_t header_bytes = 0;
  bool is_http_1_0 = false, expects_continue = false;

 private:
  void on_request_impl(http::verb, Text method, Text target, int version, ErrorCode&) override {
    is_http_1_0 = version == 10;
    request.method = to_string(method);
    request.path = path_of({target.data(), target.size()});
  }
  void on_response_impl(int, Text, int, ErrorCode&) override {}
  // Of a chunked body's trailer, too, which is not kept.
  void on_field_impl(http::field name, Text text, Text value, ErrorCode& error) override {
    if (reported) return;
    if (name == http::field::transfer_encoding && (is_http_1_0 || !boost::beast::iequals(value, "chunked"))) {
      error = http::error::bad_transfer_encoding;  // nobody could say where such a body ends
    } else if (request.headers.size() >= kMaxHeaders) {
      error = http::error::header_limit;
    } else {
      if (name == http::field::expect) expects_continue = boost::beast::iequals(value, "100-continue");
      request.headers.push_back({to_string(text), to_string(value)});
    }
  }
  void on_header_impl(ErrorCode&) override {}
  void on_body_init_impl(const boost::optional<std::uint64_t>&, ErrorCode&) override {}
  std::size_t on_body_impl(Text body, ErrorCode&) override {
    request.body.append(body.data(), body.size());
    return body.size();
  }
  void on_chunk_header_impl(std::uint64_t, Text, ErrorCode&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, Text body, ErrorCode& error) override {
    return on_body_impl(body, error);
  }
  void on_finish_impl(ErrorCode&) override {}
};

RequestParser::RequestParser(uint64_t most_body) : impl_(std::make_unique<Impl>()) {
  impl_->header_limit(std::numeric_limits<std::uint32_t>::max());
  impl_->body_limit(most_body);
}
RequestParser::~RequestParser() = default;

RequestParser::State RequestParser::feed(std::string_view bytes, size_t* used) {
  ErrorCode error;
  *used = impl_->put(boost::asio::buffer(bytes.data(), bytes.size()), error);
  if (!impl_->reported && (impl_->header_bytes += *used) > kMaxHeaderBytes) return State::kMalformed;
  if (error == http::error::need_more) return State::kNeedsMore;
  if (error == http::error::body_limit) return State::kTooLong;
  if (error) return State::kMalformed;
  if (impl_->is_header_done() && !std::exchange(impl_->reported, true)) return State::kHeader;
  return impl_->is_done() ? State::kDone : State::kNeedsMore;
}

bool RequestParser::done() const { return impl_->is_done(); }
bool RequestParser::keep_alive() const { return impl_->keep_alive(); }
bool RequestParser::is_http_1_0() const { return impl_->is_http_1_0; }
bool RequestParser::expects_continue() const { return impl_->expects_continue; }
HttpRequest& RequestParser::request() { return impl_->request; }

}  // namespace headrace
