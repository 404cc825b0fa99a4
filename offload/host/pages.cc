#include "offload/host/pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "cache/base.h"
#include "offload/host/start_thread.h"

namespace headrace {
namespace {

constexpr uint64_t kHugePage = 2 * kMiB;
constexpr uint64_t kTouchSlice = 16 * kMiB;  // about 5 ms of work; less is not worth a thread

void touch(std::byte* begin, const std::byte* end) {
  for (std::byte* page = begin; page < end; page += kPageBytes) *const_cast<volatile std::byte*>(page) = std::byte{0};
}

}  // namespace

void* map_pages(uint64_t bytes) noexcept {
  const uint64_t slack = bytes >= kHugePage ? kHugePage - kPageBytes : 0;  // to begin at a huge page
  uint64_t asked = 0;
  if (!checked_add(bytes, slack, &asked)) {
    errno = ENOMEM;
    return nullptr;
  }
  void* mapped = mmap(nullptr, asked, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  if (slack == 0) return mapped;
  std::byte* const begin = static_cast<std::byte*>(mapped);
  const uint64_t address = reinterpret_cast<uintptr_t>(mapped);
  const uint64_t head = round_up(address, kHugePage) - address;
  if (head != 0) munmap(begin, head);
  if (slack != head) munmap(begin + head + bytes, slack - head);
  madvise(begin + head, bytes, MADV_HUGEPAGE);  // advice only; without it the memory is slower
  return begin + head;
}

void unmap_pages(void* data, uint64_t bytes) noexcept { munmap(data, bytes); }

MappedPages::MappedPages(uint64_t bytes, const std::string& what)
    : bytes_(whole_pages(bytes)), data_(static_cast<std::byte*>(map_pages(bytes_))) {
  if (data_ == nullptr) {
    throw_error(ExitCode::kDoesNotFit, "mmap", str(format_bytes(bytes), " ", what, ": ", std::strerror(errno)));
  }
}

void touch_pages(void* data, uint64_t bytes, int threads) {
  std::byte* const begin = static_cast<std::byte*>(data);
  const uint64_t parts = std::clamp<uint64_t>(bytes / kTouchSlice, 1, static_cast<uint64_t>(std::max(threads, 1)));
  const uint64_t step = round_up(bytes / parts + 1, kHugePage);  // no huge page is shared by two threads
  std::atomic<uint64_t> next = 0;
  const auto serve = [&](size_t) {
    for (uint64_t at = next.fetch_add(step); at < bytes; at = next.fetch_add(step)) {
      touch(begin + at, begin + std::min(bytes, at + step));
    }
  };
  std::vector<std::thread> others;
  try {
    others = start_threads(static_cast<size_t>(parts - 1), "a thread that touches pages", serve);
  } catch (const Error&) {  // then this thread does it alone
  }
  serve(0);
  for (std::thread& other : others) other.join();
}

}  // namespace headrace
