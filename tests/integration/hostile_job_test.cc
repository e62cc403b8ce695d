// SPDX-License-Identifier: Apache-2.0
//
// Goal: jobs that no machine can run, data that is none and templates that never end are refused at
// once, by name, with the numbers; nothing of them stays, and the orchestrator goes on. A disk that
// fills up under a job ends the daemon with words, and what it said before is there again. Method:
// titan-orchestrator as a process.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <thread>

#include "services/rpc/status_convert.h"
#include "tests/support/orchestrator_process.h"

namespace titan::test {
namespace {

using config::v1::JobSpec;

class HostileJobTest : public OrchestratorProcessTest {
 protected:
  void WriteFile(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name) << text;
  }
  // A model with this chat template.
  std::string ModelWith(const std::string& name, const std::string& chat_template) {
    std::filesystem::copy(folder_ + "/model", folder_ + "/" + name);
    WriteFile(name + "/tokenizer_config.json", "{\"chat_template\": \"" + chat_template + "\"}");
    return folder_ + "/" + name;
  }
  void ExpectRefused(const std::string& part, const std::function<void(JobSpec*)>& change) {
    JobSpec spec = Spec();
    change(&spec);
    const auto begin = std::chrono::steady_clock::now();
    const auto result = Submit(spec, "r" + std::to_string(++requests_));
    ASSERT_FALSE(result.ok()) << part;
    EXPECT_NE(MessageOf(result.status()).find(part), std::string::npos)
        << "wants: " << part << "\nsays: " << MessageOf(result.status());
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60)) << part;
  }

 private:
  int requests_ = 0;
};

TEST_F(HostileJobTest, IsRefusedByNameAndLeavesNothing) {
  StartDaemon();
  RegisterAll(1);
  const auto data = [this](const std::string& name) {
    return [path = folder_ + "/" + name](JobSpec* spec) { spec->mutable_data()->set_path(path); };
  };
  // Sizes.
  ExpectRefused("schedule.steps: is missing or 0; valid: 1 to 4294967295",
                [](JobSpec* s) { s->mutable_schedule()->set_steps(0); });
  ExpectRefused("schedule.max_age: is 4294967295",
                [](JobSpec* s) { s->mutable_schedule()->set_max_age(0xffffffffu); });
  ExpectRefused("rollout.samples_per_group: is 4294967295",
                [](JobSpec* s) { s->mutable_rollout()->set_samples_per_group(0xffffffffu); });
  ExpectRefused("rollout.max_new_tokens: is 4294967295",
                [](JobSpec* s) { s->mutable_rollout()->set_max_new_tokens(0xffffffffu); });
  ExpectRefused("model.max_sequence_tokens: is 4294967295",
                [](JobSpec* s) { s->mutable_model()->set_max_sequence_tokens(0xffffffffu); });
  ExpectRefused("data.held_out: is 4294967295",
                [](JobSpec* s) { s->mutable_data()->set_held_out(0xffffffffu); });
  // 65535 x 8 candidates x 4096 samples x 4294967295 steps: the number has more than 64 bits.
  ExpectRefused("the journal of this job needs up to 2", [](JobSpec* s) {
    s->mutable_schedule()->set_groups_per_step(65535);
    s->mutable_schedule()->set_steps(0xffffffffu);
    s->mutable_rollout()->set_samples_per_group(4096);
  });
  ExpectRefused("rollout.temperature: is nan", [](JobSpec* s) {
    s->mutable_rollout()->set_temperature(std::numeric_limits<float>::quiet_NaN());
  });
  ExpectRefused("training.learning_rate: is inf", [](JobSpec* s) {
    s->mutable_training()->set_learning_rate(std::numeric_limits<double>::infinity());
  });
  // Data.
  WriteFile("empty.jsonl", "");
  ExpectRefused("empty.jsonl: has no rows", data("empty.jsonl"));
  WriteFile("blank.jsonl", "\n \n\n");
  ExpectRefused("blank.jsonl", data("blank.jsonl"));
  std::string text;
  for (int i = 0; i < 20; ++i) {
    text += "{\"id\":" + std::to_string(i) + ",\"prompt\":\"" +
            std::string(i == 7 ? 5000 : 5, 'x') + "\",\"answer\":1}\n";
  }
  WriteFile("long.jsonl", text);
  ExpectRefused("long.jsonl:8: prompt: has ", data("long.jsonl"));
  ExpectRefused("data.path", data("no.jsonl"));
  ExpectRefused("is not a regular file", data("model"));
  ASSERT_EQ(mkfifo((folder_ + "/pipe").c_str(), 0600), 0);
  for (int i = 0; i < 4; ++i) ExpectRefused("pipe' is not a regular file", data("pipe"));
  ExpectRefused("'/dev/zero' is not a regular file",
                [](JobSpec* s) { s->mutable_data()->set_path("/dev/zero"); });
  // Templates.
  const auto model = [](const std::string& path) {
    return [path](JobSpec* spec) { spec->mutable_model()->set_path(path); };
  };
  ExpectRefused("data.jsonl:1: prompt: chat template: line 1: no such role",
                model(ModelWith("raises", "{{ raise_exception('no such role') }}")));
  ExpectRefused("chat template: line 1: the template takes more than 20000000 steps",
                model(ModelWith("loops",
                                "{% for a in range(99999) %}{% for b in range(99999) %}"
                                "{% endfor %}{% endfor %}")));
  ExpectRefused("chat template: line 1: expressions, blocks and macro calls nest deeper than",
                model(ModelWith("recurses", "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(0) }}")));
  ExpectRefused("chat template: line 1:", model(ModelWith("broken", "{% for x in %}")));
  // Nothing stayed, and the next job runs.
  grpc::ClientContext context;
  ov::ListJobsResponse jobs;
  EXPECT_TRUE(stub_->ListJobs(&context, {}, &jobs).ok());
  EXPECT_EQ(jobs.jobs_size(), 0);
  const auto job = Submit(Spec(), "good");
  ASSERT_TRUE(job.ok()) << job.status();
  Watch(*job);
  EXPECT_EQ(Get(*job).state(), ov::JOB_STATE_SUCCEEDED) << Get(*job).reason();
}

TEST_F(HostileJobTest, AFullDiskEndsTheDaemonWithWordsAndNothingIsLost) {
  if (unshare(CLONE_NEWNS) != 0 ||
      mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    GTEST_SKIP() << "mounts are not allowed here";
  }
  const std::string data = folder_ + "/orchestrator";
  std::filesystem::create_directories(data);
  ASSERT_EQ(mount("tmpfs", data.c_str(), "tmpfs", 0, "size=16m"), 0);
  StartDaemon();
  RegisterAll(1);
  trainer_.step_ms = 200;
  JobSpec spec = Spec();
  spec.mutable_schedule()->set_steps(60);
  const auto job = Submit(spec, "a");
  ASSERT_TRUE(job.ok()) << job.status();
  for (int i = 0; i < 1000 && Get(*job).steps_done() < 1; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const std::string filler = data + "/filler";
  const int fd = open(filler.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  const std::string block(4096, 'x');
  while (write(fd, block.data(), block.size()) > 0) {
  }
  close(fd);
  int code = 0;
  ASSERT_TRUE(titan::testing::Eventually([&] { return process_->Ended(&code); },
                                         std::chrono::milliseconds(20'000)))
      << "it goes on without a journal";
  process_.reset();
  EXPECT_EQ(code, 1);
  std::ifstream log(folder_ + "/log");
  const std::string text{std::istreambuf_iterator<char>(log), {}};
  EXPECT_NE(text.find("the journal cannot be written; free the disk and start again"),
            std::string::npos);
  EXPECT_NE(text.find("No space left on device"), std::string::npos);

  std::filesystem::remove(filler);
  StartDaemon();
  const ov::Job after = Get(*job);
  EXPECT_EQ(after.state(), ov::JOB_STATE_FAILED);
  EXPECT_NE(after.reason().find("the orchestrator was stopped or died while the job ran ("),
            std::string::npos)
      << after.reason();
  RegisterAll(1);
  trainer_.step_ms = 20;
  const auto next = Submit(Spec(), "b");
  ASSERT_TRUE(next.ok()) << next.status();
  Watch(*next);
  EXPECT_EQ(Get(*next).state(), ov::JOB_STATE_SUCCEEDED) << Get(*next).reason();
  Stop(SIGTERM);
  EXPECT_EQ(umount2(data.c_str(), MNT_DETACH), 0);
}

}  // namespace
}  // namespace titan::test
