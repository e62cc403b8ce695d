// SPDX-License-Identifier: Apache-2.0
#include "services/rpc/status_convert.h"

#include <absl/strings/cord.h>
#include <google/protobuf/any.pb.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <initializer_list>

#include "services/rpc/peer.h"

namespace titan::rpc {
namespace {

using google::protobuf::internal::WireFormatLite;
namespace io = google::protobuf::io;

constexpr char kTypeUrl[] = "type.googleapis.com/titan.type.v1.ErrorInfo";
// Field numbers of google.rpc.Status, which Debian ships no header for.
constexpr int kCodeField = 1;
constexpr int kMessageField = 2;
constexpr int kDetailsField = 3;

// A client that gets more than 8 KiB of trailing metadata sees none of it. On the way a character
// outside printable ASCII takes three bytes in the message, and the details grow by a third.
constexpr size_t kMaxMessageCost = 3000;
constexpr size_t kMaxDetailsBytes = 3400;
constexpr size_t kMaxDetailsMessageBytes = 500;

// The part of a text that costs at most `max`, ended at a character.
std::string Shortened(const std::string& text, size_t max) {
  size_t cost = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    cost += text[i] >= 0x20 && text[i] < 0x7f && text[i] != '%' ? 1 : 3;
    if (cost <= max) continue;
    while (i > 0 && (static_cast<uint8_t>(text[i]) & 0xc0) == 0x80) --i;
    return text.substr(0, i) + "... (" + std::to_string(text.size()) + " bytes)";
  }
  return text;
}

std::string EncodeRpcStatus(const Status& status, const std::string& info) {
  google::protobuf::Any any;
  any.set_type_url(kTypeUrl);
  any.set_value(info);
  std::string out;
  {
    io::StringOutputStream stream(&out);
    io::CodedOutputStream coded(&stream);
    WireFormatLite::WriteInt32(kCodeField, static_cast<int>(status.code()), &coded);
    WireFormatLite::WriteString(kMessageField,
                                Shortened(MessageOf(status), kMaxDetailsMessageBytes), &coded);
    WireFormatLite::WriteString(kDetailsField, any.SerializeAsString(), &coded);
  }
  return out;
}

// The serialized ErrorInfo in a google.rpc.Status, or nothing.
std::optional<std::string> DecodeRpcStatus(const std::string& bytes) {
  io::CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()),
                          static_cast<int>(bytes.size()));
  while (const uint32_t tag = in.ReadTag()) {
    if (tag != WireFormatLite::MakeTag(kDetailsField, WireFormatLite::WIRETYPE_LENGTH_DELIMITED)) {
      if (!WireFormatLite::SkipField(&in, tag)) return std::nullopt;
      continue;
    }
    uint32_t size = 0;
    std::string any_bytes;
    if (!in.ReadVarint32(&size) || size > bytes.size() ||
        !in.ReadString(&any_bytes, static_cast<int>(size))) {
      return std::nullopt;
    }
    google::protobuf::Any any;
    if (any.ParseFromString(any_bytes) && any.type_url() == kTypeUrl) return any.value();
  }
  return std::nullopt;
}

// gRPC's own words for a call that no answer came to name sockets and nothing that a person could
// do; anybody else's stay. Empty: not gRPC's.
std::string_view InOurWords(const grpc::Status& status) {
  const std::string& said = status.error_message();
  const auto starts = [&said](std::initializer_list<std::string_view> with) {
    return std::any_of(with.begin(), with.end(),
                       [&](std::string_view words) { return said.starts_with(words); });
  };
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
      switch (PeerOf(status)) {
        case Peer::kNobody:
          return "nothing listens at its address";
        case Peer::kStranger:
          return "what listens at its address does not answer as gRPC does: it is another program, "
                 "or it is stopped";
        case Peer::kOther:
        case Peer::kUnknown:
          break;
      }
      if (starts({"Socket closed", "Connection reset", "Broken pipe", "recvmsg:", "sendmsg",
                  "Stream removed", "GOAWAY", "Transport closed", "Endpoint closing"})) {
        return "the connection to it broke";
      }
      return "";
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return starts({"Deadline Exceeded"}) ? "no answer came in time" : "";
    case grpc::StatusCode::CANCELLED:
      return starts({"CANCELLED", "Cancelled"}) ? "the call was cancelled" : "";
    default:
      return "";
  }
}

}  // namespace

Status WithErrorInfo(Status status, const type::v1::ErrorInfo& info) {
  status.SetPayload(kTypeUrl, absl::Cord(info.SerializeAsString()));
  return status;
}

Status WithReason(Status status, std::string_view reason, std::string_view fix,
                  int64_t retry_after_ms) {
  type::v1::ErrorInfo info;
  info.set_reason(std::string(reason));
  info.set_fix(std::string(fix));
  info.set_retry_after_ms(retry_after_ms);
  return WithErrorInfo(std::move(status), info);
}

std::optional<type::v1::ErrorInfo> ErrorInfoOf(const Status& status) {
  const auto payload = status.GetPayload(kTypeUrl);
  if (!payload.has_value()) return std::nullopt;
  type::v1::ErrorInfo info;
  if (!info.ParseFromString(std::string(*payload))) return std::nullopt;
  return info;
}

std::string ReasonOf(const Status& status) {
  const auto info = ErrorInfoOf(status);
  return info.has_value() ? info->reason() : std::string();
}

grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const auto code = static_cast<grpc::StatusCode>(status.code());  // the same numbers by definition
  const auto payload = status.GetPayload(kTypeUrl);
  const std::string message = Shortened(MessageOf(status), kMaxMessageCost);
  if (!payload.has_value()) return grpc::Status(code, message);
  std::string details = EncodeRpcStatus(status, std::string(*payload));
  if (details.size() > kMaxDetailsBytes) {  // as many fields as there is room for
    type::v1::ErrorInfo info = ErrorInfoOf(status).value_or(type::v1::ErrorInfo());
    while (details.size() > kMaxDetailsBytes && info.fields_size() > 0) {
      info.mutable_fields()->RemoveLast();
      details = EncodeRpcStatus(status, info.SerializeAsString());
    }
    if (details.size() > kMaxDetailsBytes) details.clear();
  }
  return grpc::Status(code, message, details);
}

Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return OkStatus();
  int code = static_cast<int>(status.error_code());
  if (code < 1 || code > 16) code = static_cast<int>(StatusCode::kInternal);
  const std::string_view ours = InOurWords(status);
  Status made = MakeStatus(static_cast<StatusCode>(code),
                           ours.empty() ? std::string_view(status.error_message()) : ours);
  if (const auto info = DecodeRpcStatus(status.error_details()); info.has_value()) {
    made.SetPayload(kTypeUrl, absl::Cord(*info));
  }
  return made;
}

}  // namespace titan::rpc
