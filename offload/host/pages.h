// Whole pages of host memory from the system: zeroed, aligned to a huge page if large enough, and removed from the
// resident set when freed. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace headrace {

// `bytes`: a multiple of kPageBytes, not 0. Returns null and sets errno on failure. Pages become resident when touched.
void* map_pages(uint64_t bytes) noexcept;
void unmap_pages(void* data, uint64_t bytes) noexcept;

// Makes all pages resident now, on several threads: the system zeroes them, at a few GiB per second and thread.
void touch_pages(void* data, uint64_t bytes, int threads);

// Owns pages, which belong to no budget: for measurements.
class MappedPages {
 public:
  // Whole pages of at least `bytes`. Throws Error(kDoesNotFit) that names their purpose: "to measure the link".
  MappedPages(uint64_t bytes, const std::string& what);
  ~MappedPages() { unmap_pages(data_, bytes_); }
  MappedPages(const MappedPages&) = delete;
  MappedPages& operator=(const MappedPages&) = delete;
  std::byte* data() const { return data_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  uint64_t bytes() const { return bytes_; }

 private:
  const uint64_t bytes_;
  std::byte* const data_;
};

}  // namespace headrace
