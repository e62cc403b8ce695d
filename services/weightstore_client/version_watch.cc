// SPDX-License-Identifier: Apache-2.0
#include "services/weightstore_client/version_watch.h"

#include <utility>

#include <boost/asio/steady_timer.hpp>

#include "services/rpc/channel.h"

namespace titan::weightstore {

namespace asio = boost::asio;
using Async = v1::WeightStoreService::StubInterface::async_interface;

namespace {

// Of one stream; the next one is told the present state.
constexpr rpc::Milliseconds kStreamDeadline{3'600'000};

}  // namespace

struct VersionWatch::State {
  rpc::RpcClient& client;
  const std::unique_ptr<Service::StubInterface> stub;
  const std::chrono::milliseconds retry;
  OnChange on_change;  // empty once the watch has gone
  struct Stream {
    uint64_t number = 0;  // no other stream has it
    rpc::StreamHandle handle;
  };
  std::map<std::string, Stream> streams;  // by run
  uint64_t last_number = 0;
};

StatusOr<std::unique_ptr<VersionWatch>> VersionWatch::Create(rpc::RpcClient& client,
                                                             const std::string& weightstore_address,
                                                             OnChange on_change,
                                                             std::chrono::milliseconds retry) {
  const auto channel = rpc::MakeChannel(weightstore_address);
  if (!channel.ok()) return Annotate(channel.status(), "weightstore_address");
  return std::unique_ptr<VersionWatch>(new VersionWatch(std::shared_ptr<State>(
      new State{client, Service::NewStub(*channel), retry, std::move(on_change), {}, 0})));
}

VersionWatch::~VersionWatch() {
  state_->on_change = nullptr;
  Follow({});
}

void VersionWatch::Follow(const std::set<std::string>& runs) {
  for (auto it = state_->streams.begin(); it != state_->streams.end();) {
    if (runs.contains(it->first)) {
      ++it;
      continue;
    }
    it->second.handle.Cancel();
    it = state_->streams.erase(it);
  }
  for (const std::string& run_id : runs) {
    if (!state_->streams.contains(run_id)) Open(state_, run_id);
  }
}

void VersionWatch::Open(const std::shared_ptr<State>& state, const std::string& run_id) {
  v1::WatchVersionsRequest request;
  request.set_run_id(run_id);
  const uint64_t number = ++state->last_number;
  // Nobody follows the run any more, or does so by another stream.
  const auto let_go = [state, run_id, number] {
    const auto stream = state->streams.find(run_id);
    return stream == state->streams.end() || stream->second.number != number;
  };
  State::Stream& stream = state->streams[run_id];
  stream.number = number;
  stream.handle = rpc::CallServerStream(
      state->client, *state->stub, &Async::WatchVersions, std::move(request), kStreamDeadline,
      [state, run_id, let_go](v1::WatchVersionsResponse response) {
        for (const v1::VersionInfo& version : response.versions()) {
          const v1::VersionState now = version.state();
          const bool retired = now == v1::VERSION_STATE_RETIRED;
          if (!retired && now != v1::VERSION_STATE_LOST && now != v1::VERSION_STATE_COMMITTED &&
              now != v1::VERSION_STATE_FREE) {
            continue;
          }
          if (let_go() || !state->on_change) return;
          state->on_change(run_id, version.version(), retired ? Change::kRetired : Change::kMoved);
        }
      },
      [state, run_id, let_go](Status status) {
        if (status.code() == StatusCode::kCancelled || let_go()) return;  // this process ends
        if (status.ok()) {                                                // the run has ended
          if (state->on_change) state->on_change(run_id, std::nullopt, Change::kMoved);
          return;
        }
        auto timer = std::make_shared<asio::steady_timer>(state->client.control(), state->retry);
        timer->async_wait([state, run_id, let_go, timer](boost::system::error_code) {
          if (!let_go()) Open(state, run_id);
        });
      });
}

}  // namespace titan::weightstore
