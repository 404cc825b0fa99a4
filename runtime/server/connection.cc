#include "runtime/server/connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace headrace {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLinger{1000};

// False after the deadline. A signal does not end the wait.
template <size_t kCount>
bool poll_until(std::array<pollfd, kCount>& sockets, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    const auto ms = std::clamp<std::chrono::milliseconds::rep>(left.count(), 0, 1 << 30);
    const int ready = ::poll(sockets.data(), kCount, static_cast<int>(ms));
    if (ready > 0) return true;
    if (ready == 0) return false;
    if (errno != EINTR) return false;
  }
}

}  // namespace

bool Connection::fill(Clock::time_point deadline) {
  std::array<pollfd, 2> sockets = {{{socket_, POLLIN, 0}, {stopping_, POLLIN, 0}}};
  if (!poll_until(sockets, deadline) || sockets[0].revents == 0) return false;
  const ssize_t count = ::recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
  begin_ = 0;
  end_ = count > 0 ? static_cast<size_t>(count) : 0;
  return count > 0;
}

bool Connection::next_request() {
  if (begin_ == end_ && !fill(Clock::now() + limits_.idle)) return false;
  header_left_ = limits_.header_bytes;
  deadline_ = Clock::now() + limits_.read;
  return true;
}

void Connection::linger() {
  ::shutdown(socket_, SHUT_WR);
  const Clock::time_point deadline = Clock::now() + kLinger;
  while (closes_ && fill(deadline)) {
  }
}

Connection::Wake Connection::wait_for(int news, Clock::time_point deadline) {
  std::array<pollfd, 2> sockets = {{{news, POLLIN, 0}, {socket_, POLLRDHUP, 0}}};
  if (!poll_until(sockets, deadline)) return Wake::kTimeout;
  return sockets[1].revents != 0 ? Wake::kGone : Wake::kNews;
}

bool Connection::is_readable() const {
  std::array<pollfd, 2> sockets = {{{socket_, POLLIN, 0}, {stopping_, POLLIN, 0}}};
  return begin_ < end_ || (poll_until(sockets, deadline_) && sockets[0].revents != 0);
}

bool Connection::is_writable() const {
  std::array<pollfd, 1> sockets = {{{socket_, POLLOUT, 0}}};
  return poll_until(sockets, Clock::now() + limits_.write) && (sockets[0].revents & (POLLERR | POLLHUP)) == 0;
}

ssize_t Connection::read(char* data, size_t size) {
  if (header_left_ == 0 || (begin_ == end_ && !fill(deadline_))) return -1;
  const size_t count = std::min({size, end_ - begin_, header_left_});
  std::memcpy(data, buffer_.data() + begin_, count);
  begin_ += count;
  if (in_header()) header_left_ -= count;
  return static_cast<ssize_t>(count);
}

ssize_t Connection::write(const char* data, size_t size) {
  for (;;) {
    if (!is_writable()) return -1;
    const ssize_t count = ::send(socket_, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) return count;
    if (errno != EINTR && errno != EAGAIN) return -1;
  }
}

// The handlers have no use for addresses.
void Connection::get_remote_ip_and_port(std::string&, int& port) const { port = 0; }
void Connection::get_local_ip_and_port(std::string&, int& port) const { port = 0; }

}  // namespace headrace
