// SPDX-License-Identifier: Apache-2.0
// Goal: a Status crosses gRPC whole: code, message, detail; foreign and broken details do no harm.
#include "services/rpc/status_convert.h"

#include <gtest/gtest.h>

namespace titan::rpc {
namespace {

TEST(StatusConvertTest, EveryCodeAndMessageCrosses) {
  EXPECT_TRUE(ToGrpc(OkStatus()).ok());
  EXPECT_TRUE(FromGrpc(grpc::Status::OK).ok());
  for (int code = 1; code <= 16; ++code) {
    const Status status = MakeStatus(static_cast<StatusCode>(code), "why " + std::to_string(code));
    EXPECT_EQ(static_cast<int>(ToGrpc(status).error_code()), code);
    EXPECT_EQ(FromGrpc(ToGrpc(status)), status);
  }
  EXPECT_EQ(FromGrpc(grpc::Status(static_cast<grpc::StatusCode>(20), "odd")).code(),
            StatusCode::kInternal);
}

TEST(StatusConvertTest, WhatGrpcSaysOfConnectionsIsPutIntoWords) {
  const auto said = [](grpc::StatusCode code, const std::string& message) {
    return MessageOf(FromGrpc(grpc::Status(code, message)));
  };
  EXPECT_EQ(said(grpc::StatusCode::UNAVAILABLE, "Socket closed"), "the connection to it broke");
  EXPECT_EQ(said(grpc::StatusCode::UNAVAILABLE, "recvmsg:Connection reset by peer"),
            "the connection to it broke");
  EXPECT_EQ(said(grpc::StatusCode::UNAVAILABLE,
                 "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: "
                 "Failed to connect to remote host: Connection refused"),
            "nothing listens at its address");
  EXPECT_EQ(said(grpc::StatusCode::UNAVAILABLE,
                 "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: "
                 "Trying to connect an http1.x server"),
            "what listens at its address does not answer as gRPC does: it is another program, or "
            "it is stopped");
  const std::string unknown = "failed to connect to all addresses; last error: INTERNAL: no memory";
  EXPECT_EQ(said(grpc::StatusCode::UNAVAILABLE, unknown), unknown);
  EXPECT_EQ(said(grpc::StatusCode::DEADLINE_EXCEEDED, "Deadline Exceeded"),
            "no answer came in time");
  EXPECT_EQ(said(grpc::StatusCode::CANCELLED, "CANCELLED"), "the call was cancelled");
  EXPECT_EQ(FromGrpc(grpc::Status(grpc::StatusCode::CANCELLED, "CANCELLED")).code(),
            StatusCode::kCancelled);
  // What a peer says stays.
  EXPECT_EQ(said(grpc::StatusCode::UNAVAILABLE, "the disk is slow"), "the disk is slow");
  EXPECT_EQ(said(grpc::StatusCode::INTERNAL, "Socket closed"), "Socket closed");
}

TEST(StatusConvertTest, DetailCrossesInsideARpcStatus) {
  type::v1::ErrorInfo info;
  info.set_reason("EPOCH_SUPERSEDED");
  info.set_fix("Register again.");
  info.set_retry_after_ms(250);
  info.add_fields()->set_path("training.learning_rate");
  const Status sent = WithErrorInfo(Aborted("epoch 3 has ended"), info);
  const grpc::Status wire = ToGrpc(sent);
  // google.rpc.Status: field 1 varint 10 (ABORTED), field 2 the message.
  EXPECT_EQ(wire.error_details().substr(0, 2), std::string("\x08\x0a", 2));
  EXPECT_NE(wire.error_details().find("type.googleapis.com/titan.type.v1.ErrorInfo"),
            std::string::npos);
  const Status received = FromGrpc(wire);
  ASSERT_TRUE(ErrorInfoOf(received).has_value());
  EXPECT_EQ(ErrorInfoOf(received)->SerializeAsString(), info.SerializeAsString());
  EXPECT_EQ(ReasonOf(received), "EPOCH_SUPERSEDED");
  EXPECT_EQ(ReasonOf(Aborted("plain")), "");
}

TEST(StatusConvertTest, EveryCutOfTheDetailIsHarmless) {
  const grpc::Status wire = ToGrpc(WithReason(NotFound("x"), "NO_SUCH_RUN", "Check the id."));
  const std::string& details = wire.error_details();
  for (size_t cut = 0; cut < details.size(); ++cut) {
    const Status got =
        FromGrpc(grpc::Status(grpc::StatusCode::NOT_FOUND, "x", details.substr(0, cut)));
    EXPECT_EQ(got.code(), StatusCode::kNotFound);
    EXPECT_FALSE(ErrorInfoOf(got).has_value() && ReasonOf(got) != "NO_SUCH_RUN");
  }
  EXPECT_FALSE(ErrorInfoOf(FromGrpc(grpc::Status(grpc::StatusCode::NOT_FOUND, "x",
                                                 "\x1a\xff\xff\xff\xff\x0f")))
                   .has_value());
}

// Trailing metadata of more than 8 KiB would reach no client.
TEST(StatusConvertTest, WhatIsLongIsCutToWhatACallCarries) {
  type::v1::ErrorInfo info;
  info.set_reason("MANY");
  for (int i = 0; i < 500; ++i) {
    info.add_fields()->set_path("field-" + std::to_string(i));
    info.mutable_fields(i)->set_description(std::string(40, 'd'));
  }
  for (const char* piece : {"x", "%", "\xc3\xa9"}) {
    std::string message;
    while (message.size() < 100'000) message += piece;
    const grpc::Status sent = ToGrpc(WithErrorInfo(InvalidArgument(message), info));
    size_t cost = sent.error_details().size() * 4 / 3;
    for (const char c : sent.error_message()) cost += c >= 0x20 && c < 0x7f && c != '%' ? 1 : 3;
    EXPECT_LT(cost, 8000u);
    EXPECT_NE(sent.error_message().find("... (100000 bytes)"), std::string::npos);
    const auto got = ErrorInfoOf(FromGrpc(sent));
    ASSERT_TRUE(got.has_value());
    EXPECT_EQ(got->reason(), "MANY");
    EXPECT_GT(got->fields_size(), 20);
    EXPECT_EQ(got->fields(0).path(), "field-0");
  }
}

}  // namespace
}  // namespace titan::rpc
