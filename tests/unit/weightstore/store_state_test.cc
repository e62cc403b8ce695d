// SPDX-License-Identifier: Apache-2.0
//
// Goal: each rule of the version state machine, one at a time. Method: a run of made-up slots
// driven by direct calls. Interleavings: store_state_property_test.cc.
#include "weightstore/store_state.h"

#include <gtest/gtest.h>

#include "tests/support/host_commands.h"
#include "tests/support/weightstore.h"

namespace titan::weightstore {
namespace {

using Kind = StoreState::BeginOutcome::Kind;
using testing::CommandsOf;
using testing::kHost;

Hash128 DigestOf(uint64_t version) { return {version + 1000, 7}; }

class StoreStateTest : public ::testing::Test {
 protected:
  static constexpr int64_t kTtl = 100;
  StoreState state_{1, kTtl};
  Effects registered_;  // of the last registration
  const Manifest manifest_ = testing::SmallManifest();

  std::vector<MakeSlot> Apply(const std::string& run, const StoreState::RegistrationPlan& plan) {
    (void)state_.TakeEffects();
    state_.ApplyRegistration(run, plan);
    registered_ = state_.TakeEffects();
    const auto slots = CommandsOf<MakeSlot>(registered_);
    EXPECT_EQ(slots.size(), plan.ring_slots + (plan.evaluation_slot ? 1 : 0));
    return slots;
  }
  uint64_t Register(uint32_t max_age = 0, const std::string& run = "run") {
    const auto plan = state_.PlanRegistration(run, manifest_, max_age, kHost);
    EXPECT_TRUE(plan.ok()) << plan.status();
    for (const auto& slot : Apply(run, *plan)) EXPECT_TRUE(state_.SlotMade(slot.slot_id));
    return plan->record.trainer_epoch;
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
  const auto lease = state_.AcquireLease("g", "run", 0, false, 0, {11, 12});
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
  ASSERT_EQ(state_.BeginVersion("run", epoch, 4, 15999)->kind, Kind::kBlocked);
  state_.TakeEffects();
  const auto opened = state_.BeginVersion("run", epoch, 4, 16000);
  ASSERT_TRUE(opened.ok());
  ASSERT_EQ(opened->kind, Kind::kOpened);
  EXPECT_EQ(opened->blockers, "version 0 was taken from stopped");
  EXPECT_GT(opened->grant, stopped->grant);
  EXPECT_FALSE(CommandsOf<WriteHeader>(state_.TakeEffects()).empty());  // its reader finds out
  EXPECT_FALSE(state_.ReleaseLease(stopped->lease_id));
  // What generators may still need is not taken from anyone.
  EXPECT_EQ(StateOf(2), VersionState::kCommitted);
  // The next wait is counted anew, and one version is enough.
  Publish(epoch, 4);
  ASSERT_EQ(state_.BeginVersion("run", epoch, 5, 40000)->kind, Kind::kBlocked);
  ASSERT_EQ(state_.BeginVersion("run", epoch, 5, 54999)->kind, Kind::kBlocked);
  EXPECT_EQ(state_.BeginVersion("run", epoch, 5, 55000)->blockers, "version 1 was taken from late");
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
  const auto pin = state_.PlanPin("run", 0, 0);
  ASSERT_TRUE(pin.ok());
  ASSERT_TRUE(pin->copy.has_value());
  EXPECT_EQ(state_.AcquireLease("g", "run", 0, true, 0).status().code(),
            StatusCode::kFailedPrecondition);
  ASSERT_TRUE(state_.FinishPin("run", 0, *pin->copy, true).ok());
  EXPECT_FALSE(state_.PlanPin("run", 0, 0)->copy.has_value());  // a retry
  for (uint64_t v = 1; v < 9; ++v) Publish(epoch, v);
  EXPECT_EQ(StateOf(0), VersionState::kFree);
  const auto lease = state_.AcquireLease("g", "run", 0, true, 0);
  ASSERT_TRUE(lease.ok());
  EXPECT_EQ(lease->digest, DigestOf(0));
  EXPECT_EQ(state_.PlanPin("run", 8, 0).status().code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(state_.Unpin("run", 0).ok());
  const Status held = state_.PlanPin("run", 8, 0).status();
  EXPECT_EQ(held.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(MessageOf(held).find("of g"), std::string::npos) << held;
  EXPECT_TRUE(state_.ReleaseLease(lease->lease_id));
  const auto again = state_.PlanPin("run", 8, 0);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(state_.FinishPin("run", 8, *again->copy, false).code(), StatusCode::kDataLoss);
  EXPECT_EQ(state_.AcquireLease("g", "run", 8, true, 0).status().code(),
            StatusCode::kFailedPrecondition);
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

TEST_F(StoreStateTest, RestoredRecordsMustBeConsecutive) {
  StoreState state(1, kTtl);
  EXPECT_EQ(state.RestoreVersion("run", 0, {}).code(), StatusCode::kDataLoss);
  state.RestoreRun("run", {1, 0, false, std::make_shared<const Manifest>(manifest_)});
  EXPECT_TRUE(state.RestoreVersion("run", 0, {DigestOf(0)}).ok());
  EXPECT_EQ(state.RestoreVersion("run", 2, {DigestOf(2)}).code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace titan::weightstore
