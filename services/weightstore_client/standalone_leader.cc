// SPDX-License-Identifier: Apache-2.0
#include "services/weightstore_client/standalone_leader.h"

#include <chrono>
#include <thread>
#include <utility>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include "services/rpc/rpc_client.h"

namespace titan::weightstore {
namespace {

constexpr std::chrono::seconds kPatience{10};  // for calls that were cancelled to return

}  // namespace

struct StandaloneLeader::Impl {
  boost::asio::io_context io{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work =
      boost::asio::make_work_guard(io);
  std::jthread control{[this] { io.run(); }};
  rpc::RpcClient client{io.get_executor()};
  std::unique_ptr<GrpcLeader> leader;

  ~Impl() {
    client.CancelAll();
    client.WaitIdle(kPatience);
    work.reset();
    io.stop();
    control.join();
  }
};

StandaloneLeader::StandaloneLeader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StandaloneLeader::~StandaloneLeader() = default;

StatusOr<std::unique_ptr<StandaloneLeader>> StandaloneLeader::Create(const std::string& address) {
  auto impl = std::make_unique<Impl>();
  TITAN_ASSIGN_OR_RETURN(impl->leader, GrpcLeader::Create(impl->client, address));
  return std::unique_ptr<StandaloneLeader>(new StandaloneLeader(std::move(impl)));
}

GrpcLeader& StandaloneLeader::port() { return *impl_->leader; }

}  // namespace titan::weightstore
