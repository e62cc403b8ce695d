// SPDX-License-Identifier: Apache-2.0
//
// Makes the memory of slots on threads of its own, so that nobody waits for more than the slots it
// needs: taking a page costs the kernel the time to clear it, and a virtual machine that never
// touched it more than that. One thread makes what is waited for. The other makes what will be
// needed later, when the first has nothing to do, and rests nine tenths of the time, because others
// start and generate meanwhile; until somebody waits for that, too. A third gives back what slots
// had, which takes the kernel as long; no slot is begun before that is the system's.
#ifndef TITAN_WEIGHTSTORE_SLOT_MAKER_H_
#define TITAN_WEIGHTSTORE_SLOT_MAKER_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "core/base/status.h"
#include "weightstore/slot_memory.h"

namespace titan::weightstore {

struct SlotRequest {
  uint64_t slot_id = 0;
  uint64_t num_bytes = 0;
  SlotMemory::Writer writer = SlotMemory::Writer::kClient;
  uint32_t order = 0;  // 0: waited for; of the others the lowest first, of equals the first come
  double seconds = 0;  // that it took, for Done
};

// Thread-safe. The destructor drops what waits, breaks off what is being made and joins.
class SlotMaker {
 public:
  using Made = StatusOr<std::unique_ptr<SlotMemory>>;
  using Make = std::function<Made(const SlotRequest&, const SlotMemory::Wanted&)>;
  // Called on one of the threads, without a lock, with `seconds` filled in, once for each request
  // that was not forgotten before; one that is forgotten while it is made may be told or not.
  using Done = std::function<void(const SlotRequest&, Made)>;

  // make: SlotMemory::Create, or what a test puts in its place.
  SlotMaker(Make make, Done done);
  ~SlotMaker();
  SlotMaker(const SlotMaker&) = delete;
  SlotMaker& operator=(const SlotMaker&) = delete;

  void Add(SlotRequest request);
  // Nobody wants those slots any more. Unknown ids are ignored.
  void Forget(const std::set<uint64_t>& slot_ids);
  // The memory of a slot that is no more; null is ignored. Who else shares it keeps it.
  void Free(std::shared_ptr<SlotMemory> memory);
  // Somebody waits for a slot: the one that is made now gets the whole time of its thread.
  void Hurry();
  // What waits is dropped, what is being made broken off; later requests are ignored.
  void Stop();

 private:
  void Work(bool waited_for);
  void FreeAll();
  // What the thread takes up next; end: nothing.
  std::list<SlotRequest>::iterator Next(bool waited_for);
  // Between two pieces of a slot. False: it is not wanted any more.
  bool Rest(const SlotRequest& request, std::chrono::steady_clock::time_point* since);

  const Make make_;
  const Done done_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool stopped_ = false;
  bool hurry_ = false;
  bool making_first_ = false;  // the first thread is at work
  std::list<SlotRequest> waiting_;
  std::set<uint64_t> making_;  // without those that were forgotten
  std::vector<std::shared_ptr<SlotMemory>> to_free_;
  bool freeing_ = false;
  std::jthread first_, later_, freer_;  // last: they use all of the above
};

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_SLOT_MAKER_H_
