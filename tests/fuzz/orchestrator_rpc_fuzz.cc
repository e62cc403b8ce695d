// SPDX-License-Identifier: Apache-2.0
// Every request of the orchestrator's service, decoded from bytes and given to the handlers of a
// whole OrchestratorDaemon with journal, registry and engine; only gRPC's transport is left out.
// What is answered is a reply or an error that a client can act on: never INTERNAL or UNKNOWN,
// never without words, never a message that gRPC would not carry.
//
// The first byte of an input names the method (--method NAME pins it), the rest is the request; a
// request stream is a list of messages, each behind its length in two bytes.
#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include "core/base/hash.h"
#include "core/runtime/address.h"
#include "core/runtime/log.h"
#include "services/orchestrator/daemon.h"
#include "tests/fuzz/methods.h"
#include "tests/fuzz/scratch_folder.h"
#include "tests/fuzz/told_error.h"
#include "tests/support/tiny_model_folder.h"
#include "titan/weightstore/v1/weightstore.grpc.pb.h"

using namespace titan;                // NOLINT: the program speaks of little else
using namespace titan::orchestrator;  // NOLINT

namespace {

namespace asio = titan::rpc::asio;

[[noreturn]] void Refuse(const std::string& what) {
  std::fprintf(stderr, "orchestrator_rpc_fuzz: %s\n", what.c_str());
  std::abort();
}

class Store final : public weightstore::v1::WeightStoreService::Service {
  grpc::Status AdvanceOrchestratorEpoch(
      grpc::ServerContext*, const weightstore::v1::AdvanceOrchestratorEpochRequest*,
      weightstore::v1::AdvanceOrchestratorEpochResponse* response) override {
    response->set_epoch(++epoch_);
    return grpc::Status::OK;
  }
  grpc::Status GetStoredModel(grpc::ServerContext*, const weightstore::v1::GetStoredModelRequest*,
                              weightstore::v1::GetStoredModelResponse*) override {
    return {grpc::StatusCode::NOT_FOUND, "no such model"};
  }
  uint64_t epoch_ = 0;
};

// The folder that this process works in: a model as `m`, its data as `d.jsonl`.
class Folder {
 public:
  Folder() {
    const std::string& path = scratch_.path();
    test::MakeTinyModelFolder(path + "/m");
    FILE* data = fopen((path + "/d.jsonl").c_str(), "w");
    for (const char* id : {"a", "b", "c"}) {
      std::fprintf(data, "{\"id\":\"%s\",\"prompt\":\"1 + 1?\",\"answer\":2}\n", id);
    }
    fclose(data);
    if (chdir(path.c_str()) != 0) Refuse("cannot enter the folder");
  }

 private:
  fuzz::ScratchFolder scratch_;
};

// A daemon that lives for some executions.
class Host {
 public:
  explicit Host(const std::string& store_address) {
    std::error_code ignored;
    std::filesystem::remove_all("o", ignored);
    std::filesystem::create_directories("o");
    config_.mutable_daemon()->set_data_folder("o");
    config_.set_weightstore_address(store_address);
    config_.set_worker_timeout_ms(100);
    config_.set_rpc_deadline_ms(200);
    auto made = OrchestratorDaemon::Create(config_, context_);
    if (!made.ok()) Refuse(MessageOf(made.status()));
    daemon = *std::move(made);
    if (const Status started = Run(daemon->Start()); !started.ok()) Refuse(MessageOf(started));
    // The weight store has given the epoch: workers may register.
    for (int i = 0; i < 2000 && !ready_; ++i) io.run_one_for(std::chrono::milliseconds(5));
    if (!ready_) Refuse("the orchestrator does not get ready");
  }
  ~Host() {
    stopping_ = true;
    bool drained = false;
    asio::co_spawn(io, daemon->Drain(), [&](std::exception_ptr) { drained = true; });
    while (!drained) io.run_one_for(std::chrono::milliseconds(5));
    client_.CancelAll();
    while (!client_.WaitIdle(std::chrono::milliseconds(0))) {
      io.run_one_for(std::chrono::milliseconds(1));
    }
    blocking_.Stop();
    server.CancelAll();
    for (int i = 0; i < 3; ++i) io.poll();
    daemon.reset();
  }

  // Runs a handler to its end; `idle` is called when nothing is to be done at the moment.
  template <typename T>
  T Run(asio::awaitable<T> handler, const std::function<void()>& idle = {}) {
    std::optional<T> result;
    asio::co_spawn(io, std::move(handler), [&](std::exception_ptr failure, T value) {
      if (failure) Refuse("an exception left a handler");
      result = std::move(value);
    });
    while (io.poll() > 0 && !result.has_value()) {
    }
    while (!result.has_value()) {
      if (idle) idle();
      io.run_one_for(std::chrono::milliseconds(2));
    }
    return *std::move(result);
  }

  asio::io_context io{1};

 private:
  asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(io);
  runtime::Metrics metrics_;
  SystemClock clock_;
  rpc::RpcClient client_{io.get_executor()};
  runtime::BlockingPool blocking_{{.threads = 1}};
  config::v1::OrchestratorConfig config_;
  bool ready_ = false;
  bool stopping_ = false;

 public:
  rpc::RpcServer server{io.get_executor()};

 private:
  rpc::DaemonContext context_{io.get_executor(),
                              server,
                              client_,
                              blocking_,
                              metrics_,
                              clock_,
                              *config_.mutable_daemon(),
                              "fuzz",
                              type::v1::WORKER_ROLE_UNSPECIFIED,
                              [] { return std::string("127.0.0.1:1"); },
                              [this](bool ready, const std::string&) { ready_ = ready; },
                              [this](const Status& reason) {
                                if (!stopping_ && !reason.ok()) Refuse(MessageOf(reason));
                              }};

 public:
  std::unique_ptr<OrchestratorDaemon> daemon;
};

Host* host = nullptr;
int state_changes = 0;  // jobs and workers that the host has taken

void Expect(const Status& status, const char* method) {
  switch (status.code()) {
    case StatusCode::kOk:
    case StatusCode::kInvalidArgument:
    case StatusCode::kNotFound:
    case StatusCode::kAlreadyExists:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kResourceExhausted:
    case StatusCode::kUnavailable:
    case StatusCode::kCancelled:
    case StatusCode::kDataLoss:
      break;
    default:
      Refuse(std::string(method) + " ends with " + status.ToString());
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

// Plays gRPC's part for a handler that writes a stream; the caller goes away when nothing comes for
// `patience` looks, or after 100 messages.
template <typename Response, typename Request, typename Handler>
Status RunStream(const Request& request, size_t queue, int patience, Handler handler) {
  using Stream = rpc::ResponseStream<Response>;
  std::shared_ptr<Stream> stream;
  auto* reactor = rpc::ServeStreamThen<Request, Response>(
      host->server, nullptr, &request, queue,
      [&stream](const Request&, std::shared_ptr<Stream> made) { stream = std::move(made); });
  while (stream == nullptr) host->io.run_one();
  size_t written = 0;
  int idle = 0;
  const Status status = host->Run<Status>(handler(request, stream), [&] {
    while (stream->queued() > 0 && written < 100) {
      reactor->OnWriteDone(true);
      ++written;
      idle = 0;
    }
    if (++idle == patience || written >= 100) reactor->OnCancel();
  });
  reactor->OnCancel();
  host->io.poll();
  stream.reset();
  reactor->OnDone();
  return status;
}

template <typename Request>
bool Parse(const uint8_t* data, size_t size, Request* request) {
  return request->ParseFromArray(data, static_cast<int>(size));
}

// Handlers of unary methods by a pointer to the daemon's member.
template <typename Request, typename Response>
void Unary(const uint8_t* data, size_t size, const char* method,
           asio::awaitable<StatusOr<Response>> (OrchestratorDaemon::*handler)(Request)) {
  Request request;
  if (!Parse(data, size, &request)) return;
  const auto response =
      host->Run<StatusOr<Response>>((host->daemon.get()->*handler)(std::move(request)));
  Expect(response, method);
}

void Submit(const uint8_t* data, size_t size) {
  v1::SubmitJobRequest request;
  if (!Parse(data, size, &request)) return;
  const auto response =
      host->Run<StatusOr<v1::SubmitJobResponse>>(host->daemon->SubmitJob(std::move(request)));
  Expect(response, "SubmitJob");
  if (response.ok()) state_changes += 8;
}

void Register(const uint8_t* data, size_t size) {
  v1::RegisterWorkerRequest request;
  if (!Parse(data, size, &request)) return;
  // Nobody listens there; other ports of this machine are not the fuzzer's to dial.
  const auto address = runtime::ParseHostPort(request.worker().address());
  if (address.ok() && address->port != 0) {
    request.mutable_worker()->set_address(address->host.find(':') == std::string::npos
                                              ? address->host + ":1"
                                              : "[" + address->host + "]:1");
  }
  // Answers at once, or when it has looked for another process at that one's address.
  const auto response = std::make_shared<std::optional<StatusOr<v1::RegisterWorkerResponse>>>();
  host->daemon->RegisterWorker(request, [response](StatusOr<v1::RegisterWorkerResponse> reply) {
    *response = std::move(reply);
  });
  while (!response->has_value()) host->io.run_one_for(std::chrono::milliseconds(2));
  Expect(**response, "RegisterWorker");
  if ((*response)->ok()) ++state_changes;
}

void Upload(const uint8_t* data, size_t size) {
  std::deque<v1::UploadDataRequest> messages;
  while (size >= 2 && messages.size() < 16) {
    const size_t length = std::min<size_t>(data[0] | data[1] << 8, size - 2);
    if (!Parse(data + 2, length, &messages.emplace_back())) return;
    data += 2 + length;
    size -= 2 + length;
  }
  std::weak_ptr<rpc::RequestStream<v1::UploadDataRequest>> weak;
  const auto stream = std::make_shared<rpc::RequestStream<v1::UploadDataRequest>>(
      host->io.get_executor(), [&](v1::UploadDataRequest* into) {
        const bool ok = !messages.empty();
        if (ok) {
          *into = std::move(messages.front());
          messages.pop_front();
        }
        asio::post(host->io, [weak, ok] {
          if (const auto alive = weak.lock()) alive->Arrive(ok, false);
        });
      });
  weak = stream;
  const auto response =
      host->Run<StatusOr<v1::UploadDataResponse>>(host->daemon->UploadData(stream));
  Expect(response, "UploadData");
  if (response.ok() && !response->existed()) ++state_changes;
}

fuzz::Methods& Methods() {
  using D = OrchestratorDaemon;
  static fuzz::Methods methods({
      {"SubmitJob", &v1::SubmitJobRequest::default_instance(), Submit},
      {"GetJob", &v1::GetJobRequest::default_instance(),
       [](const uint8_t* d, size_t n) { Unary(d, n, "GetJob", &D::GetJob); }},
      {"ListJobs", &v1::ListJobsRequest::default_instance(),
       [](const uint8_t* d, size_t n) {
         v1::ListJobsRequest request;
         if (Parse(d, n, &request)) {
           Expect(host->Run<StatusOr<v1::ListJobsResponse>>(host->daemon->ListJobs()), "ListJobs");
         }
       }},
      {"WatchJob", &v1::WatchJobRequest::default_instance(),
       [](const uint8_t* d, size_t n) {
         v1::WatchJobRequest request;
         if (!Parse(d, n, &request)) return;
         Expect(RunStream<v1::WatchJobResponse>(
                    request, 64, 1,
                    [](const auto& r, const auto& out) { return host->daemon->WatchJob(r, out); }),
                "WatchJob");
       }},
      {"CancelJob", &v1::CancelJobRequest::default_instance(),
       [](const uint8_t* d, size_t n) { Unary(d, n, "CancelJob", &D::CancelJob); }},
      {"RegisterWorker", &v1::RegisterWorkerRequest::default_instance(), Register},
      {"Heartbeat", &v1::HeartbeatRequest::default_instance(),
       [](const uint8_t* d, size_t n) {
         v1::HeartbeatRequest request;
         if (Parse(d, n, &request)) Expect(host->daemon->Heartbeat(request), "Heartbeat");
       }},
      {"ListWorkers", &v1::ListWorkersRequest::default_instance(),
       [](const uint8_t* d, size_t n) {
         v1::ListWorkersRequest request;
         if (Parse(d, n, &request)) {
           Expect(StatusOr<v1::ListWorkersResponse>(host->daemon->ListWorkers()), "ListWorkers");
         }
       }},
      {"CheckJob", &v1::CheckJobRequest::default_instance(),
       [](const uint8_t* d, size_t n) { Unary(d, n, "CheckJob", &D::CheckJob); }},
      {"ListRollouts", &v1::ListRolloutsRequest::default_instance(),
       [](const uint8_t* d, size_t n) {
         v1::ListRolloutsRequest request;
         if (!Parse(d, n, &request)) return;
         Expect(RunStream<v1::ListRolloutsResponse>(request, 4, 500,
                                                    [](const auto& r, const auto& out) {
                                                      return host->daemon->ListRollouts(r, out);
                                                    }),
                "ListRollouts");
       }},
      {"Chat", &v1::ChatRequest::default_instance(),
       [](const uint8_t* d, size_t n) {
         v1::ChatRequest request;
         if (!Parse(d, n, &request)) return;
         Expect(RunStream<v1::ChatResponse>(
                    request, 4096, 1,
                    [](const auto& r, const auto& out) { return host->daemon->Chat(r, out); }),
                "Chat");
       }},
      {"UploadData", nullptr, Upload},
      {"ListData", &v1::ListDataRequest::default_instance(),
       [](const uint8_t* d, size_t n) {
         v1::ListDataRequest request;
         if (Parse(d, n, &request)) {
           Expect(host->Run<StatusOr<v1::ListDataResponse>>(host->daemon->ListData()), "ListData");
         }
       }},
      {"RemoveData", &v1::RemoveDataRequest::default_instance(),
       [](const uint8_t* d, size_t n) {
         v1::RemoveDataRequest request;
         if (!Parse(d, n, &request)) return;
         Expect(host->Run<StatusOr<v1::RemoveDataResponse>>(host->daemon->RemoveData(request)),
                "RemoveData");
       }},
  });
  return methods;
}

// What requests refer to: two jobs that wait for workers, one that was cancelled.
void Populate() {
  v1::SubmitJobRequest submit;
  config::v1::JobSpec& spec = *submit.mutable_spec();
  spec.mutable_model()->set_path("m");
  spec.mutable_model()->set_max_sequence_tokens(64);
  spec.mutable_data()->set_path("d.jsonl");
  spec.mutable_schedule()->set_steps(1);
  spec.mutable_schedule()->set_groups_per_step(1);
  spec.mutable_rollout()->set_samples_per_group(2);
  spec.mutable_rollout()->set_max_new_tokens(2);
  spec.mutable_reward()->set_grader("g");
  for (const char* id : {"populate-1", "populate-2", "populate-3"}) {
    submit.set_request_id(id);
    const auto made = host->Run<StatusOr<v1::SubmitJobResponse>>(host->daemon->SubmitJob(submit));
    if (!made.ok()) Refuse(MessageOf(made.status()));
  }
  v1::CancelJobRequest cancel;
  cancel.set_request_id("populate");
  cancel.set_job_id("job-3");
  const auto cancelled =
      host->Run<StatusOr<v1::CancelJobResponse>>(host->daemon->CancelJob(cancel));
  if (!cancelled.ok()) Refuse(MessageOf(cancelled.status()));
}

void EnsureHost() {
  static Store store;
  static int port = 0;
  static std::unique_ptr<grpc::Server> server;
  if (server == nullptr) {
    static Folder folder;
    runtime::InitLog({.level = runtime::LogLevel::kError});
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&store);
    server = builder.BuildAndStart();
    if (server == nullptr) Refuse("cannot listen");
  }
  if (host != nullptr && state_changes < 1000) return;
  delete host;
  state_changes = 0;
  host = new Host("127.0.0.1:" + std::to_string(port));
  Populate();
}

const char* const kWords[] = {
    "",        "m",         "d.jsonl",     "job-1",     "job-2",        "job-3",
    "/",       "..",        "f32",         "w16",       "rl",           "drop",
    "replace", "{}",        "[]",          "{\"a\":1",  "stop",         "logical",
    "trainer", "generator", "127.0.0.1:1", "[::1]:1",   "a:b:c",        "\xf0\x9f\x98\x80",
    "\n\"'",   "user",      "system",      "0.0.0.0:0", "numeric_match"};

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  Methods().Initialize(*argc, *argv);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  EnsureHost();
  Methods().Run(data, size);
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  return Methods().Mutate(data, size, max_size, seed, kWords);
}
