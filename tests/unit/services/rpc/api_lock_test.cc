// SPDX-License-Identifier: Apache-2.0
// Goal: names, numbers and types of the protocols change only on purpose. proto/api.lock holds one
// line for every field, enum value and method; this test compares it with the compiled descriptors.
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "titan/config/v1/daemons.pb.h"
#include "titan/config/v1/job.pb.h"
#include "titan/generator/v1/generator.pb.h"
#include "titan/orchestrator/v1/orchestrator.pb.h"
#include "titan/reward/v1/reward.pb.h"
#include "titan/storage/v1/storage.pb.h"
#include "titan/trainer/v1/trainer.pb.h"
#include "titan/type/v1/types.pb.h"
#include "titan/weightstore/v1/host.pb.h"
#include "titan/weightstore/v1/weightstore.pb.h"

namespace titan {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;

const char kLockFile[] = TITAN_SOURCE_DIR "/proto/api.lock";

std::string TypeOf(const FieldDescriptor* field) {
  std::string type = field->is_repeated()            ? "repeated "
                     : field->has_optional_keyword() ? "optional "
                                                     : "";
  if (field->type() == FieldDescriptor::TYPE_MESSAGE)
    return type + field->message_type()->full_name();
  if (field->type() == FieldDescriptor::TYPE_ENUM) return type + field->enum_type()->full_name();
  return type + field->type_name();
}

void AddEnum(const EnumDescriptor* descriptor, std::set<std::string>* lines) {
  for (int i = 0; i < descriptor->value_count(); ++i) {
    lines->insert("enum " + descriptor->full_name() + "." + descriptor->value(i)->name() + " = " +
                  std::to_string(descriptor->value(i)->number()));
  }
}

void AddMessage(const Descriptor* descriptor, std::set<std::string>* lines) {
  lines->insert("message " + descriptor->full_name());
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    const auto* oneof = field->real_containing_oneof();
    lines->insert("field " + field->full_name() + " = " + std::to_string(field->number()) + " " +
                  TypeOf(field) + (oneof != nullptr ? " in " + oneof->name() : ""));
  }
  for (int i = 0; i < descriptor->nested_type_count(); ++i)
    AddMessage(descriptor->nested_type(i), lines);
  for (int i = 0; i < descriptor->enum_type_count(); ++i) AddEnum(descriptor->enum_type(i), lines);
}

std::set<std::string> LinesOf(const FileDescriptor* file) {
  std::set<std::string> lines;
  for (int i = 0; i < file->message_type_count(); ++i) AddMessage(file->message_type(i), &lines);
  for (int i = 0; i < file->enum_type_count(); ++i) AddEnum(file->enum_type(i), &lines);
  for (int i = 0; i < file->service_count(); ++i) {
    for (int k = 0; k < file->service(i)->method_count(); ++k) {
      const auto* method = file->service(i)->method(k);
      lines.insert(
          "rpc " + method->full_name() + "(" + (method->client_streaming() ? "stream " : "") +
          method->input_type()->full_name() + ") returns (" +
          (method->server_streaming() ? "stream " : "") + method->output_type()->full_name() + ")");
    }
  }
  return lines;
}

std::set<std::string> CompiledLines() {
  std::set<std::string> lines;
  const std::filesystem::path root = TITAN_SOURCE_DIR "/proto";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    if (entry.path().extension() != ".proto") continue;
    const std::string name = std::filesystem::relative(entry.path(), root).string();
    const FileDescriptor* file = DescriptorPool::generated_pool()->FindFileByName(name);
    EXPECT_NE(file, nullptr) << name
                             << " is not linked into this test; name one of its messages below";
    if (file != nullptr) lines.merge(LinesOf(file));
  }
  return lines;
}

TEST(ApiLockTest, CompiledProtocolsEqualTheLockFile) {
  // Naming one message of each file links it.
  for (const Descriptor* linked :
       {config::v1::DaemonConfig::descriptor(), config::v1::JobSpec::descriptor(),
        weightstore::v1::HostSlot::descriptor(), generator::v1::GenerateGroupRequest::descriptor(),
        orchestrator::v1::Job::descriptor(), reward::v1::ScoreRequest::descriptor(),
        storage::v1::Fact::descriptor(), trainer::v1::StepHeader::descriptor(),
        type::v1::ErrorInfo::descriptor(), weightstore::v1::Manifest::descriptor()}) {
    ASSERT_NE(linked, nullptr);
  }
  const std::set<std::string> compiled = CompiledLines();
  if (std::getenv("TITAN_UPDATE_API_LOCK") != nullptr) {
    std::ofstream out(kLockFile);
    for (const std::string& line : compiled) out << line << "\n";
    GTEST_SKIP() << "wrote " << kLockFile;
  }
  std::set<std::string> locked;
  std::ifstream in(kLockFile);
  for (std::string line; std::getline(in, line);) locked.insert(line);
  std::ostringstream changes;
  for (const std::string& line : locked) {
    if (!compiled.contains(line)) changes << "- " << line << "\n";
  }
  for (const std::string& line : compiled) {
    if (!locked.contains(line)) changes << "+ " << line << "\n";
  }
  EXPECT_EQ(changes.str(), "")
      << "The protocols differ from proto/api.lock. A line with '-' breaks peers and stored bytes: "
         "give new "
         "things new numbers and reserve old ones. If every change is meant, run\n"
         "  TITAN_UPDATE_API_LOCK=1 build/tests/services_rpc_test --gtest_filter='ApiLockTest.*'\n"
         "and commit proto/api.lock with the change.";
}

}  // namespace
}  // namespace titan
