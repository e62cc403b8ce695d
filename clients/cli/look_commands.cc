// SPDX-License-Identifier: Apache-2.0
// rollouts, chat: what the orchestrator streams.
#include <fmt/format.h>

#include <iostream>

#include <nlohmann/json.hpp>

#include "clients/cli/commands.h"
#include "clients/cli/rollout_view.h"
#include "clients/cluster/job_client.h"
#include "clients/cluster/terminal.h"
#include "services/rpc/config.h"
#include "services/rpc/status_convert.h"

namespace titan::cli {

using namespace orchestrator::v1;  // NOLINT: every name here is of the orchestrator's protocol

int ShowRollouts(const Common& common, const std::string& job_id, const RolloutOptions& options) {
  ListRolloutsRequest request;
  request.set_job_id(job_id);
  if (options.step.has_value()) request.set_step(*options.step);
  for (const std::string& text : options.groups) {
    uint64_t id = 0;
    if (!ParseGroupId(text, &id)) {
      return Fail(InvalidArgument("--group " + text +
                                  ": is no group id; wants one as `titanctl rollouts " + job_id +
                                  "` prints it, 0x and up to 16 hex digits, for example "
                                  "0x0000000001000000, or with -o json, in decimal digits"));
    }
    request.add_group_ids(id);
  }
  request.set_max_groups(static_cast<uint32_t>(options.limit));
  auto client = ConnectTo(common);
  if (!client.ok()) return Fail(client.status());
  const cluster::Terminal terminal = cluster::Terminal::Stdout();
  const Status status = (*client)->ListRollouts(request, [&](const ListRolloutsResponse& group) {
    if (common.json) {
      std::cout << rpc::ToJsonText(group, /*all_fields=*/true, -1) << "\n";
    } else {
      std::cout << FormatRollout(group, !options.texts, terminal);
    }
    std::cout << std::flush;
    return std::cout.good();
  });
  return status.ok() ? kExitOk : Fail(status);
}

namespace {

// One reply, shown as it comes; appended to the conversation.
Status Converse(cluster::JobClient& client, const Common& common, ChatRequest* request) {
  std::string reply;
  const Status status = client.Chat(*request, [&](const ChatResponse& part) {
    reply += part.text();
    if (common.json) {
      std::cout << rpc::ToJsonText(part, /*all_fields=*/true, -1) << std::endl;
    } else {
      std::cout << cluster::Printable(part.text()) << std::flush;
      if (part.done()) {
        const cluster::Terminal terminal = cluster::Terminal::Stdout();
        std::cout << "\n"
                  << terminal.Paint(
                         cluster::Color::kYellow,
                         fmt::format("[version {}, {}]", part.version(), part.worker_id()))
                  << std::endl;
      }
    }
    return std::cout.good();
  });
  auto& message = *request->add_messages();
  message.set_role("assistant");
  message.set_content(reply);
  return status;
}

void Say(const std::string& role, const std::string& content, ChatRequest* request) {
  auto& message = *request->add_messages();
  message.set_role(role);
  message.set_content(content);
}

}  // namespace

int Chat(const Common& common, const std::string& job_id, const ChatOptions& options) {
  auto client = ConnectTo(common);
  if (!client.ok()) return Fail(client.status());
  ChatRequest request;
  request.set_job_id(job_id);
  if (options.version.has_value()) request.set_version(*options.version);
  request.set_temperature(options.temperature);
  request.set_max_new_tokens(static_cast<uint32_t>(options.max_new_tokens));
  request.set_seed(options.seed);
  if (!options.system.empty()) Say("system", options.system, &request);
  if (!options.message.empty()) {
    Say("user", options.message, &request);
    const Status status = Converse(**client, common, &request);
    return status.ok() ? kExitOk : Fail(status);
  }
  // Said before a person has written a line.
  const auto job = (*client)->Get(job_id);
  if (!job.ok()) return Fail(job.status());
  if (cluster::IsFinal(job->state())) {
    return Fail(rpc::WithReason(
        FailedPrecondition("job '" + job_id + "' is " + cluster::NameOf(job->state()) +
                           ": its versions are not served any more"),
        "JOB_NOT_RUNNING", "chat while the job is RUNNING"));
  }
  const bool person = cluster::IsTerminal(0);
  if (person) std::cerr << "an empty line or Ctrl-D ends the conversation\n";
  for (std::string line;;) {
    if (person) std::cerr << "> " << std::flush;
    if (!std::getline(std::cin, line) || line.empty()) return kExitOk;
    Say("user", line, &request);
    const Status status = Converse(**client, common, &request);
    if (!status.ok()) return Fail(status);
  }
}

}  // namespace titan::cli
