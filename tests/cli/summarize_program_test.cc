// Documents, one or many: what is said of each, what does not fit, and what a batch skips.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tests/cli/program_fixture.h"

namespace headrace {
namespace {

using nlohmann::json;

TEST_F(ProgramTest, SummarizeGoesOnAfterADocumentThatFails) {
  const std::string a = folder_->write("docs/a.txt", "First document."), b = folder_->write("docs/b.txt", "bad \xff"),
                    c = folder_->write("docs/c.txt", "Third document.");
  const Finished text = run("summarize", {*folder_ / "docs", "-q"});
  EXPECT_EQ(text.exit_code, 3);
  EXPECT_TRUE(text.out.starts_with("==> " + a + " <==\n")) << text.out;
  EXPECT_NE(text.out.find("\n==> " + c + " <==\n"), std::string::npos) << text.out;
  EXPECT_NE(text.err.find("error: " + b + ": is not UTF-8"), std::string::npos) << text.err;

  const Finished finished = run("summarize", {*folder_ / "docs", "--json", "-q"});
  EXPECT_EQ(finished.exit_code, 3);
  const std::vector<json> lines = json_lines(finished.out);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["file"], a);
  EXPECT_EQ(lines[0]["token_ids"].size(), 12u);
  EXPECT_NE(lines[1]["error"].get<std::string>().find("not UTF-8"), std::string::npos);
  EXPECT_EQ(lines[2]["file"], c);
}

// The converter is a script: what the model gets is the text that it prints.
TEST_F(ProgramTest, SummarizesTheTextOfConvertedDocumentsAndSkipsOtherFiles) {
  const std::string page = folder_->write("mixed/page.html", "<html><p>First document.</p></html>");
  const std::string text = folder_->write("mixed/text.txt", "First document.");
  folder_->write("mixed/a.png", std::string("\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 16));
  folder_->write("mixed/b.png", std::string("\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 16));
  const std::string pandoc = folder_->write("bin/pandoc", "#!/bin/sh\nprintf 'First document.'\n");
  std::filesystem::permissions(pandoc, std::filesystem::perms::owner_all);
  const RunOptions found{.input = "", .environment = {{"PATH", *folder_ / "bin"}}},
      missing{.input = "", .environment = {{"PATH", "/none"}}};

  const Finished all = run("summarize", {*folder_ / "mixed", "--json"}, found);
  EXPECT_EQ(all.exit_code, 0) << all.err;
  const std::vector<json> lines = json_lines(all.out);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["token_ids"], lines[1]["token_ids"]);
  EXPECT_EQ(lines[0]["prompt_tokens"], lines[1]["prompt_tokens"]);
  EXPECT_NE(all.err.find("skipped 2 files that are not documents: 2 .png\n"), std::string::npos) << all.err;
  EXPECT_EQ(run("generate", {"-f", page, "-q"}, found).out, run("generate", {"-f", text, "-q"}).out);
  EXPECT_EQ(run("chat", {page, "-q"}, {.input = "What?\n", .environment = found.environment}).out,
            run("chat", {text, "-q"}, {.input = "What?\n"}).out);
  const Finished none = run("summarize", {page, "-q"}, missing);
  EXPECT_EQ(none.exit_code, 3);
  EXPECT_NE(none.err.find("is an HTML file, and pandoc, which converts it to text, is not installed"),
            std::string::npos);
}

TEST_F(ProgramTest, OneDocumentIsItsSummaryAlone) {
  const std::string a = folder_->write("one.txt", "First document.");
  const Finished finished = run("summarize", {a, "-q"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_EQ(finished.out.find("==>"), std::string::npos);
  // The instruction follows the text behind an empty line.
  const Finished generated =
      run("generate", {"-p", "First document.\n\nWrite a short summary of the text above.", "-q"});
  EXPECT_EQ(finished.out, generated.out);
  EXPECT_NE(run("summarize", {a, "-q", "--instruction", "Translate."}).out, finished.out);
  EXPECT_EQ(run("summarize", {a, "-q", "--vram", "64KiB"}).exit_code, 4);
}

TEST_F(ProgramTest, TruncateMiddleMakesItFit) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i) + "\n";
  const std::string file = folder_->write("long.txt", text);
  const Finished refused = run("summarize", {file, "-c", "500"});
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_NE(refused.err.find(" too many: the context holds 500, 12 of them for the answer"), std::string::npos)
      << refused.err;
  const Finished finished = run("summarize", {file, "-c", "500", "--truncate", "middle", "--json"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  const json line = json::parse(finished.out);
  EXPECT_LE(line["prompt_tokens"], 488);
  EXPECT_GT(line["prompt_tokens"], 450);
  EXPECT_EQ(line["token_ids"].size(), 12u);
  const int64_t whole = line["truncated"]["whole_tokens"], left_out = line["truncated"]["left_out_tokens"];
  EXPECT_EQ(whole, line["prompt_tokens"].get<int64_t>() + left_out);
  EXPECT_GT(left_out, 3000);
  EXPECT_NE(finished.err.find("\n  truncated "), std::string::npos) << finished.err;
  const Finished batch =
      run("summarize", {file, "-c", "500", "--truncate", "middle", "-o", *folder_ / "truncated.jsonl"});
  EXPECT_NE(batch.err.find(" left out of the middle), 12 out"), std::string::npos) << batch.err;
  EXPECT_EQ(json::parse(folder_->read("truncated.jsonl"))["truncated"], line["truncated"]);
}

TEST_F(ProgramTest, SummariesHaveTheFormThatIsAskedFor) {
  const std::string a = folder_->write("forms/a.txt", "First document."),
                    b = folder_->write("forms/sub/a.txt", "Second document.");
  const std::string first = run("summarize", {a, "-q"}).out;
  const Finished md = run("summarize", {a, b, "--summary-format", "md", "-q"});
  EXPECT_TRUE(md.out.starts_with("# " + a + "\n\n" + first)) << md.out;
  EXPECT_NE(md.out.find("\n# " + b + "\n\n"), std::string::npos) << md.out;
  const Finished csv = run("summarize", {a, "--summary-format", "csv", "-q"});
  EXPECT_TRUE(csv.out.starts_with("file,prompt_tokens,tokens,seconds,finish_reason,summary\n\"" + a + "\","))
      << csv.out;
  EXPECT_NE(csv.out.find(",12,"), std::string::npos) << csv.out;
  EXPECT_NE(csv.out.find(",length,\""), std::string::npos) << csv.out;
  EXPECT_EQ(json_lines(run("summarize", {a, b, "--summary-format", "jsonl", "-q"}).out)[1]["file"], b);

  const std::string out = *folder_ / "summaries/new";
  const Finished files = run("summarize", {*folder_ / "forms", "--out-dir", out});
  EXPECT_EQ(files.exit_code, 0) << files.err;
  EXPECT_EQ(files.out, "");
  EXPECT_EQ(folder_->read("summaries/new/a.txt.md"), "# " + a + "\n\n" + first + "\n");
  EXPECT_TRUE(folder_->read("summaries/new/a.txt-2.md").starts_with("# " + b + "\n"));
  EXPECT_EQ(run("summarize", {a, "--out-dir", out, "--summary-format", "text"}).exit_code, 0);
  EXPECT_EQ(folder_->read("summaries/new/a.txt.txt"), first);
  EXPECT_EQ(run("summarize", {a, "--out-dir", out, "-o", *folder_ / "x.jsonl"}).exit_code, 2);
  EXPECT_EQ(run("summarize", {a, "--summary-format", "md", "--json"}).exit_code, 2);
  EXPECT_EQ(run("summarize", {a, "--out-dir", b}).exit_code, 5);
}

// At the end of several: what each took, and how its summary begins.
TEST_F(ProgramTest, SeveralSummariesEndInATable) {
  const std::string a = folder_->write("table/a.txt", "First document."), b = folder_->write("table/b.txt", "bad \xff");
  const Finished both = run("summarize", {a, b, "-o", *folder_ / "table.jsonl"});
  const size_t heading = both.err.find("  tokens      time  first line\n");
  ASSERT_NE(heading, std::string::npos) << both.err;
  EXPECT_NE(both.err.find("a.txt", heading), std::string::npos) << both.err;
  EXPECT_NE(both.err.find("b.txt", heading), std::string::npos) << both.err;
  EXPECT_NE(both.err.find("error: ", heading), std::string::npos) << both.err;
  EXPECT_LT(heading, both.err.find("1 summarized, 0 done before, 1 failed")) << both.err;
  EXPECT_EQ(run("summarize", {a, "-o", *folder_ / "one.jsonl"}).err.find("first line"), std::string::npos);
  EXPECT_EQ(run("summarize", {a, b, "-q"}).err.find("first line"), std::string::npos);
}

TEST_F(ProgramTest, ShardsOfDocumentsAreAllOfThem) {
  std::set<std::string> names;
  for (int i = 0; i < 7; ++i) {
    names.insert(folder_->write("shards/" + std::to_string(i) + ".txt", "Document " + std::to_string(i) + "."));
  }
  std::set<std::string> done;
  size_t lines = 0;
  for (const std::string shard : {"0/3", "1/3", "2/3"}) {
    const std::string out = *folder_ / "shards.jsonl";
    const Finished finished = run("summarize", {*folder_ / "shards", "-o", out, "--shard", shard});
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    if (finished.err.find("this shard has no documents") != std::string::npos) continue;
    for (const json& line : json_lines(folder_->read("shards.jsonl.part-" + shard.substr(0, 1) + "-of-3"))) {
      done.insert(line["file"].get<std::string>());
      ++lines;
    }
  }
  EXPECT_EQ(done, names);
  EXPECT_EQ(lines, names.size());
  EXPECT_EQ(run("summarize", {*folder_ / "shards", "--shard", "3/3"}).exit_code, 2);
}

// Only --ignore-eos asks for a cut.
TEST_F(ProgramTest, SaysThatAnAnswerIsCut) {
  const std::vector<std::string> args = {"generate", "-m", model_, "-p", "Hello", "-t", "1", "-n", "3", "-q"};
  const Finished cut = run_program(args);
  EXPECT_EQ(cut.err, "note: the answer was cut after 3 tokens: -n allows more (-n -1: as many as fit)\n");
  std::vector<std::string> more = args;
  more.push_back("--ignore-eos");
  EXPECT_EQ(run_program(more).err, "");
  const std::string a = folder_->write("cut/a.txt", "First."), b = folder_->write("cut/b.txt", "Second.");
  const Finished two = run_program({"summarize", a, b, "-m", model_, "-t", "1", "-n", "3", "-q"});
  EXPECT_NE(two.err.find("note: " + b + ": the answer was cut after 3 tokens"), std::string::npos) << two.err;
  const Finished full = run_program({"generate", "-m", model_, "-p", "Hello", "-t", "1", "-c", "60", "-q"});
  EXPECT_NE(full.err.find(" tokens: the context is full (-c)\n"), std::string::npos) << full.err;
}

TEST_F(ProgramTest, LongSplitSummarizesPartsThenTheirSummaries) {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "Paragraph " + std::to_string(i) + " has some words.\n\n";
  const std::string file = folder_->write("split.txt", text);
  const Finished refused = run("summarize", {file, "-c", "500"});
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_LT(refused.err.find("--long split"), refused.err.find("--truncate middle")) << refused.err;
  const Finished finished = run("summarize", {file, "-c", "500", "--long", "split", "--json"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  const json line = json::parse(finished.out);
  ASSERT_GT(line["parts"].size(), 3u);
  for (const json& part : line["parts"]) {
    EXPECT_LE(part["prompt_tokens"], 488);
    if (part["level"] != 1) continue;
    EXPECT_TRUE(text.substr(part["first_byte"], part["bytes"]).starts_with("Paragraph "));
  }
  EXPECT_NE(finished.err.find("part 2 of "), std::string::npos) << finished.err;
  const size_t parts = finished.err.find(" answered before: the text was longer than the context; ");
  ASSERT_NE(parts, std::string::npos) << finished.err;
  EXPECT_NE(finished.err.find(" in all; " + std::to_string(line["parts"].size()) + " cut by -n\n", parts),
            std::string::npos)
      << finished.err;
  // What fits has no parts, and the text of a run without.
  const std::string small = folder_->write("small.txt", "First document.");
  EXPECT_EQ(run("summarize", {small, "-q", "--long", "split"}).out, run("summarize", {small, "-q"}).out);
  EXPECT_EQ(run("summarize", {small, "-q", "--long", "split", "--truncate", "middle"}).exit_code, 2);
}

// What would be cut with --truncate middle is refused without: a summary of two tokens is none, and a batch would keep
// it. A text that may be as long as there is room for takes what there is.
TEST_F(ProgramTest, ADocumentLeavesItsSummaryRoom) {
  const std::string file = folder_->write("close.txt", std::string(400, 'x')), out = *folder_ / "close.jsonl";
  const int64_t whole = json::parse(run("summarize", {file, "--json", "-q"}).out)["prompt_tokens"];
  const auto summarize = [&](int64_t context, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {file, "-c", std::to_string(context), "-o", out});
    return run("summarize", more);
  };
  const Finished refused = summarize(whole + 2);
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_NE(refused.err.find(file + ": is " + std::to_string(whole) + " tokens long, 10 too many: the context of " +
                             std::to_string(whole + 2) + " leaves 2 of 12 tokens for the answer"),
            std::string::npos)
      << refused.err;
  EXPECT_TRUE(json::parse(folder_->read("close.jsonl")).contains("error"));
  EXPECT_EQ(summarize(whole + 12).exit_code, 0);
  EXPECT_EQ(summarize(whole + 2, {"-n", "2"}).exit_code, 0);
  const Finished rest = run("summarize", {file, "-c", std::to_string(whole + 2), "-n", "-1"});
  EXPECT_EQ(rest.exit_code, 0);
  EXPECT_NE(rest.err.find("output    2 tokens, "), std::string::npos) << rest.err;
  EXPECT_NE(rest.err.find("(length: the context is full)"), std::string::npos) << rest.err;
  // With the default of -n, less is enough.
  const std::string long_file = folder_->write("long.txt", std::string(3000, 'x'));
  const int64_t longer = json::parse(run("summarize", {long_file, "--json", "-q"}).out)["prompt_tokens"];
  ASSERT_GT(longer, 800);
  const auto leaving = [&](int64_t room, const char* most) {
    return run("summarize", {long_file, "-q", "-c", std::to_string(longer + room), "-n", most}).exit_code;
  };
  EXPECT_EQ(leaving(256, "1024"), 0);
  EXPECT_EQ(leaving(255, "1024"), 3);
  EXPECT_EQ(leaving(256, "800"), 3);
  const Finished clipped = run("generate", {"-p", "Hi", "--no-chat-template", "-n", "8000", "-c", "40"});
  EXPECT_EQ(clipped.exit_code, 0);
  EXPECT_NE(clipped.err.find("output    38 tokens, "), std::string::npos) << clipped.err;
  EXPECT_NE(clipped.err.find("(length: the context is full before the 8,000 of -n)"), std::string::npos) << clipped.err;
}

TEST_F(ProgramTest, SeveralDevicesSummarizeAsOneDoes) {
  for (int i = 0; i < 5; ++i) folder_->write("many/" + std::to_string(i), "Document " + std::to_string(i));
  const auto texts = [](const std::vector<json>& lines) {
    std::map<std::string, std::string> by_file;
    for (const json& line : lines) by_file[line["file"]] = line["text"];
    return by_file;
  };
  const std::vector<std::string> sampled = {*folder_ / "many", "--temp", "0.8", "--seed", "3"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), sampled.begin(), sampled.end());
    return run("summarize", more);
  };
  const auto one = texts(json_lines(with({"--json"}).out));
  ASSERT_EQ(one.size(), 5u);
  const Finished two = with({"--devices", "cpu,cpu", "-o", *folder_ / "many.jsonl"});
  EXPECT_EQ(two.exit_code, 0) << two.err;
  EXPECT_NE(two.err.find("5 summarized, 0 done before, 0 failed; cpu "), std::string::npos) << two.err;
  EXPECT_EQ(texts(json_lines(folder_->read("many.jsonl"))), one);
  EXPECT_NE(with({"-o", *folder_ / "many.jsonl"}).err.find("5 done before"), std::string::npos);
  EXPECT_EQ(texts(json_lines(with({"--devices", "cpu,cpu", "--json"}).out)), one);
}

// Two versions of a document, and another.
TEST_F(ProgramTest, DocumentsThatBeginAlikeAreReadOnce) {
  const std::string version(2000, 'v');
  const std::string files[] = {folder_->write("alike/1", version + "first"),
                               folder_->write("alike/2", version + "second"),
                               folder_->write("alike/3", std::string(2000, 'x'))};
  const std::vector<json> lines = json_lines(run("summarize", {*folder_ / "alike", "--json"}).out);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_FALSE(lines[0].contains("kept_tokens"));
  EXPECT_EQ(lines[1].value("kept_tokens", 0), 2000);
  EXPECT_FALSE(lines[2].contains("kept_tokens"));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(lines[i]["text"], json_lines(run("summarize", {files[i], "--json"}).out)[0]["text"]) << files[i];
  }
  EXPECT_EQ(run("summarize", {*folder_ / "alike", "--json", "--long", "split"}).out.find("kept_tokens"),
            std::string::npos);
}

TEST_F(ProgramTest, ABatchIsSkippedWhereItIsDone) {
  const std::string a = folder_->write("batch/a.txt", "First."), b = folder_->write("batch/b.txt", "Second."),
                    out = *folder_ / "batch.jsonl";
  const std::vector<std::string> args = {*folder_ / "batch", "-o", out};
  const Finished first = run("summarize", args);
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(first.out, "");
  EXPECT_NE(first.err.find("2 summarized, 0 done before, 0 failed"), std::string::npos) << first.err;
  EXPECT_NE(first.err.find("[1/2] " + a + ": "), std::string::npos) << first.err;
  EXPECT_NE(first.err.find(" left\n"), std::string::npos) << first.err;
  const std::string written = folder_->read("batch.jsonl");
  EXPECT_EQ(json_lines(written).size(), 2u);
  const Finished again = run("summarize", args);
  EXPECT_EQ(again.exit_code, 0);
  EXPECT_NE(again.err.find("0 summarized, 2 done before, 0 failed"), std::string::npos) << again.err;
  EXPECT_EQ(folder_->read("batch.jsonl"), written);
  // Threads and memory change no answer; the seed and the length may.
  EXPECT_NE(run("summarize", {*folder_ / "batch", "-o", out, "-t", "2", "--kv", "host"}).err.find("2 done before"),
            std::string::npos);
  // What may change the text is another summary; what may not, is the same.
  EXPECT_NE(run("summarize", {*folder_ / "batch", "-o", out, "--verify", "lossless"}).err.find("2 done before"),
            std::string::npos);
  EXPECT_NE(
      run("summarize", {*folder_ / "batch", "-o", out, "--verify", "approximate"}).err.find("2 summarized, 0 done"),
      std::string::npos);
  for (const auto& [kind, done] : {std::pair("int8", "2 summarized, 0 done"), std::pair("blocks", "2 done before")}) {
    const Finished approximate =
        run("summarize", {*folder_ / "batch", "-o", out, "--verify", "approximate", "--partial-kv", kind});
    EXPECT_NE(approximate.err.find(done), std::string::npos) << kind << approximate.err;
  }
  EXPECT_NE(run("summarize", {*folder_ / "batch", "-o", out, "--weights", "dtype"}).err.find("2 done before"),
            std::string::npos);
  EXPECT_NE(run("summarize", {*folder_ / "batch", "-o", out, "--weights", "q8_0"}).err.find("2 summarized, 0 done"),
            std::string::npos);
  EXPECT_NE(run("summarize", {*folder_ / "batch", "-o", out, "-n", "13"}).err.find("2 summarized"), std::string::npos);
  EXPECT_EQ(json_lines(folder_->read("batch.jsonl")).size(), 10u);
  // The text of an approximate run depends on its draft's trees.
  for (const char* most : {"2", "3"}) {
    EXPECT_NE(run("summarize", {*folder_ / "batch", "-o", out, "--verify", "approximate", "--spec-type", "ngram-simple",
                                "--spec-draft-n-max", most})
                  .err.find("2 summarized, 0 done"),
              std::string::npos)
        << most;
  }
  // So does it on the draft's RoPE.
  std::vector<std::string> draft = {*folder_ / "batch", "-o",  out,    "--verify", "approximate", "--spec-type",
                                    "draft-simple",     "-md", model_, "--tree",   "chain:2"};
  EXPECT_NE(run("summarize", draft).err.find("2 summarized, 0 done"), std::string::npos);
  EXPECT_NE(run("summarize", draft).err.find("2 done before"), std::string::npos);
  for (const auto& [flag, value] :
       {std::pair("--draft-rope-theta", "5000"), std::pair("--draft-rope-scaling", "linear"),
        std::pair("--draft-rope-scale", "2")}) {
    draft.insert(draft.end(), {flag, value});
    EXPECT_NE(run("summarize", draft).err.find("2 summarized, 0 done"), std::string::npos) << flag;
  }
}

}  // namespace
}  // namespace headrace
