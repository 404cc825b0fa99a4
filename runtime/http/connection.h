// One client of an HttpServer: a state machine that reads requests and writes their answers, and never waits. Private
// to runtime/http. Thread: the server's I/O thread.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "runtime/http/http_server.h"
#include "runtime/http/request_parser.h"

namespace headrace {

class HttpConnection;

// What the connections of a server share.
struct HttpShared {
  const HttpLimits limits;
  const HttpHandlers handlers;
  boost::asio::io_context io{1}, work{};  // the I/O thread; the threads of at_end()
  // Of the I/O thread:
  std::set<std::shared_ptr<HttpConnection>> connections{};
  std::function<void()> on_closed{};  // a connection
  uint64_t body_bytes = 0;            // of the bodies that are held
  size_t handling = 0;
  bool stopping = false;
};

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(boost::asio::ip::tcp::socket socket, HttpShared& shared);

  void start();
  void refuse(HttpFault fault);  // answers so, and closes
  void stop();                   // closes, after the answer that is under way
  void close();
  using Clock = std::chrono::steady_clock;
  // Since when its client has been waited for. None: the client waits.
  std::optional<Clock::time_point> waits_since() const;

 private:
  enum class State { kIdle, kReading, kWorking, kWriting, kLingering, kClosed };

  template <typename Step>
  void guarded(const Step& step);  // an exception is the end of this connection alone
  void wait(Clock::time_point deadline);
  void on_timeout();

  void read();  // unless there is no room
  void on_read(const boost::system::error_code& error, size_t count);
  void on_end_of_input();
  void parse();
  bool advance();  // by a step of the parser. False: nothing more to do with what has been read
  void on_header();
  bool hold_body();  // false: too many bytes of all bodies
  void release_body();
  void on_request();
  void handle(HttpRequest& request);

  void on_answer(HttpAnswer answer);
  void take();  // what the late answer has
  void begin_pieces(HttpResponse head);
  void leave();
  void send(HttpResponse response);
  void write();
  void on_write(const boost::system::error_code& error, size_t count);
  void on_answered();
  void linger();
  std::string framing(std::string_view length) const;

  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer timer_;
  HttpShared& shared_;
  State state_ = State::kIdle;
  Clock::time_point since_ = Clock::now();

  std::unique_ptr<std::array<char, kMaxHeaderBytes>> buffer_;
  size_t begin_ = 0, end_ = 0;  // of what buffer_ holds
  bool reads_ = false, input_ended_ = false;
  std::optional<RequestParser> parser_;
  uint64_t held_bytes_ = 0;  // of the body
  bool head_only_ = false, http_1_0_ = false, closes_ = false;

  std::shared_ptr<LateAnswer> late_;
  bool late_begun_ = false;  // its head has been sent
  std::string out_;
  size_t written_ = 0, piece_end_ = 0;  // of out_
};

}  // namespace headrace
