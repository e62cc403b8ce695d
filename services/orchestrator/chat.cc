// SPDX-License-Identifier: Apache-2.0
//
// Chat: one reply of a version that a generator holds. It runs beside the job, behind its samples,
// and leaves no fact; the version may be released at once afterwards.
#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "core/text/tokenizer.h"
#include "orchestrator/fleet.h"
#include "services/orchestrator/daemon.h"
#include "services/rpc/status_convert.h"

namespace titan::orchestrator {
namespace {

namespace pb = generator::v1;
using Async = pb::GeneratorService::StubInterface::async_interface;

constexpr uint32_t kDefaultNewTokens = 256;
constexpr rpc::Milliseconds kReplyDeadline{600'000};
// A version that was asked for is held now or hardly ever again; for the newest one the generators
// may have to wait until a step has made it.
constexpr rpc::Milliseconds kVersionPatience{3000};
constexpr rpc::Milliseconds kNewestPatience{120'000};
constexpr rpc::Milliseconds kHolderPause{200};
// Behind everything of the job, evaluations included.
constexpr uint64_t kPriority = ~uint64_t{0};

// Groups of chats: the two top bits, then a number that counts up.
GroupId ChatGroup(uint64_t number) { return {uint64_t{3} << 62 | (number & 0x3fffffffffffffff)}; }

}  // namespace

asio::awaitable<StatusOr<OrchestratorDaemon::ChatHolder>> OrchestratorDaemon::FindHolder(
    std::string run_id, std::optional<uint64_t> version) {
  std::optional<ChatHolder> best;
  std::set<uint64_t> held_versions;
  const std::vector<WorkerName> names = Generators();
  for (const WorkerName& name : names) {
    auto stub = generator_stubs_.Get(workers_, name);
    if (!stub.ok()) continue;
    const pb::GetStatusRequest ask;
    const StatusOr<pb::GetStatusResponse> status = co_await rpc::CallUnary(
        context_.client, **stub, &Async::GetStatus, ask, ports_.rpc_deadline);
    if (!status.ok()) continue;
    for (const pb::HeldVersion& held : status->versions()) {
      if (held.run_id() != run_id || held.weights_digest().empty()) continue;  // empty: it loads
      held_versions.insert(held.version());
      if (version.has_value() && held.version() != *version) continue;
      const bool better = !best.has_value() || held.version() > best->version ||
                          (held.version() == best->version &&
                           status->sequences_running() < best->sequences_running);
      if (better) {
        best =
            ChatHolder{name, *stub, held.version(), held.evaluation(), status->sequences_running()};
      }
    }
  }
  if (best.has_value()) co_return *best;
  std::string list;
  for (const uint64_t held : held_versions)
    list += (list.empty() ? "" : ", ") + std::to_string(held);
  const std::string what = version.has_value()
                               ? "no generator holds version " + std::to_string(*version)
                               : "no generator holds a version of this job";
  if (held_versions.empty()) {
    co_return rpc::WithReason(FailedPrecondition(what), "VERSION_NOT_HELD",
                              "the generators take up the next version when a step ends; try again "
                              "while the job is RUNNING");
  }
  co_return rpc::WithReason(NotFound(what), "VERSION_NOT_HELD",
                            "versions that are held now: " + list);
}

asio::awaitable<Status> OrchestratorDaemon::Chat(
    v1::ChatRequest request, std::shared_ptr<rpc::ResponseStream<v1::ChatResponse>> out) {
  const auto found = driver_->engine().jobs().find(request.job_id());
  if (found == driver_->engine().jobs().end()) {
    co_return rpc::WithReason(NotFound("no job '" + request.job_id() + "'"), "NO_SUCH_JOB",
                              "titanctl list shows the ids of the jobs");
  }
  const std::string run_id = found->second.run_id;
  const std::shared_ptr<const JobSpec> spec = found->second.spec;
  const auto run = ports_.runs.find(run_id);
  if (found->second.state == JobState::kQueued) {
    co_return rpc::WithReason(
        FailedPrecondition("job '" + request.job_id() + "' is QUEUED: it has no version yet"),
        "JOB_NOT_RUNNING", "chat while the job is RUNNING");
  }
  if (IsFinal(found->second.state) || run == ports_.runs.end()) {
    co_return rpc::WithReason(
        FailedPrecondition("job '" + request.job_id() + "' is " + NameOf(found->second.state) +
                           ": its versions are not served any more"),
        "JOB_NOT_RUNNING", "chat while the job is RUNNING");
  }
  const std::shared_ptr<const PromptRenderer> renderer = run->second.renderer;
  if (request.messages().empty()) co_return InvalidArgument("messages: at least one is required");
  const float temperature = request.has_temperature() ? request.temperature() : 1.0f;
  if (!(temperature >= 0 && temperature <= 100)) {
    co_return InvalidArgument("temperature: wants 0 to 100");
  }
  std::vector<ChatMessage> messages;
  for (const v1::ChatMessage& message : request.messages()) {
    messages.push_back({message.role(), message.content()});
  }
  const StatusOr<std::vector<TokenId>> prompt = renderer->RenderChat(*spec, messages);
  if (!prompt.ok()) co_return prompt.status();
  const size_t room = spec->model.max_sequence_tokens;
  if (prompt->size() + 1 > room) {
    co_return InvalidArgument("messages: have " + std::to_string(prompt->size()) +
                              " tokens; model.max_sequence_tokens of the job is " +
                              std::to_string(room));
  }
  const uint32_t wanted =
      request.max_new_tokens() == 0 ? kDefaultNewTokens : request.max_new_tokens();
  pb::GenerateGroupRequest generate;
  const GroupId group = ChatGroup(next_chat_++);
  generate.set_request_id(run_id + "-chat-" + std::to_string(group.value));
  generate.set_orchestrator_epoch(ports_.epoch);
  generate.set_run_id(run_id);
  generate.set_group_id(group.value);
  generate.set_attempt(1);
  generate.set_seed(request.seed());
  generate.mutable_prompt_token_ids()->Add(prompt->begin(), prompt->end());
  generate.add_sample_indexes(0);
  generate.add_sample_ids(MakeSampleId(ChatGroup(0), 0).value);  // the seed alone decides
  auto& sampling = *generate.mutable_sampling();
  sampling.set_temperature(temperature);
  sampling.set_max_new_tokens(
      std::min<uint32_t>(wanted, static_cast<uint32_t>(room - prompt->size())));
  sampling.mutable_stop_token_ids()->Add(renderer->stop_token_ids().begin(),
                                         renderer->stop_token_ids().end());
  generate.set_priority(kPriority);

  // Generators change versions all the time: a step that trains for long leaves them without one.
  const std::optional<uint64_t> version =
      request.has_version() ? std::optional(request.version()) : std::nullopt;
  const titan::Instant give_up =
      context_.clock.Now() + (version.has_value() ? kVersionPatience : kNewestPatience);
  for (;;) {
    const StatusOr<ChatHolder> holder = co_await FindHolder(run_id, version);
    Status failure = holder.status();
    bool started = false;
    if (holder.ok()) {
      generate.set_version(holder->version);
      generate.set_evaluation(holder->evaluation);
      failure = co_await ChatWith(*holder, generate, renderer, out, &started);
    }
    const bool may_change = failure.code() == StatusCode::kFailedPrecondition ||
                            failure.code() == StatusCode::kUnavailable;
    const auto job = driver_->engine().jobs().find(request.job_id());
    const bool ended = job == driver_->engine().jobs().end() || IsFinal(job->second.state);
    if (started || !may_change || ended || stopping_ || out->cancelled() ||
        context_.clock.Now() > give_up) {
      co_return failure;
    }
    const auto pause = std::make_shared<asio::steady_timer>(context_.control, kHolderPause);
    out->OnCancel([pause] { pause->cancel(); });  // a caller that goes is let go at once
    boost::system::error_code woken;
    co_await pause->async_wait(asio::redirect_error(asio::use_awaitable, woken));
  }
}

asio::awaitable<Status> OrchestratorDaemon::ChatWith(
    ChatHolder holder, pb::GenerateGroupRequest generate,
    std::shared_ptr<const PromptRenderer> renderer,
    std::shared_ptr<rpc::ResponseStream<v1::ChatResponse>> out, bool* started) {
  struct State {
    std::optional<Status> ended;
    bool started = false;
    text::DecodeStream decode;
    explicit State(const text::Tokenizer& tokenizer) : decode(tokenizer, true) {}
  };
  auto state = std::make_shared<State>(renderer->tokenizer());
  auto wake =
      std::make_shared<asio::steady_timer>(context_.control, asio::steady_timer::time_point::max());
  const std::function<void(pb::GenerateGroupResponse)> on_chunk =
      [state, out, version = holder.version, worker = holder.name.worker_id,
       prompt_tokens = generate.prompt_token_ids_size(),
       renderer](const pb::GenerateGroupResponse& chunk) {
        state->started = true;
        v1::ChatResponse part;
        std::string text;
        for (const TokenId id : chunk.token_ids()) text += state->decode.Push(id);
        if (chunk.done()) text += state->decode.Finish();
        part.set_text(text);
        *part.mutable_token_ids() = chunk.token_ids();
        *part.mutable_logprobs() = chunk.logprobs();
        part.set_done(chunk.done());
        part.set_finish_reason(chunk.finish_reason());
        part.set_version(version);
        part.set_worker_id(worker);
        part.set_prompt_tokens(static_cast<uint32_t>(prompt_tokens));
        out->Push(std::move(part)).IgnoreError();  // a reader that is gone is noticed below
      };
  const std::function<void(Status)> on_done = [state, wake,
                                               stub = holder.stub](const Status& status) {
    state->ended = status;
    wake->cancel();
  };
  rpc::StreamHandle handle =
      rpc::CallServerStream(context_.client, *holder.stub, &Async::GenerateGroup,
                            std::move(generate), kReplyDeadline, on_chunk, on_done);
  out->OnCancel([handle]() mutable { handle.Cancel(); });
  while (!state->ended.has_value()) {
    boost::system::error_code woken;
    co_await wake->async_wait(asio::redirect_error(asio::use_awaitable, woken));
  }
  *started = state->started;
  co_return *state->ended;
}

}  // namespace titan::orchestrator
