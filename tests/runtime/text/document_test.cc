#include "runtime/text/document.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cache/base.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

// The message of the Error that `work` throws, with its code; empty if it throws none.
template <typename Work>
std::string error_of(Work work, ExitCode code = ExitCode::kBadInput) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "";
}

TEST(ExpandDocuments, FoldersBecomeTheirFilesInOrder) {
  TemporaryFolder folder;
  const std::string b = folder.write("docs/b.txt", "b"), a = folder.write("docs/a", "a"),
                    deep = folder.write("docs/part/c.md", "c"), alone = folder.write("alone.txt", "x");
  folder.write("docs/.hidden", "no");
  folder.write("docs/.git/config", "no");
  EXPECT_EQ(expand_documents({alone, folder / "docs", "-", alone}),
            (std::vector<std::string>{alone, a, b, deep, "-", alone}));
}

// Links are followed, but not to where they stand in: each file once, however the links lie.
TEST(ExpandDocuments, LinksThatLeadBackAreLeftOut) {
  namespace fs = std::filesystem;
  TemporaryFolder folder;
  const std::string root = folder / "docs", one = folder.write("docs/one.txt", "1"),
                    two = folder.write("docs/part/two.txt", "2");
  folder.write("else/three.txt", "3");
  fs::create_directory_symlink("..", root + "/above");              // the root's parent, which holds the root
  fs::create_directory_symlink("..", root + "/part/up");            // the root
  fs::create_directory_symlink(".", root + "/part/here");           // itself
  fs::create_directory_symlink("/", root + "/part/all");            // of which all is a part
  fs::create_directory_symlink(root + "/turn", root + "/turn");     // nowhere
  fs::create_symlink(root + "/gone.txt", root + "/part/gone.txt");  // to nothing
  fs::create_directory_symlink(folder / "else", root + "/other");
  fs::create_directory_symlink(root + "/part", folder / "else/back");  // there and back again
  EXPECT_EQ(expand_documents({root}),
            (std::vector<std::string>{one, root + "/other/back/two.txt", root + "/other/three.txt", two}));
}

// `summarize docs > docs/out.txt 2> docs/log`: both files exist before the program starts.
TEST(ExpandDocuments, LeavesOutTheFilesOfStdoutAndStderr) {
  TemporaryFolder folder;
  const std::string a = folder.write("docs/a.txt", "a"), root = folder / "docs";
  std::vector<std::string> found;
  std::string alone;
  {
    std::vector<std::pair<int, int>> saved;
    for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
      const std::string path = folder.write(fd == STDOUT_FILENO ? "docs/out.txt" : "docs/log", "");
      const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
      saved.emplace_back(fd, ::dup(fd));
      ::dup2(file, fd);
      ::close(file);
    }
    found = expand_documents({root, root + "/out.txt"});
    alone = error_of([&] { expand_documents({root + "/log"}); }, ExitCode::kUsage);
    for (const auto& [fd, before] : saved) {
      ::dup2(before, fd);
      ::close(before);
    }
  }
  EXPECT_EQ(found, (std::vector<std::string>{a}));
  EXPECT_NE(alone.find("/log: is a file that this run writes to"), std::string::npos) << alone;
}

// Whatever their names: by device and inode.
TEST(ExpandDocuments, LeavesOutWhatTheRunWrites) {
  namespace fs = std::filesystem;
  TemporaryFolder folder;
  const std::string a = folder.write("docs/a.txt", "a"), out = folder.write("docs/out.jsonl", ""),
                    root = folder / "docs";
  fs::create_symlink("out.jsonl", root + "/link");
  fs::create_hard_link(out, root + "/hard");
  folder.write("docs/cache/x.kv", "rows");
  const std::vector<std::string> outputs = {"", root + "/./out.jsonl", root + "/cache", folder / "not yet.json"};
  EXPECT_EQ(expand_documents({root, out, root + "/../not yet.json"}, outputs), (std::vector<std::string>{a}));
  EXPECT_NE(
      error_of([&] { expand_documents({out}, outputs); }, ExitCode::kUsage).find(out + ": is a file that this run"),
      std::string::npos);
  EXPECT_NE(error_of([&] { expand_documents({""}); }, ExitCode::kUsage).find("empty name"), std::string::npos);
}

// A batch goes on without them, and reading them says what is wrong.
TEST(ExpandDocuments, KeepsWhatCannotBeRead) {
  TemporaryFolder folder;
  const std::string gone = folder / "gone.txt", empty = folder / "empty";
  std::filesystem::create_directory(empty);
  EXPECT_EQ(expand_documents({gone, empty}), (std::vector<std::string>{gone, empty}));
  EXPECT_EQ(error_of([&] { read_document(gone); }), gone + ": cannot be opened: No such file or directory");
  EXPECT_NE(error_of([&] { read_document(empty); }).find(empty + ": is a folder"), std::string::npos);
}

TEST(ExpandDocuments, StandardInputIsReadOnce) {
  EXPECT_NE(error_of([] { expand_documents({"-", "a", "-"}); }, ExitCode::kUsage).find("once"), std::string::npos);
}

TEST(ReadDocument, GivesTheWholeText) {
  TemporaryFolder folder;
  std::string text = "first\n\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 \xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf\n";
  while (text.size() < 200000) text += "a line of text\n";
  EXPECT_EQ(read_document(folder.write("a.txt", text)), text);
  EXPECT_EQ(read_document(folder.write("bom.txt", "\xef\xbb\xbf" + text)), text);
}

TEST(ReadDocument, RefusesWithFileAndValue) {
  TemporaryFolder folder;
  EXPECT_EQ(error_of([&] { read_document(folder.path()); }),
            folder.path() + ": is a folder, not a file (a folder of documents needs a file in it)");
  const std::string gone = error_of([&] { read_document(folder / "gone"); });
  EXPECT_EQ(gone, folder / "gone" + ": cannot be opened: No such file or directory");
  for (const std::string& empty :
       {std::string(), std::string(" \n\t\r\n"), std::string("\xef\xbb\xbf"), std::string("\xc2\xa0\n"),
        std::string("\xe3\x80\x80\xe3\x80\x80"), std::string("\xef\xbb\xbf\xe2\x80\xa8 \xc2\x85")}) {
    const std::string path = folder.write("empty", empty);
    EXPECT_EQ(error_of([&] { read_document(path); }), path + ": is empty");
  }
}

TEST(ReadDocument, NamesTheFirstByteThatIsNotUtf8) {
  TemporaryFolder folder;
  // {bytes after "ok ", what the message must hold}
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\xff", "byte 0xff at offset 3"},              // never a first byte
      {"\x80", "byte 0x80 at offset 3"},              // a continuation alone
      {"\xc0\xaf", "byte 0xc0 at offset 3"},          // longer than needed
      {"\xe0\x80\xaf", "byte 0xe0 at offset 3"},      // the same in three bytes
      {"\xf0\x8f\xbf\xbf", "byte 0xf0 at offset 3"},  // the same in four
      {"\xed\xa0\x80", "byte 0xed at offset 3"},      // a surrogate
      {"\xf4\x90\x80\x80", "byte 0xf4 at offset 3"},  // beyond U+10FFFF
      {"\xf5\x80\x80\x80", "byte 0xf5 at offset 3"},
      {"\xe2\x82x", "byte 0xe2 at offset 3"},  // cut short by a letter
  };
  for (const auto& [bytes, message] : cases) {
    const std::string path = folder.write("bad.txt", "ok " + bytes);
    const std::string error = error_of([&] { read_document(path); });
    EXPECT_NE(error.find(path + ": is not UTF-8 text: " + message), std::string::npos) << error;
  }
}

TEST(ReadDocument, SaysWhatOtherKindsOfFilesAre) {
  using namespace std::string_literals;
  TemporaryFolder folder;
  // {content, what the message must hold}
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\xff\xfeH\0i\0"s, "it looks like UTF-16\n  Convert it: iconv -f UTF-16 -t UTF-8"},
      {"\xfe\xff\0H\0i"s, "it looks like UTF-16\n"},
      {"H\0i\0 \0y\0o\0u\0"s, "iconv -f UTF-16LE -t UTF-8"},
      {"\0H\0i\0 \0y\0o\0u"s, "iconv -f UTF-16BE -t UTF-8"},
      {"\xff\xfe\0\0H\0\0\0"s, "iconv -f UTF-32 -t UTF-8"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "is a git-LFS pointer"},
  };
  for (const auto& [content, message] : cases) {
    const std::string path = folder.write("other.txt", content);
    const std::string error = error_of([&] { read_document(path); });
    EXPECT_TRUE(error.starts_with(path + ": is ")) << error;
    EXPECT_NE(error.find(message), std::string::npos) << error;
  }
  const std::string zero = folder.write("zero.txt", "a zero \0 in a text is a character like others"s);
  EXPECT_EQ(read_document(zero).size(), 45u);
  std::filesystem::create_symlink("nowhere.txt", folder / "link.txt");
  EXPECT_EQ(error_of([&] { read_document(folder / "link.txt"); }),
            folder / "link.txt: is a link to nowhere.txt, which does not exist");
}

TEST(ReadDocument, ReadsNoMoreThanItsLimit) {
  TemporaryFolder folder;
  const std::string path = folder.write("long.txt", std::string(100'001, 'x'));
  const DocumentLimit limit = limit_of_context(1000, 100);
  EXPECT_EQ(limit.bytes, 100'000u);
  EXPECT_EQ(error_of([&] { read_document(path, {.limit = limit}); }),
            path + ": has 100001 bytes or more: no text of more than 100000 fits a context of 1000 tokens\n  " +
                kShortenHint);
  EXPECT_EQ(read_document(path, {.limit = limit_of_context(1001, 100)}).size(), 100'001u);
  EXPECT_EQ(limit_of_context(10, 4).bytes, 64 * kKiB);
  for (const int64_t tokens : {int64_t{1} << 30, int64_t{1} << 62}) {
    EXPECT_EQ(limit_of_context(tokens, 100).bytes, kMaxDocumentBytes);
    EXPECT_EQ(limit_of_context(tokens, 100).context_tokens, 0);
  }
}

// With a writer that says nothing, and one that comes late.
TEST(ReadDocument, WaitsForAPipeUntilItIsInterrupted) {
  TemporaryFolder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const bool open : {false, true}) {
    const int writer = open ? ::open(pipe.c_str(), O_RDWR) : -1;
    std::atomic<bool> interrupt{false};
    std::thread later([&interrupt] {
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
      interrupt = true;
    });
    EXPECT_NE(error_of([&] { read_document(pipe, {.limit = {}, .interrupt = &interrupt}); }, ExitCode::kInterrupted)
                  .find(pipe + ": was not read to its end"),
              std::string::npos);
    later.join();
    if (open) ::close(writer);
  }
  std::thread writer([&pipe] {
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    std::ofstream(pipe) << std::string(200'000, 'x');
  });
  EXPECT_EQ(read_document(pipe).size(), 200'000u);
  writer.join();
}

// One token a byte, and three for the template around it.
std::vector<int32_t> encode_bytes(std::string_view text) {
  std::vector<int32_t> ids(3, 0);
  for (char c : text) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

std::string text_of(const std::vector<int32_t>& ids) { return {ids.begin() + 3, ids.end()}; }

TEST(DocumentPrompt, PutsTheInstructionAfterTheText) {
  const PromptRules rules{.instruction = " Q?", .context_tokens = 12, .answer_tokens = 1};
  const DocumentPrompt prompt = document_prompt("f", "hello", rules, encode_bytes);
  EXPECT_EQ(text_of(prompt.ids), "hello Q?");  // 11 of 12: one is free
  EXPECT_EQ(prompt.whole_tokens, 11);
  EXPECT_EQ(prompt.left_out_tokens(), 0);
}

// An answer of fewer tokens than were asked for would pass for a whole one.
TEST(DocumentPrompt, LeavesTheAnswerItsRoom) {
  const auto told = [](int64_t context, int64_t answer) {
    const PromptRules rules{.instruction = " Q?", .context_tokens = context, .answer_tokens = answer};
    return error_of([&] { document_prompt("f.txt", "hello", rules, encode_bytes); });
  };
  EXPECT_EQ(told(16, 5), "");
  EXPECT_NE(told(15, 5).find("f.txt: is 11 tokens long, 1 too many: the context of 15 leaves 4 of 5 tokens for the "
                             "answer (-n, and a quarter of the context at most)"),
            std::string::npos)
      << told(15, 5);
  EXPECT_NE(told(10, 5).find("f.txt: is 11 tokens long, 6 too many: the context holds 10, 5 of them for the "
                             "answer (-n, and a quarter of the context at most)"),
            std::string::npos)
      << told(10, 5);
}

TEST(DocumentPrompt, SaysHowLongAndOffersTruncation) {
  const PromptRules rules{.instruction = " Q?", .context_tokens = 11, .answer_tokens = 1};
  const std::string error = error_of([&] { document_prompt("f.txt", "hello", rules, encode_bytes); });
  EXPECT_NE(error.find("f.txt: is 11 tokens long, 1 too many: the context holds 11"), std::string::npos) << error;
  EXPECT_NE(error.find("--truncate middle"), std::string::npos) << error;
}

TEST(DocumentPrompt, LosesTheMiddleAtCharacters) {
  std::string text = "BEGIN";
  for (int i = 0; i < 400; ++i) text += "\xe2\x82\xac";
  text += "END";
  for (int64_t context = 60; context < 70; ++context) {
    const PromptRules rules{
        .instruction = " Q?", .truncate = Truncate::kMiddle, .context_tokens = context, .answer_tokens = 10};
    const DocumentPrompt cut = document_prompt("f", text, rules, encode_bytes);
    EXPECT_EQ(cut.whole_tokens, 3 + static_cast<int64_t>(text.size()) + 3);
    EXPECT_EQ(cut.left_out_tokens(), cut.whole_tokens - static_cast<int64_t>(cut.ids.size()));
    const std::string prompt = text_of(cut.ids);
    EXPECT_LE(static_cast<int64_t>(prompt.size()) + 3, context - 10);
    EXPECT_GE(static_cast<int64_t>(prompt.size()) + 3, context - 10 - 16);  // and it wastes little
    EXPECT_TRUE(prompt.starts_with("BEGIN\xe2\x82\xac")) << prompt;
    EXPECT_NE(prompt.find("\xac\n\n[...]\n\n\xe2"), std::string::npos) << prompt;
    EXPECT_TRUE(prompt.ends_with("END Q?")) << prompt;
    TemporaryFolder folder;
    EXPECT_EQ(read_document(folder.write("prompt", prompt)), prompt);  // still UTF-8
  }
}

TEST(DocumentPrompt, TruncatesTextOfUnevenDensity) {
  // Letters in the middle are free, so that the first guess is far too long.
  const EncodePrompt encode = [](std::string_view text) {
    std::vector<int32_t> ids;
    for (char c : text) {
      if (c != 'x') ids.push_back(c);
    }
    return ids;
  };
  const std::string text = std::string(2000, 'a') + std::string(100000, 'x') + std::string(2000, 'b');
  const PromptRules rules{
      .instruction = "", .truncate = Truncate::kMiddle, .context_tokens = 300, .answer_tokens = 100};
  EXPECT_LE(document_prompt("f", text, rules, encode).ids.size(), 200u);
}

TEST(DocumentPrompt, AContextTooSmallForTheInstructionIsAnError) {
  const PromptRules rules{
      .instruction = std::string(50, '?'), .truncate = Truncate::kMiddle, .context_tokens = 60, .answer_tokens = 20};
  const std::string error = error_of([&] { document_prompt("f.txt", "hello hello", rules, encode_bytes); });
  EXPECT_NE(error.find("f.txt: cannot be truncated to fit: the context holds 60 tokens"), std::string::npos) << error;
}

}  // namespace
}  // namespace headrace
