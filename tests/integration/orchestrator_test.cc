// SPDX-License-Identifier: Apache-2.0
//
// Goal: titan-orchestrator as a process, over real gRPC: jobs run, are watched, refused, cancelled,
// survive in the list, and end in the same journal whoever made the samples. Method: the other
// daemons are played by this test; what they answer is a pure function of ids.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include "core/runtime/machine.h"
#include "services/rpc/status_convert.h"
#include "tests/support/child_process.h"
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
  EXPECT_EQ(Stop(SIGTERM), 0);
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
  MakeTinyModelFolder(folder_ + "/narrow", kTinyVocabulary - 1);
  spec.mutable_model()->set_path(folder_ + "/narrow");
  refused(spec, "its tokenizer has 600 tokens, its weights know 599 (vocab_size)");
  // CheckJob says the same of the same field.
  ASSERT_EQ(Check(spec).problems_size(), 1);
  EXPECT_EQ(Check(spec).problems(0).path(), "model.path");
  EXPECT_EQ(rpc::ErrorInfoOf(Submit(spec, "narrow").status())->fields(0).path(), "model.path");
  EXPECT_EQ(rpc::ErrorInfoOf(Submit(spec, "narrow").status())->fields(0).description(),
            Check(spec).problems(0).description());
  spec = Spec();
  spec.mutable_model()->set_max_sequence_tokens(16);
  refused(spec, "data.jsonl:1: prompt");
  spec = Spec();
  spec.mutable_data()->set_system_prompt("be brief");
  refused(spec, "data.system_prompt");
  EXPECT_EQ(Submit(spec, "one code").status().code(), StatusCode::kInvalidArgument);
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
  EXPECT_EQ(
      after.reason(),
      "the orchestrator was stopped or died while the job ran (0 of 4 steps were done); titanctl "
      "weights ls " +
          *job +
          " shows whether its newest version was kept; submit it again: this version does not "
          "resume jobs");
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

class RestartTest : public OrchestratorProcessTest, public ::testing::WithParamInterface<int> {
 protected:
  config::v1::JobSpec SpecOn(const std::string& file) const {
    config::v1::JobSpec spec = Spec();
    std::filesystem::copy_file(folder_ + "/data.jsonl", folder_ + "/" + file);
    spec.mutable_data()->set_path(folder_ + "/" + file);
    return spec;
  }
  void ExpectFailed(const std::string& job_id, const std::string& part) {
    Watch(job_id);
    EXPECT_EQ(Get(job_id).state(), ov::JOB_STATE_FAILED);
    EXPECT_NE(Get(job_id).reason().find(part), std::string::npos)
        << "wants: " << part << "\nsays: " << Get(job_id).reason();
  }
};

TEST_P(RestartTest, JobsThatHadNotBegunRunInTheirOrderToTheSameBits) {
  StartDaemon();
  RegisterAll(1);
  generators_[0].stuck = true;
  const auto running = Submit(Spec(), "a");
  ASSERT_TRUE(running.ok()) << running.status();
  const auto first = Submit(SpecOn("first.jsonl"), "b");
  const auto changed = Submit(SpecOn("changed.jsonl"), "c");
  const auto gone = Submit(SpecOn("gone.jsonl"), "d");
  const auto cancelled = Submit(Spec(), "e");
  const auto last = Submit(Spec(), "f");
  ASSERT_TRUE(first.ok() && changed.ok() && gone.ok() && cancelled.ok() && last.ok());
  for (int i = 0; i < 500 && generators_[0].groups == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const ov::Job before = Get(*first);
  EXPECT_EQ(before.state(), ov::JOB_STATE_QUEUED);
  Stop(GetParam());
  generators_[0].stuck = false;
  std::ofstream(folder_ + "/changed.jsonl", std::ios::app)
      << "{\"id\":\"more\",\"prompt\":\"What is 2?\",\"answer\":2}\n";
  std::filesystem::remove(folder_ + "/gone.jsonl");

  StartDaemon();
  EXPECT_EQ(Get(*running).state(), ov::JOB_STATE_FAILED);
  Cancel(*cancelled);
  RegisterAll(1);
  const auto quiet = Submit(SpecOn("quiet.jsonl"), "g");
  ASSERT_TRUE(quiet.ok()) << quiet.status();
  const auto events = Watch(*first);
  bool told = false;
  for (const auto& event : events) {
    told = told || event.message().find("keeps its place in the queue") != std::string::npos;
  }
  EXPECT_TRUE(told);
  Watch(*quiet);
  ExpectFailed(*changed, "changed.jsonl' was changed since the job was submitted; mend it and");
  ExpectFailed(*gone, "gone.jsonl");
  EXPECT_EQ(Get(*cancelled).state(), ov::JOB_STATE_CANCELLED);
  for (const std::string& id : {*first, *last, *quiet}) {
    EXPECT_EQ(Get(id).state(), ov::JOB_STATE_SUCCEEDED) << Get(id).reason();
  }
  const ov::Job after = Get(*first);
  EXPECT_EQ(after.run_id(), before.run_id());
  EXPECT_EQ(after.submitted_unix_ms(), before.submitted_unix_ms());
  EXPECT_LE(after.ended_unix_ms(), Get(*last).running_unix_ms());
  EXPECT_LE(Get(*last).ended_unix_ms(), Get(*quiet).running_unix_ms());
  EXPECT_EQ(after.last_step().weights_digest(), Get(*quiet).last_step().weights_digest());
  EXPECT_EQ(Submit(Spec(), "f").value(), *last);  // the same request again is the same job
  const auto undisturbed = Submit(Spec(), "i");
  ASSERT_TRUE(undisturbed.ok()) << undisturbed.status();
  Watch(*undisturbed);
  Stop(SIGTERM);
  // Nothing of the restart is in what two runs are compared by.
  EXPECT_EQ(Canonical(*last), Canonical(*undisturbed));
}

TEST_P(RestartTest, AJobThatWaitsForItsWorkersStaysQueued) {
  StartDaemon();
  const auto job = Submit(Spec(), "a");
  ASSERT_TRUE(job.ok()) << job.status();
  const ov::Job before = Get(*job);
  EXPECT_EQ(before.state(), ov::JOB_STATE_QUEUED);
  EXPECT_TRUE(before.reason().starts_with("waits: no trainer, ")) << before.reason();
  Stop(GetParam());
  StartDaemon();
  EXPECT_EQ(Get(*job).state(), ov::JOB_STATE_QUEUED);
  EXPECT_EQ(Get(*job).run_id(), before.run_id());  // the run has not begun anywhere
  Stop(GetParam());                                // once more
  StartDaemon();
  RegisterAll(1);
  Watch(*job);
  const ov::Job after = Get(*job);
  EXPECT_EQ(after.state(), ov::JOB_STATE_SUCCEEDED) << after.reason();
  EXPECT_EQ(after.submitted_unix_ms(), before.submitted_unix_ms());
  const auto quiet = Submit(Spec(), "b");
  ASSERT_TRUE(quiet.ok()) << quiet.status();
  Watch(*quiet);
  Stop(SIGTERM);
  EXPECT_EQ(Canonical(*job), Canonical(*quiet));
}

// The trainer outlives the orchestrator with a run that it is about to begin.
TEST_P(RestartTest, ARunThatTheTrainerWasStartingEndsThereAndAtTheStore) {
  StartDaemon();
  RegisterAll(1);
  trainer_.start_stuck = true;
  const auto job = Submit(Spec(), "a");
  ASSERT_TRUE(job.ok()) << job.status();
  for (int i = 0; i < 1000 && !trainer_.starting; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_TRUE(trainer_.starting);
  const ov::Job before = Get(*job);
  EXPECT_EQ(before.state(), ov::JOB_STATE_STARTING);
  Stop(GetParam());
  StartDaemon();
  Stop(GetParam());  // its first run id is two lives old now
  trainer_.start_stuck = false;
  StartDaemon();
  EXPECT_NE(Get(*job).run_id(), before.run_id());
  RegisterAll(1);
  Watch(*job);
  EXPECT_EQ(Get(*job).state(), ov::JOB_STATE_SUCCEEDED) << Get(*job).reason();
  for (int i = 0; i < 500 && !store_.HasEnded(before.run_id()); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_TRUE(store_.HasEnded(before.run_id()));
  EXPECT_TRUE(trainer_.HasEnded(before.run_id()));
}

// Everything that an event says; when it was told may differ by a moment.
std::vector<std::string> TextsOf(std::vector<ov::WatchJobResponse> events) {
  std::vector<std::string> texts;
  for (ov::WatchJobResponse& event : events) {
    event.clear_unix_ms();
    texts.push_back(event.ShortDebugString());
  }
  return texts;
}

// An event's number stands for the same event in every life of the orchestrator.
TEST_P(RestartTest, AWatcherMissesNothing) {
  StartDaemon();
  RegisterAll(1);
  trainer_.start_stuck = true;
  const auto job = Submit(Spec(), "a");
  ASSERT_TRUE(job.ok()) << job.status();
  for (int i = 0; i < 1000 && !trainer_.starting; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(Register("generator-1", type::v1::WORKER_ROLE_GENERATOR,
                       generator_listeners_[1]->address())
                  .ok());  // a message
  std::vector<ov::WatchJobResponse> before;
  {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
    ov::WatchJobRequest request;
    request.set_job_id(*job);
    const auto reader = stub_->WatchJob(&context, request);
    for (ov::WatchJobResponse event; reader->Read(&event);) before.push_back(event);
  }
  ASSERT_GE(before.size(), 3u);
  EXPECT_EQ(before.back().message(), "generator-1 joined");
  Stop(GetParam());
  trainer_.start_stuck = false;
  StartDaemon();
  RegisterAll(1);
  const auto after = Watch(*job);
  EXPECT_EQ(Get(*job).state(), ov::JOB_STATE_SUCCEEDED) << Get(*job).reason();
  ASSERT_GT(after.size(), before.size());
  for (size_t i = 0; i < after.size(); ++i) EXPECT_EQ(after[i].sequence(), i + 1);
  std::vector<std::string> texts = TextsOf(after);
  // Steps, evaluations and the states among them too, once all of it is of an earlier life.
  Stop(GetParam());
  StartDaemon();
  EXPECT_EQ(TextsOf(Watch(*job)), texts);
  texts.resize(before.size());
  EXPECT_EQ(TextsOf(before), texts);
}

TEST_P(RestartTest, AnEndOfARunThatTheStoreDidNotAnswerIsNotTakenForDone) {
  StartDaemon();
  RegisterAll(1);
  store_.end_stuck = true;
  const auto job = Submit(Spec(), "a");
  ASSERT_TRUE(job.ok()) << job.status();
  for (int i = 0; i < 1500 && !store_.end_waits; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_TRUE(store_.end_waits);
  const ov::Job before = Get(*job);
  EXPECT_EQ(before.state(), ov::JOB_STATE_STOPPING);
  Stop(GetParam());
  for (int i = 0; i < 500 && store_.end_waits; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_FALSE(store_.HasEnded(before.run_id()));
  store_.end_stuck = false;
  StartDaemon();
  for (int i = 0; i < 500 && !store_.HasEnded(before.run_id()); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_TRUE(store_.HasEnded(before.run_id()));
  ExpectFailed(*job, "every step was done");
}

TEST_P(RestartTest, AStepThatTheEndCutsOffIsNotTheTrainersFault) {
  StartDaemon();
  RegisterAll(1);
  trainer_.step_ms = 1500;
  const auto job = Submit(Spec(), "a");
  ASSERT_TRUE(job.ok()) << job.status();
  for (int i = 0; i < 1000 && !trainer_.busy; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_TRUE(trainer_.busy);
  Stop(GetParam());
  StartDaemon();
  ExpectFailed(*job, "the orchestrator was stopped or died while the job ran (0 of 4 steps");
}

INSTANTIATE_TEST_SUITE_P(Signals, RestartTest, ::testing::Values(SIGKILL, SIGTERM));

// Two titan-reward with the worker id that both have by default.
TEST_F(OrchestratorProcessTest, ASecondLiveProcessOfAWorkerIdIsRefusedAndASuccessorIsNot) {
  using testing::Eventually;
  constexpr std::chrono::seconds kPatience(30);
  StartDaemon();  // a silent worker is lost after 60 s, so nothing here is an effect of that
  const auto endpoint = runtime::ReadEndpoint(folder_ + "/orchestrator", "orchestrator");
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const auto start = [&](const std::string& name) {
    const std::string config = folder_ + "/" + name + ".json";
    std::ofstream(config) << "{\"daemon\": {\"data_folder\": \"" << folder_ << "/" << name
                          << "\"}, \"orchestrator_address\": \"" << endpoint->address << "\"}";
    std::filesystem::create_directories(folder_ + "/" + name);
    return std::make_unique<testing::ChildProcess>(
        std::vector<std::string>{std::string(kBinaries) + "/titan-reward", "--config", config},
        folder_ + "/" + name + ".log");
  };
  const auto registered_pid = [&]() -> int64_t {
    grpc::ClientContext context;
    ov::ListWorkersResponse workers;
    EXPECT_TRUE(stub_->ListWorkers(&context, {}, &workers).ok());
    for (const auto& info : workers.workers()) {
      if (info.worker().worker_id() == "reward") return info.worker().pid();
    }
    return 0;
  };
  const auto first = start("first");
  ASSERT_TRUE(Eventually([&] { return registered_pid() == first->pid(); }, kPatience));

  const auto second = start("second");
  int code = 0;
  EXPECT_TRUE(Eventually([&] { return second->Ended(&code); }, kPatience));
  EXPECT_EQ(code, 1);
  std::stringstream said;
  said << std::ifstream(folder_ + "/second.log").rdbuf();
  EXPECT_NE(said.str().find("another process is registered as worker reward (pid " +
                            std::to_string(first->pid())),
            std::string::npos)
      << said.str();
  EXPECT_NE(said.str().find("daemon.worker_id"), std::string::npos) << said.str();
  EXPECT_EQ(registered_pid(), first->pid());
  said << std::ifstream(folder_ + "/log").rdbuf();  // the orchestrator's: nobody was lost
  EXPECT_EQ(said.str().find("worker_lost"), std::string::npos) << said.str();

  first->Kill();
  const auto third = start("third");
  EXPECT_TRUE(Eventually([&] { return registered_pid() == third->pid(); }, kPatience));
}

// Two successors of a worker that is gone, at once; the one that is admitted first is gone, too.
TEST_F(OrchestratorProcessTest, EachRivalIsLookedForBeforeANewcomerIsRefused) {
  StartDaemon();
  boost::asio::io_context io;
  using boost::asio::ip::tcp;
  tcp::acceptor first(io, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0));
  const std::string address = "127.0.0.1:" + std::to_string(first.local_endpoint().port());
  ASSERT_TRUE(Register("trainer", type::v1::WORKER_ROLE_TRAINER, address, "1").ok());
  std::vector<std::future<grpc::Status>> successors;
  for (const std::string number : {"2", "3"}) {
    successors.push_back(std::async(std::launch::async, [this, number] {
      return Register("trainer", type::v1::WORKER_ROLE_TRAINER, "127.0.0.1:" + number, number);
    }));
    first.accept();  // it is looked for; it will be three times more
  }
  first.close();
  for (auto& successor : successors) {
    const grpc::Status status = successor.get();
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
}

TEST_F(OrchestratorProcessTest, ATrainerThatIsGoneAndOneThatRefusesAreToldApart) {
  StartDaemon();
  RegisterAll(1);
  trainer_.unavailable = true;
  const auto refused = Submit(Spec(), "a");
  ASSERT_TRUE(refused.ok()) << refused.status();
  Watch(*refused);
  EXPECT_EQ(
      Get(*refused).reason(),
      "the trainer (worker trainer) failed in step 0: the disk is slow; titanctl logs trainer "
      "shows more");
  trainer_.unavailable = false;
  // Another process than this one, so that it can die: it is asked to start the run, and does not
  // live to do it.
  trainer_listener_.Stop();
  ASSERT_EQ(Register("trainer", type::v1::WORKER_ROLE_TRAINER, "127.0.0.1:1", "2").error_code(),
            grpc::StatusCode::OK);
  const auto lost = Submit(Spec(), "b");
  ASSERT_TRUE(lost.ok()) << lost.status();
  Watch(*lost);
  const std::string reason = Get(*lost).reason();
  EXPECT_EQ(reason.find("the trainer (worker trainer) was lost while the model was loaded (the "
                        "connection to it broke and nothing listens at its address any more); "),
            0u)
      << reason;
  EXPECT_NE(reason.find("titanctl logs trainer shows its last words"), std::string::npos) << reason;
}

TEST_F(OrchestratorProcessTest, AJobWhoseLastVersionHasNoRoomIsRefusedAtTheSubmission) {
  StartDaemon();
  RegisterAll(1);
  config::v1::JobSpec spec = Spec();
  spec.mutable_training()->set_checkpoint_every_steps(1);
  const ov::CheckJobResponse good = Check(spec);
  ASSERT_EQ(good.problems_size(), 0);
  EXPECT_EQ(good.warnings_size(), 0);
  // Ring of 4 and one for evaluation; weights, moments and gradients, and a second set for
  // checkpoints.
  uint64_t version = 0, trainer = 0;
  for (const auto& need : good.memory()) {
    if (need.holder() == "trainer") trainer = need.bytes();
    if (need.holder() == "weightstore") version = need.bytes() / 5;
  }
  EXPECT_EQ(trainer, 7 * version);

  // Three checkpoints of weights and two moments are there at one time.
  store_.disk_available = 10 * version;
  EXPECT_EQ(Check(spec).warnings_size(), 0);
  store_.disk_available = 10 * version - 1;
  const ov::CheckJobResponse tight = Check(spec);
  EXPECT_EQ(tight.problems_size(), 0);
  ASSERT_EQ(tight.warnings_size(), 1);
  EXPECT_EQ(tight.warnings(0).find("training.checkpoint_every_steps: 3 checkpoints need"), 0u)
      << tight.warnings(0);

  store_.disk_available = version - 1;
  const ov::CheckJobResponse full = Check(spec);
  ASSERT_EQ(full.problems_size(), 1);
  EXPECT_EQ(full.problems(0).path(), "model");
  EXPECT_NE(full.problems(0).description().find("of the weight store's disk"), std::string::npos);
  EXPECT_EQ(Submit(spec, "full").status().code(), StatusCode::kInvalidArgument);

  store_.keeps_nothing = true;  // which needs no room
  EXPECT_EQ(Check(spec).problems_size(), 0);
}

// A generator of another machine has nothing to do with the memory of this one.
TEST_F(OrchestratorProcessTest, TheMemoryOfWorkersElsewhereIsNotThatOfThisMachine) {
  StartDaemon();
  RegisterAll(1);
  generators_[0].kv_cache_bytes = 1;
  generators_[1].kv_cache_bytes = uint64_t{1} << 50;  // more than any machine has
  const auto bytes_of = [](const ov::CheckJobResponse& check) {
    std::map<std::string, uint64_t> bytes;
    for (const auto& need : check.memory()) bytes[need.holder()] = need.bytes();
    return bytes;
  };
  const auto join = [&](const std::string& id, type::v1::WorkerRole role,
                        const std::string& address, const std::string& machine) {
    const grpc::Status status = Register(id, role, address, "of " + machine, "8", machine);
    EXPECT_TRUE(status.ok()) << status.error_message();
  };
  const auto alone = bytes_of(Check(Spec()));
  ASSERT_EQ(alone.size(), 3u);
  const auto second = [&](const std::string& machine) {
    join("generator-1", type::v1::WORKER_ROLE_GENERATOR, generator_listeners_[1]->address(),
         machine);
  };
  second("elsewhere");
  const ov::CheckJobResponse apart = Check(Spec());
  EXPECT_EQ(apart.problems_size(), 0) << apart.ShortDebugString();
  EXPECT_EQ(bytes_of(apart), alone);

  second(runtime::MemoryName());
  const ov::CheckJobResponse here = Check(Spec());
  ASSERT_EQ(here.problems_size(), 1) << here.ShortDebugString();
  EXPECT_EQ(here.problems(0).path(), "schedule.max_age");
  EXPECT_GE(bytes_of(here).at("generators"), uint64_t{1} << 50);
  EXPECT_EQ(Submit(Spec(), "too much").status().code(), StatusCode::kInvalidArgument);

  // So with a trainer, and the store whose slots it fills.
  second("elsewhere");
  join("trainer", type::v1::WORKER_ROLE_TRAINER, trainer_listener_.address(), "elsewhere");
  EXPECT_EQ(bytes_of(Check(Spec())),
            (std::map<std::string, uint64_t>{{"generators", alone.at("generators")}}));
  const auto job = Submit(Spec(), "fits");
  ASSERT_TRUE(job.ok()) << job.status();
  Watch(*job);
  EXPECT_EQ(Get(*job).state(), ov::JOB_STATE_SUCCEEDED) << Get(*job).reason();
}

TEST_F(OrchestratorProcessTest, AJobThatWouldWaitForWorkersIsWarnedAbout) {
  const auto has = [](const auto& warnings, const std::string& part) {
    for (const std::string& warning : warnings) {
      if (warning.find(part) != std::string::npos) return true;
    }
    return false;
  };
  StartDaemon();
  ov::CheckJobResponse nobody = Check(Spec());
  for (int i = 0; i < 500 && has(nobody.warnings(), "no weight store"); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    nobody = Check(Spec());
  }
  EXPECT_TRUE(has(nobody.warnings(),
                  "no trainer and no generator is registered now; the job stays queued until "
                  "what is missing is there"))
      << nobody.ShortDebugString();
  EXPECT_TRUE(has(nobody.warnings(), "no reward service is registered"));
  EXPECT_EQ(nobody.problems_size(), 0);
  EXPECT_TRUE(Register("trainer", type::v1::WORKER_ROLE_TRAINER, trainer_listener_.address()).ok());
  grpc::ClientContext context;
  ov::SubmitJobRequest request;
  request.set_request_id("a");
  *request.mutable_spec() = Spec();
  ov::SubmitJobResponse response;
  ASSERT_TRUE(stub_->SubmitJob(&context, request, &response).ok());
  EXPECT_TRUE(has(response.warnings(), "no generator is registered now; "))
      << response.DebugString();
  RegisterAll(1);
  EXPECT_FALSE(has(Check(Spec()).warnings(), "registered"));
  Watch(response.job_id());
  EXPECT_EQ(Get(response.job_id()).state(), ov::JOB_STATE_SUCCEEDED);
}

TEST_F(OrchestratorProcessTest, DataIsDeletedWhenNoJobNeedsItAnyMore) {
  StartDaemon();
  const auto upload = [this] {
    grpc::ClientContext context;
    ov::UploadDataResponse response;
    auto stream = stub_->UploadData(&context, &response);
    ov::UploadDataRequest request;
    request.set_request_id("u");
    request.set_name("sums");
    std::ifstream in(folder_ + "/data.jsonl");
    request.set_chunk(std::string(std::istreambuf_iterator<char>(in), {}));
    stream->Write(request);
    stream->WritesDone();
    const grpc::Status status = stream->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.data();
  };
  ov::RemoveDataResponse removed;
  const auto remove = [&](const std::string& id) {
    grpc::ClientContext context;
    ov::RemoveDataRequest request;
    request.set_request_id("r");
    request.set_data_id(id);
    return rpc::FromGrpc(stub_->RemoveData(&context, request, &removed));
  };
  const auto stored = [this] {
    size_t files = 0;
    for (const auto& file : std::filesystem::directory_iterator(folder_ + "/orchestrator/data")) {
      files += file.is_regular_file();
    }
    return files;
  };
  const ov::DataInfo data = upload();
  EXPECT_EQ(stored(), 2u);
  config::v1::JobSpec spec = Spec();
  spec.mutable_data()->clear_path();
  spec.mutable_data()->set_id(data.id());
  const auto job = Submit(spec, "a");  // it waits for workers
  ASSERT_TRUE(job.ok()) << job.status();
  const Status used = remove(data.id());
  EXPECT_EQ(used.code(), StatusCode::kFailedPrecondition) << used;
  EXPECT_NE(MessageOf(used).find("data '" + data.id() + "' is used by " + *job + " (QUEUED)"),
            std::string::npos)
      << used;
  EXPECT_EQ(rpc::ReasonOf(used), "DATA_IN_USE");
  // Nor is it after a restart that reads it again.
  Stop(SIGKILL);
  StartDaemon();
  EXPECT_EQ(remove(data.id()).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(stored(), 2u);
  Cancel(*job);
  EXPECT_TRUE(remove(data.id()).ok());
  EXPECT_EQ(removed.data().SerializeAsString(), data.SerializeAsString());
  EXPECT_EQ(stored(), 0u);
  EXPECT_EQ(remove(data.id()).code(), StatusCode::kNotFound);
  EXPECT_EQ(Submit(spec, "b").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(upload().id(), data.id());
  EXPECT_TRUE(Submit(spec, "c").ok());
  for (const char* id : {"", "../data", "00"}) {
    EXPECT_EQ(remove(id).code(), StatusCode::kInvalidArgument) << id;
  }
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
  Cancel(*job);
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
  Cancel(*job);
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
