#include "runtime/http/connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <cstring>
#include <utility>

#include "cache/base.h"

namespace headrace {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr size_t kPiece = size_t{64} << 10;          // that a client must take in time
constexpr uint64_t kSmallBody = uint64_t{64} << 10;  // is always held
constexpr std::chrono::milliseconds kLook{250};      // at a client of which nothing is read

std::string chunk(const std::string& text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string size;
  for (size_t left = text.size(); left > 0; left >>= 4) size.insert(size.begin(), kDigits[left & 15]);
  return size + "\r\n" + text + "\r\n";
}

}  // namespace

HttpConnection::HttpConnection(asio::ip::tcp::socket socket, HttpShared& shared)
    : socket_(std::move(socket)), timer_(shared.io), shared_(shared), buffer_(new std::array<char, kMaxHeaderBytes>) {}

template <typename Step>
void HttpConnection::guarded(const Step& step) {
  try {
    step();
    return;
  } catch (...) {
    if (state_ == State::kClosed || state_ == State::kWriting || late_begun_) return close();
  }
  try {
    refuse(HttpFault::kBroken);
  } catch (...) {
    close();
  }
}

void HttpConnection::start() {
  guarded([this] {
    error_code ignored;
    socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
    socket_.non_blocking(true, ignored);
    wait(Clock::now() + shared_.limits.idle);
    read();
  });
}

void HttpConnection::stop() {
  closes_ = true;
  if (state_ == State::kIdle || state_ == State::kReading) close();
}

void HttpConnection::close() {
  if (state_ == State::kClosed) return;
  const auto self = shared_from_this();
  state_ = State::kClosed;
  if (late_) std::exchange(late_, nullptr)->abandon();
  release_body();
  timer_.cancel();
  error_code ignored;
  socket_.close(ignored);
  shared_.connections.erase(self);
  shared_.on_closed();
}

std::optional<HttpConnection::Clock::time_point> HttpConnection::waits_since() const {
  return state_ == State::kWorking || state_ == State::kClosed ? std::nullopt : std::optional(since_);
}

void HttpConnection::wait(Clock::time_point deadline) {
  timer_.expires_at(deadline);
  timer_.async_wait([self = shared_from_this()](const error_code& error) {
    if (error || self->timer_.expiry() > Clock::now()) return;  // it has been set anew
    self->guarded([&self] { self->on_timeout(); });
  });
}

void HttpConnection::on_timeout() {
  switch (state_) {
    case State::kReading:
      return refuse(HttpFault::kIncomplete);
    case State::kWorking:
      return take();
    case State::kIdle:
    case State::kWriting:
    case State::kLingering:
      return close();
    case State::kClosed:
      return;
  }
}

// ---- Reading. A read is always under way while there is room, so the end of the input is seen whatever else happens.

void HttpConnection::read() {
  if (begin_ == end_) begin_ = end_ = 0;
  if (end_ == buffer_->size() && begin_ > 0) {
    std::memmove(buffer_->data(), buffer_->data() + begin_, end_ - begin_);
    end_ -= std::exchange(begin_, 0);
  }
  if (reads_ || input_ended_ || state_ == State::kClosed) return;
  if (end_ == buffer_->size()) {
    if (state_ == State::kWorking) wait(Clock::now() + kLook);
    return;
  }
  reads_ = true;
  socket_.async_read_some(asio::buffer(buffer_->data() + end_, buffer_->size() - end_),
                          [self = shared_from_this()](const error_code& error, size_t count) {
                            self->guarded([&] { self->on_read(error, count); });
                          });
}

void HttpConnection::on_read(const error_code& error, size_t count) {
  reads_ = false;
  if (state_ == State::kClosed) return;
  if (error) {
    input_ended_ = true;
    return on_end_of_input();
  }
  end_ += count;
  if (state_ == State::kLingering) begin_ = end_;
  if (state_ == State::kIdle || state_ == State::kReading) return parse();
  read();
}

void HttpConnection::on_end_of_input() {
  if (state_ == State::kIdle || state_ == State::kLingering) return close();
  if (state_ == State::kReading) return refuse(HttpFault::kIncomplete);
  if (late_) leave();  // else the answer is on its way, or there soon
}

void HttpConnection::parse() {
  while (begin_ < end_ && (state_ == State::kIdle || state_ == State::kReading) && advance()) {
  }
  if (input_ended_ && (state_ == State::kIdle || state_ == State::kReading)) return on_end_of_input();
  read();
}

bool HttpConnection::advance() {
  if (state_ == State::kIdle) {
    state_ = State::kReading;
    since_ = Clock::now();
    wait(since_ + shared_.limits.read);
    parser_.emplace(shared_.limits.body_bytes);
  }
  size_t used = 0;
  const RequestParser::State parsed = parser_->feed({buffer_->data() + begin_, end_ - begin_}, &used);
  begin_ += used;
  switch (parsed) {
    case RequestParser::State::kMalformed:
      return refuse(HttpFault::kMalformed), false;
    case RequestParser::State::kTooLong:
      return refuse(HttpFault::kTooLong), false;
    case RequestParser::State::kHeader:
      on_header();
      return true;
    case RequestParser::State::kDone:
      on_request();
      return true;
    case RequestParser::State::kNeedsMore:
      break;
  }
  if (!hold_body()) return refuse(HttpFault::kBusy), false;
  if (used == 0 && end_ - begin_ == buffer_->size()) return refuse(HttpFault::kMalformed), false;
  return used > 0;
}

void HttpConnection::on_header() {
  const HttpRequest& request = parser_->request();
  head_only_ = request.method == "HEAD";
  http_1_0_ = parser_->is_http_1_0();
  if (!parser_->keep_alive()) closes_ = true;
  if (std::optional<HttpResponse> response = shared_.handlers.at_header(request)) {
    if (!parser_->done()) closes_ = true;
    return send(std::move(*response));
  }
  if (parser_->done()) return on_request();
  if (!parser_->expects_continue() || begin_ < end_) return;
  error_code ignored;  // a client that does not get it sends the body after a while
  socket_.write_some(asio::buffer(std::string_view("HTTP/1.1 100 Continue\r\n\r\n")), ignored);
}

bool HttpConnection::hold_body() {
  const uint64_t size = parser_->request().body.size();
  if (size <= kSmallBody) return true;
  if (shared_.body_bytes + (size - held_bytes_) > shared_.limits.all_body_bytes) return false;
  shared_.body_bytes += size - held_bytes_;
  held_bytes_ = size;
  return true;
}

void HttpConnection::release_body() { shared_.body_bytes -= std::exchange(held_bytes_, 0); }

void HttpConnection::on_request() {
  if (shared_.handling >= shared_.limits.handling) return refuse(HttpFault::kBusy);
  state_ = State::kWorking;
  timer_.cancel();
  HttpRequest request = std::exchange(parser_->request(), {});
  asio::post(shared_.work,
             [self = shared_from_this(), request = std::move(request)]() mutable { self->handle(request); });
  ++shared_.handling;
}

// On a thread of `work`.
void HttpConnection::handle(HttpRequest& request) {
  HttpAnswer answer = HttpResponse{.status = 0};  // an exception
  try {
    answer = shared_.handlers.at_end(request);
  } catch (...) {
  }
  request = {};
  asio::post(shared_.io, [self = shared_from_this(), answer = std::move(answer)]() mutable {
    self->guarded([&] { self->on_answer(std::move(answer)); });
  });
}

// ---- Answering.

void HttpConnection::on_answer(HttpAnswer answer) {
  --shared_.handling;
  release_body();
  if (auto* const response = std::get_if<HttpResponse>(&answer)) {
    if (state_ == State::kClosed) return;
    if (response->status == 0) return refuse(HttpFault::kBroken);
    return send(std::move(*response));
  }
  auto late = std::get<std::shared_ptr<LateAnswer>>(std::move(answer));
  if (state_ == State::kClosed) return late->abandon();
  late_ = std::move(late);
  if (input_ended_) return leave();
  late_->begin([weak = weak_from_this(), &shared = shared_] {
    if (auto self = weak.lock()) {
      asio::post(shared.io, [self = std::move(self)] { self->guarded([&self] { self->take(); }); });
    }
  });
  take();
}

void HttpConnection::take() {
  if (state_ != State::kWorking || !late_) return;
  const bool full = end_ - begin_ == buffer_->size();  // nothing is read, so look whether the client is there
  pollfd gone = {.fd = socket_.native_handle(), .events = POLLRDHUP, .revents = 0};
  if (full && ::poll(&gone, 1, 0) > 0) return leave();
  LateAnswer::Part part = late_->take();
  if (part.whole) {
    late_.reset();
    return send(std::move(*part.whole));
  }
  if (part.head) begin_pieces(std::move(*part.head));
  if (!part.piece.empty()) out_ += http_1_0_ ? part.piece : chunk(part.piece);
  if (part.last) {
    if (!http_1_0_) out_ += "0\r\n\r\n";
    late_.reset();
  }
  if (!out_.empty()) return write();
  Clock::time_point again = part.again.value_or(Clock::time_point::max());
  if (full) again = std::min(again, Clock::now() + kLook);
  if (again != Clock::time_point::max()) wait(again);
}

void HttpConnection::begin_pieces(HttpResponse head) {
  late_begun_ = true;
  shared_.handlers.on_response(head);
  if (http_1_0_) closes_ = true;  // which is the end of the body
  out_ = response_head(head, framing(http_1_0_ ? "" : "Transfer-Encoding: chunked\r\n"));
}

void HttpConnection::leave() {
  if (!late_begun_) {
    HttpResponse nothing{.status = 499};
    shared_.handlers.on_response(nothing);
  }
  close();
}

void HttpConnection::refuse(HttpFault fault) {
  closes_ = true;
  if (late_) std::exchange(late_, nullptr)->abandon();
  send(shared_.handlers.at_fault(fault));
}

void HttpConnection::send(HttpResponse response) {
  if (response.status >= 400) closes_ = true;  // it may not have been read to its end
  release_body();
  parser_.reset();
  shared_.handlers.on_response(response);
  const bool has_body = response.status != 204;
  out_ = response_head(response, framing(has_body ? str("Content-Length: ", response.body.size(), "\r\n") : ""));
  if (has_body && !head_only_) out_ += response.body;
  write();
}

std::string HttpConnection::framing(std::string_view length) const {
  const bool closes = closes_ || shared_.stopping;
  return str(length, closes ? "Connection: close\r\n" : http_1_0_ ? "Connection: keep-alive\r\n" : "");
}

void HttpConnection::write() {
  state_ = State::kWriting;
  if (written_ >= piece_end_) {
    piece_end_ = std::min(written_ + kPiece, out_.size());
    since_ = Clock::now();
    wait(since_ + shared_.limits.write);
  }
  socket_.async_write_some(asio::buffer(out_.data() + written_, piece_end_ - written_),
                           [self = shared_from_this()](const error_code& error, size_t count) {
                             self->guarded([&] { self->on_write(error, count); });
                           });
}

void HttpConnection::on_write(const error_code& error, size_t count) {
  if (state_ == State::kClosed) return;
  if (error) return close();
  written_ += count;
  if (written_ < out_.size()) return write();
  out_.clear();
  written_ = piece_end_ = 0;
  if (!late_) return on_answered();
  state_ = State::kWorking;
  timer_.cancel();
  take();
}

void HttpConnection::on_answered() {
  late_begun_ = head_only_ = http_1_0_ = false;
  out_.shrink_to_fit();
  if (closes_ || shared_.stopping) return linger();
  state_ = State::kIdle;
  since_ = Clock::now();
  wait(since_ + shared_.limits.idle);
  parse();
}

// So that the client can read the answer although not all it sent was read.
void HttpConnection::linger() {
  error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  if (input_ended_) return close();
  state_ = State::kLingering;
  since_ = Clock::now();
  wait(since_ + shared_.limits.linger);
  begin_ = end_;
  read();
}

}  // namespace headrace
