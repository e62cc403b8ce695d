// SPDX-License-Identifier: Apache-2.0
//
// Goal: titan-orchestrator as a process, over real gRPC: jobs run, are watched, refused, cancelled,
// survive in the list, and end in the same journal whoever made the samples. Method: the other
// daemons are played by this test; what they answer is a pure function of ids.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <string>
#include <thread>

#include "services/rpc/status_convert.h"
#include "tests/support/orchestrator_process.h"

namespace titan::test {
namespace {

TEST_F(OrchestratorProcessTest, RunsAJobTwiceWithOneJournal) {
  StartDaemon();
  RegisterAll(2);
  const auto first = Submit(Spec(), "a");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(Submit(Spec(), "a").value(), *first);  // idempotent
  const auto events = Watch(*first);
  ASSERT_FALSE(events.empty());
  const ov::Job job = Get(*first);
  ASSERT_EQ(job.state(), ov::JOB_STATE_SUCCEEDED) << job.reason();
  EXPECT_EQ(job.steps_done(), 4u);
  ASSERT_EQ(job.evaluations_size(), 2);
  EXPECT_EQ(job.evaluations(1).version(), 4u);
  EXPECT_EQ(job.evaluations(1).questions(), 6u);
  EXPECT_GT(job.parity().tokens_compared(), 0u);
  EXPECT_EQ(job.last_step().age(), 1u);
  size_t steps = 0;
  uint64_t sequence = 0;
  for (const auto& event : events) {
    EXPECT_EQ(event.sequence(), ++sequence);
    steps += event.has_step_done();
  }
  EXPECT_EQ(steps, 4u);
  EXPECT_EQ(Watch(*first, 3).size(), events.size() - 3);
  EXPECT_TRUE(Watch(*first, events.size()).empty());
  EXPECT_TRUE(Watch(*first, events.size() + 1000).empty());  // ends as well
  EXPECT_EQ(trainer_.ended, 1);
  EXPECT_EQ(store_.ended, 1);
  EXPECT_EQ(store_.pins, 2);
  EXPECT_EQ(store_.unpins, 3);  // the first one failed
  EXPECT_GT(generators_[0].groups, 0);
  EXPECT_GT(generators_[1].groups, 0);
  EXPECT_TRUE(generators_[0].held.empty() && generators_[1].held.empty());
  EXPECT_TRUE(reward_.prompts.count("What is 3 + 1?"));
  // The trainer got the spec with its defaults.
  EXPECT_EQ(trainer_.spec.training().clip_high(), 0.2);
  EXPECT_EQ(trainer_.spec.schedule().max_candidates(), 8u);

  // Again, with one generator; it takes the place of another life, too.
  generator_listeners_[1].reset();
  generators_[0].groups = 0;
  EXPECT_TRUE(Register("generator-1", type::v1::WORKER_ROLE_GENERATOR,
                       generator_listeners_[0]->address(), "2")
                  .ok());
  const auto second = Submit(Spec(), "b");
  ASSERT_TRUE(second.ok());
  EXPECT_NE(*second, *first);
  Watch(*second);
  EXPECT_EQ(Get(*second).state(), ov::JOB_STATE_SUCCEEDED) << Get(*second).reason();
  EXPECT_EQ(Get(*second).last_step().weights_digest(), job.last_step().weights_digest());
  Stop(SIGTERM);
  EXPECT_TRUE(WIFEXITED(exit_status_) && WEXITSTATUS(exit_status_) == 0);
  const std::string canonical = Canonical(*first);
  EXPECT_GT(canonical.size(), 5000u);
  EXPECT_EQ(canonical, Canonical(*second));
}

TEST_F(OrchestratorProcessTest, RefusesWhatIsWrongByName) {
  StartDaemon();
  RegisterAll(1);
  const auto refused = [&](const config::v1::JobSpec& spec, const std::string& part) {
    const auto result = Submit(spec, part);
    ASSERT_FALSE(result.ok()) << part;
    EXPECT_NE(MessageOf(result.status()).find(part), std::string::npos)
        << MessageOf(result.status());
  };
  config::v1::JobSpec spec = Spec();
  spec.mutable_schedule()->set_steps(0);
  spec.mutable_training()->set_max_gradient_norm(-1);
  const auto both = Submit(spec, "x");
  const auto info = rpc::ErrorInfoOf(both.status());
  ASSERT_TRUE(info.has_value());
  ASSERT_EQ(info->fields_size(), 2);
  EXPECT_EQ(info->fields(0).path(), "schedule.steps");
  EXPECT_EQ(info->fields(1).path(), "training.max_gradient_norm");
  spec = Spec();
  spec.mutable_data()->set_path(folder_ + "/none.jsonl");
  refused(spec, "data.path");
  spec = Spec();
  spec.mutable_data()->set_held_out(30);
  refused(spec, "data.held_out");
  spec = Spec();
  spec.mutable_model()->set_path(folder_ + "/nothing");
  refused(spec, "model.path");
  spec = Spec();
  spec.mutable_model()->set_max_sequence_tokens(600);
  refused(spec, "model.max_sequence_tokens");
  spec = Spec();
  spec.mutable_model()->set_max_sequence_tokens(16);
  refused(spec, "data.jsonl:1: prompt");
  spec = Spec();
  spec.mutable_data()->set_system_prompt("be brief");
  refused(spec, "data.system_prompt");
  EXPECT_EQ(Submit(Spec(), "").status().code(), StatusCode::kInvalidArgument);
  // Nothing of this left a job behind.
  grpc::ClientContext context;
  ov::ListJobsResponse jobs;
  EXPECT_TRUE(stub_->ListJobs(&context, {}, &jobs).ok());
  EXPECT_EQ(jobs.jobs_size(), 0);
  const grpc::Status contract = Register("generator-9", type::v1::WORKER_ROLE_GENERATOR,
                                         generator_listeners_[1]->address(), "1", "16");
  EXPECT_EQ(contract.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(contract.error_message().find("linear.leaves is 16 here and 8 there"),
            std::string::npos);
}

TEST_F(OrchestratorProcessTest, AKilledOrchestratorListsItsJobs) {
  StartDaemon();
  RegisterAll(1);
  generators_[0].stuck = true;
  const auto job = Submit(Spec(), "a");
  ASSERT_TRUE(job.ok()) << job.status();
  for (int i = 0; i < 500 && generators_[0].groups == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(Get(*job).state(), ov::JOB_STATE_RUNNING);
  Stop(SIGKILL);
  generators_[0].stuck = false;
  store_.end_failures = 1;
  StartDaemon();
  for (int i = 0; i < 500 && store_.ended == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(store_.ended, 1);  // the slots of the old run are free
  const ov::Job after = Get(*job);
  EXPECT_EQ(after.state(), ov::JOB_STATE_FAILED);
  EXPECT_NE(after.reason().find("orchestrator restarted"), std::string::npos);
  EXPECT_EQ(after.name(), "test");
  const auto events = Watch(*job);
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back().state_changed().state(), ov::JOB_STATE_FAILED);
  EXPECT_EQ(Submit(Spec(), "a").value(), *job);
  // A generator that still holds versions of the old life gives them back.
  RegisterAll(1);
  const auto next = Submit(Spec(), "b");
  ASSERT_TRUE(next.ok());
  EXPECT_NE(*next, *job);
  Watch(*next);
  EXPECT_EQ(Get(*next).state(), ov::JOB_STATE_SUCCEEDED) << Get(*next).reason();
  EXPECT_TRUE(generators_[0].held.empty());
}

TEST_F(OrchestratorProcessTest, ACancelledJobLetsTheWorkersGo) {
  StartDaemon();
  RegisterAll(1);
  generators_[0].stuck = true;
  const auto job = Submit(Spec(), "a");
  ASSERT_TRUE(job.ok()) << job.status();
  for (int i = 0; i < 500 && generators_[0].groups == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  grpc::ClientContext context;
  ov::CancelJobRequest request;
  request.set_request_id("c");
  request.set_job_id(*job);
  ov::CancelJobResponse response;
  ASSERT_TRUE(stub_->CancelJob(&context, request, &response).ok());
  Watch(*job);
  EXPECT_EQ(Get(*job).state(), ov::JOB_STATE_CANCELLED);
  EXPECT_EQ(Get(*job).reason(), "cancelled by user");
  EXPECT_TRUE(generators_[0].held.empty());
  EXPECT_EQ(trainer_.ended, 1);
  // A generator in its place finishes the next job.
  generators_[0].stuck = false;
  const auto next = Submit(Spec(), "b");
  Watch(*next);
  EXPECT_EQ(Get(*next).state(), ov::JOB_STATE_SUCCEEDED) << Get(*next).reason();
}

TEST_F(OrchestratorProcessTest, AJobThatIsCancelledInAStepDoesNotHarmTheNextOne) {
  rpc_deadline_ms_ = 500;
  StartDaemon();
  RegisterAll(1);
  trainer_.step_ms = 1500;
  const auto job = Submit(Spec(), "a");
  ASSERT_TRUE(job.ok()) << job.status();
  const auto next = Submit(Spec(), "b");
  ASSERT_TRUE(next.ok()) << next.status();
  for (int i = 0; i < 1000 && !trainer_.busy; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_TRUE(trainer_.busy);
  grpc::ClientContext context;
  ov::CancelJobRequest request;
  request.set_request_id("c");
  request.set_job_id(*job);
  ov::CancelJobResponse response;
  ASSERT_TRUE(stub_->CancelJob(&context, request, &response).ok());
  EXPECT_EQ(store_.ended, 0);
  Watch(*job);
  EXPECT_EQ(Get(*job).state(), ov::JOB_STATE_CANCELLED);
  EXPECT_EQ(trainer_.ended, 1);  // it was waited for, longer than for other calls
  EXPECT_EQ(store_.ended, 1);
  trainer_.step_ms = 20;
  Watch(*next);
  EXPECT_EQ(Get(*next).state(), ov::JOB_STATE_SUCCEEDED) << Get(*next).reason();
}

}  // namespace
}  // namespace titan::test
