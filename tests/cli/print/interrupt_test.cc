#include "cli/print/interrupt.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace headrace {
namespace {

// The tests may run in the background, where SIGINT is ignored.
class InterruptTest : public ::testing::Test {
 protected:
  InterruptTest() : before_(::signal(SIGINT, SIG_DFL)) {}
  ~InterruptTest() override { ::signal(SIGINT, before_); }

 private:
  void (*const before_)(int);
};

TEST_F(InterruptTest, TheFirstOneIsARequest) {
  Interrupt interrupt;
  EXPECT_FALSE(interrupt.flag()->load());
  ::raise(SIGINT);
  EXPECT_TRUE(interrupt.flag()->load());
}

TEST_F(InterruptTest, TheSecondOneEndsTheProgram) {
  const pid_t child = ::fork();
  if (child == 0) {
    Interrupt interrupt;
    ::raise(SIGINT);
    ::raise(SIGINT);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGINT);
}

TEST_F(InterruptTest, LeavesThingsAsTheyWere) {
  struct sigaction before = {}, after = {};
  ::sigaction(SIGINT, nullptr, &before);
  { Interrupt interrupt; }
  ::sigaction(SIGINT, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
}

TEST_F(InterruptTest, StaysIgnoredInTheBackground) {
  struct sigaction old = {}, ignore = {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGINT, &ignore, &old);
  {
    Interrupt interrupt;
    ::raise(SIGINT);
    EXPECT_FALSE(interrupt.flag()->load());
  }
  ::sigaction(SIGINT, &old, nullptr);
}

}  // namespace
}  // namespace headrace
