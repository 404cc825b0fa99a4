// Streams and events: one interface over two backends selected at run time. A stream runs its work in order; an event
// orders streams. On the CPU a stream is a worker thread with a queue, an event a counter with a condition, and a copy
// a memcpy on the stream's thread, so copies really overlap. Kernels take a Stream&; there is no default stream.
// Thread: one thread enqueues on a stream at a time; synchronize() may be called from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace headrace {

class CallHash;
class Trace;

enum class Backend : uint8_t { kCpu, kCuda };
enum class StreamRole : uint8_t { kCompute, kCopy };
enum class Link : uint8_t { kHostToDevice, kDeviceToHost, kWithinDevice };
constexpr size_t kLinkCount = 3;

// The name of a trace slice (trace.h): "layer" and 7 give "layer 7". Free without a trace.
struct TraceName {
  TraceName() = default;
  TraceName(const char* literal, int64_t which = -1) : text(literal), number(which) {}  // NOLINT: a literal is a name
  const char* text = nullptr;  // outlives the trace, as a literal does; null: the stream's name
  int64_t number = -1;         // -1: none
};

// Tracing state of a stream. Device::make_stream() sets it.
struct StreamTracing {
  Trace* trace = nullptr;  // null: not traced; the only cost is this check
  const char* name = nullptr;
  StreamRole role = StreamRole::kCompute;
  int open_spans = 0;
};

// As in CUDA: wait() refers to the most recent record() enqueued before it, and passes at once if there is none.
class Event {
 public:
  virtual ~Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  virtual bool done() const = 0;
  virtual void synchronize() = 0;  // blocks the calling thread

 protected:
  Event() = default;
};

// Of a copy: pieces of `bytes`, each a stride after the one before.
struct CopyPieces {
  size_t bytes = 0, count = 1;
  size_t dst_stride = 0, src_stride = 0;
};

class Stream {
 public:
  virtual ~Stream() = default;  // finishes all enqueued work
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Backend backend() const { return backend_; }

  // Asynchronous; both sides must stay valid until it has run. The device counts the bytes by link. `what` is for a
  // trace.
  void copy(void* dst, const void* src, size_t bytes, Link link, TraceName what = {}) {
    if (calls_ != nullptr) [[unlikely]]
      hash_copy(dst, src, {.bytes = bytes}, link);
    if (tracing_.trace != nullptr) [[unlikely]]
      return traced_copy([&] { copy_bytes(dst, src, bytes, link); }, bytes, link, what);
    copy_bytes(dst, src, bytes, link);
  }
  // Copies `count` pieces at once. REQUIRES: bytes <= the strides, or count is 1.
  void copy_pieces(void* dst, const void* src, const CopyPieces& pieces, Link link, TraceName what = {}) {
    if (calls_ != nullptr) [[unlikely]]
      hash_copy(dst, src, pieces, link);
    if (tracing_.trace != nullptr) [[unlikely]]
      return traced_copy([&] { copy_piece_bytes(dst, src, pieces, link); }, pieces.bytes * pieces.count, link, what);
    copy_piece_bytes(dst, src, pieces, link);
  }
  // A copy of some KB that must not queue behind other streams' large copies. On CUDA, where copy() waits for a copy
  // engine, a kernel reads or writes host memory instead. REQUIRES: the host side is in a PinnedBuffer.
  void copy_small(void* dst, const void* src, size_t bytes, Link link, TraceName what = {}) {
    if (calls_ != nullptr) [[unlikely]]
      hash_copy(dst, src, {.bytes = bytes}, link);
    if (tracing_.trace != nullptr) [[unlikely]]
      return traced_copy([&] { copy_small_bytes(dst, src, bytes, link); }, bytes, link, what);
    copy_small_bytes(dst, src, bytes, link);
  }
  virtual void record(Event& event) = 0;
  virtual void wait(const Event& event) = 0;
  // Blocks until all enqueued work has run; rethrows the first error of a task.
  virtual void synchronize() = 0;
  // Never blocks: throws the first error of a task so far. synchronize() still rethrows it, too.
  virtual void check() = 0;
  // cudaStream_t on CUDA; null on the CPU.
  virtual void* native() const = 0;

  StreamTracing& tracing() { return tracing_; }

  // Copies and kernels that are enqueued are added to it; null: none are.
  CallHash* calls() const { return calls_; }
  void hash_calls(CallHash* calls) { calls_ = calls; }

 protected:
  explicit Stream(Backend backend) : backend_(backend) {}
  virtual void copy_bytes(void* dst, const void* src, size_t bytes, Link link) = 0;
  virtual void copy_small_bytes(void* dst, const void* src, size_t bytes, Link link) {
    copy_bytes(dst, src, bytes, link);
  }
  virtual void copy_piece_bytes(void* dst, const void* src, const CopyPieces& pieces, Link link);

 private:
  void hash_copy(const void* dst, const void* src, const CopyPieces& pieces, Link link);
  void traced_copy(const std::function<void()>& copy, size_t bytes, Link link, TraceName what);

  const Backend backend_;
  StreamTracing tracing_;
  CallHash* calls_ = nullptr;
};

// Blocks until the stream is idle and drops a task's error: for destructors and error paths.
void drain(Stream& stream) noexcept;

}  // namespace headrace
