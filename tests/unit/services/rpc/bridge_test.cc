// SPDX-License-Identifier: Apache-2.0
// Goal: calls cross loopback both ways through the bridge: unary, server and client streams,
// deadlines, cancellation by the awaiting coroutine and by the peer, back-pressure, shutdown,
// seeded delays. Method: one gRPC server whose handlers run on the same control strand as the
// client's completions.
#include <grpcpp/security/credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <future>
#include <optional>
#include <thread>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include "core/runtime/co_status.h"
#include "services/rpc/channel.h"
#include "services/rpc/rpc_client.h"
#include "services/rpc/rpc_server.h"
#include "titan/orchestrator/v1/orchestrator.grpc.pb.h"
#include "titan/trainer/v1/trainer.grpc.pb.h"

namespace titan::rpc {
namespace {

using namespace orchestrator::v1;  // NOLINT: the test speaks of little else
using trainer::v1::TrainerService;
using trainer::v1::TrainStepRequest;
using trainer::v1::TrainStepResponse;
using Async = OrchestratorService::StubInterface::async_interface;
using TrainerAsync = TrainerService::StubInterface::async_interface;
using std::chrono::steady_clock;

constexpr Milliseconds kLong{5000};

// job_id says what the handler does.
class Service final : public OrchestratorService::CallbackService {
 public:
  explicit Service(RpcServer& server) : server_(server) {}

  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                   const GetJobRequest* request,
                                   GetJobResponse* response) override {
    return ServeUnary(server_, context, request, response,
                      [this](GetJobRequest r) { return Get(std::move(r)); });
  }
  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext* context,
                                      const CancelJobRequest* request,
                                      CancelJobResponse* response) override {
    return ServeUnaryThen(
        server_, context, request, response,
        [](CancelJobRequest r, std::function<void(StatusOr<CancelJobResponse>)> reply) {
          std::thread([reply, r] {  // any thread may reply
            CancelJobResponse made;
            made.mutable_job()->set_job_id(r.job_id());
            reply(made);
          })
              .detach();
        });
  }
  grpc::ServerWriteReactor<WatchJobResponse>* WatchJob(grpc::CallbackServerContext* context,
                                                       const WatchJobRequest* request) override {
    if (request->job_id() == "push") {
      return ServeStreamThen<WatchJobRequest, WatchJobResponse>(
          server_, context, request, 4,
          [this](const WatchJobRequest&, std::shared_ptr<ResponseStream<WatchJobResponse>> stream) {
            // More than fits while the strand is busy here: the bound answers.
            for (int i = 0; i < 64; ++i) pushed_ += stream->Push({}).ok();
            last_push_ = stream->Push(WatchJobResponse());
            stream->Finish(OkStatus());
          });
    }
    if (request->job_id() == "until broken") {
      return ServeStreamThen<WatchJobRequest, WatchJobResponse>(
          server_, context, request, 4,
          [this](const WatchJobRequest&, std::shared_ptr<ResponseStream<WatchJobResponse>> stream) {
            stream->OnCancel([this] { ++told_; });
            pusher_ = std::async(std::launch::async, [stream] {
              while (stream->Push({}).code() != StatusCode::kCancelled) std::this_thread::yield();
              stream->Finish(OkStatus());
            });
          });
    }
    return ServeStream<WatchJobResponse>(
        server_, context, request, 4,
        [this](WatchJobRequest r, std::shared_ptr<ResponseStream<WatchJobResponse>> stream) {
          return Watch(std::move(r), std::move(stream));
        });
  }

  std::atomic<int> pushed_ = 0;
  Status last_push_;
  std::promise<Status> watch_ended_;
  std::future<void> pusher_;
  std::atomic<int> told_ = 0;

 private:
  asio::awaitable<StatusOr<GetJobResponse>> Get(GetJobRequest request) {
    if (request.job_id() == "slow" || request.job_id() == "stuck") {
      asio::steady_timer timer(
          server_.control(), request.job_id() == "slow" ? Milliseconds(300) : Milliseconds(60000));
      co_await timer.async_wait(asio::use_awaitable);
    }
    if (request.job_id() == "none")
      co_return WithReason(NotFound("no job 'none'"), "NO_SUCH_JOB", "List jobs.");
    if (request.job_id() == "throws") throw std::runtime_error("boom");
    GetJobResponse response;
    response.mutable_job()->set_job_id(request.job_id());
    co_return response;
  }

  asio::awaitable<Status> Watch(WatchJobRequest request,
                                std::shared_ptr<ResponseStream<WatchJobResponse>> stream) {
    const uint64_t n = request.job_id() == "endless" ? ~0ull : 100;
    for (uint64_t i = request.after_sequence() + 1; i <= n; ++i) {
      WatchJobResponse event;
      event.set_sequence(i);
      const Status written = co_await stream->Write(std::move(event));
      if (!written.ok()) {
        watch_ended_.set_value(written);
        co_return written;
      }
    }
    co_return request.job_id() == "fails" ? DataLoss("journal") : OkStatus();
  }

  RpcServer& server_;
};

class Trainer final : public TrainerService::CallbackService {
 public:
  explicit Trainer(RpcServer& server) : server_(server) {}
  grpc::ServerReadReactor<TrainStepRequest>* TrainStep(grpc::CallbackServerContext* context,
                                                       TrainStepResponse* response) override {
    return ServeClientStream<TrainStepRequest>(
        server_, context, response,
        [this](std::shared_ptr<RequestStream<TrainStepRequest>> stream) {
          return Step(std::move(stream));
        });
  }
  std::promise<Status> ended_;

 private:
  asio::awaitable<StatusOr<TrainStepResponse>> Step(
      std::shared_ptr<RequestStream<TrainStepRequest>> stream) {
    TrainStepResponse response;
    uint64_t sum = 0;
    for (;;) {
      auto next = co_await stream->Next();
      if (!next.ok()) {
        ended_.set_value(next.status());
        co_return next.status();
      }
      if (!next->has_value()) break;
      if ((*next)->sample().sample_id() == 666) co_return InvalidArgument("sample 666");
      sum += (*next)->sample().sample_id();
    }
    response.set_tokens_trained(sum);
    co_return response;
  }
  RpcServer& server_;
};

class BridgeTest : public ::testing::Test {
 protected:
  void SetUp() override { StartAll(DebugDelay()); }

  void StartAll(DebugDelay delay) {
    server_ = std::make_unique<RpcServer>(io_.get_executor(), delay);
    client_ = std::make_unique<RpcClient>(io_.get_executor(), delay);
    service_ = std::make_unique<Service>(*server_);
    trainer_ = std::make_unique<Trainer>(*server_);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service_.get());
    builder.RegisterService(trainer_.get());
    grpc_ = builder.BuildAndStart();
    const auto channel = MakeChannel("127.0.0.1:" + std::to_string(port));
    ASSERT_TRUE(channel.ok());
    stub_ = OrchestratorService::NewStub(*channel);
    trainer_stub_ = TrainerService::NewStub(*channel);
    control_ = std::jthread([this] { io_.run(); });
  }

  void TearDown() override {
    client_->CancelAll();
    server_->CancelAll();
    grpc_->Shutdown(std::chrono::system_clock::now() + Milliseconds(1000));
    EXPECT_TRUE(client_->WaitIdle(kLong));
    work_.reset();
    control_.join();  // returns only when no completion is outstanding
  }

  StatusOr<GetJobResponse> Get(const std::string& id, Milliseconds deadline = kLong) {
    std::promise<StatusOr<GetJobResponse>> promise;
    GetJobRequest request;
    request.set_job_id(id);
    asio::co_spawn(io_, CallUnary(*client_, *stub_, &Async::GetJob, request, deadline),
                   [&](std::exception_ptr failure, StatusOr<GetJobResponse> response) {
                     EXPECT_FALSE(failure);
                     promise.set_value(std::move(response));
                   });
    return promise.get_future().get();
  }

  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(io_);
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<RpcClient> client_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<grpc::Server> grpc_;
  std::unique_ptr<OrchestratorService::StubInterface> stub_;
  std::unique_ptr<TrainerService::StubInterface> trainer_stub_;
  std::jthread control_;
};

TEST_F(BridgeTest, UnaryAnswersAndFailuresCross) {
  EXPECT_EQ(Get("a")->job().job_id(), "a");
  const auto none = Get("none");
  EXPECT_EQ(none.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ReasonOf(none.status()), "NO_SUCH_JOB");
  const auto throws = Get("throws");
  EXPECT_EQ(throws.status().code(), StatusCode::kInternal);
  EXPECT_EQ(MessageOf(throws.status()), "boom");
}

TEST_F(BridgeTest, PlainFormsAnswerOnTheControlStrand) {
  std::promise<std::string> promise;
  std::promise<std::thread::id> thread;
  CancelJobRequest request;
  request.set_job_id("x");
  CallUnaryThen(*client_, *stub_, &Async::CancelJob, request, kLong,
                [&](StatusOr<CancelJobResponse> response) {
                  thread.set_value(std::this_thread::get_id());
                  promise.set_value(response.ok() ? response->job().job_id() : "failed");
                });
  EXPECT_EQ(promise.get_future().get(), "x");
  EXPECT_EQ(thread.get_future().get(), control_.get_id());
}

TEST_F(BridgeTest, ManyCallsAtOnceEachGetTheirOwnAnswer) {
  constexpr int kCalls = 200;
  std::atomic<int> right = 0;
  std::promise<void> all;
  std::atomic<int> left = kCalls;
  for (int i = 0; i < kCalls; ++i) {
    GetJobRequest request;
    request.set_job_id(i % 10 == 0 ? "none" : "job" + std::to_string(i));
    CallUnaryThen(*client_, *stub_, &Async::GetJob, request, kLong,
                  [&, i, id = request.job_id()](StatusOr<GetJobResponse> response) {
                    right += i % 10 == 0 ? response.status().code() == StatusCode::kNotFound
                                         : response.ok() && response->job().job_id() == id;
                    if (--left == 0) all.set_value();
                  });
  }
  all.get_future().wait();
  EXPECT_EQ(right, kCalls);
}

TEST_F(BridgeTest, DeadlineEndsTheCall) {
  const auto start = steady_clock::now();
  EXPECT_EQ(Get("slow", Milliseconds(50)).status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_LT(steady_clock::now() - start, Milliseconds(280));
}

TEST_F(BridgeTest, CancellingTheCoroutineCancelsTheCall) {
  asio::cancellation_signal signal;
  std::promise<bool> cancelled;
  GetJobRequest request;
  request.set_job_id("stuck");
  const auto start = steady_clock::now();
  asio::post(io_, [&] {
    asio::co_spawn(
        io_, CallUnary(*client_, *stub_, &Async::GetJob, request, Milliseconds(20000)),
        asio::bind_cancellation_slot(
            signal.slot(), [&](std::exception_ptr failure, StatusOr<GetJobResponse> response) {
              // The reply (CANCELLED) or asio's own notice of the cancellation.
              cancelled.set_value(failure != nullptr ||
                                  response.status().code() == StatusCode::kCancelled);
            }));
  });
  std::this_thread::sleep_for(Milliseconds(30));
  asio::post(io_, [&] { signal.emit(asio::cancellation_type::terminal); });
  EXPECT_TRUE(cancelled.get_future().get());
  EXPECT_LT(steady_clock::now() - start, Milliseconds(5000));
}

TEST_F(BridgeTest, CancelAllEndsCallsInFlightAndRefusesLaterOnes) {
  std::promise<StatusCode> promise;
  GetJobRequest request;
  request.set_job_id("stuck");
  CallUnaryThen(
      *client_, *stub_, &Async::GetJob, request, Milliseconds(20000),
      [&](StatusOr<GetJobResponse> response) { promise.set_value(response.status().code()); });
  client_->CancelAll();
  EXPECT_EQ(promise.get_future().get(), StatusCode::kCancelled);
  EXPECT_EQ(Get("a").status().code(), StatusCode::kCancelled);
  EXPECT_TRUE(client_->WaitIdle(kLong));
}

TEST_F(BridgeTest, NobodyListeningIsUnavailable) {
  auto channel = MakeChannel("127.0.0.1:1");
  auto stub = OrchestratorService::NewStub(*channel);
  std::promise<StatusCode> promise;
  CallUnaryThen(
      *client_, *stub, &Async::GetJob, GetJobRequest(), kLong,
      [&](StatusOr<GetJobResponse> response) { promise.set_value(response.status().code()); });
  EXPECT_EQ(promise.get_future().get(), StatusCode::kUnavailable);
  EXPECT_FALSE(MakeChannel("10.0.0.1:80").ok());
  EXPECT_FALSE(MakeChannel("127.0.0.1:0").ok());
}

// gRPC shuts its threads down with the last channel and server; freed on one of these, it would
// wait for itself. What a completion holds, a channel here, is freed on the control strand.
TEST_F(BridgeTest, WhatACallHoldsIsFreedOnTheControlStrand) {
  struct Witness {
    std::promise<std::thread::id>* freed_on;
    ~Witness() { freed_on->set_value(std::this_thread::get_id()); }
  };
  const auto expect_ours = [this](std::future<std::thread::id> freed_on) {
    const std::thread::id id = freed_on.get();
    EXPECT_TRUE(id == control_.get_id() || id == std::this_thread::get_id());
  };
  for (int i = 0; i < 50; ++i) {
    std::promise<std::thread::id> unary;
    CallUnaryThen(*client_, *stub_, &Async::GetJob, GetJobRequest(), kLong,
                  [witness = std::make_shared<Witness>(&unary)](auto) {});
    expect_ours(unary.get_future());
    std::promise<std::thread::id> reads;
    CallServerStream(
        *client_, *stub_, &Async::WatchJob, WatchJobRequest(), kLong,
        [witness = std::make_shared<Witness>(&reads)](WatchJobResponse) {}, [](const Status&) {});
    expect_ours(reads.get_future());
    std::promise<std::thread::id> writes;
    CallClientStream(
        *client_, *trainer_stub_, &TrainerAsync::TrainStep,
        []() -> std::optional<TrainStepRequest> { return std::nullopt; }, kLong,
        [witness = std::make_shared<Witness>(&writes)](auto) {});
    expect_ours(writes.get_future());
  }
}

TEST_F(BridgeTest, ServerStreamArrivesInOrderAndEndsWithItsStatus) {
  for (const char* id : {"good", "fails"}) {
    std::promise<Status> done;
    std::vector<uint64_t> got;
    WatchJobRequest request;
    request.set_job_id(id);
    request.set_after_sequence(10);
    CallServerStream(
        *client_, *stub_, &Async::WatchJob, request, kLong,
        [&](WatchJobResponse event) { got.push_back(event.sequence()); },
        [&](const Status& status) { done.set_value(status); });
    const Status status = done.get_future().get();
    EXPECT_EQ(status.code(), std::string(id) == "good" ? StatusCode::kOk : StatusCode::kDataLoss);
    ASSERT_EQ(got.size(), 90u);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], 11 + i);
  }
}

TEST_F(BridgeTest, PushBeyondTheBoundIsRefusedAndTheRestArrives) {
  std::promise<Status> done;
  std::atomic<int> got = 0;
  WatchJobRequest request;
  request.set_job_id("push");
  CallServerStream(
      *client_, *stub_, &Async::WatchJob, request, kLong, [&](WatchJobResponse) { ++got; },
      [&](const Status& status) { done.set_value(status); });
  EXPECT_TRUE(done.get_future().get().ok());
  EXPECT_EQ(got, service_->pushed_ + service_->last_push_.ok());
  EXPECT_GE(service_->pushed_, 4);
}

TEST_F(BridgeTest, CancelledStreamTellsTheServer) {
  std::promise<Status> done;
  WatchJobRequest request;
  request.set_job_id("endless");
  auto handle = std::make_shared<StreamHandle>();
  std::promise<void> seen;
  int count = 0;
  *handle = CallServerStream(
      *client_, *stub_, &Async::WatchJob, request, kLong,
      [&](WatchJobResponse) {
        if (++count == 20) seen.set_value();
      },
      [&](const Status& status) { done.set_value(status); });
  seen.get_future().wait();
  handle->Cancel();
  EXPECT_EQ(done.get_future().get().code(), StatusCode::kCancelled);
  EXPECT_EQ(service_->watch_ended_.get_future().get().code(), StatusCode::kCancelled);
}

TEST_F(BridgeTest, WhoFinishesABrokenStreamAtOnceHearsOfItAllTheSame) {
  constexpr int kStreams = 200;
  for (int i = 0; i < kStreams; ++i) {
    std::promise<Status> done;
    std::promise<void> seen;
    int count = 0;
    WatchJobRequest request;
    request.set_job_id("until broken");
    auto handle = std::make_shared<StreamHandle>();
    *handle = CallServerStream(
        *client_, *stub_, &Async::WatchJob, request, kLong,
        [&](WatchJobResponse) {
          if (++count == 3) seen.set_value();
        },
        [&](const Status& status) { done.set_value(status); });
    seen.get_future().wait();
    handle->Cancel();
    EXPECT_EQ(done.get_future().get().code(), StatusCode::kCancelled);
    service_->pusher_.get();
    // What was posted before is done.
    EXPECT_TRUE(Get("after").ok());
    EXPECT_EQ(service_->told_, i + 1);
    if (HasFailure()) break;
  }
}

TEST_F(BridgeTest, ClientStreamIsReadToItsEnd) {
  std::promise<StatusOr<TrainStepResponse>> done;
  uint64_t i = 0;
  CallClientStream(
      *client_, *trainer_stub_, &TrainerAsync::TrainStep,
      [&]() -> std::optional<TrainStepRequest> {
        if (++i > 100) return std::nullopt;
        TrainStepRequest request;
        request.mutable_sample()->set_sample_id(i);
        return request;
      },
      kLong, [&](StatusOr<TrainStepResponse> response) { done.set_value(std::move(response)); });
  const auto response = done.get_future().get();
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->tokens_trained(), 5050u);
}

TEST_F(BridgeTest, ClientStreamEndsEarlyWhenTheServerRefuses) {
  std::promise<StatusOr<TrainStepResponse>> done;
  CallClientStream(
      *client_, *trainer_stub_, &TrainerAsync::TrainStep,
      [&]() -> std::optional<TrainStepRequest> {
        TrainStepRequest request;
        request.mutable_sample()->set_sample_id(666);
        return request;
      },
      kLong, [&](StatusOr<TrainStepResponse> response) { done.set_value(std::move(response)); });
  const auto response = done.get_future().get();
  EXPECT_EQ(response.status().code(), StatusCode::kInvalidArgument);
}

TEST_F(BridgeTest, ClientStreamWhoseCallerGoesIsCancelledAtTheServer) {
  std::promise<Status> done;
  auto handle = std::make_shared<StreamHandle>();
  uint64_t sent = 0;
  std::promise<void> started;
  *handle = CallClientStream(
      *client_, *trainer_stub_, &TrainerAsync::TrainStep,
      [&]() -> std::optional<TrainStepRequest> {
        if (++sent == 5) started.set_value();
        TrainStepRequest request;
        request.mutable_sample()->set_sample_id(1);
        return request;
      },
      Milliseconds(20000),
      [&](StatusOr<TrainStepResponse> response) { done.set_value(response.status()); });
  started.get_future().wait();
  handle->Cancel();
  EXPECT_EQ(done.get_future().get().code(), StatusCode::kCancelled);
  EXPECT_EQ(trainer_->ended_.get_future().get().code(), StatusCode::kCancelled);
}

class DelayedBridgeTest : public BridgeTest {
 protected:
  void SetUp() override { StartAll(DebugDelay(20, 7)); }
};

TEST_F(DelayedBridgeTest, CallsSucceedAndAreDelayed) {
  const auto start = steady_clock::now();
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(Get("a").ok());
  DebugDelay expected(20, 7);
  Milliseconds total{0};
  for (int i = 0; i < 5; ++i)
    total += 2 * expected.Next();  // client and server draw the same sequence here
  EXPECT_GT(total.count(), 0);
  EXPECT_GE(steady_clock::now() - start, total);
}

}  // namespace
}  // namespace titan::rpc
