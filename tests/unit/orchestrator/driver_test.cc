// SPDX-License-Identifier: Apache-2.0
//
// Goal: facts are durable before what depends on them, what the journal keeps survives power loss,
// and its canonical form is the same whatever the order of arrivals. Method: the driver over the
// simulated world's workers with a journal in memory and segments on disk; the world's clock
// decides when a commit is done.
#include "orchestrator/driver.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <tuple>

#include "core/storage/memory_store.h"
#include "orchestrator/canonical.h"
#include "orchestrator/journal.h"
#include "tests/support/orchestrator_simulation.h"

namespace titan::orchestrator {
namespace {

using testing::MakeSpec;
using testing::World;
using testing::WorldOptions;

// Reports as raw text, enough for a test.
JournalCodec TestCodec() {
  JournalCodec codec;
  codec.encode_step = [](const StepReport& r) {
    return std::to_string(r.step) + " " + r.weights_digest + " " + std::to_string(r.samples);
  };
  codec.decode_step = [](const std::string& text) -> StatusOr<StepReport> {
    StepReport report;
    char digest[64] = "";
    unsigned long long step = 0;
    if (std::sscanf(text.c_str(), "%llu %63s %u", &step, digest, &report.samples) != 3) {
      return DataLoss("bad report");
    }
    report.step = step;
    report.version = step + 1;
    report.weights_digest = digest;
    return report;
  };
  codec.encode_evaluation = [](const EvaluationReport& r) {
    return std::to_string(r.version) + " " + std::to_string(r.correct);
  };
  codec.decode_evaluation = [](const std::string& text) -> StatusOr<EvaluationReport> {
    EvaluationReport report;
    unsigned long long version = 0;
    if (std::sscanf(text.c_str(), "%llu %u", &version, &report.correct) != 2) {
      return DataLoss("bad report");
    }
    report.version = version;
    return report;
  };
  codec.decode_spec = [](const std::string&) -> StatusOr<JobSpec> { return MakeSpec(); };
  return codec;
}

// Passes everything through to a store that outlives the journal.
class SharedStore final : public storage::KeyValueStore {
 public:
  explicit SharedStore(std::shared_ptr<storage::MemoryStore> store) : store_(std::move(store)) {}
  Status Write(const storage::WriteBatch& b, storage::Durability d) override {
    return store_->Write(b, d);
  }
  Status Sync() override { return store_->Sync(); }
  Status Check() override { return store_->Check(); }
  StatusOr<std::optional<std::string>> Get(std::string_view key) const override {
    return store_->Get(key);
  }
  Status Scan(std::string_view p, std::string_view s, const Visitor& v) const override {
    return store_->Scan(p, s, v);
  }
  StatusOr<std::optional<Entry>> Last(std::string_view prefix) const override {
    return store_->Last(prefix);
  }

 private:
  std::shared_ptr<storage::MemoryStore> store_;
};

class JournalTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "journal_" + std::to_string(getpid()) + "_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::unique_ptr<Journal> Open(std::shared_ptr<storage::MemoryStore> store,
                                const std::string& name = "segments") {
    auto segments = storage::SegmentLog::Open(folder_ + "/" + name);
    EXPECT_TRUE(segments.ok());
    auto journal = Journal::Create(std::make_unique<SharedStore>(std::move(store)),
                                   *std::move(segments), TestCodec());
    EXPECT_TRUE(journal.ok()) << journal.status();
    return *std::move(journal);
  }
  std::string folder_;
};

TEST_F(JournalTest, WhatWasCommittedSurvivesPowerLoss) {
  auto store = std::make_shared<storage::MemoryStore>();
  auto journal = Open(store);
  World world{WorldOptions{}};
  world.Submit("job-1", MakeSpec());
  world.Run();
  ASSERT_EQ(world.Job("job-1").state, JobState::kSucceeded);
  ASSERT_TRUE(journal->Commit(world.facts).ok());
  journal.reset();
  std::shared_ptr<storage::MemoryStore> after = store->AfterPowerLoss();
  journal = Open(after);
  const auto facts = journal->ReadFacts("job-1", true);
  ASSERT_TRUE(facts.ok()) << facts.status();
  ASSERT_EQ(facts->size(), world.facts.size());
  size_t messages = 0;
  for (size_t i = 0; i < facts->size(); ++i) {
    messages += std::holds_alternative<MessageTold>((*facts)[i].body);
    // Reports pass through the test's codec, which keeps part of them.
    if (std::holds_alternative<StepDone>(world.facts[i].body)) continue;
    if (std::holds_alternative<EvaluationDone>(world.facts[i].body)) continue;
    EXPECT_EQ(CanonicalLine((*facts)[i]), CanonicalLine(world.facts[i]));
    EXPECT_EQ(UnixMs((*facts)[i].at), UnixMs(world.facts[i].at));
  }
  EXPECT_EQ(messages, world.messages.size());
  EXPECT_GT(messages, 0u);
  const auto jobs = journal->ReadJobs();
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  ASSERT_EQ(jobs->size(), 1u);
  const JobInfo& info = (*jobs)[0].info;
  EXPECT_EQ(info.state, JobState::kSucceeded);
  EXPECT_EQ(info.steps_done, 8u);
  EXPECT_EQ(info.run_id, "run-job-1");
  EXPECT_EQ(info.request_id, "request-job-1");
  EXPECT_EQ(info.last_step->weights_digest, world.Job("job-1").last_step->weights_digest);
  EXPECT_EQ(info.evaluations.size(), world.Job("job-1").evaluations.size());
  EXPECT_GT(info.running_unix_ms, 0);
  // Numbers go on after the last one.
  ASSERT_TRUE(journal->Commit({{"job-1", Instant(), StateChanged{JobState::kFailed, "x"}}}).ok());
  EXPECT_EQ(journal->ReadFacts("job-1", false)->size(), world.facts.size() + 1);
}

TEST_F(JournalTest, CanonicalFormsOfTwoWorldsAreEqual) {
  std::vector<std::vector<std::string>> forms;
  for (const uint64_t seed : {1, 2, 3}) {
    WorldOptions options;
    options.seed = seed;
    options.num_generators = static_cast<int>(seed);
    options.duplicate = 0.2;
    options.break_stream = 0.1;
    options.generator_loss = seed > 1 ? 0.05 : 0;
    options.train_ms = 3000;  // each evaluation is made
    World world{options};
    world.Submit("job-1", MakeSpec());
    world.Run();
    auto journal = Open(std::make_shared<storage::MemoryStore>(), "s" + std::to_string(seed));
    ASSERT_TRUE(journal->Commit(world.facts).ok());
    const auto form = journal->ReadCanonical("job-1");
    ASSERT_TRUE(form.ok()) << form.status();
    forms.push_back(*form);
  }
  EXPECT_GT(forms[0].size(), 300u);
  EXPECT_EQ(forms[0], forms[1]);
  EXPECT_EQ(forms[0], forms[2]);
}

TEST_F(JournalTest, AFactOfALaterVersionIsRefusedByItsJob) {
  auto store = std::make_shared<storage::MemoryStore>();
  auto journal = Open(store);
  ASSERT_TRUE(
      journal
          ->Commit({{"job-1", Instant(), JobSubmitted{"spec", "r", "run", "digest", "sent"}},
                    {"job-1", Instant(), MessageTold{"hello"}}})
          .ok());
  // The message becomes field 999, which stands for what nobody has defined yet.
  std::string key, fact;
  ASSERT_TRUE(store
                  ->ScanPrefix("f/job-1/",
                               [&](std::string_view k, std::string_view v) {
                                 key = k;
                                 fact = v;
                                 return true;
                               })
                  .ok());
  const std::string told = "\x6a\x07\x0a\x05hello";  // field 13, a message with the text
  const size_t at = fact.find(told);
  ASSERT_NE(at, std::string::npos);
  fact.replace(at, 1, "\xba\x3e");
  storage::WriteBatch batch;
  batch.Put(key, fact);
  ASSERT_TRUE(store->Write(batch, storage::Durability::kSynced).ok());
  for (const Status& refused :
       {journal->ReadJobs().status(), journal->ReadFacts("job-1", false).status()}) {
    EXPECT_EQ(refused.code(), StatusCode::kDataLoss) << refused;
    EXPECT_EQ(MessageOf(refused),
              "journal: a fact of job job-1 is of a kind this version does not know; start the "
              "version that wrote it");
  }
}

TEST(CanonicalTest, MessagesAndDigestsOfWhatWasSentAreNotPartOfIt) {
  const Instant at(Millis(1));
  const Fact submitted{"job-1", at, JobSubmitted{"spec", "r", "run", "digest", "sent"}};
  const Fact older{"job-1", at, JobSubmitted{"spec", "r", "run", "digest", ""}};
  const Fact state{"job-1", at, StateChanged{JobState::kQueued, ""}};
  const Fact message{"job-1", at, MessageTold{"hello"}};
  EXPECT_EQ(CanonicalForm({submitted, message, state}), CanonicalForm({older, state}));
  EXPECT_EQ(CanonicalForm({submitted, state}).size(), 2u);
}

TEST(JobInfoTest, JobsAreInTheOrderOfTheNumbersInTheirIds) {
  std::vector<JobInfo> jobs;
  for (const char* id : {"job-10", "job-2", "job-100", "job-9", "job-11"}) {
    jobs.emplace_back().job_id = id;
    jobs.back().submitted_unix_ms = 1000 - static_cast<int64_t>(jobs.size());  // a clock set back
  }
  std::sort(jobs.begin(), jobs.end(), SubmittedBefore);
  std::vector<std::string> ids;
  for (const JobInfo& job : jobs) ids.push_back(job.job_id);
  EXPECT_EQ(ids, (std::vector<std::string>{"job-2", "job-9", "job-10", "job-11", "job-100"}));
  EXPECT_FALSE(SubmittedBefore(jobs[0], jobs[0]));
}

TEST_F(JournalTest, JobsComeBackInOrderOfSubmissionWithWhatARestartNeeds) {
  auto journal = Open(std::make_shared<storage::MemoryStore>());
  // All in one millisecond; "job-10" sorts before "job-9" as text.
  for (const char* id : {"job-9", "job-10", "job-11"}) {
    ASSERT_TRUE(journal
                    ->Commit({{id, Instant(), JobSubmitted{"spec", id, "run", "digest", "sent"}},
                              {id, Instant(), StateChanged{JobState::kQueued, ""}}})
                    .ok());
  }
  const Instant later(Millis(7));
  ASSERT_TRUE(
      journal
          ->Commit({{"job-9", later, JobSubmitted{"spec", "job-9", "run-2", "digest", "sent"}},
                    {"job-9", later, JobSubmitted{"spec", "job-9", "run-3", "digest", "sent"}},
                    {"job-9", later, MessageTold{"hello"}},
                    {"job-10", later, CommandGiven{"cancel", "c", "enough"}},
                    {"job-10", later, StateChanged{JobState::kStopping, "enough"}},
                    {"job-11", later, StateChanged{JobState::kStopping, "failed"}},
                    {"job-11", later, CommandGiven{"cancel", "c", "too late"}}})
          .ok());
  const auto jobs = journal->ReadJobs();
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  ASSERT_EQ(jobs->size(), 3u);
  const auto& [first, second, third] = std::tie((*jobs)[0], (*jobs)[1], (*jobs)[2]);
  EXPECT_EQ(first.info.job_id, "job-9");
  EXPECT_EQ(first.info.run_id, "run-3");
  EXPECT_EQ(first.past_run_ids, (std::vector<std::string>{"run", "run-2"}));
  EXPECT_EQ(first.info.spec_digest, "sent");
  const auto* told = std::get_if<MessageTold>(&first.facts.back().body);
  ASSERT_NE(told, nullptr);
  EXPECT_EQ(told->text, "hello");
  EXPECT_EQ(first.info.data_digest, "digest");
  EXPECT_EQ(first.info.submitted_unix_ms, 0);
  EXPECT_EQ(second.info.job_id, "job-10");
  EXPECT_TRUE(second.cancelled);
  EXPECT_EQ(third.info.job_id, "job-11");
  EXPECT_FALSE(third.cancelled);
}

TEST_F(JournalTest, AFailedWriteIsReported) {
  auto store = std::make_shared<storage::MemoryStore>();
  auto journal = Open(store);
  store->FailWritesWith(ResourceExhausted("disk full"));
  const Status status =
      journal->Commit({{"job-1", Instant(), StateChanged{JobState::kQueued, ""}}});
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
}

// Ports that record what they are asked, and a journal whose commits end when the test says so.
struct FakePorts final : GeneratorPort,
                         TrainerPort,
                         RewardPort,
                         WeightStorePort,
                         JournalPort,
                         Observer {
  void Load(const LoadVersion&) override { log.push_back("load"); }
  void Release(const ReleaseVersion&) override { log.push_back("release"); }
  void Start(const StartRollout&) override { log.push_back("rollout"); }
  void Cancel(const CancelRollouts&) override { log.push_back("cancel"); }
  void Reset(const ResetGenerator&) override { log.push_back("reset"); }
  void Start(const StartRun&) override { log.push_back("start_run"); }
  void Train(const TrainStep&) override { log.push_back("train"); }
  void End(const EndRun&, std::function<void()> done) override {
    log.push_back("end_trainer");
    end_trainer = std::move(done);
  }
  void Send(const Score&) override { log.push_back("score"); }
  void Pin(const PinEvaluation&) override { log.push_back("pin"); }
  void Unpin(const UnpinEvaluation&) override { log.push_back("unpin"); }
  void End(const std::string&, std::function<void()> done) override {
    log.push_back("end_store");
    end_store = std::move(done);
  }
  void Commit(std::vector<Fact> facts, std::function<void(Status)> done) override {
    commits.push_back(facts.size());
    commit_done = std::move(done);
  }
  void OnJob(const JobInfo& job) override {
    log.push_back(std::string("job ") + NameOf(job.state));
  }
  void OnStep(const std::string&, const StepReport&) override { log.push_back("step"); }
  void OnEvaluation(const std::string&, const EvaluationReport&) override { log.push_back("eval"); }
  void OnMessage(const std::string&, const std::string&) override {}
  void OnJournalFailure(const Status&) override { log.push_back("journal_failure"); }

  void FinishCommit(Status status = OkStatus()) {
    auto done = std::exchange(commit_done, nullptr);
    ASSERT_TRUE(done != nullptr);
    done(std::move(status));
  }
  bool Has(const std::string& what) const {
    return std::find(log.begin(), log.end(), what) != log.end();
  }
  std::vector<std::string> log;
  std::vector<size_t> commits;
  std::function<void(Status)> commit_done;
  std::function<void()> end_trainer, end_store;
};

SubmitJob MakeSubmit() {
  SubmitJob submit;
  submit.job_id = "job-1";
  submit.run_id = "run-1";
  submit.request_id = "r";
  submit.spec = std::make_shared<const JobSpec>(MakeSpec());
  submit.dataset = std::make_shared<const Dataset>(testing::MakeDataset(40));
  return submit;
}

void JoinAll(Driver& driver) {
  WorkerReady ready;
  ready.name = {"trainer", "1"};
  ready.role = WorkerRole::kTrainer;
  driver.Deliver(ready);
  ready.name = {"weightstore", "1"};
  ready.role = WorkerRole::kWeightStore;
  driver.Deliver(ready);
  ready.name = {"reward", "1"};
  ready.role = WorkerRole::kReward;
  ready.graders = {"numeric_match"};
  driver.Deliver(ready);
  ready.name = {"generator", "1"};
  ready.role = WorkerRole::kGenerator;
  ready.max_versions = 3;
  ready.max_running_sequences = 64;
  driver.Deliver(ready);
}

TEST(DriverTest, ActionsWaitForTheirFactsAndRolloutsDoNot) {
  ManualClock clock(1000);
  FakePorts fake;
  Driver driver({fake, fake, fake, fake, fake, fake}, clock);
  JoinAll(driver);
  bool acknowledged = false;
  driver.Deliver(MakeSubmit());
  driver.WhenDurable([&] { acknowledged = true; });
  EXPECT_FALSE(acknowledged);
  EXPECT_FALSE(fake.Has("start_run"));
  EXPECT_FALSE(fake.Has("job QUEUED"));
  ASSERT_EQ(fake.commits.size(), 1u);
  fake.FinishCommit();
  EXPECT_TRUE(acknowledged);
  EXPECT_TRUE(fake.Has("job QUEUED"));
  EXPECT_TRUE(fake.Has("start_run"));
  driver.Deliver(RunStarted{"run-1", OkStatus(), "d"});
  EXPECT_TRUE(fake.Has("load"));
  EXPECT_FALSE(fake.Has("job RUNNING"));
  driver.Deliver(VersionLoaded{{"generator", "1"}, "run-1", 0, false, OkStatus()});
  EXPECT_TRUE(fake.Has("rollout"));    // though no fact of it is durable
  EXPECT_EQ(fake.commits.size(), 2u);  // one commit in flight
  fake.FinishCommit();
  EXPECT_TRUE(fake.Has("job RUNNING"));
  EXPECT_EQ(fake.commits.size(), 3u);  // the rest in one commit
}

TEST(DriverTest, TheEndOfARunGoesToTrainerThenStore) {
  ManualClock clock(1000);
  FakePorts fake;
  Driver driver({fake, fake, fake, fake, fake, fake}, clock);
  JoinAll(driver);
  driver.Deliver(MakeSubmit());
  fake.FinishCommit();
  driver.Deliver(CancelJob{"job-1", "c", "enough"});
  EXPECT_FALSE(fake.Has("end_trainer"));
  while (fake.commit_done != nullptr) fake.FinishCommit();
  ASSERT_TRUE(fake.Has("end_trainer"));
  EXPECT_FALSE(fake.Has("end_store"));
  fake.end_trainer();
  ASSERT_TRUE(fake.Has("end_store"));
  fake.end_store();
  while (fake.commit_done != nullptr) fake.FinishCommit();
  EXPECT_EQ(fake.log.back(), "job CANCELLED");
}

TEST(DriverTest, AFailedJournalStopsEverything) {
  ManualClock clock(1000);
  FakePorts fake;
  Driver driver({fake, fake, fake, fake, fake, fake}, clock);
  JoinAll(driver);
  bool acknowledged = false;
  driver.Deliver(MakeSubmit());
  driver.WhenDurable([&] { acknowledged = true; });
  fake.FinishCommit(ResourceExhausted("disk full"));
  EXPECT_TRUE(fake.Has("journal_failure"));
  EXPECT_FALSE(acknowledged);
  EXPECT_FALSE(fake.Has("start_run"));
}

}  // namespace
}  // namespace titan::orchestrator
