// SPDX-License-Identifier: Apache-2.0
//
// Goal: when the disk under titan-orchestrator fails a sync, at whatever file or folder, the daemon
// ends, or refuses what it was asked to store, with the file's name and the system's reason; after
// power loss what it acknowledged is there and every job that it tells of can be read. Method: the
// real program, whose syncs fail one after the other (tests/support/sync_faults.h); its peers are
// played over gRPC.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "tests/support/orchestrator_process.h"
#include "tests/support/sync_faults.h"

namespace titan::test {
namespace {

using titan::testing::SyncFaults;

class OrchestratorSyncTest : public OrchestratorProcessTest {
 protected:
  void Clear() {
    Stop(SIGKILL);
    faults_.reset();
    const std::string data = folder_ + "/orchestrator";
    std::filesystem::remove_all(data);
    std::filesystem::create_directories(data);
    std::filesystem::remove(folder_ + "/log");
    faults_.emplace(data);
    before_exec_ = faults_->before_exec();
  }
  std::string Log() const {
    std::ifstream log(folder_ + "/log");
    return {std::istreambuf_iterator<char>(log), {}};
  }

  // The id, or why not. Asks twice where the first answer is no.
  StatusOr<std::string> Upload(bool* existed) {
    StatusOr<std::string> id = Internal("not asked");
    for (int i = 0; i < 2 && !id.ok(); ++i) {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
      ov::UploadDataResponse response;
      auto stream = stub_->UploadData(&context, &response);
      ov::UploadDataRequest request;
      request.set_request_id("upload");
      request.set_name("data");
      request.set_chunk("{\"id\":\"a\",\"prompt\":\"What is 1 + 1?\",\"answer\":2}\n");
      stream->Write(request);
      stream->WritesDone();
      const grpc::Status status = stream->Finish();
      *existed = response.existed();
      if (status.ok()) {
        id = response.data().id();
      } else {
        id = rpc::FromGrpc(status);
        refusals_ += status.error_message() + "\n";
      }
    }
    return id;
  }
  // True: a watcher was told that it has succeeded.
  bool Succeeds(const std::string& job_id) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    ov::WatchJobRequest request;
    request.set_job_id(job_id);
    const auto reader = stub_->WatchJob(&context, request);
    ov::WatchJobResponse event, last;
    while (reader->Read(&event)) last = event;
    return reader->Finish().ok() && last.state_changed().state() == ov::JOB_STATE_SUCCEEDED;
  }
  config::v1::JobSpec SmallSpec() const {
    config::v1::JobSpec spec = Spec();
    spec.mutable_schedule()->set_steps(1);
    spec.mutable_schedule()->set_groups_per_step(1);
    spec.mutable_rollout()->set_samples_per_group(2);
    spec.mutable_data()->set_held_out(2);
    return spec;
  }

  // False: there were not so many syncs.
  bool FailOne(int number, int error) {
    SCOPED_TRACE("sync " + std::to_string(number) + ": " + std::strerror(error));
    Clear();
    refusals_.clear();
    faults_->Fail(number, error);
    int code = 0;
    bool existed = false, succeeded = false;
    StatusOr<std::string> data = Internal("not asked"), job = Internal("not asked");
    if (TryStartDaemon(&code)) {
      data = Upload(&existed);
      EXPECT_FALSE(existed);  // nor when it is asked again after a failure
      if (stub_ != nullptr && AllRegister()) {
        job = Submit(SmallSpec(), "a");
        succeeded = job.ok() && Succeeds(*job);
      }
      // Who cannot write its journal ends; so does, here, who goes on.
      if (!process_->Ended(&code)) {
        process_->Signal(SIGTERM);
        code = process_->Wait();
      }
      process_.reset();
    }
    const std::optional<std::string> failed = faults_->failed();
    SCOPED_TRACE(failed.value_or("nothing failed"));
    if (failed.has_value()) {
      const std::string said = refusals_ + Log();
      EXPECT_NE(said.find(*failed), std::string::npos) << said;
      EXPECT_NE(said.find(std::strerror(error)), std::string::npos) << said;
      EXPECT_TRUE(code == 0 || code == 1) << code;
      if (code == 0) {
        EXPECT_TRUE(succeeded) << Log();
      }
    } else {
      EXPECT_TRUE(data.ok() && succeeded) << data.status() << job.status() << Log();
    }
    faults_->LosePower();
    faults_->Fail(-1, 0);
    StartDaemon();
    if (HasFatalFailure()) return false;
    if (data.ok()) {
      EXPECT_EQ(*Upload(&existed), *data);
      EXPECT_TRUE(existed);
    }
    std::map<std::string, ov::JobState> jobs;
    {
      grpc::ClientContext context;
      ov::ListJobsResponse listed;
      EXPECT_TRUE(stub_->ListJobs(&context, {}, &listed).ok());
      for (const ov::Job& one : listed.jobs()) jobs[one.job_id()] = one.state();
    }
    if (job.ok()) {
      EXPECT_TRUE(jobs.contains(*job)) << *job;
    }
    if (succeeded) {
      EXPECT_EQ(jobs[*job], ov::JOB_STATE_SUCCEEDED);
    }
    Stop(SIGTERM);
    for (const auto& [id, state] : jobs) EXPECT_GT(Canonical(id).size(), 0u);
    return failed.has_value() && !HasFatalFailure();
  }
  // False: the daemon has ended.
  bool AllRegister() {
    for (const auto& [id, role, address] :
         {std::tuple{"trainer", type::v1::WORKER_ROLE_TRAINER, trainer_listener_.address()},
          std::tuple{"reward", type::v1::WORKER_ROLE_REWARD, reward_listener_.address()},
          std::tuple{"generator-0", type::v1::WORKER_ROLE_GENERATOR,
                     generator_listeners_[0]->address()}}) {
      if (!Register(id, role, address).ok()) return false;
    }
    return true;
  }
  void FailEach(int error) {
    int number = 0;
    while (FailOne(number, error)) ++number;
    std::printf("%d syncs of", number);
    for (const std::string& name : faults_->seen()) std::printf(" data%s", name.c_str());
    std::printf("\n");
    EXPECT_GT(number, 20);
    for (const char* name : {"", "/journal", "/journal/.log", "/journal/MANIFEST-", "/segments",
                             "/segments/.seg", "/data"}) {
      EXPECT_TRUE(faults_->seen().contains(name)) << name;
    }
  }

  std::string refusals_;
  std::optional<SyncFaults> faults_;
};

TEST_F(OrchestratorSyncTest, AnInputOutputErrorAnywhereLosesNothingThatWasAcknowledged) {
  FailEach(EIO);
}

TEST_F(OrchestratorSyncTest, NoSpaceAnywhereLosesNothingThatWasAcknowledged) { FailEach(ENOSPC); }

}  // namespace
}  // namespace titan::test
