// SPDX-License-Identifier: Apache-2.0
#include "services/weightstore/weightstore_daemon.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>

#include "core/base/hash.h"
#include "core/runtime/log.h"
#include "core/storage/rocksdb_store.h"
#include "services/settings/daemon_spec.h"
#include "services/weightstore/host_service.h"
#include "services/weightstore/leader_link.h"
#include "services/weightstore/memory_limit.h"
#include "services/weightstore/watchers.h"
#include "services/weightstore/weightstore_service.h"
#include "weightstore/client/slot_header.h"
#include "weightstore/host.h"
#include "weightstore/leader.h"
#include "weightstore/library.h"
#include "weightstore/socket_server.h"
#include "weightstore/transport/rma_lane.h"
#include "weightstore/transport/tcp_server.h"

namespace titan::weightstore {
namespace {

namespace asio = rpc::asio;
using config::v1::WeightStoreConfig;

constexpr uint64_t kKeepFreeBytes = 256u << 20;  // of the volume, for everything else
constexpr std::chrono::milliseconds kStatsPeriod{1'000};
constexpr uint32_t kCheckIndexMs = 600'000;  // by default; some milliseconds of reading each time
// Hashing and the copy for evaluation; the slots' memory is what bounds them, not the cores.
constexpr unsigned kMaxHashThreads = 4;
// Of the TCP lane: sendfile copies a few GB/s a thread, which fills a link before it fills a host.
constexpr unsigned kCoresPerTcpThread = 4;
constexpr unsigned kMaxTcpThreads = 8;
constexpr int kMaxTcpConnections = 1024;  // four for each reader that pulls at the time
// Each slot's header page is registered, too: of 256 slots.
constexpr uint64_t kHeadersLockBytes = 256 * kSlotHeaderBytes;
constexpr const char* kThisHost = "local";

constexpr std::pair<const char*, uint64_t SlotCounts::*> kSlotStates[] = {
    {"being_made", &SlotCounts::being_made},
    {"free", &SlotCounts::free},
    {"open", &SlotCounts::open},
    {"sealed", &SlotCounts::sealed},
    {"committed", &SlotCounts::committed},
    {"retired", &SlotCounts::retired},
    {"evaluation", &SlotCounts::evaluation},
};

struct TcpCount {
  const char* name;
  const char* help;
  uint64_t lanes::TcpServerStats::*count;
};
constexpr TcpCount kTcpCounts[] = {
    {"titan_weightstore_tcp_connections", "Readers' connections to the TCP lane",
     &lanes::TcpServerStats::connections},
    {"titan_weightstore_tcp_refused_connections",
     "Connections to the TCP lane that were too many, since the start",
     &lanes::TcpServerStats::refused_connections},
    {"titan_weightstore_tcp_sent_bytes", "Bytes of slots that the TCP lane sent since the start",
     &lanes::TcpServerStats::sent_bytes},
    {"titan_weightstore_tcp_refused_requests",
     "Requests of the TCP lane that were refused since the start, most for a lease that had ended",
     &lanes::TcpServerStats::refused_requests},
    {"titan_weightstore_tcp_damaged_requests",
     "Requests of the TCP lane that were none since the start",
     &lanes::TcpServerStats::damaged_requests},
};

class WeightStoreDaemon final : public rpc::DaemonService {
 public:
  static StatusOr<std::unique_ptr<rpc::DaemonService>> Create(const WeightStoreConfig& config,
                                                              rpc::DaemonContext& context) {
    std::unique_ptr<WeightStoreDaemon> daemon(new WeightStoreDaemon(context));
    const std::string& role = config.role();
    if (role != "host") TITAN_RETURN_IF_ERROR(daemon->OpenLeader(config));
    if (role != "leader") TITAN_RETURN_IF_ERROR(daemon->OpenHost(config));
    return std::unique_ptr<rpc::DaemonService>(std::move(daemon));
  }

  std::vector<grpc::Service*> services() override {
    if (leader_ == nullptr) return {&no_calls_};
    return {service_.get(), host_service_.get()};
  }

  asio::awaitable<Status> Start() override {
    asio::co_spawn(context_.control, ReportStats(), asio::detached);
    if (host_service_ != nullptr) {
      asio::co_spawn(context_.control, host_service_->Watch(), asio::detached);
      asio::co_spawn(context_.control, CheckIndex(), asio::detached);
    }
    if (link_ != nullptr) {
      link_->Start(*host_);
    } else {
      context_.set_ready(true, "");
    }
    co_return OkStatus();
  }

  asio::awaitable<void> Drain() override {
    draining_ = true;
    timer_.cancel();
    check_timer_.cancel();
    if (leader_ != nullptr) {
      leader_->Shutdown();
      co_await service_->KeepRuns();
      host_service_->Stop();
    }
    if (link_ != nullptr) co_await link_->Stop();
    if (host_ != nullptr) host_->Shutdown();
  }

 private:
  explicit WeightStoreDaemon(rpc::DaemonContext& context)
      : context_(context), timer_(context.control), check_timer_(context.control) {
    runtime::Metrics& metrics = context.metrics;
    slot_bytes_ = metrics.AddGauge("titan_weightstore_slot_bytes", "Memory of all slots");
    huge_bytes_ = metrics.AddGauge("titan_weightstore_huge_page_bytes",
                                   "Memory of slots in huge pages, which kernels read faster");
    limit_bytes_ =
        metrics.AddGauge("titan_weightstore_memory_limit_bytes", "Most memory that slots may take");
    making_bytes_ = metrics.AddGauge("titan_weightstore_making_bytes",
                                     "Memory that is reserved for slots and not taken yet");
    for (const auto& [state, count] : kSlotStates) {
      slots_.push_back(metrics.AddGauge("titan_weightstore_slots", "Slots by what they hold",
                                        {{"state", state}}));
    }
    const auto phase = [&metrics](const char* name) {
      return metrics.AddGauge("titan_weightstore_phase_seconds",
                              "Time since the start, by what it was spent on", {{"phase", name}});
    };
    make_slot_seconds_ = phase("make_slot");
    verify_seconds_ = phase("verify");
    commit_seconds_ = phase("commit");
    evaluation_seconds_ = phase("evaluation_copy");
    leases_ = metrics.AddGauge("titan_weightstore_leases", "Leases of readers");
    committed_ = metrics.AddGauge("titan_weightstore_versions_committed",
                                  "Versions committed since the start");
    verify_failures_ =
        metrics.AddGauge("titan_weightstore_verify_failures",
                         "Slots whose bytes were not what their writer hashed, when it had written "
                         "them or when a reader offered them; must be 0");
    const auto damaged = [&metrics](const char* place) {
      return metrics.AddCounter("titan_weightstore_damage_total",
                                "Times that what was read from the disk was not what had been "
                                "written; must stay 0",
                                {{"place", place}});
    };
    damaged_blobs_ = damaged("blob");
    damaged_index_ = damaged("index");
    index_checks_ = metrics.AddCounter("titan_weightstore_index_checks_total",
                                       "Times that the records were read again from the disk");
    adopted_ = metrics.AddGauge("titan_weightstore_adopted_slots",
                                "Slots taken over from readers of an earlier life of this host "
                                "daemon, since the start");
    refused_offers_ = metrics.AddGauge(
        "titan_weightstore_refused_offers",
        "Slots that readers of an earlier life offered and that were refused, since the start");
    for (const Lane lane : {Lane::kMap, Lane::kTcp, Lane::kRdma, Lane::kShmTest}) {
      lanes_[lane] = metrics.AddGauge("titan_weightstore_lane",
                                      "1 for each way in which weights reach readers",
                                      {{"lane", std::string(NameOf(lane))}});
    }
    registered_bytes_ =
        metrics.AddGauge("titan_weightstore_registered_bytes",
                         "Memory that is registered for one-sided reads of other machines");
    for (const auto& [name, help, count] : kTcpCounts) {
      tcp_counts_.push_back(metrics.AddGauge(name, help));
    }
  }

  // Slots are registered with it when they are made. Stays null where this machine has no device
  // and none is required.
  Status OpenRma(const WeightStoreConfig& config, uint64_t memory_limit_bytes) {
    const bool shm_test = config.daemon().debug().shm_test_lane();
    lanes::RmaWanted wanted{.required = config.require_rdma(),
                            .shm_test = shm_test,
                            .device = config.rdma_device(),
                            .lock_bytes = memory_limit_bytes + kHeadersLockBytes,
                            .registered = {}};
    const auto& debug = config.daemon().debug();
    if (debug.has_shm_test_lock_bytes()) wanted.shm_test_lock_bytes = debug.shm_test_lock_bytes();
    wanted.registered = [gauge = registered_bytes_](double bytes) mutable { gauge.Add(bytes); };
    TITAN_ASSIGN_OR_RETURN(const lanes::OpenedLane opened, lanes::OpenRmaLane(wanted));
    rma_ = opened.domain;
    if (rma_ == nullptr) {
      TITAN_LOG(kInfo, "no_rdma", {"because", opened.found}, {"next", "readers pull over TCP"});
    } else if (shm_test) {
      TITAN_LOG(kWarning, "test_lane", {"setting", "daemon.debug.shm_test_lane"},
                {"means", "slots are not sealed against writers; for tests alone"});
    } else {
      TITAN_LOG(kInfo, "rdma_found", {"devices", opened.found});
    }
    return OkStatus();
  }

  // What readers on other machines are told.
  StatusOr<DataPlane> ServeDataPlane(const WeightStoreConfig& config) {
    lanes::TcpServerOptions options;
    options.listen = config.data_plane_address();
    options.threads = static_cast<int>(
        std::clamp(std::thread::hardware_concurrency() / kCoresPerTcpThread, 1u, kMaxTcpThreads));
    options.max_connections = kMaxTcpConnections;
    options.sends_bytes = !config.require_rdma();
    auto server = lanes::TcpServer::Start(options, *host_);
    if (!server.ok()) return Annotate(server.status(), "data_plane_address");
    tcp_ = *std::move(server);
    DataPlane data_plane{{}, tcp_->address()};
    if (rma_ != nullptr) data_plane.lanes.push_back(lanes::LaneOf(*rma_));
    if (options.sends_bytes) data_plane.lanes.push_back(Lane::kTcp);
    return data_plane;
  }

  Status OpenLeader(const WeightStoreConfig& config) {
    check_period_ = std::chrono::milliseconds(config.has_check_index_ms() ? config.check_index_ms()
                                                                          : kCheckIndexMs);
    const std::string index = config.daemon().data_folder() + "/index";
    TITAN_ASSIGN_OR_RETURN(index_, storage::OpenRocksDbStore(index));
    LeaderOptions options;
    options.lease_ttl_ms = config.lease_ttl_ms();
    options.map_deadline_ms = config.map_deadline_ms();
    // Another start for each life: numbers of an earlier life are refused as stale.
    options.first_number = Hash64(context_.incarnation) >> 2;
    auto watchers = std::make_shared<Watchers>(context_.control);
    options.on_change = [watchers] { watchers->Wake(); };
    const Clock& clock = context_.clock;
    options.unix_ms = [&clock] { return clock.UnixMs(); };
    options.monotonic_ms = [&clock] { return clock.Now().count() / 1'000'000; };
    LibraryOptions library;
    library.folder = config.daemon().data_folder() + "/blobs";
    library.index = index;
    if (config.has_disk_limit_bytes()) library.disk_limit_bytes = config.disk_limit_bytes();
    library.keep_free_bytes = kKeepFreeBytes;
    library.unix_ms = [&clock] { return clock.UnixMs(); };
    library.on_damage = [damaged = damaged_blobs_](const Status& damage) mutable {
      damaged.Add();
      TITAN_LOG(kError, "blob_damaged", {"status", damage});
    };
    TITAN_ASSIGN_OR_RETURN(library_, Library::Open(*index_, std::move(library)));
    options.library = library_.get();
    TITAN_ASSIGN_OR_RETURN(leader_, Leader::Open(*index_, std::move(options)));
    // A process that died while it ended a run left its checkpoints.
    std::set<std::string> runs;
    for (const StoredModel& checkpoint : library_->ListCheckpoints()) {
      runs.insert(checkpoint.run_id);
    }
    for (const std::string& run : runs) {
      if (leader_->GoesOn(run)) continue;
      TITAN_ASSIGN_OR_RETURN(const uint64_t freed, library_->DropCheckpoints(run));
      TITAN_LOG(kInfo, "checkpoints_dropped", {"run_id", run}, {"freed_bytes", freed});
    }
    service_ = std::make_unique<WeightStoreGrpcService>(context_.server, context_.blocking,
                                                        context_.metrics, *leader_, *library_,
                                                        std::move(watchers));
    host_service_ = std::make_unique<HostGrpcService>(context_.server, *leader_, context_.metrics,
                                                      config.role() == "both" ? kThisHost : "",
                                                      Hash64(context_.incarnation));
    return OkStatus();
  }

  Status OpenHost(const WeightStoreConfig& config) {
    uint64_t memory_limit_bytes = config.memory_limit_bytes();
    if (!config.has_memory_limit_bytes()) {
      TITAN_ASSIGN_OR_RETURN(memory_limit_bytes, DefaultMemoryLimit());
    }
    HostOptions options;
    options.name = leader_ != nullptr ? kThisHost : config.host();
    options.threads =
        static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, kMaxHashThreads));
    HostEvents* events = leader_.get();
    if (leader_ == nullptr) {
      TITAN_ASSIGN_OR_RETURN(
          link_, LeaderLink::Create(context_,
                                    {config.leader_address(), config.host(), memory_limit_bytes}));
      events = link_.get();
    }
    const bool remote = !config.data_plane_address().empty();
    if (remote) TITAN_RETURN_IF_ERROR(OpenRma(config, memory_limit_bytes));
    options.rma = rma_;
    options.hash_tiles = remote && !config.require_rdma();
    options.windows_alone = remote && config.require_rdma();
    options.memory_limit_bytes = memory_limit_bytes;
    host_ = std::make_unique<Host>(std::move(options), *events);
    DataPlane data_plane;
    if (remote) {
      TITAN_ASSIGN_OR_RETURN(data_plane, ServeDataPlane(config));
    }
    if (leader_ != nullptr) {
      leader_->AttachHost(kThisHost, Unowned(*host_), memory_limit_bytes, data_plane, HostReport());
    } else {
      link_->Serves(data_plane);
    }
    std::string in_use;
    data_plane.lanes.insert(data_plane.lanes.begin(), Lane::kMap);
    for (const Lane lane : data_plane.lanes) {
      lanes_[lane].Set(1);
      in_use += (in_use.empty() ? "" : " ") + std::string(NameOf(lane));
    }
    memory_limit_bytes_ = memory_limit_bytes;
    TITAN_ASSIGN_OR_RETURN(socket_, SocketServer::Start(settings::SocketPathOf(config), *host_));
    TITAN_LOG(kInfo, "store_open", {"role", config.role()}, {"socket_path", socket_->path()},
              {"memory_limit_bytes", memory_limit_bytes}, {"lanes", in_use},
              {"data_plane", data_plane.address});
    return OkStatus();
  }

  // Stats also ends the leases whose time is over, when nobody else calls the leader.
  asio::awaitable<void> ReportStats() {
    while (!draining_) {
      if (leader_ != nullptr) ReportLeader();
      if (host_ != nullptr) ReportHost();
      timer_.expires_after(kStatsPeriod);
      boost::system::error_code woken;
      co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
    }
  }

  // Records are read at the start alone. Damage to them is found while the daemon still has them in
  // memory: versions are served on, and nothing is acknowledged that the next start could not read.
  asio::awaitable<void> CheckIndex() {
    const std::function<Status()> check = [this] { return index_->Check(); };
    StatusCode last = StatusCode::kOk;
    for (;;) {
      check_timer_.expires_after(check_period_);
      boost::system::error_code woken;
      co_await check_timer_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
      if (draining_) co_return;
      const Status checked = co_await context_.blocking.Run(check);
      index_checks_.Add();
      // Told once: a failure lasts, damage until the next start.
      if (std::exchange(last, checked.code()) == checked.code()) continue;
      if (checked.ok()) {
        TITAN_LOG(kInfo, "index_readable");
        continue;
      }
      TITAN_LOG(kError, "index_unreadable", {"status", checked});
      if (checked.code() == StatusCode::kDataLoss) damaged_index_.Add();
    }
  }

  void ReportLeader() {
    const LeaderStats stats = leader_->Stats();
    slot_bytes_.Set(static_cast<double>(stats.slot_bytes));
    limit_bytes_.Set(static_cast<double>(stats.memory_limit_bytes));
    making_bytes_.Set(static_cast<double>(stats.bytes_being_made));
    for (size_t i = 0; i < slots_.size(); ++i) {
      slots_[i].Set(static_cast<double>(stats.slots.*(kSlotStates[i].second)));
    }
    commit_seconds_.Set(stats.commit_seconds);
    leases_.Set(static_cast<double>(stats.num_leases));
    committed_.Set(static_cast<double>(stats.versions_committed));
    verify_failures_.Set(static_cast<double>(stats.verify_failures));
  }

  void ReportHost() {
    const HostStats stats = host_->Stats();
    const lanes::TcpServerStats tcp = tcp_ != nullptr ? tcp_->Stats() : lanes::TcpServerStats{};
    for (size_t i = 0; i < tcp_counts_.size(); ++i) {
      tcp_counts_[i].Set(static_cast<double>(tcp.*(kTcpCounts[i].count)));
    }
    huge_bytes_.Set(static_cast<double>(stats.huge_bytes));
    make_slot_seconds_.Set(stats.make_slot_seconds);
    verify_seconds_.Set(stats.verify_seconds);
    evaluation_seconds_.Set(stats.evaluation_seconds);
    adopted_.Set(static_cast<double>(stats.adopted_slots));
    refused_offers_.Set(static_cast<double>(stats.refused_offers));
    if (leader_ != nullptr) return;  // which tells of all hosts
    slot_bytes_.Set(static_cast<double>(stats.slot_bytes));
    limit_bytes_.Set(static_cast<double>(memory_limit_bytes_));
  }

  // Destroyed in the opposite order: the services use leader and library, the socket's
  // thread and the data plane's the host, the host's threads the leader or the link to it.
  rpc::DaemonContext& context_;
  std::unique_ptr<storage::KeyValueStore> index_;  // of a leader, as what follows
  std::unique_ptr<Library> library_;
  std::unique_ptr<Leader> leader_;
  std::unique_ptr<LeaderLink> link_;           // of a host without it
  std::shared_ptr<transport::RmaDomain> rma_;  // null: no one-sided reads
  std::unique_ptr<Host> host_;                 // of a host, as the socket
  std::unique_ptr<lanes::TcpServer> tcp_;      // null: readers are on this host
  std::unique_ptr<SocketServer> socket_;
  uint64_t memory_limit_bytes_ = 0;
  // A host answers UNIMPLEMENTED to who takes it for the leader; gRPC listens for some service.
  v1::HostService::CallbackService no_calls_;
  std::unique_ptr<HostGrpcService> host_service_;
  std::unique_ptr<WeightStoreGrpcService> service_;
  asio::steady_timer timer_, check_timer_;  // control strand only, like draining_
  std::chrono::milliseconds check_period_{0};
  bool draining_ = false;
  runtime::Gauge slot_bytes_, huge_bytes_, making_bytes_, limit_bytes_, leases_, committed_,
      verify_failures_, adopted_, refused_offers_, make_slot_seconds_, verify_seconds_,
      commit_seconds_, evaluation_seconds_;
  runtime::Gauge registered_bytes_;
  runtime::Counter damaged_blobs_, damaged_index_, index_checks_;
  std::vector<runtime::Gauge> slots_;       // parallel to kSlotStates
  std::vector<runtime::Gauge> tcp_counts_;  // parallel to kTcpCounts
  std::map<Lane, runtime::Gauge> lanes_;
};

}  // namespace

rpc::DaemonSpec<WeightStoreConfig> WeightStoreDaemonSpec() {
  rpc::DaemonSpec<WeightStoreConfig> spec;
  spec.role = "weightstore";
  spec.description =
      "Keeps the policy versions of runs in sealed memory and serves them to readers.";
  spec.worker_role = type::v1::WORKER_ROLE_WEIGHTSTORE;
  settings::UseSettings(&spec);
  spec.flags = {{"role", "both, leader (records, no slots) or host (slots of one node)"}};
  spec.create = WeightStoreDaemon::Create;
  return spec;
}

}  // namespace titan::weightstore
