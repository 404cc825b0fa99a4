// One accepted socket as a stream of httplib's, with the limits that the library lacks: a deadline for a whole request,
// however slowly its bytes arrive, and a limit of its header's bytes. Borrows the socket. Thread: one.
#pragma once

#include <httplib.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <string>

namespace headrace {

struct ConnectionLimits {
  std::chrono::milliseconds idle{5000};    // between two requests
  std::chrono::milliseconds read{30000};   // a whole request, from its first byte
  std::chrono::milliseconds write{30000};  // a piece of an answer that the client does not take
  size_t header_bytes = size_t{64} << 10;
};

class Connection : public httplib::Stream {
 public:
  // `stopping`: a descriptor that becomes readable when the server stops, which ends every wait for input.
  Connection(int socket, int stopping, const ConnectionLimits& limits)
      : socket_(socket), stopping_(stopping), limits_(limits) {}

  // Waits for the first byte of a request. False: the client has closed, was idle for too long, or the server stops.
  bool next_request();
  void end_of_header() { header_left_ = SIZE_MAX; }  // what follows is the body
  bool in_header() const { return header_left_ != SIZE_MAX; }
  // What the client still sends is not read as a request.
  void close_after_answer() { closes_ = true; }
  bool closes() const { return closes_; }
  // Ends the connection so that the client can read the answer although not all it sent was read.
  void linger();

  enum class Wake { kNews, kGone, kTimeout };
  // Until `news` is readable, the client has gone, or `deadline`.
  Wake wait_for(int news, std::chrono::steady_clock::time_point deadline);

  bool is_readable() const override;
  bool is_writable() const override;
  ssize_t read(char* data, size_t size) override;
  ssize_t write(const char* data, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  int socket() const override { return socket_; }

 private:
  using Clock = std::chrono::steady_clock;
  bool fill(Clock::time_point deadline);  // false: no byte came

  const int socket_, stopping_;
  const ConnectionLimits& limits_;
  Clock::time_point deadline_;
  std::array<char, 16384> buffer_;
  size_t begin_ = 0, end_ = 0;  // of what buffer_ holds
  size_t header_left_ = 0;
  bool closes_ = false;
};

}  // namespace headrace
