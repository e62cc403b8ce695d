// SPDX-License-Identifier: Apache-2.0
//
// Goal: a job whose training does not fit into memory is refused before anything is allocated, read
// or registered, with the numbers and what to change; a run is taken over before its checkpoint is
// looked for. Method: TrainJob with a store that nobody may call, or that refuses.
#include "services/trainer/train_job.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <thread>

#include "core/base/status.h"
#include "core/runtime/machine.h"
#include "tests/support/small_model.h"
#include "tests/support/test_files.h"
#include "weightstore/client/unix_socket.h"

namespace titan::services {
namespace {

// Every call is a mistake.
class NoLeader : public weightstore::LeaderPort {
 public:
  StatusOr<weightstore::Registration> RegisterTrainer(const std::string&, const std::string&,
                                                      const weightstore::Manifest&, uint32_t,
                                                      uint32_t, const std::string&) override {
    return Called();
  }
  StatusOr<weightstore::BeginResult> BeginVersion(const std::string&, uint64_t, uint64_t,
                                                  std::chrono::milliseconds) override {
    return Called();
  }
  Status PutDone(const std::string&, uint64_t, uint64_t, uint64_t, const Hash128&) override {
    return Called();
  }
  StatusOr<int64_t> CommitVersion(const std::string&, uint64_t, uint64_t, const Hash128&,
                                  const std::string&, uint64_t) override {
    return Called();
  }
  StatusOr<weightstore::Lease> AcquireLease(const std::string&, const std::string&, uint64_t,
                                            bool) override {
    return Called();
  }
  StatusOr<weightstore::RemoteLease> AcquireRemoteLease(const std::string&, const std::string&,
                                                        uint64_t, bool,
                                                        const weightstore::Reach&) override {
    return Called();
  }
  Status ReleaseLease(uint64_t) override { return Called(); }

 private:
  static Status Called() { return Internal("the store was called"); }
};

class NoModels : public weightstore::ModelPort {
 public:
  StatusOr<weightstore::StoredModel> FindModel(const std::string&) override { return Called(); }
  StatusOr<weightstore::StoredModel> FindVersion(const std::string&, uint64_t) override {
    return Called();
  }
  StatusOr<std::string> ReadBlob(const Hash128&, std::optional<uint64_t>) override {
    return Called();
  }
  StatusOr<Hash128> PutBundle(const std::string&) override { return Called(); }

 private:
  static Status Called() { return Internal("the models were called"); }
};

class NoCheckpoints final : public weightstore::CheckpointPort {
 public:
  Status PutCheckpoint(const weightstore::Checkpoint&, std::function<StatusOr<std::string>()>,
                       const std::function<bool()>&) override {
    return Called();
  }
  StatusOr<weightstore::StoredModel> FindCheckpoint(const std::string&) override {
    return Called();
  }

 private:
  static Status Called() { return Internal("the checkpoints were called"); }
};

// A job on a model in the folder with so wide a feed-forward, with packs of so many rows.
StatusOr<TrainJob::Options> Job(const TempFolder& folder, int32_t intermediate_size,
                                uint32_t max_pack_tokens) {
  test::SmallModelOptions model;
  model.hidden_size = 16;
  model.intermediate_size = intermediate_size;
  model.vocab_size = 600;
  model.num_heads = 1;
  model.num_kv_heads = 1;
  model.head_dim = 16;
  TITAN_RETURN_IF_ERROR(test::MakeSmallModel(folder.path("model"), 5, model));
  TrainJob::Options options;
  options.run_id = "run";
  options.spec.mutable_model()->set_path(folder.path("model"));
  options.spec.mutable_model()->set_mode("f32");
  options.spec.mutable_model()->set_max_sequence_tokens(128);
  options.spec.mutable_rollout()->set_temperature(1);
  options.spec.mutable_training()->set_aggregation("token_mean");
  options.spec.mutable_training()->set_max_gradient_norm(1);
  options.spec.mutable_training()->set_shards(1);
  options.config.set_recompute("none");
  options.config.set_max_pack_tokens(max_pack_tokens);
  return options;
}

Status Start(int32_t intermediate_size, uint32_t max_pack_tokens) {
  const TempFolder folder;
  TITAN_ASSIGN_OR_RETURN(const TrainJob::Options options,
                         Job(folder, intermediate_size, max_pack_tokens));
  NoLeader leader;
  NoModels models;
  NoCheckpoints checkpoints;
  kernels::Pool pool(1);
  const SystemClock clock;
  return TrainJob::Start({leader, models, checkpoints}, pool, clock, options).status();
}

TEST(TrainJobTest, MemoryThatIsNotThereIsRefusedWithTheNumbers) {
  const StatusOr<uint64_t> available = runtime::AvailableMemory();
  ASSERT_TRUE(available.ok()) << available.status();
  if (*available > uint64_t{1} << 40) GTEST_SKIP() << "this machine has the memory";
  const Status refused = Start(65536, 1 << 20);
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused;
  // 1048576 rows x (4 arrays that are kept and 3 of scratch) x 65536 floats are 1835008 MiB.
  EXPECT_NE(MessageOf(refused).find("training this model needs 18"), std::string::npos) << refused;
  EXPECT_NE(MessageOf(refused).find(" MiB are free; set recompute in the trainer's config, or "
                                    "lower max_pack_tokens or training.shards"),
            std::string::npos)
      << refused;
  // What fits goes on to the store.
  EXPECT_EQ(MessageOf(Start(64, 2048)), "the models were called");
}

// Somebody else has the run.
class TakenLeader final : public NoLeader {
 public:
  StatusOr<weightstore::Registration> RegisterTrainer(const std::string&, const std::string&,
                                                      const weightstore::Manifest&, uint32_t,
                                                      uint32_t, const std::string&) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return Aborted("taken");
  }
};
// A host daemon that says its name to one caller.
class NamedHost {
 public:
  explicit NamedHost(const std::string& path)
      : listener_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
              0);
    EXPECT_EQ(::listen(listener_.get(), 1), 0);
    thread_ = std::jthread([this] {
      const weightstore::UniqueFd caller(::accept(listener_.get(), nullptr, nullptr));
      if (!weightstore::ReceivePacket(caller.get(), sizeof(weightstore::SocketRequest)).ok())
        return;
      weightstore::SocketReply reply;
      reply.message_bytes = 1;
      reply.message[0] = 'h';
      EXPECT_TRUE(weightstore::SendPacket(caller.get(), &reply, sizeof(reply)).ok());
    });
  }
  ~NamedHost() { ::shutdown(listener_.get(), SHUT_RDWR); }

 private:
  weightstore::UniqueFd listener_;
  std::jthread thread_;
};
class Bundles final : public NoModels {
 public:
  StatusOr<Hash128> PutBundle(const std::string&) override { return Hash128{1, 2}; }
};

TEST(TrainJobTest, ARunIsTakenOverBeforeItsCheckpointIsLookedFor) {
  const TempFolder folder;
  auto options = Job(folder, 64, 2048);
  ASSERT_TRUE(options.ok()) << options.status();
  options->from_checkpoint = true;
  options->config.set_weightstore_socket(folder.path("ws.sock"));
  const NamedHost host(folder.path("ws.sock"));
  TakenLeader leader;
  Bundles models;
  NoCheckpoints checkpoints;
  kernels::Pool pool(1);
  const SystemClock clock;
  const Status refused =
      TrainJob::Start({leader, models, checkpoints}, pool, clock, *options).status();
  EXPECT_EQ(MessageOf(refused), "taken") << "its checkpoints may still come and go";
}

}  // namespace
}  // namespace titan::services
