// SPDX-License-Identifier: Apache-2.0
#include "services/weightstore/remote_host.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "services/weightstore/host_messages.h"
#include "services/weightstore_client/convert.h"

namespace titan::weightstore {
namespace {

// A slot that is hashed or copied; a host that is gone is noticed long before.
constexpr std::chrono::seconds kAnswerPatience{120};
constexpr uint32_t kChunkBytes = 1u << 20;

Status Gone() { return Unavailable("the host daemon was lost sight of"); }

}  // namespace

RemoteHost::RemoteHost(std::shared_ptr<Stream> stream, uint64_t attachment)
    : stream_(std::move(stream)), last_question_(attachment << 24) {
  v1::AttachResponse first;
  first.set_attachment(attachment);
  Push(std::move(first));
}

void RemoteHost::Push(v1::AttachResponse message) {
  const Status pushed = stream_->Push(std::move(message));
  // A host that does not read is cut off; it attaches again with what it has.
  if (!pushed.ok()) End(pushed);
}

void RemoteHost::SignOfLife() { Push(v1::AttachResponse()); }

void RemoteHost::End(const Status& why) {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
    answered_.notify_all();
  }
  stream_->Finish(why);
}

Status RemoteHost::Took(const v1::ReportRequest& report) {
  std::lock_guard lock(mutex_);
  if (report.num_done() > num_sent_ || report.num_done() < num_done_) {
    return InvalidArgument("num_done: is " + std::to_string(report.num_done()) + " after " +
                           std::to_string(num_done_) + " of " + std::to_string(num_sent_));
  }
  for (const v1::HostAnswer& answer : report.answers()) {
    const auto question = questions_.find(answer.question());
    if (question != questions_.end()) question->second = answer;  // else nobody waits any more
  }
  num_done_ = report.num_done();
  answered_.notify_all();
  return OkStatus();
}

void RemoteHost::Send(std::vector<HostCommand> commands) {
  v1::AttachResponse message;
  for (const HostCommand& command : commands) *message.add_commands() = ToProto(command);
  {
    std::lock_guard lock(mutex_);
    num_sent_ += commands.size();
  }
  Push(std::move(message));
}

template <typename Fill>
StatusOr<v1::HostAnswer> RemoteHost::Ask(Fill fill) {
  v1::AttachResponse message;
  uint64_t question;
  {
    std::lock_guard lock(mutex_);
    if (ended_) return Gone();
    question = ++last_question_;
    questions_[question] = std::nullopt;
  }
  fill(message.add_commands(), question);
  Push(std::move(message));
  std::unique_lock lock(mutex_);
  const bool answered = answered_.wait_for(
      lock, kAnswerPatience, [&] { return ended_ || questions_.at(question).has_value(); });
  std::optional<v1::HostAnswer> answer = std::move(questions_.at(question));
  questions_.erase(question);
  if (!answered) return Unavailable("the host daemon has not answered");
  if (!answer.has_value()) return Gone();
  if (answer->has_failure()) return FailureFromProto(answer->failure());
  return *std::move(answer);
}

StatusOr<Hash128> RemoteHost::HashWritten(uint64_t slot_id, uint64_t grant,
                                          std::shared_ptr<const Manifest> manifest) {
  const auto fill = [&](v1::HostCommand* command, uint64_t question) {
    v1::HashWritten& message = *command->mutable_hash_written();
    message.set_question(question);
    message.set_slot_id(slot_id);
    message.set_grant(grant);
    *message.mutable_manifest() = ToProto(*manifest);
  };
  TITAN_ASSIGN_OR_RETURN(const v1::HostAnswer answer, Ask(fill));
  return DigestFromProto("weights_digest", answer.weights_digest());
}

StatusOr<Hash128> RemoteHost::CopySlot(uint64_t from_slot, uint64_t to_slot, uint64_t to_grant,
                                       std::shared_ptr<const Manifest> manifest) {
  const auto fill = [&](v1::HostCommand* command, uint64_t question) {
    v1::CopySlot& message = *command->mutable_copy_slot();
    message.set_question(question);
    message.set_from_slot(from_slot);
    message.set_to_slot(to_slot);
    message.set_to_grant(to_grant);
    *message.mutable_manifest() = ToProto(*manifest);
  };
  TITAN_ASSIGN_OR_RETURN(const v1::HostAnswer answer, Ask(fill));
  return DigestFromProto("weights_digest", answer.weights_digest());
}

StatusOr<Hash128> RemoteHost::FillSlot(uint64_t to_slot, uint64_t to_grant,
                                       std::shared_ptr<const Manifest> manifest,
                                       const ReadTensor& read) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < manifest->tensors.size(); ++i) {
    const TensorEntry& tensor = manifest->tensors[i];
    bytes.resize(tensor.num_bytes);
    TITAN_RETURN_IF_ERROR(read(i, bytes));
    for (uint64_t at = 0; at < bytes.size(); at += kChunkBytes) {
      const uint64_t length = std::min<uint64_t>(kChunkBytes, bytes.size() - at);
      const auto fill = [&](v1::HostCommand* command, uint64_t question) {
        v1::WriteSlot& message = *command->mutable_write_slot();
        message.set_question(question);
        message.set_slot_id(to_slot);
        message.set_grant(to_grant);
        message.set_offset(tensor.offset + at);
        message.set_chunk(reinterpret_cast<const char*>(bytes.data()) + at, length);
      };
      TITAN_RETURN_IF_ERROR(Ask(fill).status());
    }
  }
  const auto fill = [&](v1::HostCommand* command, uint64_t question) {
    v1::HashFilled& message = *command->mutable_hash_filled();
    message.set_question(question);
    message.set_slot_id(to_slot);
    message.set_grant(to_grant);
    *message.mutable_manifest() = ToProto(*manifest);
  };
  TITAN_ASSIGN_OR_RETURN(const v1::HostAnswer answer, Ask(fill));
  return DigestFromProto("weights_digest", answer.weights_digest());
}

StatusOr<SlotView> RemoteHost::ViewSlot(uint64_t slot_id, uint64_t offset, uint64_t num_bytes) {
  auto bytes = std::make_shared<std::vector<std::byte>>();
  while (bytes->size() < num_bytes) {
    const uint64_t length = std::min<uint64_t>(kChunkBytes, num_bytes - bytes->size());
    const auto fill = [&](v1::HostCommand* command, uint64_t question) {
      v1::ReadSlot& message = *command->mutable_read_slot();
      message.set_question(question);
      message.set_slot_id(slot_id);
      message.set_offset(offset + bytes->size());
      message.set_max_bytes(static_cast<uint32_t>(length));
    };
    TITAN_ASSIGN_OR_RETURN(const v1::HostAnswer answer, Ask(fill));
    if (answer.chunk().size() != length) {
      return DataLoss("the host daemon answered " + std::to_string(answer.chunk().size()) +
                      " bytes of a slot where " + std::to_string(length) + " were asked for");
    }
    const auto* chunk = reinterpret_cast<const std::byte*>(answer.chunk().data());
    bytes->insert(bytes->end(), chunk, chunk + length);
  }
  return SlotView{{bytes->data(), bytes->size()}, bytes};
}

}  // namespace titan::weightstore
