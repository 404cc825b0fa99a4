// SHA-256 by libcrypto, which identifies content. One thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;  // libcrypto's

namespace headrace {

using Digest = std::array<uint8_t, 32>;
std::string digest_text(const Digest& digest);  // 64 lower-case digits

class Sha256 {
 public:
  Sha256();
  void update(std::string_view bytes);
  Digest finish();  // once, last

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

std::string sha256_hex(std::string_view bytes);  // digest_text() of the bytes' digest

}  // namespace headrace
