// SPDX-License-Identifier: Apache-2.0
//
// Goal: each rule of the version state machine, one at a time. Method: a run of made-up slots
// driven by direct calls. Interleavings: store_state_property_test.cc.
#include "weightstore/store_state.h"

#include <gtest/gtest.h>

#include "tests/support/host_commands.h"
#include "tests/support/weightstore.h"
#include "weightstore/client/reason.h"

namespace titan::weightstore {
namespace {

using Kind = StoreState::BeginOutcome::Kind;
using testing::CommandsOf;
using testing::kHost;

Hash128 DigestOf(uint64_t version) { return {version + 1000, 7}; }

class StoreStateTest : public ::testing::Test {
 protected:
  static constexpr int64_t kTtl = 100;
  static constexpr int64_t kMapDeadline = 5000;
  StoreState state_{1, kTtl, kMapDeadline};
  Effects registered_;  // of the last registration
  const Manifest manifest_ = testing::SmallManifest();

  std::vector<MakeSlot> Apply(const std::string& run, const StoreState::RegistrationPlan& plan) {
    (void)state_.TakeEffects();
    state_.ApplyRegistration(run, plan, 0);
    registered_ = state_.TakeEffects();
    const auto slots = CommandsOf<MakeSlot>(registered_);
    EXPECT_EQ(slots.size(), plan.ring_slots + plan.evaluation_slots);
    return slots;
  }
  uint64_t Register(uint32_t max_age = 0, const std::string& run = "run",
                    uint32_t evaluation_slots = 1) {
    const auto plan = state_.PlanRegistration(run, manifest_, max_age, kHost, evaluation_slots);
    EXPECT_TRUE(plan.ok()) << plan.status();
    for (const auto& slot : Apply(run, *plan)) EXPECT_TRUE(state_.SlotMade(slot.slot_id));
    return plan->record.trainer_epoch;
  }

  StatusOr<StoreState::PinOutcome> Pin(uint64_t version, bool on_disk = false) {
    return state_.PlanPin("run", version, on_disk, /*pin=*/true, 0);
  }

  MakeSlot AddEvaluationSlot() {
    (void)state_.TakeEffects();
    state_.AddEvaluationSlot("run", kHost);
    const auto slots = CommandsOf<MakeSlot>(state_.TakeEffects());
    EXPECT_EQ(slots.size(), 1u);
    EXPECT_EQ(slots[0].epoch, 0u);  // the host fills it
    EXPECT_EQ(slots[0].order, 0u);  // and it is waited for
    return slots[0];
  }

  uint64_t Open(uint64_t epoch, uint64_t version) {
    const auto begun = state_.BeginVersion("run", epoch, version, 0);
    EXPECT_TRUE(begun.ok()) << begun.status();
    EXPECT_EQ(begun->kind, Kind::kOpened) << begun->blockers;
    return begun->grant;
  }

  void Seal(uint64_t epoch, uint64_t version, uint64_t grant) {
    const auto slot = state_.StartVerify("run", epoch, version, grant, DigestOf(version));
    ASSERT_TRUE(slot.ok()) << slot.status();
    ASSERT_TRUE(
        state_.FinishVerify("run", epoch, version, grant, DigestOf(version), DigestOf(version))
            .ok());
  }

  void Commit(uint64_t epoch, uint64_t version) {
    const auto plan = state_.PlanCommit("run", epoch, version, DigestOf(version));
    ASSERT_TRUE(plan.ok()) << plan.status();
    state_.ApplyCommit("run", epoch, version, {DigestOf(version), "plan", version, 5});
  }

  void Publish(uint64_t epoch, uint64_t version) {
    Seal(epoch, version, Open(epoch, version));
    Commit(epoch, version);
  }

  VersionState StateOf(uint64_t version) {
    const auto versions = state_.ListVersions("run");
    for (const VersionInfo& info : *versions) {
      if (info.version == version) return info.state;
    }
    ADD_FAILURE() << "no version " << version;
    return VersionState::kFree;
  }
};

TEST_F(StoreStateTest, OnlyAVerifiedVersionCanBeCommittedAndRead) {
  const uint64_t epoch = Register();
  const uint64_t grant = Open(epoch, 0);
  EXPECT_EQ(state_.PlanCommit("run", epoch, 0, DigestOf(0)).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(state_.AcquireLease("g", "run", 0, false, 0).status().code(),
            StatusCode::kFailedPrecondition);
  Seal(epoch, 0, grant);
  EXPECT_EQ(StateOf(0), VersionState::kSealed);
  EXPECT_EQ(state_.AcquireLease("g", "run", 0, false, 0).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(state_.PlanCommit("run", epoch, 0, DigestOf(1)).status().code(),
            StatusCode::kInvalidArgument);
  Commit(epoch, 0);
  const auto lease = state_.AcquireLease("g", "run", 0, false, 0);
  ASSERT_TRUE(lease.ok());
  EXPECT_EQ(lease->grant, grant);
  EXPECT_EQ(lease->digest, DigestOf(0));
}

TEST_F(StoreStateTest, BytesOtherThanTheWritersAbortTheVersion) {
  const uint64_t epoch = Register();
  const uint64_t grant = Open(epoch, 0);
  ASSERT_TRUE(state_.StartVerify("run", epoch, 0, grant, DigestOf(0)).ok());
  EXPECT_EQ(state_.FinishVerify("run", epoch, 0, grant, DigestOf(0), DigestOf(9)).code(),
            StatusCode::kDataLoss);
  EXPECT_EQ(StateOf(0), VersionState::kAborted);
  Publish(epoch, 0);
  EXPECT_EQ(StateOf(0), VersionState::kCommitted);
}

TEST_F(StoreStateTest, AHostThatCannotHashLeavesTheVersionOpen) {
  const uint64_t epoch = Register();
  const uint64_t grant = Open(epoch, 0);
  ASSERT_TRUE(state_.StartVerify("run", epoch, 0, grant, DigestOf(0)).ok());
  EXPECT_EQ(
      state_.FinishVerify("run", epoch, 0, grant, DigestOf(0), Unavailable("host is gone")).code(),
      StatusCode::kUnavailable);
  EXPECT_EQ(StateOf(0), VersionState::kOpen);
  Seal(epoch, 0, grant);
}

TEST_F(StoreStateTest, AWriterMayWriteOnlyWhileItsVersionIsOpen) {
  const uint64_t epoch = Register();
  state_.TakeEffects();
  const uint64_t grant = Open(epoch, 0);
  auto headers = CommandsOf<WriteHeader>(state_.TakeEffects());
  ASSERT_EQ(headers.size(), 1u);
  EXPECT_EQ(headers[0].fields.grant, grant);
  EXPECT_TRUE(headers[0].open_for_writing);
  Seal(epoch, 0, grant);
  headers = CommandsOf<WriteHeader>(state_.TakeEffects());
  ASSERT_EQ(headers.size(), 1u);
  EXPECT_EQ(headers[0].fields.grant, grant);
  EXPECT_EQ(headers[0].fields.digest, DigestOf(0));
  EXPECT_FALSE(headers[0].open_for_writing);
  const uint64_t again = Open(epoch, 0);
  EXPECT_GT(again, grant);
  EXPECT_TRUE(CommandsOf<WriteHeader>(state_.TakeEffects()).at(0).open_for_writing);
  ASSERT_TRUE(state_.StartVerify("run", epoch, 0, again, DigestOf(0)).ok());
  ASSERT_FALSE(state_.FinishVerify("run", epoch, 0, again, DigestOf(0), DigestOf(9)).ok());
  headers = CommandsOf<WriteHeader>(state_.TakeEffects());
  ASSERT_EQ(headers.size(), 1u);  // aborted: the slot stays in the ring
  EXPECT_GT(headers[0].fields.grant, again);
  EXPECT_FALSE(headers[0].open_for_writing);
}

TEST_F(StoreStateTest, WhatALeaseAllowsIsToldToTheHostOfItsSlot) {
  const uint64_t epoch = Register();
  const uint64_t grant = Open(epoch, 0);
  Seal(epoch, 0, grant);
  Commit(epoch, 0);
  state_.TakeEffects();
  const auto lease = state_.AcquireLease("g", "run", 0, false, 0, {.token = {11, 12}});
  ASSERT_TRUE(lease.ok());
  EXPECT_EQ(lease->host, kHost);
  EXPECT_EQ(lease->epoch, epoch);
  const auto allowed = CommandsOf<AllowLease>(state_.TakeEffects());
  ASSERT_EQ(allowed.size(), 1u);
  EXPECT_EQ(allowed[0].lease_id, lease->lease_id);
  EXPECT_EQ(allowed[0].slot_id, lease->slot_id);
  EXPECT_EQ(allowed[0].grant, grant);
  EXPECT_EQ(allowed[0].epoch, epoch);
  EXPECT_EQ(allowed[0].token, (Hash128{11, 12}));
  EXPECT_TRUE(state_.ReleaseLease(lease->lease_id));
  const auto ended = CommandsOf<EndLease>(state_.TakeEffects());
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].lease_id, lease->lease_id);
}

TEST_F(StoreStateTest, CommitIsIdempotentAndAnotherDigestIsDivergence) {
  const uint64_t epoch = Register();
  Publish(epoch, 0);
  const auto again = state_.PlanCommit("run", epoch, 0, DigestOf(0));
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->done);
  EXPECT_EQ(again->recorded->committed_unix_ms, 5);
  const Status other = state_.PlanCommit("run", epoch, 0, DigestOf(3)).status();
  EXPECT_EQ(other.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(MessageOf(other).find("divergence"), std::string::npos);
  EXPECT_NE(MessageOf(other).find(ToHex(DigestOf(0))), std::string::npos);
  EXPECT_NE(MessageOf(other).find(ToHex(DigestOf(3))), std::string::npos);
}

TEST_F(StoreStateTest, VersionsAreConsecutiveAndOneAtATime) {
  const uint64_t epoch = Register();
  EXPECT_EQ(state_.BeginVersion("run", epoch, 1, 0).status().code(), StatusCode::kInvalidArgument);
  Publish(epoch, 0);
  EXPECT_EQ(state_.BeginVersion("run", epoch, 2, 0).status().code(), StatusCode::kInvalidArgument);
  const uint64_t grant = Open(epoch, 1);
  EXPECT_EQ(state_.BeginVersion("run", epoch, 1, 0)->grant, grant);  // a retry
  EXPECT_EQ(state_.BeginVersion("run", epoch, 0, 0).status().code(),
            StatusCode::kFailedPrecondition);
}

TEST_F(StoreStateTest, RecordedVersionsAreAnsweredWithTheirDigest) {
  const uint64_t epoch = Register();
  for (uint64_t v = 0; v < 6; ++v) Publish(epoch, v);
  EXPECT_EQ(StateOf(0), VersionState::kFree);
  const uint64_t next = Register();
  for (uint64_t v = 0; v < 6; ++v) {
    const auto begun = state_.BeginVersion("run", next, v, 0);
    ASSERT_TRUE(begun.ok());
    EXPECT_EQ(begun->kind, Kind::kRecorded);
    EXPECT_EQ(begun->digest, DigestOf(v));
  }
  Publish(next, 6);
}

TEST_F(StoreStateTest, AFullRingNamesTheLeaseThatBlocks) {
  const uint64_t epoch = Register(/*max_age=*/1);  // 4 slots
  for (uint64_t v = 0; v < 4; ++v) Publish(epoch, v);
  const auto lease = state_.AcquireLease("generator-7", "run", 0, false, 10);
  ASSERT_TRUE(lease.ok());
  ASSERT_TRUE(state_.LeaseMapped(lease->lease_id, 20));
  const auto one = state_.AcquireLease("generator-8", "run", 1, false, 10);
  ASSERT_TRUE(one.ok());
  ASSERT_TRUE(state_.LeaseMapped(one->lease_id, 20));
  const auto blocked = state_.BeginVersion("run", epoch, 4, 1020);
  ASSERT_TRUE(blocked.ok());
  ASSERT_EQ(blocked->kind, Kind::kBlocked);
  EXPECT_NE(blocked->blockers.find("version 0 is held by lease " + std::to_string(lease->lease_id) +
                                   " of generator-7 for 1000 ms"),
            std::string::npos)
      << blocked->blockers;
  EXPECT_EQ(StateOf(0), VersionState::kRetired);
  // Retired: no new readers.
  EXPECT_EQ(state_.AcquireLease("g", "run", 0, false, 0).status().code(),
            StatusCode::kFailedPrecondition);
  // What generators may still need stays.
  EXPECT_EQ(StateOf(2), VersionState::kCommitted);
  EXPECT_TRUE(state_.ReleaseLease(lease->lease_id));
  EXPECT_EQ(StateOf(0), VersionState::kFree);
  Publish(epoch, 4);
}

TEST_F(StoreStateTest, AReaderThatBlocksTheRingForLongIsFenced) {
  const uint64_t epoch = Register(/*max_age=*/1);  // 4 slots
  for (uint64_t v = 0; v < 4; ++v) Publish(epoch, v);
  const auto stopped = state_.AcquireLease("stopped", "run", 0, false, 0);
  ASSERT_TRUE(state_.LeaseMapped(stopped->lease_id, 0));
  const auto alive = state_.AcquireLease("alive", "run", 2, false, 0);
  ASSERT_TRUE(state_.LeaseMapped(alive->lease_id, 0));
  const auto late = state_.AcquireLease("late", "run", 1, false, 0);
  ASSERT_TRUE(state_.LeaseMapped(late->lease_id, 0));
  ASSERT_EQ(state_.BeginVersion("run", epoch, 4, 1000)->kind, Kind::kBlocked);
  ASSERT_EQ(state_.BeginVersion("run", epoch, 4, 999 + kMapDeadline)->kind, Kind::kBlocked);
  state_.TakeEffects();
  const auto opened = state_.BeginVersion("run", epoch, 4, 1000 + kMapDeadline);
  ASSERT_TRUE(opened.ok());
  ASSERT_EQ(opened->kind, Kind::kOpened);
  EXPECT_EQ(opened->blockers, "version 0 was taken from stopped");
  EXPECT_GT(opened->grant, stopped->grant);
  EXPECT_FALSE(CommandsOf<WriteHeader>(state_.TakeEffects()).empty());  // its reader finds out
  EXPECT_FALSE(state_.ReleaseLease(stopped->lease_id));
  // What generators may still need is not taken from anyone.
  EXPECT_EQ(StateOf(2), VersionState::kCommitted);
  // One version is enough. The next one was asked for at the same time, so nobody waits again.
  EXPECT_EQ(StateOf(1), VersionState::kRetired);
  Publish(epoch, 4);
  EXPECT_EQ(state_.BeginVersion("run", epoch, 5, 1000 + kMapDeadline)->blockers,
            "version 1 was taken from late");
  EXPECT_TRUE(state_.ReleaseLease(alive->lease_id));
}

TEST_F(StoreStateTest, LeasesThatAreNotMappedExpireAndMappedOnesDoNot) {
  const uint64_t epoch = Register();
  Publish(epoch, 0);
  const auto idle = state_.AcquireLease("a", "run", 0, false, 0);
  const auto mapped = state_.AcquireLease("b", "run", 0, false, 0);
  ASSERT_TRUE(state_.LeaseMapped(mapped->lease_id, 1));
  state_.ExpireLeases(kTtl - 1);
  EXPECT_EQ(state_.num_leases(), 2u);
  state_.ExpireLeases(kTtl);
  EXPECT_EQ(state_.num_leases(), 1u);
  EXPECT_FALSE(state_.LeaseMapped(idle->lease_id, kTtl));
  state_.ExpireLeases(1000 * kTtl);
  EXPECT_TRUE(state_.ReleaseLease(mapped->lease_id));
  EXPECT_FALSE(state_.ReleaseLease(mapped->lease_id));
}

TEST_F(StoreStateTest, ALeaseOfAReaderElsewhereLastsLongerByItsBytes) {
  const uint64_t epoch = Register();
  Publish(epoch, 0);
  const auto lease = state_.AcquireLease("g", "run", 0, false, 5, {{11, 12}, /*remote=*/true});
  EXPECT_EQ(lease->ttl_ms, kTtl + 1000);  // a small slot
  state_.ExpireLeases(5 + kTtl + 999);
  EXPECT_EQ(state_.num_leases(), 1u);
  state_.ExpireLeases(5 + kTtl + 1000);
  EXPECT_EQ(state_.num_leases(), 0u);
}

TEST_F(StoreStateTest, ANewTokenFencesTheOldOneAndItsOpenSlotIsDropped) {
  const uint64_t old = Register();
  Publish(old, 0);
  const uint64_t grant = Open(old, 1);
  const uint64_t now = Register();
  EXPECT_EQ(now, old + 1);
  EXPECT_EQ(CommandsOf<DropSlot>(registered_).size(),
            2u);  // open and idle ones; version 0 is served on
  EXPECT_EQ(StateOf(0), VersionState::kCommitted);
  EXPECT_EQ(StateOf(1), VersionState::kAborted);
  EXPECT_EQ(state_.StartVerify("run", old, 1, grant, DigestOf(1)).status().code(),
            StatusCode::kAborted);
  EXPECT_EQ(state_.PlanCommit("run", old, 1, DigestOf(1)).status().code(), StatusCode::kAborted);
  EXPECT_EQ(state_.BeginVersion("run", old, 1, 0).status().code(), StatusCode::kAborted);
  EXPECT_EQ(state_.BeginVersion("run", now + 1, 1, 0).status().code(),
            StatusCode::kInvalidArgument);
  ASSERT_TRUE(state_.AcquireLease("g", "run", 0, false, 0).ok());
  Publish(now, 1);
}

TEST_F(StoreStateTest, TheEndOfTheWritersConnectionAbortsWhatItLeftOpen) {
  const uint64_t epoch = Register();
  Publish(epoch, 0);
  Open(epoch, 1);
  state_.AbandonWriter("run", epoch);
  EXPECT_EQ(StateOf(1), VersionState::kAborted);
  EXPECT_EQ(StateOf(0), VersionState::kCommitted);
  EXPECT_EQ(state_.BeginVersion("run", epoch, 1, 0).status().code(), StatusCode::kAborted);
  EXPECT_EQ(state_.num_slots(), 2u);  // version 0 and the evaluation slot
  Publish(Register(), 1);
}

TEST_F(StoreStateTest, EvaluationKeepsItsCopyWhileTheRingMovesOn) {
  const uint64_t epoch = Register();
  Publish(epoch, 0);
  const auto pin = Pin(0);
  ASSERT_TRUE(pin.ok());
  ASSERT_TRUE(pin->copy.has_value());
  EXPECT_FALSE(pin->copy->from_disk);
  EXPECT_EQ(state_.AcquireLease("g", "run", 0, true, 0).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Pin(0)->not_yet);
  ASSERT_TRUE(state_.FinishPin("run", 0, *pin->copy, true).ok());
  EXPECT_FALSE(Pin(0)->copy.has_value());  // a retry
  for (uint64_t v = 1; v < 9; ++v) Publish(epoch, v);
  EXPECT_EQ(StateOf(0), VersionState::kFree);
  const auto lease = state_.AcquireLease("g", "run", 0, true, 0);
  ASSERT_TRUE(lease.ok());
  EXPECT_EQ(lease->digest, DigestOf(0));
  EXPECT_EQ(Pin(1).status().code(), StatusCode::kFailedPrecondition);  // gone: no use in waiting
  const Status pinned = Pin(8).status();
  EXPECT_EQ(ReasonOf(pinned), kEvaluationSlotBusy);
  EXPECT_NE(MessageOf(pinned).find("version 0 is pinned"), std::string::npos) << pinned;
  ASSERT_TRUE(state_.Unpin("run", 0).ok());
  const Status held = Pin(8).status();
  EXPECT_EQ(ReasonOf(held), kEvaluationSlotBusy);
  EXPECT_NE(MessageOf(held).find("of g"), std::string::npos) << held;
  EXPECT_TRUE(state_.ReleaseLease(lease->lease_id));
  // Not wanted for another version yet, it is served, and pinned again without a copy.
  const auto late = state_.AcquireLease("g", "run", 0, true, 0);
  ASSERT_TRUE(late.ok());
  EXPECT_FALSE(Pin(0)->copy.has_value());
  EXPECT_TRUE(state_.ReleaseLease(late->lease_id));
  ASSERT_TRUE(state_.Unpin("run", 0).ok());
  const auto again = Pin(8);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(state_.FinishPin("run", 8, *again->copy, false).code(), StatusCode::kDataLoss);
  EXPECT_EQ(state_.AcquireLease("g", "run", 8, true, 0).status().code(),
            StatusCode::kFailedPrecondition);
}

TEST_F(StoreStateTest, SeveralVersionsAreEvaluatedAtOnce) {
  EXPECT_EQ(state_.PlanRegistration("run", manifest_, 0, kHost, 0).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(state_.PlanRegistration("run", manifest_, 0, kHost, 9).status().code(),
            StatusCode::kInvalidArgument);
  const uint64_t epoch = Register(0, "run", 2);
  for (uint64_t v = 0; v < 3; ++v) {
    Publish(epoch, v);
    const auto pin = Pin(v);
    if (v == 2) {
      EXPECT_EQ(ReasonOf(pin.status()), kEvaluationSlotBusy);
      EXPECT_NE(MessageOf(pin.status()).find("version 0 is pinned; version 1 is pinned"),
                std::string::npos)
          << pin.status();
      break;
    }
    ASSERT_TRUE(pin.ok()) << pin.status();
    ASSERT_TRUE(state_.FinishPin("run", v, *pin->copy, true).ok());
  }
  EXPECT_EQ(state_.CountSlots().evaluation, 2u);
  const auto zero = state_.AcquireLease("g", "run", 0, true, 0);
  const auto one = state_.AcquireLease("g", "run", 1, true, 0);
  ASSERT_TRUE(zero.ok() && one.ok());
  EXPECT_NE(zero->grant, one->grant);
  ASSERT_TRUE(state_.Unpin("run", 1).ok());
  EXPECT_FALSE(Pin(2).ok());  // 1 is read
  state_.ReleaseLease(one->lease_id);
  const auto two = Pin(2);
  ASSERT_TRUE(two.ok()) << two.status();
  ASSERT_TRUE(state_.FinishPin("run", 2, *two->copy, true).ok());
  EXPECT_EQ(state_.AcquireLease("g", "run", 1, true, 0).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_TRUE(state_.LeaseMapped(zero->lease_id, 0));
  // The number is the run's.
  const Status other = state_.PlanRegistration("run", manifest_, 0, kHost, 1).status();
  EXPECT_EQ(other.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(MessageOf(other).find("evaluation_slots: run run is recorded with 2, not 1"),
            std::string::npos)
      << other;
  EXPECT_EQ(state_.PlanRegistration("run", manifest_, 0, kHost, 2)->evaluation_slots, 0u);
}

TEST_F(StoreStateTest, AKeptVersionIsEvaluatedFromDiskAfterARestart) {
  RunRecord run;
  run.trainer_epoch = 1;
  run.evaluation_slots = 2;
  run.manifest = std::make_shared<const Manifest>(manifest_);
  state_.RestoreRun("run", run);
  for (uint64_t v = 0; v < 3; ++v) {
    ASSERT_TRUE(state_.RestoreVersion("run", v, {DigestOf(v), "plan", v, 5}).ok());
  }
  EXPECT_EQ(ReasonOf(Pin(1).status()), kVersionLost);  // neither in memory nor on disk
  EXPECT_EQ(Pin(7, true).status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(Pin(1, true)->slot_wanted);  // there is none yet
  const MakeSlot slot = AddEvaluationSlot();
  EXPECT_TRUE(Pin(1, true)->not_yet);
  ASSERT_TRUE(state_.SlotMade(slot.slot_id));
  const auto pin = Pin(1, true);
  ASSERT_TRUE(pin.ok() && pin->copy.has_value()) << pin.status();
  EXPECT_TRUE(pin->copy->from_disk);
  EXPECT_EQ(pin->copy->to_slot, slot.slot_id);
  EXPECT_EQ(pin->digest, DigestOf(1));
  // Damaged: refused, and the slot is free for another version.
  EXPECT_EQ(state_.FinishPin("run", 1, *pin->copy, false).code(), StatusCode::kDataLoss);
  EXPECT_FALSE(state_.AcquireLease("g", "run", 1, true, 0).ok());
  const auto two = Pin(2, true);
  ASSERT_TRUE(two.ok() && two->copy.has_value()) << two.status();
  ASSERT_TRUE(state_.FinishPin("run", 2, *two->copy, true).ok());
  const auto lease = state_.AcquireLease("g", "run", 2, true, 0);
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_EQ(lease->digest, DigestOf(2));
  EXPECT_EQ(StateOf(2), VersionState::kLost);  // training needs it in the ring
  // A trainer that comes back gets the slot that is missing.
  const auto plan = state_.PlanRegistration("run", manifest_, 0, kHost, 2);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->evaluation_slots, 1u);
  Apply("run", *plan);
  EXPECT_TRUE(state_.LeaseMapped(lease->lease_id, 0));
}

TEST_F(StoreStateTest, TheSlotsOfARunThatEndedGoWhenTheyAreNotUsed) {
  const uint64_t epoch = Register();
  Publish(epoch, 0);
  state_.ApplyEndRun("run");
  EXPECT_EQ(state_.num_slots(), 0u);
  EXPECT_EQ(Pin(0).status().code(), StatusCode::kFailedPrecondition);
  // What cannot be made is not held against the next one who asks.
  ASSERT_TRUE(Pin(0, true)->slot_wanted);
  state_.SlotNotMade(AddEvaluationSlot().slot_id, ResourceExhausted("none left"));
  EXPECT_EQ(Pin(0, true).status().code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(Pin(0, true)->slot_wanted);
  ASSERT_TRUE(state_.SlotMade(AddEvaluationSlot().slot_id));
  const auto brought = state_.PlanPin("run", 0, /*on_disk=*/true, /*pin=*/false, 0);
  ASSERT_TRUE(brought.ok() && brought->copy.has_value()) << brought.status();
  ASSERT_TRUE(state_.FinishPin("run", 0, *brought->copy, true).ok());
  const auto lease = state_.AcquireLease("g", "run", 0, true, 0);
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_EQ(state_.num_slots(), 1u);
  EXPECT_FALSE(Pin(0, true)->copy.has_value());
  state_.ReleaseLease(lease->lease_id);
  EXPECT_EQ(state_.num_slots(), 1u);  // pinned
  ASSERT_TRUE(state_.Unpin("run", 0).ok());
  EXPECT_EQ(state_.num_slots(), 0u);
}

TEST_F(StoreStateTest, WhoDoesNotReleaseInTimeIsFencedWhenTheSlotIsWanted) {
  const uint64_t epoch = Register();
  const auto begin = [&](uint64_t version, int64_t now) {
    return *state_.BeginVersion("run", epoch, version, now);
  };
  const auto map = [&](uint64_t version) {
    const auto lease = state_.AcquireLease("late", "run", version, false, 0);
    EXPECT_TRUE(state_.LeaseMapped(lease->lease_id, 0));
    return *lease;
  };
  Publish(epoch, 0);
  const auto zero = map(0);
  Publish(epoch, 1);
  const auto one = map(1);
  Publish(epoch, 2);
  // The request to release: versions 0 and 1 are RETIRED at 1000 ms.
  EXPECT_EQ(begin(3, 1000).kind, Kind::kBlocked);
  EXPECT_EQ(StateOf(0), VersionState::kRetired);
  EXPECT_EQ(StateOf(1), VersionState::kRetired);
  EXPECT_EQ(begin(3, 1000 + kMapDeadline - 1).kind, Kind::kBlocked);
  state_.TakeEffects();
  const auto begun = begin(3, 1000 + kMapDeadline);
  ASSERT_EQ(begun.kind, Kind::kOpened);
  EXPECT_EQ(begun.blockers, "version 0 was taken from late");
  EXPECT_EQ(StateOf(0), VersionState::kFree);
  // The number is raised before the slot is anybody else's.
  const auto headers = CommandsOf<WriteHeader>(state_.TakeEffects());
  ASSERT_EQ(headers.size(), 2u);
  EXPECT_EQ(headers[0].fields.version, 0u);
  EXPECT_NE(headers[0].fields.grant, zero.grant);
  EXPECT_FALSE(headers[0].open_for_writing);
  EXPECT_EQ(headers[1].fields.version, 3u);
  EXPECT_EQ(headers[1].fields.slot_id, headers[0].fields.slot_id);
  // The other one was asked at the same time; nobody wants its slot before the ring is full again.
  state_.ExpireLeases(1000 + 2 * kMapDeadline);
  EXPECT_EQ(StateOf(1), VersionState::kRetired);
  Seal(epoch, 3, begun.grant);
  Commit(epoch, 3);
  const auto next = begin(4, 1001 + 2 * kMapDeadline);
  EXPECT_EQ(next.kind, Kind::kOpened);
  EXPECT_EQ(next.blockers, "");  // version 2 had no reader
  EXPECT_EQ(StateOf(1), VersionState::kRetired);
  EXPECT_TRUE(state_.ReleaseLease(one.lease_id));
  EXPECT_EQ(StateOf(1), VersionState::kFree);
}

TEST_F(StoreStateTest, SlotsThatAnEarlierTokenLeftAreTakenAtTheDeadline) {
  const uint64_t old = Register();
  for (uint64_t v = 0; v < 3; ++v) Publish(old, v);
  const auto lease = state_.AcquireLease("late", "run", 0, false, 0);
  ASSERT_TRUE(state_.LeaseMapped(lease->lease_id, 0));
  Apply("run", *state_.PlanRegistration("run", manifest_, 0, kHost));
  EXPECT_EQ(StateOf(0), VersionState::kRetired);
  const size_t slots = state_.num_slots();
  state_.ExpireLeases(kMapDeadline - 1);
  EXPECT_EQ(StateOf(0), VersionState::kRetired);
  state_.ExpireLeases(kMapDeadline);
  EXPECT_EQ(StateOf(0), VersionState::kFree);
  EXPECT_EQ(state_.num_slots(), slots - 1);
}

TEST_F(StoreStateTest, FencingReadersChangesTheGrantNumber) {
  const uint64_t epoch = Register();
  Publish(epoch, 0);
  const auto lease = state_.AcquireLease("g", "run", 0, false, 0);
  state_.TakeEffects();
  ASSERT_TRUE(state_.FenceReaders("run", 0).ok());
  const Effects effects = state_.TakeEffects();
  const auto headers = CommandsOf<WriteHeader>(effects);
  ASSERT_EQ(headers.size(), 1u);
  EXPECT_NE(headers[0].fields.grant, lease->grant);
  EXPECT_EQ(headers[0].fields.digest, DigestOf(0));
  EXPECT_EQ(CommandsOf<EndLease>(effects).size(), 1u);
  EXPECT_FALSE(state_.LeaseMapped(lease->lease_id, 0));
  EXPECT_TRUE(state_.AcquireLease("g", "run", 0, false, 0).ok());
}

TEST_F(StoreStateTest, EndOfRunFreesAllSlotsAndKeepsRecords) {
  const uint64_t epoch = Register();
  Publish(epoch, 0);
  Open(epoch, 1);
  ASSERT_TRUE(state_.AcquireLease("g", "run", 0, false, 0).ok());
  EXPECT_EQ(state_.PlanEndRun("run", epoch + 1).status().code(), StatusCode::kInvalidArgument);
  const auto record = state_.PlanEndRun("run", 0);
  ASSERT_TRUE(record.ok());
  EXPECT_TRUE((*record)->ended);
  state_.ApplyEndRun("run");
  EXPECT_FALSE(state_.PlanEndRun("run", 0)->has_value());
  EXPECT_EQ(state_.num_slots(), 0u);
  EXPECT_EQ(state_.num_leases(), 0u);
  EXPECT_EQ(StateOf(0), VersionState::kFree);
  EXPECT_EQ(state_.PlanRegistration("run", manifest_, 0, kHost).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(state_.BeginVersion("run", epoch, 1, 0).status().code(),
            StatusCode::kFailedPrecondition);
}

// "version:STATE" in the order told.
std::vector<std::string> Told(const StoreState::Changes& changes) {
  std::vector<std::string> told;
  for (const VersionInfo& info : changes.versions) {
    told.push_back(std::to_string(info.version) + ":" + std::string(NameOf(info.state)));
  }
  return told;
}

using Strings = std::vector<std::string>;

TEST_F(StoreStateTest, ChangesAreToldInOrderAndTheLastOfAVersionAlone) {
  EXPECT_EQ(state_.ChangesSince("run", 0, 0, 9).status().code(), StatusCode::kNotFound);
  const uint64_t epoch = Register();  // 3 slots
  EXPECT_TRUE(Told(*state_.ChangesSince("run", 0, 0, 9)).empty());
  Publish(epoch, 0);
  const auto lease = state_.AcquireLease("g", "run", 0, false, 0);
  Publish(epoch, 1);
  const auto two = state_.ChangesSince("run", 0, 0, 9);
  EXPECT_EQ(Told(*two), Strings({"0:COMMITTED", "1:COMMITTED"}));
  EXPECT_EQ(two->versions[0].record->digest, DigestOf(0));
  EXPECT_EQ(two->versions[0].holders, Strings{"g"});
  Open(epoch, 2);  // nobody is told of what is not committed
  EXPECT_TRUE(Told(*state_.ChangesSince("run", two->cursor, 0, 9)).empty());
  const auto grant = state_.BeginVersion("run", epoch, 2, 0)->grant;
  Seal(epoch, 2, grant);
  Commit(epoch, 2);
  (void)state_.BeginVersion("run", epoch, 3, 0);  // full: 0 has a reader, 1 gives its slot
  EXPECT_EQ(Told(*state_.ChangesSince("run", two->cursor, 0, 9)),
            Strings({"2:COMMITTED", "0:RETIRED", "1:FREE"}));
  state_.ReleaseLease(lease->lease_id);
  EXPECT_EQ(Told(*state_.ChangesSince("run", two->cursor, 0, 9)),
            Strings({"2:COMMITTED", "1:FREE", "0:FREE"}));
  // In parts, and from a version on.
  const auto part = state_.ChangesSince("run", 0, 0, 2);
  EXPECT_EQ(Told(*part), Strings({"2:COMMITTED", "1:FREE"}));
  EXPECT_EQ(Told(*state_.ChangesSince("run", part->cursor, 0, 2)), Strings{"0:FREE"});
  EXPECT_EQ(Told(*state_.ChangesSince("run", 0, 2, 9)), Strings{"2:COMMITTED"});
  state_.ApplyEndRun("run");
  const auto not_all = state_.ChangesSince("run", 0, 0, 2);
  EXPECT_FALSE(not_all->ended);
  const auto rest = state_.ChangesSince("run", not_all->cursor, 0, 2);
  EXPECT_TRUE(rest->ended);
  EXPECT_EQ(not_all->versions.size() + rest->versions.size(), 3u);
}

TEST_F(StoreStateTest, AfterARestartLostVersionsAreToldAndAgainWhenTheyAreBack) {
  RunRecord run;
  run.trainer_epoch = 1;
  run.manifest = std::make_shared<const Manifest>(manifest_);
  state_.RestoreRun("run", run);
  for (uint64_t v = 0; v < 2; ++v) {
    ASSERT_TRUE(state_.RestoreVersion("run", v, {DigestOf(v), "plan", v, 5}).ok());
  }
  const auto lost = state_.ChangesSince("run", 0, 0, 9);
  EXPECT_EQ(Told(*lost), Strings({"0:LOST", "1:LOST"}));
  const uint64_t epoch = Register();
  const uint64_t grant = Open(epoch, 1);
  EXPECT_TRUE(Told(*state_.ChangesSince("run", lost->cursor, 0, 9)).empty());
  Seal(epoch, 1, grant);
  Commit(epoch, 1);
  EXPECT_EQ(Told(*state_.ChangesSince("run", lost->cursor, 0, 9)), Strings{"1:COMMITTED"});
}

TEST_F(StoreStateTest, SlotsAreCountedByWhatTheyHold) {
  const auto plan = state_.PlanRegistration("run", manifest_, 0, kHost);
  const auto slots = Apply("run", *plan);
  EXPECT_EQ(state_.CountSlots().being_made, 4u);
  for (const auto& slot : slots) state_.SlotMade(slot.slot_id);
  Publish(1, 0);
  ASSERT_TRUE(state_.AcquireLease("g", "run", 0, false, 0).ok());
  Publish(1, 1);
  Seal(1, 2, Open(1, 2));
  SlotCounts counts = state_.CountSlots();
  EXPECT_EQ(counts.being_made + counts.free + counts.open + counts.retired, 0u);
  EXPECT_EQ(counts.committed, 2u);
  EXPECT_EQ(counts.sealed, 1u);
  EXPECT_EQ(counts.evaluation, 1u);
  Commit(1, 2);
  (void)state_.BeginVersion("run", 1, 3, 0);
  counts = state_.CountSlots();
  EXPECT_EQ(counts.retired, 1u);  // version 0 has a reader; 1 gave its slot to 3
  EXPECT_EQ(counts.committed, 1u);
  EXPECT_EQ(counts.open, 1u);
}

TEST_F(StoreStateTest, TheItemOfTheContractThatDiffersIsNamed) {
  Manifest recorded = manifest_;
  recorded.contract_items = {{"linear.leaves", "8"}, {"canned.norm", "0f"}};
  const auto plan = state_.PlanRegistration("run", recorded, 0, kHost);
  ASSERT_TRUE(plan.ok()) << plan.status();
  Apply("run", *plan);
  Manifest other = recorded;
  other.contract_training = "of another build";
  other.contract_items[1].value = "0e";
  const Status refused = state_.PlanRegistration("run", other, 0, kHost).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(MessageOf(refused).find(
                "manifest.contract_training (item canned.norm is 0f there and 0e here)"),
            std::string::npos)
      << refused;
  // Lists that differ without the digests are no other contract: an older trainer sends none.
  other = recorded;
  other.contract_items.clear();
  EXPECT_TRUE(state_.PlanRegistration("run", other, 0, kHost).ok());
}

TEST_F(StoreStateTest, RegistrationIsCheckedAgainstTheRun) {
  Register(2);
  Manifest other = manifest_;
  other.contract_forward = "another";
  const auto refused = [&] { return state_.PlanRegistration("run", other, 2, kHost).status(); };
  EXPECT_EQ(refused().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(MessageOf(refused()).find("manifest.contract_forward (forward there, another here)"),
            std::string::npos)
      << refused();
  other = manifest_;
  other.contract_training = "of other settings";
  EXPECT_EQ(refused().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(MessageOf(refused()).find("of other settings here"), std::string::npos) << refused();
  EXPECT_EQ(state_.PlanRegistration("run", manifest_, 3, kHost).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(state_.PlanRegistration("a/b", manifest_, 2, kHost).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(state_.PlanRegistration("", manifest_, 2, kHost).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(StoreStateTest, ASlotWhoseNextVersionNeverReachedItsHostHoldsTheOldOneAlone) {
  const uint64_t epoch = Register();
  HostReport report;
  for (uint64_t v = 0; v < 3; ++v) {
    const auto begun = state_.BeginVersion("run", epoch, v, 0);
    ASSERT_TRUE(begun.ok()) << begun.status();
    Seal(epoch, v, begun->grant);
    Commit(epoch, v);
    report.slots.push_back({.run_id = "run",
                            .epoch = epoch,
                            .num_bytes = manifest_.slot_bytes,
                            .made = true,
                            .header = {begun->slot_id, v, begun->grant, DigestOf(v)}});
  }
  const auto next = state_.BeginVersion("run", epoch, 3, 0);
  ASSERT_TRUE(next.ok()) << next.status();
  ASSERT_EQ(next->slot_id, report.slots[0].header.slot_id);
  state_.AttachHost(kHost, report, 0);  // as the host was before
  EXPECT_EQ(StateOf(0), VersionState::kCommitted);
  EXPECT_EQ(StateOf(3), VersionState::kAborted);
  EXPECT_TRUE(state_.HoldForCopy("copy", "run", 0, 0).ok());
  EXPECT_EQ(state_.StartVerify("run", epoch, 3, next->grant, DigestOf(3)).status().code(),
            StatusCode::kFailedPrecondition);
}

TEST_F(StoreStateTest, AReportedLeaseOfASlotThatHoldsNoSuchVersionIsEnded) {
  const uint64_t epoch = Register();
  (void)state_.TakeEffects();
  HostReport report;
  const auto slot = [&](uint64_t slot_id, bool made, uint64_t of_epoch) {
    report.slots.push_back({.run_id = "run",
                            .epoch = of_epoch,
                            .num_bytes = manifest_.slot_bytes,
                            .made = made,
                            .header = {slot_id, /*version=*/999, /*grant=*/5, {}}});
    report.leases.push_back(
        {.lease = {.lease_id = slot_id + 100, .slot_id = slot_id, .grant = 5, .holder = "g"},
         .mapped = true});
  };
  slot(800, false, epoch);
  slot(801, true, epoch);
  slot(802, false, 0);
  state_.AttachHost(kHost, report, 0);
  EXPECT_EQ(state_.num_leases(), 0u);
  EXPECT_EQ(testing::CommandsOf<EndLease>(state_.TakeEffects()).size(), 3u);
}

TEST_F(StoreStateTest, RestoredRecordsMustBeConsecutive) {
  StoreState state(1, kTtl);
  EXPECT_EQ(state.RestoreVersion("run", 0, {}).code(), StatusCode::kDataLoss);
  state.RestoreRun("run", {1, 0, false, std::make_shared<const Manifest>(manifest_)});
  EXPECT_TRUE(state.RestoreVersion("run", 0, {DigestOf(0)}).ok());
  EXPECT_EQ(state.RestoreVersion("run", 2, {DigestOf(2)}).code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace titan::weightstore
