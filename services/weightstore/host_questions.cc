// SPDX-License-Identifier: Apache-2.0
#include "services/weightstore/host_questions.h"

#include <memory>
#include <span>
#include <utility>

#include "services/weightstore_client/convert.h"

namespace titan::weightstore {
namespace {

constexpr size_t kMaxReadBytes = 1u << 20;

StatusOr<Hash128> HashFor(Host& host, const v1::HostCommand& question) {
  const v1::Manifest& message = question.has_hash_written() ? question.hash_written().manifest()
                                : question.has_copy_slot()  ? question.copy_slot().manifest()
                                                            : question.hash_filled().manifest();
  TITAN_ASSIGN_OR_RETURN(Manifest given, FromProto(message));
  const auto manifest = std::make_shared<const Manifest>(std::move(given));
  if (question.has_hash_written()) {
    return host.HashWritten(question.hash_written().slot_id(), question.hash_written().grant(),
                            manifest);
  }
  if (question.has_copy_slot()) {
    const v1::CopySlot& copy = question.copy_slot();
    return host.CopySlot(copy.from_slot(), copy.to_slot(), copy.to_grant(), manifest);
  }
  const ReadTensor written_before = [](size_t, std::span<std::byte>) { return OkStatus(); };
  return host.FillSlot(question.hash_filled().slot_id(), question.hash_filled().grant(), manifest,
                       written_before);
}

}  // namespace

std::optional<uint64_t> QuestionOf(const v1::HostCommand& command) {
  switch (command.command_case()) {
    case v1::HostCommand::kHashWritten:
      return command.hash_written().question();
    case v1::HostCommand::kCopySlot:
      return command.copy_slot().question();
    case v1::HostCommand::kReadSlot:
      return command.read_slot().question();
    case v1::HostCommand::kWriteSlot:
      return command.write_slot().question();
    case v1::HostCommand::kHashFilled:
      return command.hash_filled().question();
    default:
      return std::nullopt;
  }
}

StatusOr<v1::HostAnswer> AnswerTo(const v1::HostCommand& question, Host& host) {
  v1::HostAnswer answer;
  if (question.has_read_slot()) {
    const v1::ReadSlot& read = question.read_slot();
    if (read.max_bytes() > kMaxReadBytes) return InvalidArgument("read_slot: at most 1 MiB");
    TITAN_ASSIGN_OR_RETURN(const SlotView slot,
                           host.ViewSlot(read.slot_id(), read.offset(), read.max_bytes()));
    answer.set_chunk(reinterpret_cast<const char*>(slot.bytes.data()), slot.bytes.size());
    return answer;
  }
  if (question.has_write_slot()) {
    const v1::WriteSlot& write = question.write_slot();
    TITAN_RETURN_IF_ERROR(host.WriteSlot(
        write.slot_id(), write.grant(), write.offset(),
        std::as_bytes(std::span<const char>(write.chunk().data(), write.chunk().size()))));
    return answer;
  }
  TITAN_ASSIGN_OR_RETURN(const Hash128 digest, HashFor(host, question));
  answer.set_weights_digest(ToHex(digest));
  return answer;
}

}  // namespace titan::weightstore
