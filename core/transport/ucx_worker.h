// SPDX-License-Identifier: Apache-2.0
//
// One UCX context, its worker, the thread that alone calls that, and the one that registers memory.
// What others want is queued to those threads; UCX's callbacks run on the worker's and close
// nothing themselves.
#ifndef TITAN_CORE_TRANSPORT_UCX_WORKER_H_
#define TITAN_CORE_TRANSPORT_UCX_WORKER_H_

#include <ucp/api/ucp.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/transport/rma.h"

namespace titan::transport {

using SteadyTime = std::chrono::steady_clock::time_point;

// Does what is posted, in order. The destructor first does all that is left.
class TaskThread {
 public:
  TaskThread() = default;
  ~TaskThread();
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  void Post(std::function<void()> task);
  // The same, and waits for it.
  void Run(const std::function<void()>& task);

 private:
  void Loop();

  std::mutex mutex_;  // guards the two below
  std::condition_variable changed_;
  std::vector<std::function<void()>> posted_;
  bool stopping_ = false;
  std::thread thread_{[this] { Loop(); }};  // last
};

// Registered memory.
struct UcxWindow {
  UcxWindow(UcxWorker& its_worker, std::span<std::byte> its_memory, ucp_mem_h its_handle,
            std::shared_ptr<const void> its_owner)
      : worker(its_worker), memory(its_memory), handle(its_handle), owner(std::move(its_owner)) {}
  ~UcxWindow();
  UcxWindow(const UcxWindow&) = delete;
  UcxWindow& operator=(const UcxWindow&) = delete;

  UcxWorker& worker;
  const std::span<std::byte> memory;
  const ucp_mem_h handle;
  std::shared_ptr<const void> owner;  // of the memory; null: UCX
  RmaWindowKey key;
};

// An endpoint. All but `worker` belongs to the worker's thread.
struct UcxPeer {
  explicit UcxPeer(UcxWorker& its_worker) : worker(its_worker) {}
  ~UcxPeer();
  UcxPeer(const UcxPeer&) = delete;
  UcxPeer& operator=(const UcxPeer&) = delete;

  struct Endpoint {
    ucp_ep_h handle = nullptr;  // null: closed
    Status failed;              // why it can be used no more
    std::map<std::string, ucp_rkey_h> keys;
  };
  UcxWorker& worker;
  std::shared_ptr<Endpoint> endpoint = std::make_shared<Endpoint>();
};

// A read or a wait for an endpoint, in pieces of which some are under way.
struct UcxTransfer {
  std::shared_ptr<UcxPeer::Endpoint> endpoint;
  std::shared_ptr<UcxWindow> to;  // null: nothing is read
  std::byte* local = nullptr;
  uint64_t remote = 0;
  ucp_rkey_h key = nullptr;
  uint64_t bytes = 0;
  uint64_t posted = 0;
  int in_flight = 0;
  SteadyTime deadline;
  Status result;
  bool answered = false;
  std::promise<Status> done;
};

class UcxWorker {
 public:
  static StatusOr<std::unique_ptr<UcxWorker>> Open(const RmaOptions& options);
  ~UcxWorker();

  const std::string& address() const { return address_; }
  RmaLane lane() const { return options_.lane; }

  uint64_t registered_bytes() const { return registered_bytes_; }

  StatusOr<std::shared_ptr<UcxWindow>> Map(std::span<std::byte> memory,
                                           std::shared_ptr<const void> owner);
  StatusOr<std::shared_ptr<UcxWindow>> Allocate(size_t bytes);
  // The same; what it allocates becomes a map of the file. Of lane shm-test.
  StatusOr<std::shared_ptr<UcxWindow>> AllocateOver(int file, size_t bytes);
  StatusOr<std::shared_ptr<UcxPeer>> Connect(const std::string& address,
                                             std::chrono::milliseconds deadline);
  Status Read(UcxPeer& peer, const RmaWindowKey& from, uint64_t from_offset,
              std::shared_ptr<UcxWindow> to, uint64_t to_offset, uint64_t bytes,
              std::chrono::milliseconds deadline);
  // Does not wait.
  void Unmap(UcxWindow& window);
  void Close(std::shared_ptr<UcxPeer::Endpoint> endpoint);

 private:
  explicit UcxWorker(RmaOptions options) : options_(std::move(options)) {}
  Status Start();
  void CountRegistered(uint64_t num_bytes, bool more);
  StatusOr<std::shared_ptr<UcxWindow>> MapNow(const ucp_mem_map_params_t& params,
                                              std::shared_ptr<const void> owner, int file);
  // Runs `task` on the thread, after what was posted before.
  void Post(std::function<void()> task);
  // The same, and waits for it. At once if this is the thread.
  void Run(const std::function<void()>& task);
  void Loop();
  void RunPosted();
  void ForgetClosed();
  // One round for every transfer: pieces posted, deadlines looked at, the finished answered.
  // True: some wait for nothing but the next round.
  bool Advance(SteadyTime now);
  bool Post(UcxTransfer& transfer);
  void CloseNow(UcxPeer::Endpoint& endpoint, const Status& why);
  StatusOr<ucp_rkey_h> KeyOf(UcxPeer::Endpoint& endpoint, const RmaWindowKey& window);
  Status CheckLanes(ucp_ep_h endpoint) const;
  static void OnPiece(void* request, ucs_status_t status, void* transfer);
  static void OnError(void* endpoint, ucp_ep_h handle, ucs_status_t status);

  const RmaOptions options_;
  std::string address_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_ = -1;  // readable when the worker has something to do
  std::atomic<uint64_t> registered_bytes_{0};
  std::unique_ptr<TaskThread> registrar_;  // calls the context, not the worker

  std::thread thread_;
  std::mutex mutex_;  // guards the two below
  std::vector<std::function<void()>> posted_;
  bool stopping_ = false;

  // Of the thread alone.
  std::list<std::shared_ptr<UcxTransfer>> transfers_;
  std::list<std::shared_ptr<UcxPeer::Endpoint>> endpoints_;
  std::list<ucs_status_ptr_t> closing_;
};

}  // namespace titan::transport

#endif  // TITAN_CORE_TRANSPORT_UCX_WORKER_H_
