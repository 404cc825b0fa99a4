// What kind of file a document is, by its first bytes and its name; and the programs that turn the kinds that are no
// plain text into it: pdftotext and pandoc. Pure but for convert_document(), which runs them. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/child_program.h"

namespace headrace {

// kOther: no text, and nothing that is converted. kOffice: a kind of office file that is not converted.
enum class DocumentFormat { kText, kPdf, kDocx, kOdt, kEpub, kHtml, kRtf, kOffice, kOther };

constexpr size_t kFormatHeadBytes = 8192;
// `head`: the first kFormatHeadBytes, or all that there is.
DocumentFormat document_format(const std::string& name, std::string_view head);
inline bool is_converted(DocumentFormat format) {
  return format != DocumentFormat::kText && format != DocumentFormat::kOffice && format != DocumentFormat::kOther;
}

// The text of a document of a format that is converted, in UTF-8; longer than limits.output_bytes if it has more.
// Throws Error(kBadInput) that names the file: the converter is not installed (with its Debian package), a limit is
// reached, the file is encrypted or damaged, or has no text, as a scan; Error(kInterrupted).
std::string convert_document(const std::string& name, DocumentFormat format, std::string_view content,
                             const ChildLimits& limits);
// Throws Error(kBadInput) for kOffice, with what to convert it to.
void refuse_office(const std::string& name, DocumentFormat format);

}  // namespace headrace
