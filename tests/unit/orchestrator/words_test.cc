// SPDX-License-Identifier: Apache-2.0
//
// Goal: no fact takes a long text of another whole, whoever says it. Method: the engine in
// simulated worlds where everybody who fails says 64 KiB.
#include "orchestrator/words.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "orchestrator/canonical.h"
#include "tests/support/orchestrator_simulation.h"

namespace titan::orchestrator {
namespace {

using testing::MakeSpec;
using testing::World;
using testing::WorldOptions;

TEST(WordsTest, NoFactTakesALongTextOfAnotherWhole) {
  std::string text(1 << 16, 'x');
  for (size_t i = 0; i + 1 < text.size(); i += 2) text.replace(i, 2, "\u00e9");  // no half letters
  WorldOptions rough;
  rough.break_stream = 0.1;
  rough.generator_loss = 0.03;
  rough.load_error = rough.release_error = rough.unpin_error = 0.1;
  rough.reward_fault = rough.reward_error = 0.05;
  std::vector<WorldOptions> worlds(6, rough);
  worlds[0].trainer_error_at = 3;
  worlds[1].parity_difference_at = 1;
  worlds[2].reward_error = 1;
  worlds[3].load_error = 1;
  worlds[4].reward_refuses = true;
  worlds[5].reward_fault = 1;
  bool cancelled = false;
  for (WorldOptions& options : worlds) {
    options.trouble = options.grader_version = text;
    World world{options};
    world.Submit("job-1", MakeSpec());
    world.Submit("job-2", MakeSpec());
    world.Deliver(CancelJob{"job-2", "request", text});
    world.Run();
    EXPECT_TRUE(world.AllFinal());
    size_t shortened = 0;
    for (const Fact& fact : world.facts) {
      const std::string line = CanonicalLine(fact);
      EXPECT_LT(line.size(), kMaxTextBytes + 1000) << line.substr(0, 200);
      const size_t at = line.find("... (65536 bytes)");
      if (at == std::string::npos) continue;
      ++shortened;
      EXPECT_EQ(line.substr(at - 2, 2), "\u00e9");
    }
    EXPECT_GE(shortened, 2u);  // of the cancellation alone: the command and the state
    // What is told now is what a restart will read.
    EXPECT_LT(world.Job("job-1").reason.size(), kMaxTextBytes + 100);
    EXPECT_LT(world.Job("job-2").reason.size(), kMaxTextBytes + 100);
    for (const std::string& message : world.messages) EXPECT_LT(message.size(), 2 * kMaxTextBytes);
    cancelled = cancelled || world.Job("job-2").state == JobState::kCancelled;
  }
  EXPECT_TRUE(cancelled);
}

}  // namespace
}  // namespace titan::orchestrator
