#include "cli/print/progress_bar.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/cli/print/progress_fixture.h"

namespace headrace {
namespace {

using ProgressBarTest = ProgressFixture;

TEST_F(ProgressBarTest, ShowsShareRateAndTimeLeft) {
  ProgressBar bar = make(ProgressStyle::kBar, 100);
  bar.begin("prefill", "tokens", 8000);
  wait(10000);
  bar.update(2000);
  EXPECT_EQ(out_,
            "\r\x1b[K[########......................] prefill 25%, 2,000 of 8,000 tokens, 200 tokens/s, 0:30 left");
  bar.end();
  EXPECT_TRUE(out_.ends_with("\r\x1b[K"));
}

TEST_F(ProgressBarTest, WhatNeedsNoWorkCountsButForTheRate) {
  ProgressBar bar = make(ProgressStyle::kLines);
  bar.begin("prefill", "tokens", 8000);
  wait(5000);
  bar.skip(6000);
  wait(5000);
  bar.update(7000);
  EXPECT_EQ(out_,
            "prefill 75%, 6,000 of 8,000 tokens\n"
            "prefill 87%, 7,000 of 8,000 tokens, 100 tokens/s, 0:10 left\n");
}

TEST_F(ProgressBarTest, IsDrawnTenTimesASecondAtMost) {
  ProgressBar bar = make(ProgressStyle::kBar);
  bar.begin("prefill", "tokens", 1000);
  for (int i = 0; i < 1000; ++i) {
    wait(1);
    bar.update(i);
  }
  size_t draws = 0;
  for (size_t at = 0; (at = out_.find('\r', at)) != std::string::npos; ++at) ++draws;
  EXPECT_EQ(draws, 10u);
}

TEST_F(ProgressBarTest, NeverFillsTheLine) {
  for (int columns = 0; columns < 130; ++columns) {
    out_.clear();
    ProgressBar bar = make(ProgressStyle::kBar, columns);
    bar.set_label("[2/5] a-document.txt");
    bar.begin("prefill", "tokens", 8000);
    wait(10000);
    bar.update(2000);
    EXPECT_LT(static_cast<int>(out_.size()) - 4, std::max(1, columns)) << out_;
  }
}

TEST_F(ProgressBarTest, LinesComeAtIntervalsAndEndWithASum) {
  ProgressBar bar = make(ProgressStyle::kLines);
  bar.begin("prefill", "tokens", 1000);
  for (int i = 1; i <= 100; ++i) {
    wait(100);
    bar.update(i * 10);
  }
  bar.end();
  EXPECT_EQ(out_,
            "prefill 50%, 500 of 1,000 tokens, 100 tokens/s, 0:05 left\n"
            "prefill 100%, 1,000 of 1,000 tokens, 100 tokens/s, 0:00 left\n"
            "prefill: 1,000 tokens in 10.0 s\n");
}

TEST_F(ProgressBarTest, AShortStageSaysNothing) {
  for (ProgressStyle style : {ProgressStyle::kLines, ProgressStyle::kBar}) {
    ProgressBar bar = make(style);
    bar.begin("prefill", "tokens", 1000);
    wait(50);
    bar.update(1000);
    bar.end();
  }
  EXPECT_EQ(out_, "");
}

TEST_F(ProgressBarTest, BytesAreBytes) {
  ProgressBar bar = make(ProgressStyle::kLines);
  bar.begin("loading weights", "bytes", int64_t{1} << 30);
  wait(8000);
  bar.update(int64_t{1} << 29);
  bar.end();
  EXPECT_EQ(out_,
            "loading weights 50%, 512.00 MiB of 1.00 GiB, 64.00 MiB/s, 0:08 left\n"
            "loading weights: 512.00 MiB in 8.0 s\n");
}

TEST_F(ProgressBarTest, AnUnknownTotalHasNeitherShareNorTimeLeft) {
  for (int64_t total : {int64_t{0}, int64_t{-1}}) {
    out_.clear();
    ProgressBar bar = make(ProgressStyle::kLines);
    bar.begin("decode", "tokens", total);
    wait(5000);
    bar.update(100);
    EXPECT_EQ(out_, "decode, 100 tokens, 20.0 tokens/s\n");
  }
}

TEST_F(ProgressBarTest, OddNumbersDoNoHarm) {
  ProgressBar bar = make(ProgressStyle::kBar);
  bar.begin("prefill", "tokens", 10);
  wait(1000);
  bar.update(25);  // more than all
  wait(1000);
  bar.update(-3);
  wait(1000);
  bar.update(0);
  bar.end();
  bar.end();
  bar.update(5);  // after the end
  EXPECT_NE(out_.find("100%"), std::string::npos);
  EXPECT_EQ(out_.find("left-"), std::string::npos);
}

TEST_F(ProgressBarTest, NoneWritesNothing) {
  ProgressBar bar = make(ProgressStyle::kNone);
  bar.begin("prefill", "tokens", 10);
  wait(60000);
  bar.update(5);
  bar.end();
  bar.print_line("a line");
  EXPECT_EQ(out_, "");
}

TEST_F(ProgressBarTest, LabelsAndLinesOfTheProgram) {
  ProgressBar bar = make(ProgressStyle::kBar);
  bar.set_label("[2/5] GPL-3");
  bar.begin("prefill", "tokens", 10);
  wait(200);
  bar.update(5);
  bar.print_line("[2/5] GPL-3: done");
  EXPECT_NE(out_.find("] [2/5] GPL-3 prefill 50%"), std::string::npos) << out_;
  EXPECT_TRUE(out_.ends_with("\r\x1b[K[2/5] GPL-3: done\n")) << out_;
}

TEST_F(ProgressBarTest, DecodeIsHiddenWhereItsTextAppears) {
  ProgressOptions options;
  options.style = ProgressStyle::kBar;
  options.hide_decode = true;
  options.now = [this] { return time_; };
  options.write = [this](std::string_view text) { out_ += text; };
  ProgressBar bar(options);
  bar.begin("decode", "tokens", 10);
  wait(1000);
  bar.update(5);
  bar.end();
  EXPECT_EQ(out_, "");
  bar.begin("prefill", "tokens", 10);
  wait(1000);
  bar.update(5);
  EXPECT_NE(out_, "");
}

}  // namespace
}  // namespace headrace
