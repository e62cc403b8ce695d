// SPDX-License-Identifier: Apache-2.0
//
// Goal: workers are known by their life, silent ones are lost, and a contract that differs is
// refused by the name of what differs.
#include "orchestrator/worker_registry.h"

#include <gtest/gtest.h>

namespace titan::orchestrator {
namespace {

WorkerRecord Worker(const std::string& id, const std::string& life, WorkerRole role,
                    const std::string& leaves = "8") {
  WorkerRecord record;
  record.ready.name = {id, life};
  record.ready.role = role;
  record.ready.max_versions = 3;
  record.ready.max_running_sequences = 8;
  record.ready.graders = {"numeric_match"};
  record.address = "127.0.0.1:1";
  record.contract = {"digest-of-" + leaves, "", {{"cache", "f32"}, {"linear.leaves", leaves}}};
  return record;
}

Instant At(uint64_t ms) { return Instant(Millis(ms)); }

TEST(WorkerRegistryTest, LivesAreToldApart) {
  WorkerRegistry registry(Millis(5000));
  auto first = registry.Register(Worker("g", "1", WorkerRole::kGenerator), At(0));
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(first->fresh);
  EXPECT_FALSE(registry.Register(Worker("g", "1", WorkerRole::kGenerator), At(1))->fresh);
  auto second = registry.Register(Worker("g", "2", WorkerRole::kGenerator), At(2));
  EXPECT_TRUE(second->fresh);
  EXPECT_EQ(second->replaced, (WorkerName{"g", "1"}));
  EXPECT_EQ(registry.Heartbeat({"g", "1"}, At(3)).code(), StatusCode::kNotFound);
  EXPECT_TRUE(registry.Heartbeat({"g", "2"}, At(3)).ok());
}

// At another address the old life may still be there, and only the one that is gone makes room.
TEST(WorkerRegistryTest, ASecondProcessOfAWorkerIdIsRefusedByName) {
  WorkerRegistry registry(Millis(5000));
  ASSERT_TRUE(registry.Register(Worker("g", "1", WorkerRole::kGenerator), At(0)).ok());
  WorkerRecord second = Worker("g", "2", WorkerRole::kGenerator);
  EXPECT_EQ(registry.Rival(second), nullptr);  // two do not listen at one address
  second.address = "127.0.0.1:2";
  ASSERT_NE(registry.Rival(second), nullptr);
  const Status refused = registry.Register(second, At(2500)).status();
  EXPECT_EQ(refused.code(), StatusCode::kAlreadyExists);
  EXPECT_NE(MessageOf(refused).find("listens at 127.0.0.1:1"), std::string::npos);
  EXPECT_NE(MessageOf(refused).find("daemon.worker_id"), std::string::npos);
  // The first was silent for more than half of the timeout: the second waits for what comes.
  EXPECT_EQ(registry.Register(second, At(2501)).status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(registry.Heartbeat({"g", "1"}, At(2502)).ok());
  EXPECT_EQ(registry.Register(second, At(2503)).status().code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(registry.Remove({"g", "1"}));
  EXPECT_TRUE(registry.Register(second, At(2504))->fresh);
  // So it does by its silence.
  EXPECT_EQ(registry.Expire(At(7505)).size(), 1u);
  EXPECT_TRUE(registry.Register(Worker("g", "3", WorkerRole::kGenerator), At(7506))->fresh);
}

TEST(WorkerRegistryTest, NamesThatWouldForgeLinesAreRefused) {
  WorkerRegistry registry(Millis(5000));
  for (const std::string& name :
       {std::string("a\"b"), std::string("two\nlines"), std::string("x\"} 1\nforged_total 7\n"),
        std::string("tab\there"), std::string("\xc3\xa9"), std::string(), std::string(65, 'x')}) {
    const auto refused = registry.Register(Worker(name, "1", WorkerRole::kTrainer), At(0));
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument) << name;
    EXPECT_NE(MessageOf(refused.status()).find("worker.worker_id"), std::string::npos);
  }
  EXPECT_TRUE(registry.workers().empty());
}

TEST(WorkerRegistryTest, SilentWorkersAreLost) {
  WorkerRegistry registry(Millis(5000));
  ASSERT_TRUE(registry.Register(Worker("a", "1", WorkerRole::kTrainer), At(0)).ok());
  ASSERT_TRUE(registry.Register(Worker("b", "1", WorkerRole::kReward), At(4000)).ok());
  EXPECT_EQ(registry.StateOf(*registry.Find("a"), At(1000)), "ready");
  EXPECT_EQ(registry.StateOf(*registry.Find("a"), At(3000)), "suspect");
  EXPECT_TRUE(registry.Expire(At(5000)).empty());
  EXPECT_EQ(registry.Expire(At(5001)), (std::vector<WorkerName>{{"a", "1"}}));
  EXPECT_EQ(registry.Heartbeat({"a", "1"}, At(5002)).code(), StatusCode::kNotFound);
  EXPECT_NE(registry.Find("b"), nullptr);
}

TEST(WorkerRegistryTest, APauseOfThisProcessIsNotHeldAgainstTheWorkers) {
  WorkerRegistry registry(Millis(5000));
  ASSERT_TRUE(registry.Register(Worker("a", "1", WorkerRole::kTrainer), At(0)).ok());
  EXPECT_TRUE(registry.Expire(At(50)).empty());
  EXPECT_TRUE(registry.Expire(At(20000)).empty());
  EXPECT_TRUE(registry.Expire(At(22000)).empty());
  EXPECT_TRUE(registry.Expire(At(24000)).empty());
  EXPECT_EQ(registry.Expire(At(26000)).size(), 1u);
}

TEST(WorkerRegistryTest, ADifferentContractIsRefusedByItem) {
  WorkerRegistry registry(Millis(5000));
  ASSERT_TRUE(registry.Register(Worker("trainer", "1", WorkerRole::kTrainer), At(0)).ok());
  const auto refused =
      registry.Register(Worker("g", "1", WorkerRole::kGenerator, "16"), At(0)).status();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(MessageOf(refused).find("linear.leaves is 16 here and 8 there"), std::string::npos);
  EXPECT_TRUE(registry.Register(Worker("g", "1", WorkerRole::kGenerator), At(0)).ok());
  // Items of the trainer alone do not hide the one that differs.
  WorkerRegistry training(Millis(5000));
  WorkerRecord trainer = Worker("trainer", "1", WorkerRole::kTrainer);
  trainer.contract.items["attention_backward"] = "f32";
  trainer.contract.items["optimizer"] = "adamw";
  ASSERT_TRUE(training.Register(trainer, At(0)).ok());
  EXPECT_TRUE(training.Register(Worker("g", "1", WorkerRole::kGenerator), At(0)).ok());
  const Status other =
      training.Register(Worker("h", "1", WorkerRole::kGenerator, "16"), At(0)).status();
  EXPECT_NE(MessageOf(other).find("linear.leaves is 16 here and 8 there"), std::string::npos)
      << MessageOf(other);
  // A reward service has no contract.
  EXPECT_TRUE(registry.Register(Worker("r", "1", WorkerRole::kReward, "16"), At(0)).ok());
}

TEST(WorkerRegistryTest, MissingFieldsAreNamed) {
  WorkerRegistry registry(Millis(5000));
  const auto refused = [&](WorkerRecord record, const char* field) {
    const Status status = registry.Register(std::move(record), At(0)).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(MessageOf(status).find(field), std::string::npos) << MessageOf(status);
  };
  WorkerRecord record = Worker("g", "1", WorkerRole::kGenerator);
  record.ready.max_versions = 0;
  refused(record, "max_versions");
  record = Worker("g", "", WorkerRole::kGenerator);
  refused(record, "worker.incarnation");
  record = Worker("g", "1", WorkerRole::kGenerator);
  record.contract.forward = "";
  refused(record, "contract.forward");
  record = Worker("r", "1", WorkerRole::kReward);
  record.ready.graders.clear();
  refused(record, "graders");
}

}  // namespace
}  // namespace titan::orchestrator
