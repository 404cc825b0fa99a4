#include "tests/support/http_client.h"

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

namespace headrace {

namespace asio = boost::asio;
namespace http = boost::beast::http;

HttpResponse HttpClient::get(const std::string& path, const std::vector<HttpHeader>& headers) const {
  return ask("GET", path, "", headers);
}

HttpResponse HttpClient::post(const std::string& path, const std::string& body,
                              const std::vector<HttpHeader>& headers) const {
  return ask("POST", path, body, headers);
}

HttpResponse HttpClient::ask(const std::string& method, const std::string& path, const std::string& body,
                             const std::vector<HttpHeader>& headers) const {
  http::request<http::string_body> request;
  request.version(11);
  request.method_string(method);
  request.target(path);
  request.set(http::field::host, "localhost");
  request.set(http::field::connection, "close");
  for (const HttpHeader& header : headers) request.set(header.name, header.value);
  request.body() = body;
  if (method != "GET" && method != "HEAD" && !request.chunked()) request.prepare_payload();

  asio::io_context context;
  asio::ip::tcp::socket socket(context);
  boost::system::error_code error, unsent;
  const asio::ip::tcp::endpoint server(asio::ip::address_v4::loopback(), static_cast<unsigned short>(port_));
  socket.connect(server, error);
  if (error) return {.status = 0};
  http::write(socket, request, unsent);  // the server may answer before it has all of it
  boost::beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(boost::none);
  parser.skip(method == "HEAD");
  http::read(socket, buffer, parser, error);
  if (error) return {.status = 0};
  HttpResponse response;
  response.status = parser.get().result_int();
  for (const auto& field : parser.get()) {
    response.headers.push_back({std::string(field.name_string()), std::string(field.value())});
  }
  response.body = parser.get().body();
  return response;
}

std::string header_of(const HttpResponse& response, const std::string& name) {
  return std::string(HttpRequest{.method = "", .path = "", .headers = response.headers}.header(name));
}

}  // namespace headrace
