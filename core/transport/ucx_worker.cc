// SPDX-License-Identifier: Apache-2.0
#include "core/transport/ucx_worker.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <ucs/config/global_opts.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/transport/sealed.h"

namespace titan::transport {
namespace {

using std::chrono::milliseconds;

// Wakes that UCX may miss cost no more than this.
constexpr milliseconds kLongestSleep{100};
// A closed connection's pieces come back at once; past this their memory is given up instead. The
// caller waits for it on top of its deadline.
constexpr milliseconds kAbandon{500};
// Rounds without sleep while transfers run: a wake costs more than a piece's last microseconds.
constexpr int kBusyRounds = 200;

constexpr const char* kRdmaTransports = "rc,dc,ud";
constexpr const char* kShmTransports = "posix";

std::string Words(ucs_status_t status) { return ucs_status_string(status); }

struct ConfigDeleter {
  void operator()(ucp_config_t* config) const { ucp_config_release(config); }
};

// What ucp_ep_print_info says of an endpoint: there is no other way to learn its lanes.
std::string Describe(ucp_ep_h endpoint) {
  char* text = nullptr;
  size_t size = 0;
  FILE* file = open_memstream(&text, &size);
  if (file == nullptr) return "";
  ucp_ep_print_info(endpoint, file);
  fclose(file);
  std::string words(text, size);
  free(text);
  return words;
}

// "rc_mlx5/mlx5_0:1, ..." of the lanes.
std::vector<std::string> LanesOf(const std::string& description) {
  std::vector<std::string> lanes;
  size_t at = 0;
  while ((at = description.find(" lane[", at)) != std::string::npos) {
    const size_t name = description.find(':', description.find(']', at) + 2);
    const size_t end = description.find(' ', name);
    if (name == std::string::npos || end == std::string::npos) break;
    lanes.push_back(description.substr(name + 1, end - name - 1));
    at = end;
  }
  return lanes;
}

}  // namespace

std::string_view NameOf(RmaLane lane) { return lane == RmaLane::kRdma ? "rdma" : "shm-test"; }

UcxPeer::~UcxPeer() { worker.Close(std::move(endpoint)); }

StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::Open(const RmaOptions& options) {
  if (options.piece_bytes == 0 || options.pieces_in_flight < 1 || options.keepalive.count() < 1) {
    return InvalidArgument("a piece, the pieces in flight and the keep-alive are at least one");
  }
  std::unique_ptr<UcxWorker> worker(new UcxWorker(options));
  TITAN_RETURN_IF_ERROR(worker->Start());
  return worker;
}

Status UcxWorker::Start() {
  // What fails is told by a status, in our words; UCX's own lines go past our log.
  ucs_global_opts_set_value("LOG_LEVEL", "fatal");
  ucp_config_t* read = nullptr;
  if (const ucs_status_t status = ucp_config_read(nullptr, nullptr, &read); status != UCS_OK) {
    return FailedPrecondition("UCX_* of the environment: " + Words(status));
  }
  const std::unique_ptr<ucp_config_t, ConfigDeleter> config(read);
  const bool rdma = options_.lane == RmaLane::kRdma;
  // Over what the environment says: these are not tuning.
  std::vector<std::pair<const char*, std::string>> set = {
      {"TLS", rdma ? kRdmaTransports : kShmTransports},
      {"KEEPALIVE_INTERVAL", fmt::format("{}ms", options_.keepalive.count())}};
  if (!options_.device.empty()) set.emplace_back("NET_DEVICES", options_.device);
  if (rdma) {
    // A window's end unregisters: nothing is kept for the next one at that address.
    set.emplace_back("RCACHE_ENABLE", "n");
    set.emplace_back("IB_REG_METHODS", "direct");
  } else {
    set.emplace_back("MM_ERROR_HANDLING", "y");
  }
  for (const auto& [name, value] : set) {
    if (ucp_config_modify(config.get(), name, value.c_str()) != UCS_OK) {
      return InvalidArgument(fmt::format("UCX takes no {}={}", name, value));
    }
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.mt_workers_shared = 1;  // the context is called by two threads
  params.features = UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP;
  if (const ucs_status_t status = ucp_init(&params, config.get(), &context_); status != UCS_OK) {
    return FailedPrecondition(fmt::format(
        "no lane {}: UCX finds none of the transports {}{} here ({}); `ucx_info -d` lists what "
        "there is",
        NameOf(options_.lane), rdma ? kRdmaTransports : kShmTransports,
        options_.device.empty() ? "" : " on device " + options_.device, Words(status)));
  }
  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucs_status_t status = ucp_worker_create(context_, &worker_params, &worker_);
  if (status != UCS_OK) {
    return FailedPrecondition(
        fmt::format("no lane {}: UCX makes no worker ({})", NameOf(options_.lane), Words(status)));
  }
  ucp_address_t* address = nullptr;
  size_t size = 0;
  status = ucp_worker_get_address(worker_, &address, &size);
  if (status == UCS_OK) {
    address_ = Sealed(kAddressMark, address, size);
    ucp_worker_release_address(worker_, address);
    status = ucp_worker_get_efd(worker_, &event_);
  }
  if (status != UCS_OK) return Internal("UCX's worker has no address or event: " + Words(status));
  registrar_ = std::make_unique<TaskThread>();
  thread_ = std::thread([this] { Loop(); });
  return OkStatus();
}

UcxWorker::~UcxWorker() {
  if (thread_.joinable()) {
    {
      const std::scoped_lock lock(mutex_);
      stopping_ = true;
    }
    ucp_worker_signal(worker_);
    thread_.join();
  }
  registrar_.reset();
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

void UcxWorker::Post(std::function<void()> task) {
  {
    const std::scoped_lock lock(mutex_);
    posted_.push_back(std::move(task));
  }
  ucp_worker_signal(worker_);
}

void UcxWorker::Run(const std::function<void()>& task) {
  if (std::this_thread::get_id() == thread_.get_id()) return task();
  std::promise<void> done;
  Post([&] {
    task();
    done.set_value();
  });
  done.get_future().wait();
}

void UcxWorker::RunPosted() {
  std::vector<std::function<void()>> tasks;
  {
    const std::scoped_lock lock(mutex_);
    tasks.swap(posted_);
  }
  for (const auto& task : tasks) task();
}

void UcxWorker::Loop() {
  for (int quiet_rounds = 0;;) {
    RunPosted();
    while (ucp_worker_progress(worker_) != 0) quiet_rounds = 0;
    const bool more = Advance(std::chrono::steady_clock::now());
    ForgetClosed();
    {
      const std::scoped_lock lock(mutex_);
      if (stopping_ && posted_.empty()) break;
      if (!posted_.empty()) continue;
    }
    if (more) continue;
    if (!transfers_.empty() && ++quiet_rounds < kBusyRounds) continue;
    quiet_rounds = 0;
    if (ucp_worker_arm(worker_) != UCS_OK) continue;  // something came meanwhile
    pollfd wait{event_, POLLIN, 0};
    poll(&wait, 1, static_cast<int>(kLongestSleep.count()));
  }
  // Windows and peers ended before; what is left are closings.
  for (const auto& endpoint : endpoints_) CloseNow(*endpoint, Unavailable("the domain ends"));
  const SteadyTime end = std::chrono::steady_clock::now() + kAbandon;
  while (!closing_.empty() && std::chrono::steady_clock::now() < end) {
    ucp_worker_progress(worker_);
    ForgetClosed();
  }
  transfers_.clear();  // abandoned ones' windows
}

void UcxWorker::ForgetClosed() {
  std::erase_if(closing_, [](ucs_status_ptr_t request) {
    if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
    ucp_request_free(request);
    return true;
  });
}

// ---- peers

void UcxWorker::OnError(void* endpoint, ucp_ep_h, ucs_status_t status) {
  auto& failed = static_cast<UcxPeer::Endpoint*>(endpoint)->failed;
  if (failed.ok()) failed = Unavailable("the peer is gone (" + Words(status) + ")");
}

Status UcxWorker::CheckLanes(ucp_ep_h endpoint) const {
  const std::string description = Describe(endpoint);
  const std::vector<std::string> lanes = LanesOf(description);
  const bool rdma = options_.lane == RmaLane::kRdma;
  const bool own = std::ranges::all_of(lanes, [rdma](const std::string& lane) {
    if (!rdma) return lane.starts_with("posix/");
    return lane.starts_with("rc_") || lane.starts_with("dc_") || lane.starts_with("ud_");
  });
  // Endpoints whose reads are emulated have no such line.
  const bool reads = description.find(" get[") != std::string::npos;
  if (!lanes.empty() && own && reads) return OkStatus();
  return FailedPrecondition(
      fmt::format("the way to the peer is not lane {}: {}{}", NameOf(options_.lane),
                  lanes.empty() ? "no transport" : fmt::format("{}", fmt::join(lanes, ", ")),
                  reads ? "" : ", whose reads are emulated"));
}

StatusOr<std::shared_ptr<UcxPeer>> UcxWorker::Connect(const std::string& address,
                                                      milliseconds deadline) {
  const std::string_view unsealed = Unsealed(kAddressMark, address);
  if (unsealed.empty()) return InvalidArgument("not the address of a host's RDMA lane");
  auto peer = std::make_shared<UcxPeer>(*this);
  auto wired = std::make_shared<UcxTransfer>();
  std::future<Status> done = wired->done.get_future();
  wired->endpoint = peer->endpoint;
  wired->deadline = std::chrono::steady_clock::now() + deadline;
  Post([this, place = std::string(unsealed), wired] {
    UcxPeer::Endpoint& endpoint = *wired->endpoint;
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(place.data());
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler = {&UcxWorker::OnError, &endpoint};
    const ucs_status_t status = ucp_ep_create(worker_, &params, &endpoint.handle);
    if (status == UCS_ERR_SHMEM_SEGMENT) {
      endpoint.handle = nullptr;
      return wired->done.set_value(Unavailable("the peer is gone (" + Words(status) + ")"));
    }
    if (status != UCS_OK) {
      endpoint.handle = nullptr;
      return wired->done.set_value(FailedPrecondition(fmt::format(
          "the peer cannot be reached over lane {} ({})", NameOf(options_.lane), Words(status))));
    }
    endpoints_.push_back(wired->endpoint);
    if (const Status lanes = CheckLanes(endpoint.handle); !lanes.ok()) {
      return wired->done.set_value(lanes);
    }
    transfers_.push_back(wired);
    ucp_request_param_t flush{};
    flush.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    flush.cb.send = &UcxWorker::OnPiece;
    flush.user_data = wired.get();
    const ucs_status_ptr_t request = ucp_ep_flush_nbx(endpoint.handle, &flush);
    if (UCS_PTR_IS_ERR(request)) wired->result = Unavailable(Words(UCS_PTR_STATUS(request)));
    if (UCS_PTR_IS_PTR(request)) wired->in_flight = 1;
  });
  TITAN_RETURN_IF_ERROR(done.get());
  return peer;
}

void UcxWorker::CloseNow(UcxPeer::Endpoint& endpoint, const Status& why) {
  if (endpoint.failed.ok()) endpoint.failed = why;
  if (endpoint.handle == nullptr) return;
  for (const auto& [key, handle] : endpoint.keys) ucp_rkey_destroy(handle);
  endpoint.keys.clear();
  ucp_request_param_t force{};
  force.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  force.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint.handle, &force);
  if (UCS_PTR_IS_PTR(request)) closing_.push_back(request);
  endpoint.handle = nullptr;
}

void UcxWorker::Close(std::shared_ptr<UcxPeer::Endpoint> endpoint) {
  Run([&] {
    CloseNow(*endpoint, Unavailable("the connection was closed"));
    endpoints_.remove(endpoint);
  });
}

// ---- reads

StatusOr<ucp_rkey_h> UcxWorker::KeyOf(UcxPeer::Endpoint& endpoint, const RmaWindowKey& window) {
  const auto known = endpoint.keys.find(window.key);
  if (known != endpoint.keys.end()) return known->second;
  const std::string_view packed = Unsealed(kKeyMark, window.key);
  if (packed.empty()) return InvalidArgument("not the key of a window");
  // See rma.h: UCX crashes when it does not find it.
  if (!window.file.empty() && ::access(window.file.c_str(), R_OK | W_OK) != 0) {
    return Unavailable("the peer's window is gone: nothing at " + window.file);
  }
  ucp_rkey_h handle = nullptr;
  const ucs_status_t status = ucp_ep_rkey_unpack(endpoint.handle, packed.data(), &handle);
  if (status == UCS_ERR_UNREACHABLE || status == UCS_ERR_SHMEM_SEGMENT) {
    return Unavailable("the peer's window is gone or not reachable (" + Words(status) + ")");
  }
  if (status != UCS_OK) return Internal("UCX does not read a window's key: " + Words(status));
  endpoint.keys.emplace(window.key, handle);
  return handle;
}

void UcxWorker::OnPiece(void* request, ucs_status_t status, void* user_data) {
  auto& transfer = *static_cast<UcxTransfer*>(user_data);
  --transfer.in_flight;
  if (status != UCS_OK && transfer.result.ok()) {
    transfer.result = Unavailable("a read broke (" + Words(status) + ")");
  }
  ucp_request_free(request);
}

bool UcxWorker::Post(UcxTransfer& transfer) {
  bool posted = false;
  for (int i = transfer.in_flight; i < options_.pieces_in_flight; ++i) {
    if (transfer.posted == transfer.bytes) break;
    const uint64_t size =
        std::min<uint64_t>(options_.piece_bytes, transfer.bytes - transfer.posted);
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                          UCP_OP_ATTR_FIELD_MEMH | UCP_OP_ATTR_FLAG_MULTI_SEND;
    params.cb.send = &UcxWorker::OnPiece;
    params.user_data = &transfer;
    params.memh = transfer.to->handle;
    const ucs_status_ptr_t request =
        ucp_get_nbx(transfer.endpoint->handle, transfer.local + transfer.posted, size,
                    transfer.remote + transfer.posted, transfer.key, &params);
    if (UCS_PTR_IS_ERR(request)) {
      transfer.result = Unavailable("a read broke (" + Words(UCS_PTR_STATUS(request)) + ")");
      break;
    }
    transfer.posted += size;
    if (UCS_PTR_IS_PTR(request)) ++transfer.in_flight;
    posted = true;
  }
  return posted;
}

bool UcxWorker::Advance(SteadyTime now) {
  bool more = false;
  for (auto at = transfers_.begin(); at != transfers_.end();) {
    UcxTransfer& transfer = **at;
    UcxPeer::Endpoint& endpoint = *transfer.endpoint;
    if (transfer.result.ok() && !endpoint.failed.ok()) transfer.result = endpoint.failed;
    if (transfer.result.ok() && now >= transfer.deadline &&
        (transfer.in_flight > 0 || transfer.posted < transfer.bytes)) {
      transfer.result = DeadlineExceeded("the peer did not answer in time");
    }
    if (transfer.result.ok() && transfer.posted < transfer.bytes) more |= Post(transfer);
    // Pieces under way write to the window until the connection is closed.
    if (!transfer.result.ok() && transfer.in_flight > 0) CloseNow(endpoint, transfer.result);
    const bool over =
        transfer.in_flight == 0 && (!transfer.result.ok() || transfer.posted == transfer.bytes);
    const bool abandoned = !over && now >= transfer.deadline + kAbandon;
    if ((over || abandoned) && !transfer.answered) {
      transfer.answered = true;
      transfer.done.set_value(transfer.result);
    }
    // An abandoned one keeps its window: a late piece still finds registered memory.
    at = over ? transfers_.erase(at) : std::next(at);
  }
  return more;
}

Status UcxWorker::Read(UcxPeer& peer, const RmaWindowKey& from, uint64_t from_offset,
                       std::shared_ptr<UcxWindow> to, uint64_t to_offset, uint64_t bytes,
                       milliseconds deadline) {
  if (from_offset > from.bytes || bytes > from.bytes - from_offset) {
    return InvalidArgument(fmt::format("bytes {} to {} are not within the peer's window of {}",
                                       from_offset, from_offset + bytes, from.bytes));
  }
  if (to == nullptr || to_offset > to->memory.size() || bytes > to->memory.size() - to_offset) {
    return InvalidArgument(fmt::format("bytes {} to {} are not within the own window of {}",
                                       to_offset, to_offset + bytes,
                                       to == nullptr ? 0 : to->memory.size()));
  }
  if (&to->worker != this) return InvalidArgument("the own window is of another domain");
  auto transfer = std::make_shared<UcxTransfer>();
  std::future<Status> done = transfer->done.get_future();
  transfer->endpoint = peer.endpoint;
  transfer->local = to->memory.data() + to_offset;
  transfer->to = std::move(to);
  transfer->remote = from.address + from_offset;
  transfer->bytes = bytes;
  transfer->deadline = std::chrono::steady_clock::now() + deadline;
  Post([this, transfer, window = from] {
    UcxPeer::Endpoint& endpoint = *transfer->endpoint;
    if (!endpoint.failed.ok()) return transfer->done.set_value(endpoint.failed);
    const StatusOr<ucp_rkey_h> key = KeyOf(endpoint, window);
    if (!key.ok()) return transfer->done.set_value(key.status());
    transfer->key = *key;
    transfers_.push_back(transfer);
  });
  return done.get();
}

}  // namespace titan::transport
