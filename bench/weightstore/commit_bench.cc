// SPDX-License-Identifier: Apache-2.0
//
// titan-bench-commit ADDRESS SOCKET COUNT [ETCD]: the time of CommitVersion through a running
// titan-weightstore over gRPC, one by one, in turns with puts into the etcd at the address ETCD,
// whose requests have as many bytes. Both are called through the same gRPC library, and both
// answer when their disk has the record. One JSON object a line: milliseconds at the 50th and the
// 99th percentile.
#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "services/rpc/channel.h"
#include "services/weightstore_client/standalone_leader.h"
#include "weightstore/client/publisher.h"

namespace titan::weightstore {
namespace {

constexpr char kRun[] = "bench";
constexpr char kPlanDigest[] = "0123456789abcdef0123456789abcdef";
constexpr int kWarmUp = 20;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename T>
T OrExit(StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "titan-bench-commit: %s\n", value.status().ToString().c_str());
    std::exit(1);
  }
  return *std::move(value);
}

// A field of a protobuf message whose content is bytes.
std::string BytesField(int number, const std::string& bytes) {
  std::string field(1, static_cast<char>(number << 3 | 2));
  for (size_t size = bytes.size();; size >>= 7) {
    field += static_cast<char>((size & 0x7f) | (size > 0x7f ? 0x80 : 0));
    if (size <= 0x7f) break;
  }
  return field + bytes;
}

// etcd's KV.Put {key = 1, value = 2}: field numbers of its public interface.
class Etcd {
 public:
  explicit Etcd(const std::string& address) : stub_(OrExit(rpc::MakeChannel(address))) {}

  void Put(const std::string& key, const std::string& value) {
    const grpc::Slice slice(BytesField(1, key) + BytesField(2, value));
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer answer;
    grpc::ClientContext context;
    std::promise<grpc::Status> done;
    stub_.UnaryCall(&context, "/etcdserverpb.KV/Put", grpc::StubOptions(), &request, &answer,
                    [&](grpc::Status status) { done.set_value(std::move(status)); });
    const grpc::Status status = done.get_future().get();
    if (status.ok()) return;
    std::fprintf(stderr, "titan-bench-commit: etcd: %s\n", status.error_message().c_str());
    std::exit(1);
  }

 private:
  grpc::GenericStub stub_;
};

double Percentile(std::vector<double> seconds, double share) {
  std::sort(seconds.begin(), seconds.end());
  return 1e3 * seconds[static_cast<size_t>(share * static_cast<double>(seconds.size() - 1))];
}

int Run(const std::string& address, const std::string& socket_path, int count,
        const char* etcd_address) {
  Manifest manifest;
  manifest.tensors = {{"w", {1024}, DType::kF32, Layout::kRows, 0, 4096}};
  manifest.slot_bytes = 4096;
  manifest.model_config_json = "{}";
  const auto leader = OrExit(StandaloneLeader::Create(address));
  auto publisher = OrExit(Publisher::Register(leader->port(), {.socket_path = socket_path,
                                                               .run_id = kRun,
                                                               .request_id = "bench",
                                                               .manifest = std::move(manifest)}));
  std::unique_ptr<Etcd> etcd;
  if (etcd_address != nullptr) etcd = std::make_unique<Etcd>(etcd_address);
  std::vector<double> ours, theirs;
  for (int i = 0; i < kWarmUp + count; ++i) {
    const auto version = static_cast<uint64_t>(i);
    const auto begun = OrExit(publisher->Begin(version, std::chrono::seconds(60)));
    std::memcpy(begun.bytes.data(), &version, sizeof(version));
    const Hash128 digest = OrExit(publisher->Finish());
    double start = Now();
    OrExit(publisher->Commit(kPlanDigest, version));
    if (i >= kWarmUp) ours.push_back(Now() - start);
    if (etcd == nullptr) continue;
    v1::CommitVersionRequest request;
    request.set_run_id(kRun);
    request.set_epoch(publisher->epoch());
    request.set_version(version);
    request.set_weights_digest(ToHex(digest));
    request.set_plan_digest(kPlanDigest);
    request.set_train_step(version);
    const std::string key = "version/bench/" + std::to_string(version);
    const std::string value(request.ByteSizeLong() - key.size() - 4, 'x');  // 4: the fields' heads
    start = Now();
    etcd->Put(key, value);
    if (i >= kWarmUp) theirs.push_back(Now() - start);
  }
  for (const auto& [name, share] : {std::pair("commit_p50", 0.5), std::pair("commit_p99", 0.99)}) {
    std::printf("{\"id\": \"%s\", \"unit\": \"ms\", \"ours\": %.6g", name, Percentile(ours, share));
    if (etcd != nullptr) {
      std::printf(", \"peer\": %.6g, \"peer_name\": \"etcd put\"", Percentile(theirs, share));
    }
    std::printf("}\n");
  }
  return 0;
}

}  // namespace
}  // namespace titan::weightstore

int main(int argc, char** argv) {
  const int count = argc >= 4 ? std::atoi(argv[3]) : 0;
  if (argc > 5 || count < 1 || count > 1'000'000) {
    std::fprintf(stderr, "usage: titan-bench-commit ADDRESS SOCKET COUNT [ETCD]\n");
    return 2;
  }
  return titan::weightstore::Run(argv[1], argv[2], count, argc == 5 ? argv[4] : nullptr);
}
