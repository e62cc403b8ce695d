// SPDX-License-Identifier: Apache-2.0
#include "weightstore/slot_maker.h"

#include <algorithm>
#include <utility>

namespace titan::weightstore {

using std::chrono::steady_clock;

namespace {

constexpr int kRest = 9;  // times as long as was worked

}  // namespace

SlotMaker::SlotMaker(Make make, Done done)
    : make_(std::move(make)),
      done_(std::move(done)),
      first_([this] { Work(true); }),
      later_([this] { Work(false); }),
      freer_([this] { FreeAll(); }) {}

SlotMaker::~SlotMaker() { Stop(); }

void SlotMaker::Add(SlotRequest request) {
  std::lock_guard lock(mutex_);
  if (stopped_) return;
  waiting_.push_back(request);
  changed_.notify_all();
}

void SlotMaker::Forget(const std::set<uint64_t>& slot_ids) {
  if (slot_ids.empty()) return;
  std::lock_guard lock(mutex_);
  std::erase_if(waiting_, [&](const SlotRequest& r) { return slot_ids.contains(r.slot_id); });
  std::erase_if(making_, [&](uint64_t slot_id) { return slot_ids.contains(slot_id); });
  changed_.notify_all();
}

void SlotMaker::Free(std::shared_ptr<SlotMemory> memory) {
  if (memory == nullptr) return;
  std::lock_guard lock(mutex_);
  to_free_.push_back(std::move(memory));
  changed_.notify_all();
}

void SlotMaker::FreeAll() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopped_ || !to_free_.empty(); });
    if (to_free_.empty()) return;
    auto freed = std::exchange(to_free_, {});
    freeing_ = true;
    lock.unlock();
    freed.clear();
    lock.lock();
    freeing_ = false;
    changed_.notify_all();
  }
}

void SlotMaker::Hurry() {
  std::lock_guard lock(mutex_);
  hurry_ = true;
  changed_.notify_all();
}

bool SlotMaker::Rest(const SlotRequest& request, steady_clock::time_point* since) {
  std::unique_lock lock(mutex_);
  const auto wanted = [&] { return making_.contains(request.slot_id); };
  if (request.order > 0) {
    const auto rest = kRest * (steady_clock::now() - *since);
    changed_.wait_for(lock, rest, [&] { return hurry_ || !wanted(); });
    *since = steady_clock::now();
  }
  return wanted();
}

void SlotMaker::Stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  waiting_.clear();
  making_.clear();
  changed_.notify_all();
}

std::list<SlotRequest>::iterator SlotMaker::Next(bool waited_for) {
  if (freeing_ || !to_free_.empty()) return waiting_.end();
  if (!waited_for && making_first_) return waiting_.end();
  const auto next = std::min_element(
      waiting_.begin(), waiting_.end(),
      [](const SlotRequest& a, const SlotRequest& b) { return a.order < b.order; });
  if (next == waiting_.end() || waited_for != (next->order == 0)) return waiting_.end();
  return next;
}

void SlotMaker::Work(bool waited_for) {
  std::unique_lock lock(mutex_);
  for (;;) {
    auto next = waiting_.end();
    changed_.wait(lock, [&] {
      next = Next(waited_for);
      return stopped_ || next != waiting_.end();
    });
    if (stopped_) return;
    SlotRequest request = *next;
    waiting_.erase(next);
    making_.insert(request.slot_id);
    if (waited_for) making_first_ = true;
    lock.unlock();
    {
      const auto start = steady_clock::now();
      auto since = start;
      Made made = make_(request, [&] { return Rest(request, &since); });
      lock.lock();
      (waited_for ? making_first_ : hurry_) = false;
      changed_.notify_all();
      const bool wanted = making_.erase(request.slot_id) > 0;
      lock.unlock();
      request.seconds = std::chrono::duration<double>(steady_clock::now() - start).count();
      if (wanted) done_(request, std::move(made));
    }  // memory that nobody wants is given back here, without the lock
    lock.lock();
  }
}

}  // namespace titan::weightstore
