// SPDX-License-Identifier: Apache-2.0
#include "services/weightstore/leader_link.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "core/base/check.h"
#include "core/runtime/log.h"
#include "services/rpc/channel.h"
#include "services/weightstore/host_messages.h"
#include "services/weightstore/host_questions.h"
#include "services/weightstore/host_service.h"
#include "services/weightstore_client/convert.h"

namespace titan::weightstore {
namespace {

namespace asio = rpc::asio;
using Async = v1::HostService::StubInterface::async_interface;
using rpc::Milliseconds;
using std::chrono::steady_clock;

constexpr Milliseconds kRetry{200};
constexpr Milliseconds kReportDeadline{2'000};
// A stream has a deadline like every call; an attachment lasts as long as both sides.
constexpr std::chrono::hours kAttachDeadline{24 * 365};
constexpr size_t kReportAtOnce = 1024;  // events

}  // namespace

// What is to be reported, and who is to be woken for it.
struct LeaderLink::News {
  explicit News(asio::any_io_executor control) : timer(control) {}

  void Add(std::optional<v1::HostEvent> event, std::optional<v1::HostAnswer> answer,
           const std::shared_ptr<News>& self) {
    {
      std::lock_guard lock(mutex);
      if (event.has_value()) events.push_back(*std::move(event));
      if (answer.has_value()) answers.push_back(*std::move(answer));
    }
    Wake(self);
  }
  static void Wake(const std::shared_ptr<News>& self) {
    asio::post(self->timer.get_executor(), [self] {
      self->woken = true;
      self->timer.cancel();
    });
  }

  std::mutex mutex;  // of the two
  std::vector<v1::HostEvent> events;
  std::vector<v1::HostAnswer> answers;
  asio::steady_timer timer;  // control strand, as what follows
  bool woken = false;
};

StatusOr<std::unique_ptr<LeaderLink>> LeaderLink::Create(rpc::DaemonContext& context,
                                                         Options options) {
  TITAN_ASSIGN_OR_RETURN(auto channel, rpc::MakeChannel(options.leader_address));
  return std::unique_ptr<LeaderLink>(new LeaderLink(context, std::move(options), channel));
}

LeaderLink::LeaderLink(rpc::DaemonContext& context, Options options,
                       std::shared_ptr<grpc::Channel> channel)
    : context_(context),
      options_(std::move(options)),
      stub_(v1::HostService::NewStub(channel)),
      news_(std::make_shared<News>(context.control)) {}

LeaderLink::~LeaderLink() { TITAN_CHECK(!running_); }

void LeaderLink::Start(Host& host) {
  TITAN_CHECK(!running_ && !stopping_);
  host_ = &host;
  running_ = true;
  context_.set_ready(false, "not attached to the leader");
  asio::co_spawn(context_.control, Loop(), [this](std::exception_ptr) { running_ = false; });
}

asio::awaitable<void> LeaderLink::Stop() {
  stopping_ = true;
  News::Wake(news_);
  asio::steady_timer poll(context_.control);
  while (running_) {
    poll.expires_after(Milliseconds(5));
    boost::system::error_code ignored;
    co_await poll.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
}

asio::awaitable<void> LeaderLink::Loop() {
  while (!stopping_) {
    const Status ended = co_await StayAttached();
    if (stopping_) break;
    if (ended.code() == StatusCode::kInvalidArgument) {
      context_.request_shutdown(Annotate(ended, "the leader refuses this host"));
      break;
    }
    context_.set_ready(false, "not attached to the leader: " + MessageOf(ended));
    if (const Instant now = context_.clock.Now(); notice_.Due(now)) {
      TITAN_LOG(kWarning, "not_attached", {"leader", options_.leader_address},
                {"waited_s", notice_.Waited(now).count()}, {"status", ended},
                {"next", "serves its readers and tries again until the leader answers"});
    }
    asio::steady_timer pause(context_.control, kRetry);
    boost::system::error_code ignored;
    co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
}

asio::awaitable<Status> LeaderLink::StayAttached() {
  attachment_ = num_done_ = num_reported_ = 0;
  broken_ = OkStatus();
  {
    // What happened so far is in what the host reports as a whole; what is answered belongs to an
    // attachment that is over.
    std::lock_guard lock(news_->mutex);
    news_->events.clear();
    news_->answers.clear();
  }
  v1::AttachRequest hello;
  hello.set_protocol(kHostProtocol);
  hello.set_host(options_.host);
  hello.set_incarnation(context_.incarnation);
  hello.set_memory_limit_bytes(options_.memory_limit_bytes);
  hello.set_data_plane_address(data_plane_.address);
  for (const Lane lane : data_plane_.lanes) hello.add_data_plane_lanes(ToProto(lane));
  ToProto(host_->Report(), &hello);
  heard_ = steady_clock::now();
  std::optional<Status> ended;
  const std::function<void(v1::AttachResponse)> on_message = [this](v1::AttachResponse message) {
    Take(message);
  };
  const std::function<void(Status)> on_done = [this, &ended](Status status) {
    ended = std::move(status);
    news_->timer.cancel();
    news_->woken = true;
  };
  rpc::StreamHandle stream = rpc::CallServerStream<v1::HostService::StubInterface, Async,
                                                   v1::AttachRequest, v1::AttachResponse>(
      context_.client, *stub_, &Async::Attach, hello, kAttachDeadline, on_message, on_done);
  auto reported = steady_clock::now();
  while (!ended.has_value()) {
    const auto now = steady_clock::now();
    if (stopping_ && broken_.ok()) broken_ = Cancelled("the host daemon ends");
    if (broken_.ok() && now - heard_ > kHostSilence) {
      broken_ = DeadlineExceeded("the leader was silent for " +
                                 std::to_string(kHostSilence.count()) + " ms");
    }
    if (!broken_.ok()) stream.Cancel();
    v1::ReportRequest report;
    if (broken_.ok() && attachment_ != 0 && (TakeNews(&report) || now - reported >= kHostSign)) {
      report.set_attachment(attachment_);
      report.set_num_done(num_done_);
      num_reported_ = num_done_;
      reported = now;
      const auto taken = co_await rpc::CallUnary(context_.client, *stub_, &Async::Report,
                                                 std::move(report), kReportDeadline);
      if (!taken.ok() && broken_.ok()) broken_ = taken.status();
      continue;
    }
    if (!std::exchange(news_->woken, false)) {
      news_->timer.expires_after(kHostSign / 2);
      boost::system::error_code woken;
      co_await news_->timer.async_wait(asio::redirect_error(asio::use_awaitable, woken));
    }
  }
  co_return broken_.ok() ? *ended : broken_;
}

void LeaderLink::Take(const v1::AttachResponse& message) {
  heard_ = steady_clock::now();
  if (!broken_.ok()) return;
  if (attachment_ == 0) {
    attachment_ = message.attachment();
    notice_.Over();
    TITAN_LOG(kInfo, "attached", {"leader", options_.leader_address}, {"host", options_.host});
    context_.set_ready(true, "");
  }
  std::vector<HostCommand> commands;
  const auto carry_out = [&] {
    num_done_ += commands.size();
    host_->Send(std::exchange(commands, {}));
  };
  for (const v1::HostCommand& one : message.commands()) {
    if (const std::optional<uint64_t> question = QuestionOf(one); question.has_value()) {
      carry_out();
      Answer(one, *question);
      continue;
    }
    StatusOr<HostCommand> command = FromProto(one);
    if (!command.ok()) {
      broken_ = Annotate(command.status(), "the leader sent a command");
      break;
    }
    commands.push_back(*std::move(command));
  }
  carry_out();
  news_->woken = true;
  news_->timer.cancel();
}

void LeaderLink::Answer(const v1::HostCommand& question, uint64_t number) {
  const auto tell = [news = news_, number](StatusOr<v1::HostAnswer> result) {
    v1::HostAnswer answer;
    if (result.ok()) answer = *std::move(result);
    if (!result.ok()) *answer.mutable_failure() = FailureToProto(result.status());
    answer.set_question(number);
    news->Add(std::nullopt, std::move(answer), news);
  };
  const Status posted =
      context_.blocking.Post([host = host_, question, tell] { tell(AnswerTo(question, *host)); });
  if (!posted.ok()) tell(posted);
}

bool LeaderLink::TakeNews(v1::ReportRequest* report) {
  bool more = false;
  {
    std::lock_guard lock(news_->mutex);
    const size_t count = std::min(news_->events.size(), kReportAtOnce);
    for (size_t i = 0; i < count; ++i) *report->add_events() = std::move(news_->events[i]);
    news_->events.erase(news_->events.begin(),
                        news_->events.begin() + static_cast<std::ptrdiff_t>(count));
    more = !news_->events.empty();
    // A chunk of a slot may have 1 MiB, so that one answer is enough for a message.
    if (!more && !news_->answers.empty()) {
      *report->add_answers() = std::move(news_->answers.front());
      news_->answers.erase(news_->answers.begin());
      more = !news_->answers.empty();
    }
  }
  if (more) news_->woken = true;
  return report->events_size() > 0 || report->answers_size() > 0 || num_done_ > num_reported_;
}

void LeaderLink::Add(v1::HostEvent event) { news_->Add(std::move(event), std::nullopt, news_); }

void LeaderLink::SlotMade(uint64_t slot_id) {
  v1::HostEvent event;
  event.set_slot_made(slot_id);
  Add(std::move(event));
}

void LeaderLink::SlotNotMade(uint64_t slot_id, const Status& why) {
  v1::HostEvent event;
  event.mutable_slot_not_made()->set_slot_id(slot_id);
  *event.mutable_slot_not_made()->mutable_why() = FailureToProto(why);
  Add(std::move(event));
}

void LeaderLink::LeaseMapped(uint64_t lease_id) {
  v1::HostEvent event;
  event.set_lease_mapped(lease_id);
  Add(std::move(event));
}

void LeaderLink::LeaseEnded(uint64_t lease_id) {
  v1::HostEvent event;
  event.set_lease_ended(lease_id);
  Add(std::move(event));
}

void LeaderLink::WriterGone(const std::string& run_id, uint64_t epoch) {
  v1::HostEvent event;
  event.mutable_writer_gone()->set_run_id(run_id);
  event.mutable_writer_gone()->set_epoch(epoch);
  Add(std::move(event));
}

void LeaderLink::SlotOffered(const std::string&, const SlotOffer& offer) {
  v1::HostEvent event;
  *event.mutable_slot_offered() = ToProto(offer);
  Add(std::move(event));
}

}  // namespace titan::weightstore
