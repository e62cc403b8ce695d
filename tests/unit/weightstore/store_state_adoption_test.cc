// SPDX-License-Identifier: Apache-2.0
//
// Goal: which offered slots are adopted, which are refused and why, and who wins when a trainer
// makes the same version again. Method: direct calls; a host that dies reports nothing.
// Interleavings: store_state_property_test.cc.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/host_commands.h"
#include "tests/support/weightstore.h"
#include "weightstore/client/reason.h"
#include "weightstore/store_state.h"

namespace titan::weightstore {
namespace {

using Kind = StoreState::BeginOutcome::Kind;
using testing::CommandsOf;
using testing::kHost;

Hash128 DigestOf(uint64_t version) { return {version + 1000, 7}; }

class AdoptionTest : public ::testing::Test {
 protected:
  // Versions 0 to 3 of a run whose generators need the newest; their host has died.
  AdoptionTest() {
    epoch_ = Register();
    for (uint64_t version = 0; version < 4; ++version) Publish(version);
    state_.AttachHost(kHost, HostReport(), 0);
    (void)state_.TakeEffects();
  }

  uint64_t Register() {
    const auto plan = state_.PlanRegistration("run", manifest_, /*max_age=*/0, kHost);
    EXPECT_TRUE(plan.ok()) << plan.status();
    (void)state_.TakeEffects();
    state_.ApplyRegistration("run", *plan, 0);
    for (const auto& slot : CommandsOf<MakeSlot>(state_.TakeEffects())) {
      EXPECT_TRUE(state_.SlotMade(slot.slot_id));
    }
    return plan->record.trainer_epoch;
  }
  uint64_t Open(uint64_t version) {
    const auto begun = state_.BeginVersion("run", epoch_, version, 0);
    EXPECT_TRUE(begun.ok()) << begun.status();
    EXPECT_EQ(begun->kind, Kind::kOpened) << begun->blockers;
    return begun->grant;
  }
  void Publish(uint64_t version) {
    const uint64_t grant = Open(version);
    ASSERT_TRUE(state_.StartVerify("run", epoch_, version, grant, DigestOf(version)).ok());
    ASSERT_TRUE(
        state_.FinishVerify("run", epoch_, version, grant, DigestOf(version), DigestOf(version))
            .ok());
    state_.ApplyCommit("run", epoch_, version, {DigestOf(version), "plan", version, 5});
  }
  SlotOffer Offer(uint64_t version, uint64_t offer_id = 1) const {
    return {
        offer_id, "run", version, manifest_.slot_bytes, DigestOf(version), ManifestId(manifest_)};
  }
  StatusCode Refused(const SlotOffer& offer, const std::string& why) const {
    const auto plan = state_.PlanAdoption(kHost, offer);
    EXPECT_FALSE(plan.ok());
    EXPECT_NE(MessageOf(plan.status()).find(why), std::string::npos) << plan.status();
    return plan.status().code();
  }
  // The slot that is to adopt it.
  uint64_t Adopt(const SlotOffer& offer) {
    const auto plan = state_.PlanAdoption(kHost, offer);
    EXPECT_TRUE(plan.ok() && plan->has_value()) << plan.status();
    (void)state_.TakeEffects();
    state_.ApplyAdoption(kHost, offer);
    const auto commands = CommandsOf<AdoptSlot>(state_.TakeEffects());
    EXPECT_EQ(commands.size(), 1u);
    EXPECT_EQ(commands[0].offer_id, offer.offer_id);
    EXPECT_EQ(commands[0].digest, DigestOf(offer.version));
    EXPECT_EQ(*commands[0].manifest, manifest_);
    return commands[0].slot_id;
  }
  VersionState StateOf(uint64_t version) {
    const auto versions = state_.ListVersions("run");
    for (const VersionInfo& info : *versions) {
      if (info.version == version) return info.state;
    }
    ADD_FAILURE() << "no version " << version;
    return VersionState::kFree;
  }

  StoreState state_{1, /*lease_ttl_ms=*/100, /*map_deadline_ms=*/5000};
  const Manifest manifest_ = testing::SmallManifest();
  uint64_t epoch_ = 0;
};

TEST_F(AdoptionTest, AnAdoptedVersionIsServedAndRecordedForTheTrainer) {
  ASSERT_EQ(StateOf(3), VersionState::kLost);
  EXPECT_EQ(ReasonOf(state_.AcquireLease("g", "run", 3, false, 0).status()), kVersionLost);
  const uint64_t slot = Adopt(Offer(3));
  EXPECT_EQ(StateOf(3), VersionState::kLost);  // its bytes are being looked at
  EXPECT_FALSE(state_.AcquireLease("g", "run", 3, false, 0).ok());
  EXPECT_TRUE(state_.SlotMade(slot));
  EXPECT_EQ(StateOf(3), VersionState::kCommitted);
  const auto headers = CommandsOf<WriteHeader>(state_.TakeEffects());
  ASSERT_EQ(headers.size(), 1u);
  EXPECT_EQ(headers[0].fields.slot_id, slot);
  EXPECT_EQ(headers[0].fields.version, 3u);
  EXPECT_EQ(headers[0].fields.digest, DigestOf(3));
  EXPECT_FALSE(headers[0].open_for_writing);
  const auto lease = state_.AcquireLease("g", "run", 3, false, 0);
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_EQ(lease->slot_id, slot);
  EXPECT_EQ(lease->grant, headers[0].fields.grant);
  EXPECT_EQ(lease->epoch, kNoTrainer);
  // The next reader needs a lease alone, and the next trainer confirms it.
  EXPECT_EQ(Refused(Offer(3, 2), "take a lease"), StatusCode::kUnavailable);
  epoch_ = Register();
  const auto begun = state_.BeginVersion("run", epoch_, 3, 0);
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_EQ(begun->kind, Kind::kRecorded);
  EXPECT_EQ(begun->digest, DigestOf(3));
  // Nobody writes to it: it is dropped once it is not needed and its reader has let it go.
  for (uint64_t version = 4; version < 6; ++version) Publish(version);
  EXPECT_EQ(StateOf(3), VersionState::kRetired);
  (void)state_.TakeEffects();
  EXPECT_TRUE(state_.ReleaseLease(lease->lease_id));
  EXPECT_EQ(StateOf(3), VersionState::kFree);
  const auto dropped = CommandsOf<DropSlot>(state_.TakeEffects());
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_EQ(dropped[0].slot_id, slot);
}

TEST_F(AdoptionTest, WhatIsNotTheRecordedVersionIsRefusedWithTheReason) {
  SlotOffer offer = Offer(3);
  offer.run_id = "other";
  EXPECT_EQ(Refused(offer, "no trainer has registered it"), StatusCode::kNotFound);
  EXPECT_EQ(Refused(Offer(4), "was never committed"), StatusCode::kNotFound);
  offer = Offer(3);
  ++offer.num_bytes;
  EXPECT_EQ(Refused(offer, "slot_bytes"), StatusCode::kInvalidArgument);
  offer = Offer(3);
  ++offer.manifest_id.low;
  EXPECT_EQ(Refused(offer, "manifest_id"), StatusCode::kInvalidArgument);
  offer = Offer(3);
  offer.digest = DigestOf(2);
  EXPECT_EQ(Refused(offer, "divergence"), StatusCode::kFailedPrecondition);
  // The next step is made under version 3.
  EXPECT_EQ(Refused(Offer(2), "is not needed any more"), StatusCode::kFailedPrecondition);
  EXPECT_EQ(StateOf(2), VersionState::kLost);
  state_.ApplyEndRun("run");
  EXPECT_EQ(Refused(Offer(3), "has ended"), StatusCode::kFailedPrecondition);
  (void)state_.TakeEffects();
  state_.RefuseOffer(kHost, 9, NotFound("why"));
  const auto refusals = CommandsOf<RefuseOffer>(state_.TakeEffects());
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_EQ(refusals[0].offer_id, 9u);
  EXPECT_EQ(refusals[0].why.code(), StatusCode::kNotFound);
}

TEST_F(AdoptionTest, OfTwoReadersOneIsAskedForItsBytes) {
  const uint64_t slot = Adopt(Offer(3, 1));
  EXPECT_EQ(Refused(Offer(3, 2), "another reader"), StatusCode::kUnavailable);
  const auto same = state_.PlanAdoption(kHost, Offer(3, 1));  // told a second time
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_FALSE(same->has_value());
  // The first one's bytes are wrong: the second one's turn.
  state_.SlotNotMade(slot, DataLoss("other bytes"));
  EXPECT_EQ(StateOf(3), VersionState::kLost);
  EXPECT_EQ(state_.num_slots(), 0u);
  const uint64_t second = Adopt(Offer(3, 2));
  EXPECT_FALSE(state_.SlotMade(slot));
  EXPECT_TRUE(state_.SlotMade(second));
  EXPECT_EQ(StateOf(3), VersionState::kCommitted);
  EXPECT_EQ(state_.num_slots(), 1u);
}

TEST_F(AdoptionTest, ATrainerWaitsForAnAdoptionAndMakesTheVersionIfItFails) {
  epoch_ = Register();
  const uint64_t slot = Adopt(Offer(3));
  const auto begun = state_.BeginVersion("run", epoch_, 3, 0);
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_EQ(begun->kind, Kind::kBeingMade);
  EXPECT_NE(begun->blockers.find("is being adopted"), std::string::npos) << begun->blockers;
  (void)state_.TakeEffects();
  state_.SlotNotMade(slot, Aborted("the reader has gone"));
  EXPECT_TRUE(state_.TakeEffects().slots_changed);  // it looks again
  Open(3);
  EXPECT_EQ(Refused(Offer(3), "is being made again"), StatusCode::kUnavailable);
  // A reader that asks for it meanwhile does not take it for unwanted.
  EXPECT_EQ(ReasonOf(state_.AcquireLease("g", "run", 3, false, 0).status()), kVersionLost);
}

TEST_F(AdoptionTest, AMissingRingIsReckonedWith) {
  // Until a trainer registers: three slots of its ring and one for evaluation, too.
  const uint64_t slot_bytes = manifest_.slot_bytes;
  EXPECT_EQ(**state_.PlanAdoption(kHost, Offer(3)), 5 * slot_bytes);
  // And those of another run, while it goes on without a trainer.
  const auto other = state_.PlanRegistration("other", manifest_, /*max_age=*/1, kHost, 2);
  state_.ApplyRegistration("other", *other, 0);
  EXPECT_EQ(**state_.PlanAdoption(kHost, Offer(3)), 5 * slot_bytes);
  state_.AttachHost(kHost, HostReport(), 0);
  EXPECT_EQ(**state_.PlanAdoption(kHost, Offer(3)), 11 * slot_bytes);
  state_.ApplyEndRun("other");
  EXPECT_EQ(**state_.PlanAdoption(kHost, Offer(3)), 5 * slot_bytes);
  epoch_ = Register();
  EXPECT_EQ(**state_.PlanAdoption(kHost, Offer(3)), slot_bytes);
  const uint64_t slot = Adopt(Offer(3));
  // A slot that cannot be made says nothing about it, nor the other way round.
  const auto plan = state_.PlanRegistration("run", manifest_, 0, kHost);
  (void)state_.TakeEffects();
  state_.ApplyRegistration("run", *plan, 0);
  epoch_ = plan->record.trainer_epoch;
  const auto made = CommandsOf<MakeSlot>(state_.TakeEffects());
  ASSERT_EQ(made.size(), 3u);
  state_.SlotNotMade(made[0].slot_id, ResourceExhausted("none left"));
  EXPECT_TRUE(state_.SlotMade(slot));
  EXPECT_EQ(StateOf(3), VersionState::kCommitted);
  EXPECT_EQ(state_.HasSlot("run", epoch_).status().code(), StatusCode::kResourceExhausted);
}

TEST_F(AdoptionTest, WhatIsDecidedMeanwhileStands) {
  uint64_t slot = Adopt(Offer(3));
  // The host is lost sight of: its slots are those of its next report.
  HostReport report;
  report.slots.push_back({.run_id = "run",
                          .epoch = kNoTrainer,
                          .num_bytes = manifest_.slot_bytes,
                          .made = false,
                          .header = {.slot_id = slot},
                          .open_for_writing = false});
  state_.AttachHost(kHost, report, 0);
  EXPECT_EQ(CommandsOf<DropSlot>(state_.TakeEffects()).size(), 1u);
  EXPECT_FALSE(state_.SlotMade(slot));
  slot = Adopt(Offer(3));
  // Another host comes back with the version.
  report.slots[0] = {.run_id = "run",
                     .epoch = epoch_,
                     .num_bytes = manifest_.slot_bytes,
                     .made = true,
                     .header = {.slot_id = 777, .version = 3, .grant = 5, .digest = DigestOf(3)},
                     .open_for_writing = false};
  state_.AttachHost("h2", report, 0);
  EXPECT_EQ(StateOf(3), VersionState::kCommitted);
  (void)state_.TakeEffects();
  EXPECT_TRUE(state_.SlotMade(slot));
  EXPECT_EQ(CommandsOf<DropSlot>(state_.TakeEffects()).size(), 1u);
  EXPECT_EQ(state_.AcquireLease("g", "run", 3, false, 0)->host, "h2");
  // What was adopted and is reported by its host is there again for the next leader.
  report.slots[0].epoch = kNoTrainer;
  StoreState next(1'000'000, 100, 5000);
  next.RestoreRun("run", {.trainer_epoch = epoch_,
                          .max_age = 0,
                          .ended = false,
                          .manifest = std::make_shared<const Manifest>(manifest_)});
  for (uint64_t version = 0; version < 4; ++version) {
    ASSERT_TRUE(next.RestoreVersion("run", version, {DigestOf(version), "plan", version, 5}).ok());
  }
  next.AttachHost("h2", report, 0);
  EXPECT_EQ(next.AcquireLease("g", "run", 3, false, 0)->slot_id, 777u);
  EXPECT_EQ(next.CheckTrainer("run", epoch_).code(), StatusCode::kAborted);  // it has no slots
}

}  // namespace
}  // namespace titan::weightstore
