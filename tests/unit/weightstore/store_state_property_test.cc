// SPDX-License-Identifier: Apache-2.0
//
// Goal: no interleaving of trainers, readers, fencing, evaluation, expiry and restarts breaks the
// promises of weightstore.md sections 3 to 5. Method: random calls, right and wrong ones, beside a
// model that knows which bytes each slot holds and what every reader believes it reads.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <map>
#include <random>
#include <set>

#include "tests/support/host_model.h"
#include "tests/support/sanitized.h"
#include "tests/support/weightstore.h"
#include "weightstore/store_state.h"

namespace titan::weightstore {
namespace {

using testing::DigestOf;
using testing::kGarbage;
using testing::Reader;
using testing::Trainer;
using Kind = StoreState::BeginOutcome::Kind;
class Explorer : testing::HostModel {
 public:
  Explorer(uint64_t seed, uint32_t max_age, uint32_t evaluation_slots)
      : random_(seed),
        max_age_(max_age),
        evaluation_slots_(evaluation_slots),
        patience_(seed % 5 == 0 ? 40 : 4),
        calm_(seed % 2 == 0 ? 1 : 10) {
    StartLeader();
  }

  // The run ends; what was kept of it is evaluated on.
  void End() {
    if (run_record_.manifest == nullptr) return;
    const auto record = state_->PlanEndRun("run", 0);
    ASSERT_TRUE(record.ok() && record->has_value());
    run_record_ = **record;
    state_->ApplyEndRun("run");
    evaluations_in_.clear();
    Settle();
    Check();
  }

  void Step() {
    now_ += static_cast<int64_t>(random_() % 20);
    const uint64_t choice = random_() % 32;
    if (run_record_.ended && choice != 0 && choice != 1 && choice < 17) return;
    switch (choice) {
      case 0:
        if (Rarely(16)) Restart();
        if (Rarely(8)) LoseSightOfTheHost();
        break;
      case 1:
        if (run_record_.ended) {
          ASSERT_FALSE(
              state_
                  ->PlanRegistration("run", manifest_, max_age_, testing::kHost, evaluation_slots_)
                  .ok());
        } else if (run_record_.manifest == nullptr || Rarely(12)) {
          Register();
        }
        break;
      case 2:
        if (Rarely(16) && !trainers_.empty()) Abandon();
        break;
      case 3:
      case 4:
      case 5:
      case 6:
        Begin();
        break;
      case 7:
      case 8:
      case 9:
      case 10:
        Write();
        break;
      case 11:
      case 12:
      case 13:
        Put();
        break;
      case 14:
      case 15:
      case 16:
        Commit();
        break;
      case 17:
      case 18:
        Acquire(random_() % 4 == 0);
        break;
      case 19:
        MapReader();
        break;
      case 20:
      case 21:
      case 22:
        Release();
        break;
      case 23:
        state_->ExpireLeases(now_);
        break;
      case 24:
      case 25:
      case 26:
        Evaluate();
        break;
      case 27:
        if (random_() % 6 == 0)
          (void)state_->FenceReaders("run", random_() % (records_.size() + 1));
        break;
      case 28:
        Offer();
        break;
      default:
        Make();
    }
    Settle();
    Check();
  }

  uint64_t commits() const { return commits_; }
  uint64_t remade() const { return remade_; }
  uint64_t blocked() const { return blocked_; }
  uint64_t waited() const { return waited_; }
  uint64_t failed() const { return failed_; }
  uint64_t evaluations() const { return evaluations_; }
  uint64_t from_disk() const { return from_disk_; }
  uint64_t fenced() const { return fenced_; }
  uint64_t kept() const { return kept_; }
  uint64_t adopted() const { return adopted_; }

 private:
  struct Evaluated {
    uint64_t slot = 0;
    bool pinned = false;
  };
  static constexpr int64_t kTtl = 60;
  static constexpr int64_t kMapDeadline = 100;

  // The leader dies; its host daemon too, or it attaches to the next one with all that it has.
  void Restart() {
    StartLeader();
    random_() % 2 == 0 ? Attach() : HostDies();
  }

  void HostDies() {
    for (const Reader& reader : readers_) {
      const bool reads = reader.mapped && header_.at(reader.slot).grant == reader.grant;
      if (reads && slots_.at(reader.slot).epoch != 0) orphans_.push_back(reader.version);
    }
    if (orphans_.size() > 8) orphans_.erase(orphans_.begin(), orphans_.end() - 8);
    HostModel::operator=({});
    readers_.clear();
    newest_begun_ = 0;
    Attach();
    // Trainers live on with their old epochs and grants: all must be refused from here on.
  }

  void StartLeader() {
    first_number_ += 1'000'000;
    state_ = std::make_unique<StoreState>(first_number_, kTtl, kMapDeadline);
    if (run_record_.manifest != nullptr) state_->RestoreRun("run", run_record_);
    for (const auto& [version, record] : records_) {
      ASSERT_TRUE(state_->RestoreVersion("run", version, record).ok());
    }
    cursor_ = 0;  // a watcher connects again
    short_of_memory_ = false;
    retired_ms_.clear();
    for (auto& [version, in] : evaluations_in_) in.pinned = false;
  }

  void Attach() {
    std::map<uint64_t, Evaluated> found;
    for (const uint64_t slot : live_slots_) {
      if (slots_.at(slot).epoch != 0 || !header_.contains(slot)) continue;
      const SlotHeaderFields& header = header_.at(slot);
      const auto record = records_.find(header.version);
      if (record == records_.end() || record->second.digest != header.digest) continue;
      const auto known = evaluations_in_.find(header.version);
      const bool same = known != evaluations_in_.end() && known->second.slot == slot;
      found[header.version] = {slot, same && known->second.pinned};
    }
    evaluations_in_ = std::move(found);
    std::set<uint64_t> mapped;
    for (const Reader& reader : readers_) {
      if (reader.mapped) mapped.insert(reader.lease);
    }
    state_->AttachHost(testing::kHost, Report(mapped), now_);
    Settle();
    kept_ += static_cast<uint64_t>(
        std::count_if(live_slots_.begin(), live_slots_.end(), [&](uint64_t slot) {
          return header_.contains(slot) && header_.at(slot).digest != Hash128{};
        }));
  }

  // What is decided then reaches no host, and is answered to nobody.
  void LoseSightOfTheHost() {
    switch (random_() % 6) {
      case 0:
        (void)state_->FenceReaders("run", random_() % (records_.size() + 1));
        break;
      case 1:
        state_->ExpireLeases(now_);
        break;
      case 2:
        if (!readers_.empty()) state_->ReleaseLease(readers_[0].lease);
        break;
      case 3:
        state_->AttachHost(testing::kHost, HostReport(), now_);  // it was given up
        for (auto& [version, in] : evaluations_in_) in.pinned = false;
        break;
      case 4:
        if (random_() % 2 == 0) HostDies();
    }
    (void)state_->TakeEffects();
    Attach();
  }

  void Register() {
    const auto plan =
        state_->PlanRegistration("run", manifest_, max_age_, testing::kHost, evaluation_slots_);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const size_t slots_before = state_->num_slots();
    run_record_ = plan->record;
    short_of_memory_ = false;
    const size_t made_before = num_to_make_;
    state_->ApplyRegistration("run", *plan, now_);
    Settle();
    const size_t num_slots = plan->ring_slots + plan->evaluation_slots;
    ASSERT_EQ(num_to_make_, made_before + num_slots);
    ASSERT_EQ(state_->num_slots(), slots_before - plan->num_dropped + num_slots);
    Trainer trainer;
    trainer.epoch = plan->record.trainer_epoch;
    // From the last checkpoint, wherever that was.
    trainer.next = records_.size() - random_() % (std::min<size_t>(records_.size(), 6) + 1);
    trainers_.push_back(trainer);
    if (trainers_.size() > 3) trainers_.erase(trainers_.begin());
    newest_begun_ = 0;
  }

  bool Rarely(uint64_t one_in) { return random_() % (one_in * calm_) == 0; }
  bool IsCurrent(const Trainer& trainer) const {
    return trainer.epoch == run_record_.trainer_epoch;
  }
  Trainer* Pick() {
    if (trainers_.empty()) return nullptr;
    return random_() % 4 != 0 ? &trainers_.back() : &trainers_[random_() % trainers_.size()];
  }

  void Abandon() {
    Trainer& trainer = trainers_.back();
    state_->AbandonWriter("run", trainer.epoch);
    gone_.insert(trainer.epoch);
    trainer.open = false;
  }

  void Begin() {
    Trainer* trainer = Pick();
    if (trainer == nullptr) return;
    const uint64_t version =
        random_() % 10 == 0 ? random_() % (records_.size() + 3) : trainer->next;
    const auto begun = state_->BeginVersion("run", trainer->epoch, version, now_);
    if (!IsCurrent(*trainer)) {
      ASSERT_EQ(begun.status().code(), StatusCode::kAborted) << begun.status();
      return;
    }
    if (!begun.ok()) {
      // Refused only for a skip, another version in progress, a writer that is gone, or slots that
      // could not be made.
      if (version > records_.size() || version < newest_begun_) return;
      if (begun.status().code() == StatusCode::kResourceExhausted) {
        ASSERT_TRUE(short_of_memory_) << begun.status();
        ++failed_;
        return;
      }
      ASSERT_TRUE(trainer->open || begun.status().code() == StatusCode::kAborted) << begun.status();
      return;
    }
    ASSERT_LE(version, records_.size());
    switch (begun->kind) {
      case Kind::kRecorded:
        ASSERT_TRUE(records_.contains(version));
        ASSERT_EQ(begun->digest, records_.at(version).digest);
        if (version == trainer->next) ++trainer->next;
        break;
      case Kind::kBeingMade:
        ++waited_;
        ASSERT_FALSE(making_.empty());
        break;
      case Kind::kBlocked: {
        ++blocked_;
        // A version that is not needed any more has a reader, and the text names one.
        bool named = false;
        for (const Reader& reader : readers_) {
          named |= begun->blockers.find("lease " + std::to_string(reader.lease) + " of reader") !=
                   std::string::npos;
        }
        ASSERT_TRUE(named) << begun->blockers;
        break;
      }
      case Kind::kOpened: {
        Settle();
        ASSERT_FALSE(state_->IsBeingMade(begun->slot_id));
        ASSERT_TRUE(open_for_writing_.contains(begun->slot_id));
        ASSERT_EQ(header_.at(begun->slot_id).grant, begun->grant);
        if (begun->blockers.find("was taken from") != std::string::npos) {
          // Not before its holders had the time that they were promised.
          const uint64_t taken = std::stoull(begun->blockers.substr(8));
          ASSERT_TRUE(retired_ms_.contains(taken)) << begun->blockers;
          ASSERT_GE(now_ - retired_ms_.at(taken), kMapDeadline) << begun->blockers;
          ++fenced_;
        }
        newest_begun_ = std::max(newest_begun_, version);
        trainer->open = true;
        trainer->sealed = trainer->mapped = false;
        trainer->version = version;
        trainer->grant = begun->grant;
        trainer->slot = begun->slot_id;
        break;
      }
    }
  }

  void Write() {
    Trainer* trainer = Pick();
    if (trainer == nullptr || !trainer->open || trainer->sealed) return;
    if (!trainer->mapped) {
      // As the host finds out.
      if (!live_slots_.contains(trainer->slot) || !open_for_writing_.contains(trainer->slot) ||
          header_.at(trainer->slot).grant != trainer->grant) {
        trainer->open = false;
        return;
      }
      ASSERT_TRUE(IsCurrent(*trainer));
      trainer->mapped = true;
    }
    // The map stays with the trainer even after it was fenced: it may write at any time until
    // PutDone.
    content_[trainer->slot] = random_() % 6 == 0 ? kGarbage : trainer->version;
  }

  void Put() {
    Trainer* trainer = Pick();
    if (trainer == nullptr || !trainer->open) return;
    if (!trainer->mapped && random_() % 2 == 0) {
      // Never mapped: the host refuses to hash, and the version stays open.
      const auto slot = state_->StartVerify("run", trainer->epoch, trainer->version, trainer->grant,
                                            DigestOf(trainer->version));
      if (!slot.ok() || !slot->has_value()) return;
      ASSERT_EQ(state_
                    ->FinishVerify("run", trainer->epoch, trainer->version, trainer->grant,
                                   DigestOf(trainer->version), FailedPrecondition("not mapped"))
                    .code(),
                StatusCode::kFailedPrecondition);
      return;
    }
    const bool lies = random_() % 8 == 0;
    const Hash128 writers = lies ? DigestOf(kGarbage - 1) : DigestOf(trainer->version);
    const auto slot =
        state_->StartVerify("run", trainer->epoch, trainer->version, trainer->grant, writers);
    if (!slot.ok() || !slot->has_value()) return;
    ASSERT_TRUE(IsCurrent(*trainer));
    // A slot of an earlier version may be put without having been written anew: old bytes.
    if (trainer->mapped) {
      ASSERT_EQ((*slot)->slot_id, trainer->slot);
    }
    const uint64_t grant = trainer->grant, slot_id = (*slot)->slot_id;
    if (Rarely(10)) Register();  // fenced while the daemon hashes
    const uint64_t bytes = content_.contains(slot_id) ? content_.at(slot_id) : kGarbage;
    Trainer& again = *FindTrainer(grant);
    const Status sealed = state_->FinishVerify("run", again.epoch, again.version, again.grant,
                                               writers, DigestOf(bytes));
    if (sealed.ok()) {
      ASSERT_EQ(writers, DigestOf(bytes));
      ASSERT_TRUE(IsCurrent(again));
      again.sealed = true;
    } else {
      again.open = false;
    }
  }

  Trainer* FindTrainer(uint64_t grant) {
    for (Trainer& trainer : trainers_) {
      if (trainer.open && trainer.grant == grant) return &trainer;
    }
    return nullptr;
  }

  void Commit() {
    Trainer* trainer = Pick();
    if (trainer == nullptr || !trainer->open) return;
    const Hash128 digest = DigestOf(random_() % 10 == 0 ? 12345 : trainer->version);
    const auto plan = state_->PlanCommit("run", trainer->epoch, trainer->version, digest);
    if (!plan.ok()) return;
    ASSERT_TRUE(IsCurrent(*trainer));
    ASSERT_TRUE(trainer->sealed);
    ASSERT_EQ(digest, DigestOf(trainer->version));
    if (plan->done) {  // it was recorded before the leader died, and the host has it
      trainer->next = trainer->version + 1;
      trainer->open = false;
      return;
    }
    VersionRecord record = {digest, "plan", trainer->version, now_};
    if (plan->recorded.has_value()) {
      record = *plan->recorded;
      ++remade_;
    } else {
      ASSERT_EQ(trainer->version, records_.size());
      records_[trainer->version] = record;
      ++commits_;
    }
    if (Rarely(20)) {
      Restart();  // killed between the batch and the acknowledgement: the record stands
      return;
    }
    if (Rarely(20)) {
      state_->AbandonWriter("run", trainer->epoch);
      gone_.insert(trainer->epoch);
    }
    state_->ApplyCommit("run", trainer->epoch, trainer->version, record);
    trainer->next = trainer->version + 1;
    trainer->open = false;
  }

  void Acquire(bool evaluation) {
    if (records_.empty()) return;
    uint64_t version = records_.size() - 1 - random_() % std::min<uint64_t>(records_.size(), 4);
    if (evaluation && !evaluations_in_.empty() && random_() % 8 != 0) {
      auto some = evaluations_in_.begin();
      std::advance(some, static_cast<std::ptrdiff_t>(random_() % evaluations_in_.size()));
      version = some->first;
    }
    const auto lease = state_->AcquireLease("reader", "run", version, evaluation, now_);
    if (evaluation) {
      ASSERT_EQ(lease.ok(), evaluations_in_.contains(version)) << version;
    }
    if (!lease.ok()) return;
    ASSERT_EQ(lease->digest, records_.at(version).digest);
    readers_.push_back({lease->lease_id, lease->grant, version, lease->slot_id, false, now_});
    Settle();
    ASSERT_EQ(allowed_.at(lease->lease_id).grant, lease->grant);
  }

  void MapReader() {
    if (readers_.empty()) return;
    Reader& reader = readers_[random_() % readers_.size()];
    if (reader.mapped) return;
    // The host hands the slot out by what it was told, and then tells.
    const bool allowed = allowed_.contains(reader.lease);
    ASSERT_EQ(state_->LeaseMapped(reader.lease, now_), allowed);
    if (!allowed) return;
    reader.mapped = true;
    ASSERT_EQ(allowed_.at(reader.lease).slot_id, reader.slot);
    ASSERT_TRUE(live_slots_.contains(reader.slot));
    ASSERT_EQ(header_.at(reader.slot).grant, reader.grant);
    ASSERT_EQ(header_.at(reader.slot).version, reader.version);
    ASSERT_EQ(header_.at(reader.slot).digest, DigestOf(reader.version));
  }

  void Release() {
    if (readers_.empty() || random_() % patience_ != 0) return;
    const size_t i = random_() % readers_.size();
    state_->ReleaseLease(readers_[i].lease);
    readers_.erase(readers_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  // Is the slot pinned, or may a lease hold it?
  bool InUse(uint64_t version) const {
    const Evaluated& in = evaluations_in_.at(version);
    if (in.pinned) return true;
    return std::any_of(readers_.begin(), readers_.end(), [&](const Reader& reader) {
      return reader.version == version && header_.at(in.slot).grant == reader.grant;
    });
  }

  void Evaluate() {
    if (records_.empty() || run_record_.manifest == nullptr) return;
    if (random_() % 3 == 0) {
      if (evaluations_in_.empty()) return;
      auto some = evaluations_in_.begin();
      std::advance(some, static_cast<std::ptrdiff_t>(random_() % evaluations_in_.size()));
      ASSERT_TRUE(state_->Unpin("run", some->first).ok());
      some->second.pinned = false;
      Forget();
      return;
    }
    const uint64_t version = random_() % 2 == 0 ? records_.size() - 1 : random_() % records_.size();
    const bool on_disk = version % 3 == 0, pin = random_() % 4 != 0;
    const auto planned = state_->PlanPin("run", version, on_disk, pin, now_);
    if (evaluations_in_.contains(version)) {
      ASSERT_TRUE(planned.ok() && !planned->copy.has_value()) << planned.status();
      ASSERT_EQ(planned->digest, DigestOf(version));
      evaluations_in_.at(version).pinned |= pin;
      return;
    }
    if (!planned.ok()) {
      if (planned.status().code() != StatusCode::kResourceExhausted) {
        ASSERT_FALSE(on_disk) << planned.status();
        return;
      }
      // Every slot has somebody who wants it, or could not be had.
      size_t used = 0;
      for (const auto& [other, in] : evaluations_in_) used += InUse(other);
      ASSERT_TRUE(used == evaluation_slots_ || short_of_memory_) << planned.status();
      return;
    }
    if (planned->slot_wanted) {
      state_->AddEvaluationSlot("run", testing::kHost);
      return;
    }
    if (planned->not_yet) {
      ASSERT_FALSE(making_.empty());
      return;
    }
    const StoreState::PinPlan plan = *planned->copy;
    ASSERT_EQ(plan.digest, DigestOf(version));
    ASSERT_FALSE(state_->IsBeingMade(plan.to_slot));
    ASSERT_TRUE(!plan.from_disk || on_disk);
    Settle();
    for (auto it = evaluations_in_.begin(); it != evaluations_in_.end();) {
      const bool taken = it->second.slot == plan.to_slot;
      ASSERT_FALSE(taken && it->second.pinned);
      it = taken ? evaluations_in_.erase(it) : std::next(it);
    }
    for (const Reader& reader : readers_) {
      ASSERT_FALSE(reader.mapped && reader.slot == plan.to_slot &&
                   header_.at(reader.slot).grant == reader.grant);
    }
    content_[plan.to_slot] = kGarbage;  // half of it
    Check();
    ASSERT_FALSE(state_->AcquireLease("reader", "run", version, true, now_).ok());
    if (random_() % 10 == 0) {
      ASSERT_TRUE(state_->Unpin("run", version).ok());       // who asked for it has gone
      (void)state_->FinishPin("run", version, plan, false);  // and the bytes were damaged
      Forget();
      return;
    }
    content_[plan.to_slot] = plan.from_disk ? version : content_.at(plan.from_slot);
    ASSERT_EQ(content_.at(plan.to_slot), version);
    const Status finished = state_->FinishPin("run", version, plan, true);
    ASSERT_TRUE(finished.ok()) << finished;
    evaluations_in_[version] = {plan.to_slot, pin};
    from_disk_ += plan.from_disk;
    ++evaluations_;
    // Who brings a version in without a pin takes its lease at once.
    if (!pin) AcquireBroughtIn(version);
  }

  void AcquireBroughtIn(uint64_t version) {
    const auto lease = state_->AcquireLease("reader", "run", version, true, now_);
    ASSERT_TRUE(lease.ok()) << lease.status();
    readers_.push_back({lease->lease_id, lease->grant, version, lease->slot_id, false, now_});
    Settle();
    ASSERT_EQ(allowed_.at(lease->lease_id).grant, lease->grant);
  }

  // A reader that outlived a host shows what it maps, or something else.
  void Offer() {
    if (orphans_.empty()) return;
    const uint64_t version = orphans_[random_() % orphans_.size()];
    SlotOffer offer = {++last_offer_,     "run",
                       version,           manifest_.slot_bytes,
                       DigestOf(version), ManifestId(manifest_)};
    const uint64_t damage = random_() % 12;
    if (damage == 0) ++offer.num_bytes;
    if (damage == 1) offer.digest = DigestOf(version + 1);
    if (damage == 2) ++offer.manifest_id.high;
    if (damage == 3) offer.version += records_.size();
    const auto plan = state_->PlanAdoption(testing::kHost, offer);
    if (damage < 4 || run_record_.ended) {
      ASSERT_FALSE(plan.ok());
      return;
    }
    const auto state =
        std::find_if(versions_.begin(), versions_.end(),
                     [&](const VersionInfo& info) { return info.version == version; });
    ASSERT_NE(state, versions_.end());
    const bool adopted_now = std::any_of(offered_.begin(), offered_.end(), [&](const auto& entry) {
      return entry.second == version && live_slots_.contains(entry.first);
    });
    const bool wanted = version + max_age_ + 1 >= records_.size();
    ASSERT_EQ(plan.ok(), state->state == VersionState::kLost && wanted && !adopted_now)
        << plan.status();
    if (!plan.ok()) return;
    ASSERT_TRUE(plan->has_value());
    state_->ApplyAdoption(testing::kHost, offer);
    Settle();
    if (random_() % 6 == 0) content_[offered_.rbegin()->first] = kGarbage;
    const auto again = state_->PlanAdoption(testing::kHost, offer);
    ASSERT_TRUE(again.ok() && !again->has_value()) << again.status();
  }

  // A run that has ended keeps no slot that nobody uses.
  void Forget() {
    if (!run_record_.ended) return;
    Settle();
    std::erase_if(evaluations_in_,
                  [&](const auto& entry) { return !live_slots_.contains(entry.second.slot); });
  }

  // The next slot's memory is there, or, seldom, cannot be had.
  void Make() {
    if (making_.empty()) return;
    const uint64_t slot = making_.front();
    making_.erase(making_.begin());
    if (const auto offered = offered_.find(slot); offered != offered_.end()) {
      const uint64_t version = offered->second;
      offered_.erase(offered);
      const bool live = live_slots_.contains(slot);
      if (content_.at(slot) != version) {
        state_->SlotNotMade(slot, DataLoss("other bytes"));
        return;
      }
      ASSERT_EQ(state_->SlotMade(slot), live);
      if (!live) return;
      Settle();
      ASSERT_EQ(header_.at(slot).digest, DigestOf(version));
      const auto lease = state_->AcquireLease("reader", "run", version, false, now_);
      ASSERT_TRUE(lease.ok()) << lease.status();
      state_->ReleaseLease(lease->lease_id);
      ++adopted_;
      return;
    }
    if (Rarely(300)) {
      state_->SlotNotMade(slot, ResourceExhausted("none left"));
      short_of_memory_ |= live_slots_.contains(slot);
    } else {
      ASSERT_EQ(state_->SlotMade(slot), live_slots_.contains(slot));
    }
  }

  using HostModel::Do;
  void Settle() {
    for (const auto& [host, command] : state_->TakeEffects().commands) {
      ASSERT_EQ(host, testing::kHost);
      std::visit([this](const auto& one) { Do(one); }, command);
    }
  }
  void Do(const DropSlot& command) {
    HostModel::Do(command);
    if (!run_record_.ended) return;
    for (auto it = evaluations_in_.begin(); it != evaluations_in_.end();) {
      const bool gone = it->second.slot == command.slot_id;
      ASSERT_FALSE(gone && it->second.pinned);
      it = gone ? evaluations_in_.erase(it) : std::next(it);
    }
  }
  void Watch(const std::map<uint64_t, VersionState>& states) {
    // A watcher that looks now and then, and only at a few changes at a time, ends up with what
    // there is.
    if (random_() % 3 != 0) return;
    for (;;) {
      const auto changes = state_->ChangesSince("run", cursor_, 0, 1 + random_() % 4);
      ASSERT_TRUE(changes.ok());
      if (changes->versions.empty()) break;
      ASSERT_GT(changes->cursor, cursor_);
      cursor_ = changes->cursor;
      for (const VersionInfo& info : changes->versions) watched_[info.version] = info.state;
    }
    for (const auto& [version, state] : states) {
      if (!records_.contains(version) || state == VersionState::kOpen ||
          state == VersionState::kSealed) {
        continue;
      }
      ASSERT_EQ(watched_.at(version), state) << version;
    }
  }

  void Check() {
    // Never torn, never wrong: whoever still finds its grant number reads its version, whole.
    for (const Reader& reader : readers_) {
      if (!reader.mapped || header_.at(reader.slot).grant != reader.grant) continue;
      ASSERT_TRUE(content_.contains(reader.slot));
      ASSERT_EQ(content_.at(reader.slot), reader.version);
    }
    ASSERT_EQ(state_->num_slots(), live_slots_.size());
    if (run_record_.manifest == nullptr) return;
    const auto versions = state_->ListVersions("run");
    ASSERT_TRUE(versions.ok());
    versions_ = *versions;
    int in_progress = 0;
    std::map<uint64_t, VersionState> states;
    for (const VersionInfo& info : *versions) {
      states[info.version] = info.state;
      in_progress += info.state == VersionState::kOpen || info.state == VersionState::kSealed;
      const auto record = records_.find(info.version);
      ASSERT_EQ(info.record.has_value(), record != records_.end()) << info.version;
      if (info.record.has_value()) {
        ASSERT_EQ(*info.record, record->second);
      }
    }
    ASSERT_LE(in_progress, 1);
    for (const auto& [version, state] : states) {
      if (state != VersionState::kRetired) retired_ms_.erase(version);
      if (state == VersionState::kRetired) retired_ms_.emplace(version, now_);
    }
    Watch(states);
    // What is evaluated is whole, whatever became of its version.
    for (const auto& [version, in] : evaluations_in_) {
      ASSERT_TRUE(live_slots_.contains(in.slot));
      ASSERT_EQ(content_.at(in.slot), version);
    }
    ASSERT_LE(evaluations_in_.size(), evaluation_slots_);
    if (run_record_.ended) {
      ASSERT_LE(live_slots_.size(), evaluation_slots_);
      return;
    }
    // What generators may still need is not retired while the newest version is written.
    for (const auto& [version, state] : states) {
      if (version + max_age_ + 1 < std::max<uint64_t>(newest_begun_, records_.size())) continue;
      ASSERT_NE(state, VersionState::kRetired) << version;
      ASSERT_NE(state, VersionState::kFree) << version;
    }
    // Memory is bounded: what the newest token has, what older tokens still serve, and of what was
    // adopted one slot for each version that may be needed.
    ASSERT_LE(state_->num_slots(),
              2 * (max_age_ + kSparesOfRing) + evaluation_slots_ + readers_.size() + max_age_ + 2);
  }

  std::mt19937_64 random_;
  const uint32_t max_age_, evaluation_slots_;
  const uint64_t patience_;  // of readers
  const uint64_t calm_;      // how seldom something breaks
  const Manifest manifest_ = testing::SmallManifest();
  int64_t now_ = 0;
  uint64_t first_number_ = 1;
  std::unique_ptr<StoreState> state_;
  RunRecord run_record_;
  std::map<uint64_t, VersionRecord> records_;
  std::map<uint64_t, VersionState> watched_;
  uint64_t cursor_ = 0;
  bool short_of_memory_ = false;
  std::vector<Trainer> trainers_;
  std::vector<Reader> readers_;
  std::vector<uint64_t> orphans_;  // versions that readers of dead hosts still map
  uint64_t last_offer_ = 0;
  std::vector<VersionInfo> versions_;             // after the last step
  std::map<uint64_t, Evaluated> evaluations_in_;  // by version
  std::map<uint64_t, int64_t> retired_ms_;        // when a version was seen to be RETIRED
  uint64_t newest_begun_ = 0;
  uint64_t commits_ = 0, remade_ = 0, blocked_ = 0, waited_ = 0, failed_ = 0, evaluations_ = 0,
           from_disk_ = 0, fenced_ = 0, kept_ = 0, adopted_ = 0;
};

TEST(StoreStatePropertyTest, RandomInterleavingsKeepEveryPromise) {
  constexpr uint64_t kSeeds = titan::testing::Rounds<uint64_t>(240, 30);
  uint64_t commits = 0, remade = 0, blocked = 0, waited = 0, failed = 0, evaluations = 0,
           from_disk = 0, fenced = 0, kept = 0, adopted = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Explorer explorer(seed, static_cast<uint32_t>(seed % 3), 1 + static_cast<uint32_t>(seed % 4));
    for (int step = 0; step < 4000; ++step) {
      if (step == 3600) {
        explorer.End();
      } else {
        explorer.Step();
      }
      if (::testing::Test::HasFatalFailure()) FAIL() << "seed " << seed << ", step " << step;
    }
    commits += explorer.commits();
    remade += explorer.remade();
    blocked += explorer.blocked();
    waited += explorer.waited();
    failed += explorer.failed();
    evaluations += explorer.evaluations();
    from_disk += explorer.from_disk();
    fenced += explorer.fenced();
    kept += explorer.kept();
    adopted += explorer.adopted();
  }
  // The walk reaches what it is for.
  EXPECT_GT(commits, 4 * kSeeds);
  EXPECT_GT(remade, kSeeds);
  EXPECT_GT(blocked, kSeeds / 5);
  EXPECT_GT(waited, 2 * kSeeds);
  EXPECT_GT(failed, kSeeds / 5);
  EXPECT_GT(evaluations, 2 * kSeeds);
  EXPECT_GT(from_disk, kSeeds);
  EXPECT_GT(fenced, kSeeds / 5);
  EXPECT_GT(kept, 2 * kSeeds);
  EXPECT_GT(adopted, kSeeds / 5);
  std::cout << commits << " commits, " << remade << " re-made, " << blocked << " blocked, "
            << waited << " waited for slots, " << failed << " without memory, " << evaluations
            << " evaluations, " << from_disk << " from disk, " << fenced << " fenced, " << kept
            << " slots kept over an attachment, " << adopted << " adopted\n";
}

}  // namespace
}  // namespace titan::weightstore
