// SPDX-License-Identifier: Apache-2.0
//
// Goal: no interleaving of trainers, readers, fencing, evaluation, expiry and restarts breaks the
// promises of weightstore.md sections 3 to 5. Method: random calls, right and wrong ones, beside a
// model that knows which bytes each slot holds and what every reader believes it reads.
#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <random>
#include <set>

#include "tests/support/host_commands.h"
#include "tests/support/sanitized.h"
#include "tests/support/weightstore.h"
#include "weightstore/store_state.h"

namespace titan::weightstore {
namespace {

using Kind = StoreState::BeginOutcome::Kind;
constexpr uint64_t kGarbage = ~uint64_t{0};

Hash128 DigestOf(uint64_t version) { return {version * 0x9E3779B97F4A7C15u + 1, version}; }

struct Trainer {
  uint64_t epoch = 0;
  uint64_t next = 0;
  bool open = false, sealed = false, mapped = false;
  uint64_t version = 0, grant = 0, slot = 0;
};

struct Reader {
  uint64_t lease = 0, grant = 0, version = 0, slot = 0;
  bool mapped = false;
  int64_t since = 0;
};

class Explorer {
 public:
  Explorer(uint64_t seed, uint32_t max_age) : random_(seed), max_age_(max_age) { Restart(); }

  void Step() {
    now_ += static_cast<int64_t>(random_() % 20);
    switch (random_() % 30) {
      case 0:
        if (random_() % 16 == 0) Restart();
        break;
      case 1:
        if (run_record_.manifest == nullptr || random_() % 12 == 0) Register();
        break;
      case 2:
        if (random_() % 16 == 0 && !trainers_.empty()) Abandon();
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
        Evaluate();
        break;
      case 25:
        if (random_() % 6 == 0)
          (void)state_->FenceReaders("run", random_() % (records_.size() + 1));
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

 private:
  static constexpr int64_t kTtl = 60;

  void Restart() {
    first_number_ += 1'000'000;
    state_ = std::make_unique<StoreState>(first_number_, kTtl);
    if (run_record_.manifest != nullptr) state_->RestoreRun("run", run_record_);
    for (const auto& [version, record] : records_) {
      ASSERT_TRUE(state_->RestoreVersion("run", version, record).ok());
    }
    content_.clear();
    header_.clear();
    open_for_writing_.clear();
    allowed_.clear();
    live_slots_.clear();
    making_.clear();
    cursor_ = 0;  // a watcher connects again
    short_of_memory_ = false;
    readers_.clear();
    newest_begun_ = 0;
    // Trainers live on with their old epochs and grants: all must be refused from here on.
  }

  void Register() {
    const auto plan = state_->PlanRegistration("run", manifest_, max_age_, testing::kHost);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const size_t slots_before = state_->num_slots();
    run_record_ = plan->record;
    short_of_memory_ = false;
    const size_t made_before = num_to_make_;
    state_->ApplyRegistration("run", *plan);
    Settle();
    const size_t num_slots = plan->ring_slots + (plan->evaluation_slot ? 1 : 0);
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
    if (random_() % 10 == 0) Register();  // fenced while the daemon hashes
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
    ASSERT_FALSE(plan->done);
    VersionRecord record = {digest, "plan", trainer->version, now_};
    if (plan->recorded.has_value()) {
      record = *plan->recorded;
      ++remade_;
    } else {
      ASSERT_EQ(trainer->version, records_.size());
      records_[trainer->version] = record;
      ++commits_;
    }
    if (random_() % 20 == 0) {
      Restart();  // killed between the batch and the acknowledgement: the record stands
      return;
    }
    if (random_() % 20 == 0) state_->AbandonWriter("run", trainer->epoch);
    state_->ApplyCommit("run", trainer->epoch, trainer->version, record);
    trainer->next = trainer->version + 1;
    trainer->open = false;
  }

  void Acquire(bool evaluation) {
    if (records_.empty()) return;
    const uint64_t version =
        evaluation ? evaluated_
                   : records_.size() - 1 - random_() % std::min<uint64_t>(records_.size(), 4);
    const auto lease = state_->AcquireLease("reader", "run", version, evaluation, now_);
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
    if (readers_.empty() || random_() % 4 != 0) return;
    const size_t i = random_() % readers_.size();
    state_->ReleaseLease(readers_[i].lease);
    readers_.erase(readers_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  void Evaluate() {
    if (records_.empty()) return;
    if (random_() % 2 == 0) {
      ASSERT_TRUE(!run_record_.manifest || state_->Unpin("run", evaluated_).ok());
      return;
    }
    const uint64_t version = records_.size() - 1;
    const auto pin = state_->PlanPin("run", version, now_);
    if (!pin.ok() || !pin->copy.has_value()) return;
    ASSERT_FALSE(state_->IsBeingMade(pin->copy->to_slot));
    Settle();
    for (const Reader& reader : readers_) {
      ASSERT_FALSE(reader.mapped && reader.slot == pin->copy->to_slot &&
                   header_.at(reader.slot).grant == reader.grant);
    }
    content_[pin->copy->to_slot] = kGarbage;  // half of it
    Check();
    content_[pin->copy->to_slot] = content_.at(pin->copy->from_slot);
    ASSERT_EQ(content_.at(pin->copy->from_slot), version);
    if (state_->FinishPin("run", version, *pin->copy, true).ok()) {
      evaluated_ = version;
      ++evaluations_;
    }
  }

  // The next slot's memory is there, or, seldom, cannot be had.
  void Make() {
    if (making_.empty()) return;
    const uint64_t slot = making_.front();
    making_.erase(making_.begin());
    if (random_() % 300 == 0) {
      state_->SlotNotMade(slot, ResourceExhausted("none left"));
      short_of_memory_ |= live_slots_.contains(slot);
    } else {
      ASSERT_EQ(state_->SlotMade(slot), live_slots_.contains(slot));
    }
  }

  void Settle() {
    for (const auto& [host, command] : state_->TakeEffects().commands) {
      ASSERT_EQ(host, testing::kHost);
      std::visit([this](const auto& one) { Do(one); }, command);
    }
  }
  void Do(const MakeSlot& command) {
    ASSERT_TRUE(live_slots_.insert(command.slot_id).second);
    making_.push_back(command.slot_id);
    ++num_to_make_;
  }
  void Do(const DropSlot& command) {
    ASSERT_EQ(live_slots_.erase(command.slot_id), 1u);
    for (const auto& [lease, allowed] : allowed_) ASSERT_NE(allowed.slot_id, command.slot_id);
  }
  void Do(const WriteHeader& command) {
    const uint64_t slot = command.fields.slot_id;
    ASSERT_TRUE(live_slots_.contains(slot));
    header_[slot] = command.fields;
    open_for_writing_.erase(slot);
    if (command.open_for_writing) open_for_writing_.insert(slot);
  }
  void Do(const AllowLease& command) {
    ASSERT_EQ(header_.at(command.slot_id).grant, command.grant);
    allowed_[command.lease_id] = command;
  }
  void Do(const EndLease& command) { allowed_.erase(command.lease_id); }
  void Do(const HurrySlots&) { ASSERT_FALSE(making_.empty()); }

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
    Watch(states);
    // What generators may still need is not retired while the newest version is written.
    for (const auto& [version, state] : states) {
      if (version + max_age_ + 1 < std::max<uint64_t>(newest_begun_, records_.size())) continue;
      ASSERT_NE(state, VersionState::kRetired) << version;
      ASSERT_NE(state, VersionState::kFree) << version;
    }
    // Memory is bounded: what the newest token has, and what older tokens still serve.
    ASSERT_LE(state_->num_slots(), 2 * (max_age_ + kSparesOfRing) + 1 + readers_.size());
  }

  std::mt19937_64 random_;
  const uint32_t max_age_;
  const Manifest manifest_ = testing::SmallManifest();
  int64_t now_ = 0;
  uint64_t first_number_ = 1;
  std::unique_ptr<StoreState> state_;
  RunRecord run_record_;
  std::map<uint64_t, VersionRecord> records_;
  std::map<uint64_t, uint64_t> content_;  // slot -> version its bytes are
  std::map<uint64_t, SlotHeaderFields> header_;
  std::set<uint64_t> open_for_writing_;
  std::map<uint64_t, AllowLease> allowed_;  // leases
  std::set<uint64_t> live_slots_;
  size_t num_to_make_ = 0;
  std::vector<uint64_t> making_;
  std::map<uint64_t, VersionState> watched_;
  uint64_t cursor_ = 0;
  bool short_of_memory_ = false;
  std::vector<Trainer> trainers_;
  std::vector<Reader> readers_;
  uint64_t evaluated_ = 0, newest_begun_ = 0;
  uint64_t commits_ = 0, remade_ = 0, blocked_ = 0, waited_ = 0, failed_ = 0, evaluations_ = 0;
};

TEST(StoreStatePropertyTest, RandomInterleavingsKeepEveryPromise) {
  constexpr uint64_t kSeeds = titan::testing::Rounds<uint64_t>(240, 30);
  uint64_t commits = 0, remade = 0, blocked = 0, waited = 0, failed = 0, evaluations = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Explorer explorer(seed, static_cast<uint32_t>(seed % 3));
    for (int step = 0; step < 4000; ++step) {
      explorer.Step();
      if (::testing::Test::HasFatalFailure()) FAIL() << "seed " << seed << ", step " << step;
    }
    commits += explorer.commits();
    remade += explorer.remade();
    blocked += explorer.blocked();
    waited += explorer.waited();
    failed += explorer.failed();
    evaluations += explorer.evaluations();
  }
  // The walk reaches what it is for.
  EXPECT_GT(commits, 4 * kSeeds);
  EXPECT_GT(remade, 2 * kSeeds);
  EXPECT_GT(blocked, kSeeds / 5);
  EXPECT_GT(waited, 2 * kSeeds);
  EXPECT_GT(failed, kSeeds / 5);
  EXPECT_GT(evaluations, 2 * kSeeds);
  std::cout << commits << " commits, " << remade << " re-made, " << blocked << " blocked, "
            << waited << " waited for slots, " << failed << " without memory, " << evaluations
            << " evaluations\n";
}

}  // namespace
}  // namespace titan::weightstore
