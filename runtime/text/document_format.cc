#include "runtime/text/document_format.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <utility>
#include <vector>

#include "cache/base.h"
#include "runtime/base/encoding.h"
#include "runtime/base/input_file.h"

namespace headrace {
namespace {

using namespace std::string_view_literals;

struct Converter {
  DocumentFormat format;
  const char *name, *program, *package;
  std::vector<std::string> args;  // it reads standard input and writes to standard output
};

// --sandbox: the document makes pandoc read no file and no address.
std::vector<std::string> pandoc_from(const char* format) {
  return {"--sandbox", "-f", format, "-t", "plain", "--wrap=none"};
}

const Converter& converter_of(DocumentFormat format) {
  static const std::array<Converter, 6> all = {{
      {DocumentFormat::kPdf, "a PDF file", "pdftotext", "poppler-utils", {"-enc", "UTF-8", "-nopgbrk", "-", "-"}},
      {DocumentFormat::kDocx, "a DOCX file", "pandoc", "pandoc", pandoc_from("docx")},
      {DocumentFormat::kOdt, "an ODT file", "pandoc", "pandoc", pandoc_from("odt")},
      {DocumentFormat::kEpub, "an EPUB file", "pandoc", "pandoc", pandoc_from("epub")},
      {DocumentFormat::kHtml, "an HTML file", "pandoc", "pandoc", pandoc_from("html")},
      {DocumentFormat::kRtf, "an RTF file", "pandoc", "pandoc", pandoc_from("rtf")},
  }};
  const auto* const found =
      std::find_if(all.begin(), all.end(), [&](const Converter& c) { return c.format == format; });
  CHECK(found != all.end(), "format=", static_cast<int>(format));
  return *found;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return out;
}

bool is_one_of(const std::string& text, std::initializer_list<const char*> list) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

// Behind a byte order mark, white space and comments.
std::string_view first_markup(std::string_view head) {
  if (head.starts_with("\xef\xbb\xbf")) head.remove_prefix(3);
  for (;;) {
    head.remove_prefix(std::min(head.find_first_not_of(" \t\r\n"), head.size()));
    const bool comment = head.starts_with("<!--"), declaration = head.starts_with("<?xml");
    if (!comment && !declaration) return head;
    const size_t end = head.find(comment ? "-->"sv : "?>"sv);
    if (end == std::string_view::npos) return "";
    head.remove_prefix(end + (comment ? 3 : 2));
  }
}

bool begins_as_html(std::string_view head) {
  const std::string start = lower(first_markup(head).substr(0, 16));
  return start.starts_with("<!doctype html") || start.starts_with("<html>") || start.starts_with("<html ");
}

// The first entry of EPUB and ODF files is their type, stored as it is.
DocumentFormat zip_format(const std::string& suffix, std::string_view head) {
  constexpr size_t kEntryName = 30;
  const std::string_view entry = head.substr(std::min(kEntryName, head.size()));
  if (entry.starts_with("mimetypeapplication/epub+zip") || suffix == ".epub") return DocumentFormat::kEpub;
  if (entry.starts_with("mimetypeapplication/vnd.oasis.opendocument.")) {
    return entry.starts_with("mimetypeapplication/vnd.oasis.opendocument.text") ? DocumentFormat::kOdt
                                                                                : DocumentFormat::kOffice;
  }
  if (suffix == ".docx" || head.find("word/") != std::string_view::npos) return DocumentFormat::kDocx;
  if (suffix == ".odt") return DocumentFormat::kOdt;
  return is_one_of(suffix, {".xlsx", ".pptx", ".ods", ".odp"}) ? DocumentFormat::kOffice : DocumentFormat::kOther;
}

// A file without a name that a program can read from its beginning.
class MemoryFile {
 public:
  MemoryFile(const std::string& name, std::string_view content) : fd_(::memfd_create("document", MFD_CLOEXEC)) {
    bool written = fd_ >= 0;
    for (size_t done = 0; written && done < content.size();) {
      const ssize_t some = ::write(fd_, content.data() + done, content.size() - done);
      written = some > 0 || errno == EINTR;
      done += static_cast<size_t>(std::max<ssize_t>(some, 0));
    }
    written = written && ::lseek(fd_, 0, SEEK_SET) == 0;
    if (!written) {
      const int error = errno;
      if (fd_ >= 0) ::close(fd_);
      throw_error(ExitCode::kDoesNotFit, name, str("cannot be given to its converter: ", std::strerror(error)));
    }
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

std::string first_line(const std::string& text) { return printable(text.substr(0, text.find('\n'))); }

[[noreturn]] void refuse_document(const std::string& name, const std::string& what, const std::string& hint) {
  throw_error(ExitCode::kBadInput, name, what, hint);
}

void check_result(const std::string& name, const Converter& with, const ChildLimits& limits,
                  const ChildResult& result) {
  using End = ChildResult::End;
  const std::string allowed =
      str("It may take ", limits.seconds, " s and ", limits.memory_bytes / kMiB, " MiB of memory. Convert it by hand");
  const std::string is_a = str("is ", with.name);
  if (result.end == End::kInterrupted) throw_error(ExitCode::kInterrupted, name, "was not converted: interrupted");
  if (result.end == End::kTooSlow)
    refuse_document(name, str(is_a, ", and ", with.program, " takes too long for it"), allowed);
  if (result.end == End::kSignal)
    refuse_document(name, str(is_a, ", and ", with.program, " was ended by signal ", result.code), allowed);
  if (result.end == End::kTooLong || result.code == 0) return;
  if (with.format == DocumentFormat::kPdf) {
    if (result.err.find("Incorrect password") != std::string::npos)
      refuse_document(name, "is an encrypted PDF, which needs a password",
                      "Decrypt it: qpdf --decrypt --password=... IN OUT");
    if (result.code == 3)
      refuse_document(name, "is a PDF that does not permit its text to be copied", "Ask for another copy");
  }
  if (result.err.find("--sandbox") != std::string::npos)
    refuse_document(name,
                    str(is_a, ", and this pandoc is older than 2.15, which cannot be kept from reading other files"),
                    "Install a newer pandoc");
  refuse_document(
      name,
      str(is_a, ", and ", with.program, " cannot read it (exit code ", result.code, "): ", first_line(result.err)),
      allowed);
}

}  // namespace

DocumentFormat document_format(const std::string& name, std::string_view head) {
  const std::string suffix = lower(std::filesystem::path(name).extension().string());
  const bool pdf = suffix == ".pdf" && head.substr(0, 1024).find("%PDF-") != std::string_view::npos;
  if (pdf || head.starts_with("%PDF-")) return DocumentFormat::kPdf;
  if (head.starts_with("{\\rtf")) return DocumentFormat::kRtf;
  if (head.starts_with("PK\x03\x04"sv)) return zip_format(suffix, head);
  if (head.starts_with("\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"sv)) return DocumentFormat::kOffice;
  if (looks_binary(head)) return DocumentFormat::kOther;
  if (is_one_of(suffix, {".html", ".htm", ".xhtml"}) || begins_as_html(head)) return DocumentFormat::kHtml;
  return DocumentFormat::kText;
}

std::string convert_document(const std::string& name, DocumentFormat format, std::string_view content,
                             const ChildLimits& limits) {
  const Converter& with = converter_of(format);
  const std::optional<std::string> program = find_program(with.program);
  if (!program) {
    refuse_document(name,
                    str("is ", with.name, ", and ", with.program, ", which converts it to text, is not installed"),
                    str("Install the package ", with.package, ", on Debian and Ubuntu: apt install ", with.package));
  }
  const MemoryFile file(name, content);
  ChildResult result = run_child(*program, with.args, file.fd(), limits);
  check_result(name, with, limits, result);
  if (result.out.find_first_not_of(" \t\r\n\f") == std::string::npos) {
    if (format != DocumentFormat::kPdf) refuse_document(name, str("is ", with.name, " without text"), "");
    refuse_document(name, "is a PDF without text: its pages are images, as of a scan",
                    "Have its text recognized first: ocrmypdf IN OUT");
  }
  return std::move(result.out);
}

void refuse_office(const std::string& name, DocumentFormat format) {
  if (format != DocumentFormat::kOffice) return;
  refuse_document(
      name, "is an office file that cannot be converted: a spreadsheet, slides, an old format, or an encrypted file",
      "Save it as PDF, DOCX or ODT, without a password: libreoffice --headless --convert-to pdf FILE");
}

}  // namespace headrace
