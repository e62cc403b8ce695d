// SPDX-License-Identifier: Apache-2.0
#include "services/rpc/rpc_client.h"

#include "core/base/check.h"

namespace titan::rpc {

RpcClient::RpcClient(asio::any_io_executor control, DebugDelay delay)
    : control_(std::move(control)), delay_(std::move(delay)) {}

RpcClient::~RpcClient() {
  std::lock_guard lock(mutex_);
  TITAN_CHECK(open_.empty());
}

void RpcClient::CancelAll() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  for (const auto& context : open_) context->TryCancel();
}

bool RpcClient::WaitIdle(Milliseconds patience) {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, patience, [&] { return open_.empty(); });
}

std::shared_ptr<grpc::ClientContext> RpcClient::Open(Milliseconds deadline) {
  auto context = std::make_shared<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + deadline);
  std::lock_guard lock(mutex_);
  if (closed_) return nullptr;
  open_.insert(context);
  return context;
}

void RpcClient::Close(const std::shared_ptr<grpc::ClientContext>& context) {
  std::lock_guard lock(mutex_);
  open_.erase(context);
  if (open_.empty()) idle_.notify_all();
}

}  // namespace titan::rpc
