// SPDX-License-Identifier: Apache-2.0
// What a host daemon and its leader say to each other (host.proto), decoded from bytes and given to
// either side: a hostile host to the leader's service, a hostile leader to a host; only gRPC's
// transport is left out. Whatever is said, records stay as they are, what is refused is said in
// words, and memory stays within its limit.
//
// The first byte of an input names the method (--method NAME pins it), the rest is the message.
#include <google/protobuf/message.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include "core/runtime/log.h"
#include "core/storage/memory_store.h"
#include "services/weightstore/host_messages.h"
#include "services/weightstore/host_questions.h"
#include "services/weightstore/host_service.h"
#include "tests/fuzz/methods.h"
#include "tests/fuzz/told_error.h"
#include "tests/support/weightstore.h"
#include "weightstore/client/weights_digest.h"
#include "weightstore/index.h"

using namespace titan;               // NOLINT: the program speaks of little else
using namespace titan::weightstore;  // NOLINT

namespace {

namespace asio = titan::rpc::asio;
using weightstore::testing::Fill;
using weightstore::testing::SmallManifest;

constexpr uint64_t kMemoryLimit = 1 << 20;
constexpr uint64_t kVersions = 3;         // that run "run" has records of
constexpr uint64_t kFirstAttachment = 7;  // the first host gets the next number
constexpr size_t kMostHosts = 8;          // attached at a time
constexpr size_t kMostSlots = 60;         // each has four descriptors

[[noreturn]] void Refuse(const std::string& what) {
  std::fprintf(stderr, "weightstore_host_fuzz: %s\n", what.c_str());
  std::abort();
}

void ExpectTold(const Status& status, const char* method) {
  if (status.code() == StatusCode::kInternal || status.code() == StatusCode::kUnknown) {
    Refuse(std::string(method) + " ends with " + status.ToString());
  }
  const std::string fault = fuzz::UnreadableError(status);
  if (!fault.empty()) Refuse(std::string(method) + ": " + fault);
}

Hash128 DigestOf(uint64_t version) {
  static const Manifest manifest = SmallManifest();
  std::vector<std::byte> bytes(manifest.slot_bytes);
  Fill(bytes, version);
  return WeightsDigest(manifest, bytes, 1);
}

// A leader with records of a run and no host but those that the inputs make up.
class LeaderSide {
 public:
  LeaderSide() {
    Index index(records_);
    RunRecord run;
    run.trainer_epoch = 2;
    run.max_age = 0;
    run.manifest = std::make_shared<const Manifest>(SmallManifest());
    Check(index.PutRun("run", run));
    run.ended = true;
    Check(index.PutRun("ended", run));
    for (uint64_t v = 0; v < kVersions; ++v) {
      Check(index.PutVersion("run", v, {DigestOf(v), "plan", v, 1234}));
    }
    LeaderOptions options;
    options.first_number = 1000;  // known to the inputs
    options.unix_ms = [] { return int64_t{1234}; };
    options.monotonic_ms = [this] { return now_ms_; };
    auto leader = Leader::Open(records_, std::move(options));
    if (!leader.ok()) Refuse(leader.status().ToString());
    leader_ = *std::move(leader);
    service_ =
        std::make_unique<HostGrpcService>(server_, *leader_, metrics_, "local", kFirstAttachment);
  }
  ~LeaderSide() {
    leader_->Shutdown();
    service_->Stop();
    while (!ties_.empty()) LetGo();
  }

  void Attach(const v1::AttachRequest& request) {
    auto tie = std::make_unique<Tie>();
    tie->request = request;
    tie->reactor = rpc::ServeStreamThen<v1::AttachRequest, v1::AttachResponse>(
        server_, nullptr, &tie->request, 4096,
        [&](const v1::AttachRequest&, std::shared_ptr<RemoteHost::Stream> made) {
          tie->stream = std::move(made);
        });
    while (tie->stream == nullptr) io_.run_one();
    service_->Attach(tie->request, tie->stream);
    ++num_attached_;
    ties_.push_back(std::move(tie));
    if (ties_.size() > kMostHosts) LetGo();
    Look();
  }
  // Of the newest attachment that the leader knows.
  void Report(v1::ReportRequest request) {
    Status status = NotFound("");
    for (uint64_t i = num_attached_ + 1; i > 0 && status.code() == StatusCode::kNotFound; --i) {
      request.set_attachment(kFirstAttachment + i);
      status = service_->Report(request);
    }
    ExpectTold(status, "Report");
    Look();
  }

  bool IsWornOut() {
    now_ms_ += 50;
    return ++executions_ > 500 || num_attached_ > 200;
  }

 private:
  struct Tie {
    v1::AttachRequest request;  // outlives the reactor
    grpc::ServerWriteReactor<v1::AttachResponse>* reactor = nullptr;
    std::shared_ptr<RemoteHost::Stream> stream;
  };
  static void Check(const Status& status) {
    if (!status.ok()) Refuse(status.ToString());
  }

  // The oldest host's connection ends, and nobody waits for it.
  void LetGo() {
    const std::unique_ptr<Tie> tie = std::move(ties_.front());
    ties_.pop_front();
    tie->reactor->OnCancel();
    io_.poll();
    leader_->ForgetHost(tie->request.host());
    tie->stream.reset();
    tie->reactor->OnDone();
  }
  // The commands are sent, and what a trainer, readers and operators ask is answered.
  void Look() {
    for (const auto& tie : ties_) {
      while (tie->stream->queued() > 0) tie->reactor->OnWriteDone(true);
    }
    io_.poll();
    (void)leader_->Stats();
    const auto versions = leader_->ListVersions("run");
    if (!versions.ok()) Refuse(versions.status().ToString());
    for (const VersionInfo& info : *versions) {
      if (info.version >= kVersions) continue;
      if (!info.record.has_value() || info.record->digest != DigestOf(info.version)) {
        Refuse("a record has changed");
      }
    }
    for (uint64_t v = 0; v <= kVersions; ++v) {
      const auto begun = leader_->TryBeginVersion("run", 2, v);
      ExpectTold(begun.status(), "BeginVersion");
      const auto committed = leader_->CommitVersion("run", 2, v, DigestOf(v), "plan", v);
      ExpectTold(committed.status(), "CommitVersion");
      (void)leader_->HoldForDisk("run", v);
    }
  }

  int64_t now_ms_ = 0;
  int executions_ = 0;
  uint64_t num_attached_ = 0;
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(io_);
  runtime::Metrics metrics_;
  storage::MemoryStore records_;
  std::unique_ptr<Leader> leader_;
  rpc::RpcServer server_{io_.get_executor()};
  std::unique_ptr<HostGrpcService> service_;
  std::deque<std::unique_ptr<Tie>> ties_;
};

// A host and what a leader makes it do.
class HostSide final : public HostEvents {
 public:
  ~HostSide() override { host_.Shutdown(); }

  void Take(const v1::AttachResponse& message) {
    for (const v1::HostCommand& one : message.commands()) {
      if (QuestionOf(one).has_value()) {
        const StatusOr<v1::HostAnswer> answer = AnswerTo(one, host_);
        ExpectTold(answer.status(), "AnswerTo");
        if (const std::string fault = fuzz::UnreadableAnswer(answer); !fault.empty()) {
          Refuse(fault);
        }
        continue;
      }
      const StatusOr<HostCommand> command = FromProto(one);
      ExpectTold(command.status(), "FromProto");
      if (!command.ok()) return;
      host_.Send({*command});
      if (one.has_allow_lease()) Read(std::get<AllowLease>(*command));
      if (one.has_make_slot()) AwaitSlot(one.make_slot().slot_id());
    }
    if (host_.Stats().slot_bytes > kMemoryLimit) Refuse("slots are larger than the limit");
    v1::AttachRequest all;
    ToProto(host_.Report(), &all);
    const StatusOr<HostReport> again = FromProto(all);  // the leader takes what hosts report
    if (!again.ok()) Refuse("a host reports " + again.status().ToString());
  }
  bool IsWornOut() { return ++executions_ > 500 || host_.Report().slots.size() > kMostSlots; }

  void SlotMade(uint64_t) override {}
  void SlotNotMade(uint64_t, const Status&) override {}
  void LeaseMapped(uint64_t) override {}
  void LeaseEnded(uint64_t) override {}
  void WriterGone(const std::string&, uint64_t) override {}
  void SlotOffered(const std::string&, const SlotOffer&) override {}
  void CommandsDone() override {}

 private:
  void AwaitSlot(uint64_t slot_id) {
    host_.Send({HurrySlots{}});
    for (int i = 0; i < 200; ++i) {
      bool being_made = false;
      for (const SlotReport& slot : host_.Report().slots) {
        being_made |= slot.header.slot_id == slot_id && !slot.made;
      }
      if (!being_made) return;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  // As its reader would, on the socket and on the data plane.
  void Read(const AllowLease& lease) {
    (void)host_.OpenForRead({lease.lease_id, lease.epoch, lease.grant, lease.token});
    (void)host_.MapLease(1, lease.lease_id, lease.grant);
    (void)host_.MapForWriting(2, lease.epoch, lease.grant);
    (void)host_.WriterHasMapped(2, lease.slot_id, lease.grant);
    if (lease.lease_id % 2 == 0) host_.ConnectionClosed(1);
    if (lease.lease_id % 3 == 0) host_.ConnectionClosed(2);
  }

  int executions_ = 0;
  Host host_{{.memory_limit_bytes = kMemoryLimit}, *this};
};

// A host's answers to questions that a thread of the leader waits for.
class AnswerSide {
 public:
  AnswerSide() {
    reactor_ = rpc::ServeStreamThen<v1::AttachRequest, v1::AttachResponse>(
        server_, nullptr, &request_, 4096,
        [&](const v1::AttachRequest&, std::shared_ptr<RemoteHost::Stream> made) {
          stream_ = std::move(made);
        });
    while (stream_ == nullptr) io_.run_one();
    port_ = std::make_unique<RemoteHost>(stream_, /*attachment=*/1);
    asker_ = std::jthread([this] {
      while (!ended_) {
        const auto hash = port_->HashWritten(1, 2, manifest_);
        const auto view = port_->ViewSlot(1, 0, 100);
        if (view.ok() && view->bytes.size() != 100) Refuse("a view of another size");
        (void)hash;
      }
    });
  }
  ~AnswerSide() {
    ended_ = true;
    port_->End(Cancelled("the inputs end"));
    asker_.join();
    port_.reset();
    while (stream_->queued() > 0) reactor_->OnWriteDone(true);
    reactor_->OnCancel();
    io_.poll();
    stream_.reset();
    reactor_->OnDone();
  }

  // Odd questions become the one that is waited for.
  void Take(v1::ReportRequest report) {
    while (stream_->queued() > 0) {
      reactor_->OnWriteDone(true);
      ++question_;  // each message that was written asked one, but for the first
    }
    for (v1::HostAnswer& answer : *report.mutable_answers()) {
      if (answer.question() % 2 == 1) answer.set_question((1u << 24) + question_ - 1);
    }
    ExpectTold(port_->Took(report), "Took");
    report.set_num_done(0);
    (void)port_->Took(report);
  }
  bool IsWornOut() { return ++executions_ > 2000; }

 private:
  int executions_ = 0;
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(io_);
  rpc::RpcServer server_{io_.get_executor()};
  const v1::AttachRequest request_;
  const std::shared_ptr<const Manifest> manifest_ = std::make_shared<Manifest>(SmallManifest());
  grpc::ServerWriteReactor<v1::AttachResponse>* reactor_ = nullptr;
  std::shared_ptr<RemoteHost::Stream> stream_;
  std::unique_ptr<RemoteHost> port_;
  uint64_t question_ = 0;
  std::atomic<bool> ended_{false};
  std::jthread asker_;
};

template <typename Side>
Side& Fresh() {
  static std::unique_ptr<Side> side;
  if (side == nullptr || side->IsWornOut()) {
    side.reset();
    side = std::make_unique<Side>();
  }
  return *side;
}

template <typename Request>
fuzz::Method Taking(const char* name, const std::function<void(const Request&)>& take) {
  return {name, &Request::default_instance(), [take](const uint8_t* data, size_t size) {
            Request request;
            if (request.ParseFromArray(data, static_cast<int>(size))) take(request);
          }};
}

fuzz::Methods& Methods() {
  static fuzz::Methods methods({
      Taking<v1::AttachRequest>("Attach", [](const auto& m) { Fresh<LeaderSide>().Attach(m); }),
      Taking<v1::ReportRequest>("Report", [](const auto& m) { Fresh<LeaderSide>().Report(m); }),
      Taking<v1::AttachResponse>("Command", [](const auto& m) { Fresh<HostSide>().Take(m); }),
      Taking<v1::ReportRequest>("Answer", [](const auto& m) { Fresh<AnswerSide>().Take(m); }),
  });
  return methods;
}

const char* const kWords[] = {"",
                              "run",
                              "ended",
                              "other",
                              "h1",
                              "h2",
                              "local",
                              "f32",
                              "bf16",
                              "matrix",
                              "{}",
                              "../run",
                              "\n\"'",
                              "127.0.0.1:1",
                              "00000000000000000000000000000000",
                              "ffffffffffffffffffffffffffffffff"};

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  Methods().Initialize(*argc, *argv);
  runtime::InitLog({.level = runtime::LogLevel::kError});
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  Methods().Run(data, size);
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  return Methods().Mutate(data, size, max_size, seed, kWords);
}
