#include "cli/print/engines_progress.h"

#include <gtest/gtest.h>

#include <string>

#include "cli/print/time_left.h"
#include "tests/cli/print/progress_fixture.h"

namespace headrace {
namespace {

using std::chrono::milliseconds;

class EnginesProgressTest : public ProgressFixture {
 protected:
  EnginesProgressTest() { wait(1); }  // what came before began at 0
  Mutex mutex_;
};

TEST_F(EnginesProgressTest, OneEnginesIsTheBarItself) {
  ProgressBar bar = make(ProgressStyle::kLines);
  EnginesProgress all(&bar, &mutex_, 1);
  EXPECT_EQ(&all.of(0), &bar);
  all.set_label(0, "[1/2] a");
  all.of(0).begin("prefill", "tokens", 100);
  time_ += milliseconds(5000);
  all.of(0).update(50);
  EXPECT_EQ(out_, "[1/2] a prefill 50%, 50 of 100 tokens, 10.0 tokens/s, 0:05 left\n");
}

TEST_F(EnginesProgressTest, SeveralShareALine) {
  ProgressBar bar = make(ProgressStyle::kBar);
  EnginesProgress all(&bar, &mutex_, 3);
  all.set_label(0, "[1/3] a");
  all.set_label(2, "[2/3] b");
  all.of(0).begin("prefill", "tokens", 200);
  all.of(2).begin("decode", "tokens", 0);
  all.of(0).update(1);
  EXPECT_EQ(out_, "");
  time_ += milliseconds(100);
  all.of(0).update(90);
  EXPECT_EQ(out_, "\r\x1b[K[1/3] a prefill 45% | [2/3] b decode");
  all.of(2).update(7);  // too soon
  all.of(0).end();
  time_ += milliseconds(100);
  out_.clear();
  all.of(2).update(8);
  EXPECT_EQ(out_, "\r\x1b[K[2/3] b decode");
  out_.clear();
  bar.print_line("[1/3] a: done");
  EXPECT_EQ(out_, "\r\x1b[K[1/3] a: done\n");
}

TEST_F(EnginesProgressTest, ALineIsCutAndQuietShowsNone) {
  ProgressBar narrow = make(ProgressStyle::kBar, 10), quiet = make(ProgressStyle::kNone);
  for (ProgressBar* bar : {&narrow, &quiet}) {
    EnginesProgress all(bar, &mutex_, 2);
    all.of(0).begin("prefill", "tokens", 200);
    all.of(0).update(1);
    time_ += milliseconds(6000);
    all.of(0).update(100);
  }
  EXPECT_EQ(out_, "\r\x1b[Kprefill 5");
}

TEST(TimeLeft, CountsWhatIsLeftByBytes) {
  TimeLeft time({100, 300, 600, 0});
  time.passed(0);
  EXPECT_TRUE(time.answered(2).ends_with(" left"));
  EXPECT_EQ(time.answered(1), "");  // the last has no bytes
  EXPECT_EQ(time.answered(3), "");
}

}  // namespace
}  // namespace headrace
