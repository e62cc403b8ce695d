// SPDX-License-Identifier: Apache-2.0
// Every request of the weight store's service, decoded from bytes and given to the handlers over a
// whole Leader, Host and Library with slots, records and blobs; only gRPC's transport is left out.
// What is answered is a reply or an error that a client can act on: never INTERNAL or UNKNOWN,
// never without words, never a message that gRPC would not carry.
//
// The first byte of an input names the method (--method NAME pins it), the rest is the request; a
// request stream is a list of messages, each behind its length in two bytes.
#include <google/protobuf/message.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include "core/runtime/log.h"
#include "core/storage/memory_store.h"
#include "services/weightstore/weightstore_service.h"
#include "tests/fuzz/methods.h"
#include "tests/fuzz/scratch_folder.h"
#include "tests/fuzz/told_error.h"
#include "tests/support/weightstore.h"
#include "weightstore/client/weights_digest.h"

using namespace titan;               // NOLINT: the program speaks of little else
using namespace titan::weightstore;  // NOLINT

namespace {

namespace asio = titan::rpc::asio;
using weightstore::testing::Fill;
using weightstore::testing::SmallManifest;

[[noreturn]] void Refuse(const std::string& what) {
  std::fprintf(stderr, "weightstore_rpc_fuzz: %s\n", what.c_str());
  std::abort();
}

template <typename T>
T OrRefuse(StatusOr<T> value) {
  if (!value.ok()) Refuse(value.status().ToString());
  return *std::move(value);
}

constexpr uint64_t kMemoryLimit = 1 << 20;
constexpr uint64_t kMostSlots = 120;  // each has four descriptors

std::string Blobs() {
  static const fuzz::ScratchFolder folder;
  return folder.path() + "/blobs";
}

// A store that lives for some executions.
class WholeStore {
 public:
  WholeStore() {
    std::error_code ignored;
    std::filesystem::remove_all(Blobs(), ignored);
    LeaderOptions options;
    options.first_number = 1000;  // known to the inputs
    options.unix_ms = [] { return int64_t{1234}; };
    options.monotonic_ms = [this] { return now_ms_; };
    options.on_change = [watchers = watchers_] { watchers->Wake(); };
    leader_ = OrRefuse(Leader::Open(index_, std::move(options)));
    slots_ = std::make_unique<weightstore::Host>(HostOptions{}, *leader_);
    leader_->AttachHost("local", Unowned(*slots_), kMemoryLimit, {{Lane::kTcp}, "127.0.0.1:1"},
                        slots_->Report());
    LibraryOptions library;
    library.folder = Blobs();
    library.disk_limit_bytes = 1 << 20;
    library.unix_ms = [] { return int64_t{1234}; };
    library_ = OrRefuse(Library::Open(index_, std::move(library)));
    service_ = std::make_unique<WeightStoreGrpcService>(server_, blocking_, metrics_, *leader_,
                                                        *library_, watchers_);
    Populate();
  }
  ~WholeStore() {
    leader_->Shutdown();
    slots_->Shutdown();
    for (int i = 0; i < 3; ++i) io_.poll();
    blocking_.Stop();
    server_.CancelAll();
    for (int i = 0; i < 3; ++i) io_.poll();
  }

  WeightStoreGrpcService& service() { return *service_; }
  asio::io_context& io() { return io_; }
  rpc::RpcServer& server() { return server_; }

  // Runs a handler to its end; `idle` is called when nothing is to be done at the moment.
  template <typename T>
  T Run(asio::awaitable<T> handler, const std::function<void()>& idle = {}) {
    std::optional<T> result;
    asio::co_spawn(io_, std::move(handler), [&](std::exception_ptr failure, T value) {
      if (failure) Refuse("a handler throws");
      result.emplace(std::move(value));
    });
    while (!result.has_value()) {
      if (io_.poll_one() > 0) continue;
      if (idle) idle();
      io_.run_one_for(std::chrono::milliseconds(1));
    }
    return *std::move(result);
  }

  // Time passes; true: what was left is too much for the next input.
  bool IsWornOut() {
    now_ms_ += 50;
    const LeaderStats stats = leader_->Stats();
    return ++executions_ > 3000 || stats.num_slots + stats.bytes_being_made / 64 > kMostSlots;
  }

 private:
  // Run "run" has versions 0 to 2, a pinned evaluation and a lease; "ended" was kept on disk.
  void Populate() {
    for (const char* run : {"ended", "run"}) {
      const Registration registration =
          OrRefuse(leader_->RegisterTrainer("populate", run, SmallManifest(), 0, 1, ""));
      for (uint64_t version = 0; version < 3; ++version) {
        const BeginResult begun = OrRefuse(leader_->BeginVersion(
            run, registration.epoch, version, std::chrono::milliseconds(10'000)));
        const uint64_t connection = std::string(run) == "run" ? 1 : 2;
        SlotDescriptors slot =
            OrRefuse(slots_->MapForWriting(connection, registration.epoch, begun.grant));
        MappedMemory map = OrRefuse(MappedMemory::Map(slot.fds[0].get(), slot.slot_bytes, true));
        Fill({map.data(), map.size()}, version);
        Check(slots_->WriterHasMapped(connection, slot.slot_id, begun.grant));
        const Hash128 digest = WeightsDigest(SmallManifest(), {map.data(), map.size()}, 1);
        Check(leader_->PutDone(run, registration.epoch, version, begun.grant, digest));
        (void)OrRefuse(
            leader_->CommitVersion(run, registration.epoch, version, digest, "plan", version));
      }
    }
    v1::EndRunRequest end;
    end.set_run_id("ended");
    (void)OrRefuse(service_->Handle(end));
    (void)OrRefuse(leader_->PinForEvaluation("run", 1));
    (void)OrRefuse(leader_->AcquireLease("g", "run", 2, false));
    (void)OrRefuse(library_->PutBundle("{}"));
  }
  static void Check(const Status& status) {
    if (!status.ok()) Refuse(status.ToString());
  }

  int64_t now_ms_ = 0;
  int executions_ = 0;
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(io_);
  runtime::Metrics metrics_;
  storage::MemoryStore index_;
  std::shared_ptr<Watchers> watchers_ = std::make_shared<Watchers>(io_.get_executor());
  std::unique_ptr<Leader> leader_;
  std::unique_ptr<weightstore::Host> slots_;
  std::unique_ptr<Library> library_;
  rpc::RpcServer server_{io_.get_executor()};
  runtime::BlockingPool blocking_{{.threads = 1}};
  std::unique_ptr<WeightStoreGrpcService> service_;
};

WholeStore* host = nullptr;

void Expect(const Status& status, const char* method) {
  switch (status.code()) {
    case StatusCode::kInternal:
    case StatusCode::kUnknown:
    case StatusCode::kUnimplemented:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kOutOfRange:
      Refuse(std::string(method) + " ends with " + status.ToString());
    default:
      break;
  }
  const std::string fault = fuzz::UnreadableError(status);
  if (!fault.empty()) Refuse(std::string(method) + ": " + fault);
}

template <typename Response>
void Expect(const StatusOr<Response>& response, const char* method) {
  Expect(response.status(), method);
  const std::string fault = fuzz::UnreadableAnswer(response);
  if (!fault.empty()) Refuse(std::string(method) + ": " + fault);
}

template <typename Request>
bool Parse(const uint8_t* data, size_t size, Request* request) {
  return request->ParseFromArray(data, static_cast<int>(size));
}

template <typename Request>
fuzz::Method Unary(const char* name) {
  return {name, &Request::default_instance(), [name](const uint8_t* data, size_t size) {
            Request request;
            if (!Parse(data, size, &request)) return;
            auto response = host->service().Handle(request);
            if (!response.ok()) response = ReasonToRpc(response.status());
            Expect(response, name);
          }};
}

void Begin(const uint8_t* data, size_t size) {
  v1::BeginVersionRequest request;
  if (!Parse(data, size, &request)) return;
  request.set_wait_ms(std::min(request.wait_ms(), 1u));
  Expect(host->Run<StatusOr<v1::BeginVersionResponse>>(host->service().Begin(std::move(request))),
         "BeginVersion");
}

// Plays gRPC's part for the stream; the watcher goes away when nothing comes.
void WatchRun(const uint8_t* data, size_t size) {
  v1::WatchVersionsRequest request;
  if (!Parse(data, size, &request)) return;
  using Stream = rpc::ResponseStream<v1::WatchVersionsResponse>;
  std::shared_ptr<Stream> stream;
  auto* reactor = rpc::ServeStreamThen<v1::WatchVersionsRequest, v1::WatchVersionsResponse>(
      host->server(), nullptr, &request, 4,
      [&stream](const v1::WatchVersionsRequest&, std::shared_ptr<Stream> made) {
        stream = std::move(made);
      });
  while (stream == nullptr) host->io().run_one();
  const Status status = host->Run<Status>(host->service().Watch(request, stream), [&] {
    while (stream->queued() > 0) reactor->OnWriteDone(true);
    reactor->OnCancel();
  });
  Expect(status, "WatchVersions");
  reactor->OnCancel();
  host->io().poll();
  stream.reset();
  reactor->OnDone();
}

template <typename Request, typename Response>
void RequestStream(const uint8_t* data, size_t size, const char* method,
                   asio::awaitable<StatusOr<Response>> (WeightStoreGrpcService::*handler)(
                       std::shared_ptr<rpc::RequestStream<Request>>)) {
  std::deque<Request> messages;
  while (size >= 2 && messages.size() < 16) {
    const size_t length = std::min<size_t>(data[0] | data[1] << 8, size - 2);
    if (!Parse(data + 2, length, &messages.emplace_back())) return;
    data += 2 + length;
    size -= 2 + length;
  }
  std::weak_ptr<rpc::RequestStream<Request>> weak;
  const auto stream =
      std::make_shared<rpc::RequestStream<Request>>(host->io().get_executor(), [&](Request* into) {
        const bool ok = !messages.empty();
        if (ok) {
          *into = std::move(messages.front());
          messages.pop_front();
        }
        asio::post(host->io(), [weak, ok] {
          if (const auto alive = weak.lock()) alive->Arrive(ok, false);
        });
      });
  weak = stream;
  Expect(host->Run<StatusOr<Response>>((host->service().*handler)(stream)), method);
}

fuzz::Methods& Methods() {
  using S = WeightStoreGrpcService;
  static fuzz::Methods methods({
      Unary<v1::RegisterTrainerRequest>("RegisterTrainer"),
      {"BeginVersion", &v1::BeginVersionRequest::default_instance(), Begin},
      Unary<v1::PutDoneRequest>("PutDone"),
      Unary<v1::CommitVersionRequest>("CommitVersion"),
      Unary<v1::AcquireLeaseRequest>("AcquireLease"),
      Unary<v1::ReleaseLeaseRequest>("ReleaseLease"),
      Unary<v1::PinForEvaluationRequest>("PinForEvaluation"),
      Unary<v1::UnpinEvaluationRequest>("UnpinEvaluation"),
      Unary<v1::ListVersionsRequest>("ListVersions"),
      {"WatchVersions", &v1::WatchVersionsRequest::default_instance(), WatchRun},
      Unary<v1::EndRunRequest>("EndRun"),
      Unary<v1::AdvanceOrchestratorEpochRequest>("AdvanceOrchestratorEpoch"),
      {"ImportModel", nullptr,
       [](const uint8_t* d, size_t n) { RequestStream(d, n, "ImportModel", &S::DoImport); }},
      Unary<v1::GetStoredModelRequest>("GetStoredModel"),
      Unary<v1::ListStoredModelsRequest>("ListStoredModels"),
      Unary<v1::DeleteStoredModelRequest>("DeleteStoredModel"),
      Unary<v1::CollectGarbageRequest>("CollectGarbage"),
      Unary<v1::ReadBlobRequest>("ReadBlob"),
      {"PutBundle", nullptr,
       [](const uint8_t* d, size_t n) { RequestStream(d, n, "PutBundle", &S::DoPutBundle); }},
      {"PutCheckpoint", nullptr,
       [](const uint8_t* d, size_t n) {
         RequestStream(d, n, "PutCheckpoint", &S::DoPutCheckpoint);
       }},
      Unary<v1::GetCheckpointRequest>("GetCheckpoint"),
  });
  return methods;
}

const char* const kWords[] = {"",
                              "run",
                              "ended",
                              "other",
                              "f32",
                              "bf16",
                              "w16",
                              "g",
                              "plan",
                              "{}",
                              "matrix",
                              "model.norm.weight",
                              "populate",
                              "../run",
                              "\n\"'",
                              "\xf0\x9f\x98\x80",
                              "00000000000000000000000000000000",
                              "ffffffffffffffffffffffffffffffff",
                              "evaluation copy"};

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  Methods().Initialize(*argc, *argv);
  (void)Blobs();  // before there are threads
  runtime::InitLog({.level = runtime::LogLevel::kError});
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  if (host == nullptr || host->IsWornOut()) {
    delete host;
    host = new WholeStore;
  }
  Methods().Run(data, size);
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  return Methods().Mutate(data, size, max_size, seed, kWords);
}
