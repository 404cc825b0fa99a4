// Documents that are no plain text: recognized, converted by the programs of the machine, and refused with a reason.
// Where a test is about limits or errors, the converter is a script of its own.
#include "runtime/text/document_format.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/text/document.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using namespace std::string_literals;

#define NEEDS_PROGRAM(program) \
  if (!find_program(program)) GTEST_SKIP() << program " is not installed"

std::string text_refusal(const std::string& path, const ReadOptions& options = {},
                         ExitCode code = ExitCode::kBadInput) {
  try {
    document_text(path, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "";
}

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

// A page with `content`, as PDF's operators.
std::string small_pdf(const std::string& content, const std::string& trailer = "") {
  const std::vector<std::string> objects = {
      "<</Type/Catalog/Pages 2 0 R>>", "<</Type/Pages/Kids[3 0 R]/Count 1>>",
      "<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 200]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>>>",
      "<</Length " + std::to_string(content.size()) + ">>stream\n" + content + "\nendstream",
      "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"};
  std::string file = "%PDF-1.4\n", table = "xref\n0 6\n0000000000 65535 f \n";
  for (size_t i = 0; i < objects.size(); ++i) {
    std::array<char, 24> entry{};
    std::snprintf(entry.data(), entry.size(), "%010zu 00000 n \n", file.size());
    table += entry.data();
    file += std::to_string(i + 1) + " 0 obj\n" + objects[i] + "\nendobj\n";
  }
  const std::string start = std::to_string(file.size());
  return file + table + "trailer<</Size 6/Root 1 0 R" + trailer + ">>\nstartxref\n" + start + "\n%%EOF\n";
}

const std::string kTextPdf = small_pdf("BT /F 18 Tf 20 100 Td (Water turns the wheel) Tj ET");

uint32_t crc32_of(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) {
    crc ^= static_cast<uint8_t>(c);
    for (int i = 0; i < 8; ++i) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return ~crc;
}

std::string little_endian(uint64_t value, size_t bytes) {
  std::string out;
  for (size_t i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
  return out;
}

// Its files are stored as they are.
std::string small_zip(const std::vector<std::pair<std::string, std::string>>& files) {
  std::string zip, directory;
  for (const auto& [name, content] : files) {
    const std::string common = little_endian(20, 2) + little_endian(0, 2) + little_endian(0, 2) + little_endian(0, 2) +
                               little_endian(0x5821, 2) + little_endian(crc32_of(content), 4) +
                               little_endian(content.size(), 4) + little_endian(content.size(), 4) +
                               little_endian(name.size(), 2) + little_endian(0, 2);
    directory += "PK\x01\x02" + little_endian(20, 2) + common + little_endian(0, 2) + little_endian(0, 2) +
                 little_endian(0, 2) + little_endian(0, 4) + little_endian(zip.size(), 4) + name;
    zip += "PK\x03\x04" + common + name + content;
  }
  return zip + directory + "PK\x05\x06" + little_endian(0, 4) + little_endian(files.size(), 2) +
         little_endian(files.size(), 2) + little_endian(directory.size(), 4) + little_endian(zip.size(), 4) +
         little_endian(0, 2);
}

const std::string kXml = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";

std::string small_docx() {
  const std::string office = "http://schemas.openxmlformats.org/";
  return small_zip(
      {{"[Content_Types].xml",
        kXml + "<Types xmlns=\"" + office +
            "package/2006/content-types\"><Default Extension=\"rels\" ContentType=\"application/"
            "vnd.openxmlformats-package.relationships+xml\"/><Override PartName=\"/word/document.xml\" "
            "ContentType=\"application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml\"/></"
            "Types>"},
       {"_rels/.rels", kXml + "<Relationships xmlns=\"" + office +
                           "package/2006/relationships\"><Relationship Id=\"r1\" Type=\"" + office +
                           "officeDocument/2006/relationships/officeDocument\" Target=\"word/document.xml\"/>"
                           "</Relationships>"},
       {"word/document.xml", kXml + "<w:document xmlns:w=\"" + office +
                                 "wordprocessingml/2006/main\"><w:body><w:p><w:r><w:t>Water turns the wheel</w:t></w:r>"
                                 "</w:p></w:body></w:document>"}});
}

std::string small_odt() {
  const std::string name = "urn:oasis:names:tc:opendocument:xmlns:";
  const std::string spaces = " xmlns:office=\"" + name + "office:1.0\" xmlns:text=\"" + name + "text:1.0\"";
  return small_zip({{"mimetype", "application/vnd.oasis.opendocument.text"},
                    {"content.xml", kXml + "<office:document-content" + spaces +
                                        "><office:body><office:text><text:p>Water turns the wheel</text:p>"
                                        "</office:text></office:body></office:document-content>"},
                    {"styles.xml", kXml + "<office:document-styles" + spaces +
                                       "><office:font-face-decls/><office:styles/><office:automatic-styles/"
                                       "><office:master-styles/></office:document-styles>"}});
}

std::string small_epub() {
  return small_zip(
      {{"mimetype", "application/epub+zip"},
       {"META-INF/container.xml", kXml + "<container xmlns=\"urn:oasis:names:tc:opendocument:xmlns:container\" "
                                         "version=\"1.0\"><rootfiles><rootfile full-path=\"book.opf\" "
                                         "media-type=\"application/oebps-package+xml\"/></rootfiles></container>"},
       {"book.opf", kXml + "<package xmlns=\"http://www.idpf.org/2007/opf\" version=\"3.0\"><metadata "
                           "xmlns:dc=\"http://purl.org/dc/elements/1.1/\"><dc:title>A</dc:title></metadata><manifest>"
                           "<item id=\"a\" href=\"a.xhtml\" media-type=\"application/xhtml+xml\"/></manifest><spine>"
                           "<itemref idref=\"a\"/></spine></package>"},
       {"a.xhtml", kXml + "<html xmlns=\"http://www.w3.org/1999/xhtml\"><head><title>A</title></head><body>"
                          "<p>Water turns the wheel</p></body></html>"}});
}

const std::string kPage =
    "<!-- saved -->\n<!DOCTYPE html>\n<html><head><title>T</title><style>p {color: red}</style></head><body><p "
    "class=\"x\">Water turns <b>the</b>\nwheel</p><script>let a = 1;</script></body></html>\n";
const std::string kRtfFile = "{\\rtf1\\ansi{\\fonttbl\\f0 Arial;}\\f0 Water turns the wheel\\par}\n";

// A folder of programs that stands before the rest of PATH.
struct FakeConverter {
  FakeConverter(const std::string& name, const std::string& script) {
    ::chmod(folder.write(name, "#!/bin/sh\n" + script + "\n").c_str(), 0755);
  }
  TemporaryFolder folder;
  ScopedVariable path{"PATH", folder.path() + ":/usr/bin:/bin"};
};

TEST(DocumentFormat, IsKnownByFirstBytesAndName) {
  using enum DocumentFormat;
  EXPECT_EQ(document_format("a", kTextPdf), kPdf);
  EXPECT_EQ(document_format("a.pdf", "\n" + kTextPdf), kPdf);
  EXPECT_EQ(document_format("a.txt", "A note about %PDF-1.4"), kText);
  EXPECT_EQ(document_format("a.pdf", "A text with a wrong name"), kText);
  EXPECT_EQ(document_format("a", small_docx()), kDocx);
  EXPECT_EQ(document_format("a", small_odt()), kOdt);
  EXPECT_EQ(document_format("a", small_epub()), kEpub);
  EXPECT_EQ(document_format("a", kRtfFile), kRtf);
  for (const std::string& html :
       {kPage, "<html lang=\"en\">"s, "\xef\xbb\xbf <HTML>"s, kXml + "<!DOCTYPE HTML PUBLIC>"})
    EXPECT_EQ(document_format("a", html), kHtml) << html;
  EXPECT_EQ(document_format("a.HTM", "<p>a part</p>"), kHtml);
  EXPECT_EQ(document_format("a.md", "# Title\n\nAbout <html> and <!doctype html>"), kText);
  EXPECT_EQ(document_format("a", kXml + "<feed></feed>"), kText);
  EXPECT_EQ(document_format("a.xlsx", small_zip({{"[Content_Types].xml", ""}, {"xl/workbook.xml", ""}})), kOffice);
  EXPECT_EQ(document_format("a", "\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1 and so on"), kOffice);
  EXPECT_EQ(document_format("a", small_zip({{"a.txt", "text"}})), kOther);
  EXPECT_EQ(document_format("a.png", "\x89PNG\r\n\x1a\n\0\0\0\rIHDR"s), kOther);
  EXPECT_EQ(document_format("a",
                            "\x7f"
                            "ELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0"s),
            kOther);
  EXPECT_EQ(document_format("a", "one \0 in a text is a character like others"s), kText);
  EXPECT_EQ(document_format("a", "\xff\xfeH\0i\0"s), kText);  // reading it names the encoding
  EXPECT_EQ(document_format("a", "caf\xe9"), kText);
}

TEST(DocumentText, OfAPdfIsThatOfItsPages) {
  NEEDS_PROGRAM("pdftotext");
  TemporaryFolder folder;
  EXPECT_EQ(document_text(folder.write("a.pdf", kTextPdf)).substr(0, 21), "Water turns the wheel");
  EXPECT_EQ(document_text(folder.write("-nodash", kTextPdf)).substr(0, 21), "Water turns the wheel");
  EXPECT_EQ(text_of_document("a", kTextPdf).substr(0, 21), "Water turns the wheel");
}

TEST(DocumentText, OfOfficeFilesBooksAndPagesHasNoMarkup) {
  NEEDS_PROGRAM("pandoc");
  TemporaryFolder folder;
  const std::vector<std::pair<std::string, std::string>> files = {
      {"a.docx", small_docx()}, {"a.odt", small_odt()}, {"a.epub", small_epub()}, {"a.rtf", kRtfFile}, {"page", kPage}};
  for (const auto& [name, content] : files) {
    const std::string text = document_text(folder.write(name, content));
    EXPECT_EQ(text.find_first_of("<>{}"), std::string::npos) << name << ": " << text;
    EXPECT_NE(text.find("Water turns the wheel"), std::string::npos) << name << ": " << text;
  }
}

// No file of the machine may reach a prompt through a document.
TEST(DocumentText, OfAPageHasNoOtherFile) {
  NEEDS_PROGRAM("pandoc");
  TemporaryFolder folder;
  const std::string secret = folder.write("secret.html", "<p>the secret word</p>");
  const std::string page = folder.write("a.html", "<html><p>Open</p><iframe src=\"" + secret + "\"></iframe></html>");
  std::string text;
  try {
    text = document_text(page);
  } catch (const Error& error) {
    text = error.what();
  }
  EXPECT_EQ(text.find("the secret word"), std::string::npos) << text;
}

TEST(DocumentText, RefusesAScanAndAnEncryptedFile) {
  NEEDS_PROGRAM("pdftotext");
  TemporaryFolder folder;
  EXPECT_SAYS(text_refusal(folder.write("scan.pdf", small_pdf("0 0 100 100 re f"))),
              "scan.pdf: is a PDF without text: its pages are images");
  const std::string key(64, 'a');  // no password opens it
  const std::string encrypted =
      small_pdf("BT ET", "/ID[<00><00>]/Encrypt<</Filter/Standard/V 1/R 2/P -4/O<" + key + ">/U<" + key + ">>>");
  EXPECT_SAYS(text_refusal(folder.write("locked.pdf", encrypted)), "locked.pdf: is an encrypted PDF");
  EXPECT_SAYS(text_refusal(folder.write("broken.pdf", "%PDF-1.4\nnothing")), "and pdftotext cannot read it");
}

TEST(DocumentText, NamesTheMissingConverterAndItsPackage) {
  TemporaryFolder folder, empty;
  const ScopedVariable path("PATH", empty.path());
  EXPECT_EQ(text_refusal(folder.write("a.pdf", kTextPdf)),
            folder / "a.pdf" +
                ": is a PDF file, and pdftotext, which converts it to text, is not installed\n"
                "  Install the package poppler-utils, on Debian and Ubuntu: apt install poppler-utils");
  EXPECT_SAYS(text_refusal(folder.write("a.docx", small_docx())), "is a DOCX file, and pandoc");
  EXPECT_SAYS(text_refusal(folder.write("a.html", kPage)), "apt install pandoc");
}

TEST(DocumentText, ConvertersHaveLimits) {
  TemporaryFolder folder;
  const std::string pdf = folder.write("a.pdf", kTextPdf);
  {
    const FakeConverter slow("pdftotext", "sleep 30 & wait");
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_SAYS(text_refusal(pdf, {.convert_seconds = 0.2}), "and pdftotext takes too long for it");
    std::atomic<bool> interrupt{false};
    std::thread later([&interrupt] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      interrupt = true;
    });
    EXPECT_SAYS(text_refusal(pdf, {.interrupt = &interrupt}, ExitCode::kInterrupted), "interrupted");
    later.join();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  }
  {
    const FakeConverter endless("pdftotext", "exec yes 'Water turns the wheel'");
    EXPECT_SAYS(text_refusal(pdf, {.limit = limit_of_context(1000, 100)}),
                "no text of more than 100000 fits a context of 1000 tokens");
  }
  {
    const int open = ::dup2(STDIN_FILENO, 77);
    const FakeConverter looks("pdftotext", "[ -e /proc/self/fd/77 ] && echo open || echo closed");
    EXPECT_EQ(document_text(pdf), "closed\n");
    ::close(open);
  }
  {
    const FakeConverter limits("pdftotext", "ulimit -v; cat | wc -c; set | grep -c HEADRACE_ || true");
    const ScopedVariable ours("HEADRACE_MODEL", "secret");
    EXPECT_EQ(document_text(pdf, {.convert_memory_bytes = 512 * kMiB}),
              "524288\n" + std::to_string(kTextPdf.size()) + "\n0\n");
  }
  {
    const FakeConverter large("pdftotext",
                              "dd if=/dev/zero of=/dev/null bs=900M count=1 2>&1 >/dev/null | head -1 >&2; exit 1");
    EXPECT_SAYS(text_refusal(pdf, {.convert_memory_bytes = 512 * kMiB}), "memory");
    const FakeConverter crash("pdftotext", "kill -SEGV $$");
    EXPECT_SAYS(text_refusal(pdf), "was ended by signal 11");
    const FakeConverter denies("pdftotext", "exit 3");
    EXPECT_SAYS(text_refusal(pdf), "does not permit its text to be copied");
    const FakeConverter quiet("pdftotext", "exec >&- 2>&-; sleep 0.3; exit 7");
    EXPECT_SAYS(text_refusal(pdf), "exit code 7");
  }
  const FakeConverter no_program("pdftotext", "\xff");
  ::chmod((no_program.folder.write("pdftotext", "#!/none/such")).c_str(), 0755);
  EXPECT_SAYS(text_refusal(pdf), "cannot be executed: No such file");
}

TEST(DocumentText, OfPlainTextIsWhatReadDocumentGives) {
  TemporaryFolder folder;
  const ScopedVariable path("PATH", folder.path());
  EXPECT_EQ(document_text(folder.write("a.txt",
                                       "\xef\xbb\xbf"
                                       "A text.\n")),
            "A text.\n");
  const DocumentLimit limit = limit_of_context(1000, 100);
  EXPECT_SAYS(text_refusal(folder.write("long.txt", std::string(100'001, 'x')), {.limit = limit}), "100001 bytes");
  EXPECT_SAYS(text_refusal(folder / "gone"), "cannot be opened");
  EXPECT_SAYS(text_refusal(folder.write("a.xls", "\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1...")),
              "is an office file that cannot be converted");
  EXPECT_SAYS(text_refusal(folder.write("a.zip", small_zip({{"a", "b"}}))), "it looks like zip");
}

TEST(DocumentText, ATextThatEndsWithinACharacterWasCut) {
  TemporaryFolder folder;
  const std::string error = text_refusal(folder.write("cut.txt", "caf\xc3\xa9 \xe2\x82"));
  EXPECT_SAYS(error, "cut.txt: ends within a character, at offset 6: the text was cut");
  EXPECT_SAYS(error, "head -c 6");
  EXPECT_SAYS(text_refusal(folder.write("cut.txt", "caf\xc3\xa9 \xc3")), "ends within a character, at offset 6");
  // A text in Latin-1 that ends with é.
  EXPECT_SAYS(text_refusal(folder.write("latin.txt", "caf\xe9")), "is not UTF-8 text: byte 0xe9 at offset 3");
  EXPECT_SAYS(text_refusal(folder.write("bad.txt", "caf\xe9 and more")), "is not UTF-8 text: byte 0xe9 at offset 3");
}

TEST(ExpandDocuments, SkipsFilesOfOtherKindsInFolders) {
  TemporaryFolder folder;
  const std::string pdf = folder.write("docs/a.pdf", kTextPdf), text = folder.write("docs/b", "text"),
                    latin = folder.write("docs/c.txt", "caf\xe9");
  const std::string png = "\x89PNG\r\n\x1a\n\0\0\0\rIHDR"s;
  folder.write("docs/d.png", png);
  folder.write("docs/e/f.png", png);
  folder.write("docs/g", small_zip({{"a", "b"}}));
  std::vector<std::string> skipped;
  EXPECT_EQ(expand_documents({folder / "docs"}, {}, &skipped), (std::vector<std::string>{pdf, text, latin}));
  EXPECT_EQ(skipped_note(skipped), "skipped 3 files that are not documents: 2 .png, 1 without a suffix");
  EXPECT_EQ(skipped_note({}), "");
  skipped.clear();
  // A file that is named is read, and its error reported.
  EXPECT_EQ(expand_documents({folder / "docs/d.png"}, {}, &skipped).size(), 1u);
  EXPECT_TRUE(skipped.empty());
  try {
    expand_documents({folder / "docs/e"}, {}, &skipped);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_SAYS(std::string(error.what()), "has no document: skipped 1 file that is not a document: 1 .png");
  }
}

}  // namespace
}  // namespace headrace
