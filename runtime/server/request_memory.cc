#include "runtime/server/request_memory.h"

#include <algorithm>

#include "runtime/base/json_file.h"

namespace headrace {
namespace {

constexpr int kMostReading = 4;
constexpr double kConvertSeconds = 30;  // a thread of the server's few waits for it
constexpr uint64_t kHostShare = 8;
constexpr uint64_t kWaitingBytes = 2 * kMiB;  // of a request of a usual length

// Of a body: its values (at most 160 bytes each, and one for two bytes of text), or its text, the marked text and the
// symbols and ids of the tokenizer.
constexpr uint64_t kValueBytes = 160, kTextFactor = 32, kLeast = 64 * kKiB;
uint64_t reading_bytes(uint64_t body_bytes) {
  return kLeast + 2 * body_bytes +
         std::max(std::min(kMaxClientValues, body_bytes / 2) * kValueBytes, kTextFactor * body_bytes);
}

}  // namespace

uint64_t RequestMemory::part_of(uint64_t host_free_bytes, uint64_t longest_body_bytes, int64_t queue) {
  const uint64_t waiting = static_cast<uint64_t>(queue + 1) * kWaitingBytes;
  return whole_pages(
      std::min(host_free_bytes / kHostShare, reading_bytes(longest_body_bytes + kMaxFileText) + waiting));
}

FileRules RequestMemory::file_rules(std::string_view body) const {
  FileRules rules = {.text_bytes = 0, .convert_seconds = kConvertSeconds, .waits = false};
  if (body.find("\"file_data\"") == body.npos) return rules;
  rules.text_bytes = kMaxFileText;
  while (rules.text_bytes > 0 && reading_bytes(body.size() + rules.text_bytes) > all_.bytes()) rules.text_bytes /= 2;
  return rules;
}

std::optional<Failure> RequestMemory::take(uint64_t body_bytes, Share* share) {
  const uint64_t bytes = reading_bytes(body_bytes);
  if (bytes > all_.bytes()) {
    return bad_request(413, "body_too_long",
                       str("a body of ", format_bytes(body_bytes), " can need ", format_bytes(bytes),
                           ", requests have ", format_bytes(all_.bytes()), " of --host-mem"));
  }
  const MutexLock lock(mutex_);
  while (reading_ == kMostReading) left_.wait(mutex_);
  if (bytes > all_.bytes() - used_bytes_) {
    return Failure{.status = 503,
                   .message = str("other requests hold the memory: this one may need ", format_bytes(bytes), ", ",
                                  format_bytes(all_.bytes() - used_bytes_), " are left"),
                   .code = "no_memory",
                   .retry_after_s = 1};
  }
  used_bytes_ += bytes;
  ++reading_;
  *share = {};
  share->memory_ = this;
  share->bytes_ = bytes;
  share->reads_ = true;
  return std::nullopt;
}

RequestMemory::Share& RequestMemory::Share::operator=(Share&& other) noexcept {
  if (this == &other) return *this;
  give_back(0);
  memory_ = std::exchange(other.memory_, nullptr);
  bytes_ = other.bytes_;
  reads_ = other.reads_;
  return *this;
}

void RequestMemory::Share::give_back(uint64_t rest) {
  if (memory_ == nullptr) return;
  const MutexLock lock(memory_->mutex_);
  const uint64_t kept = std::min(rest, bytes_);
  memory_->used_bytes_ -= bytes_ - kept;
  bytes_ = kept;
  if (std::exchange(reads_, false)) {
    --memory_->reading_;
    memory_->left_.notify_one();
  }
}

}  // namespace headrace
