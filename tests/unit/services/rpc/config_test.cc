// SPDX-License-Identifier: Apache-2.0
// Goal: a config error names file, line, column, field path and what is valid; values keep their
// origin; nothing wrong is read silently.
#include "services/rpc/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "services/settings/settings.h"
#include "services/settings/shared.h"
#include "titan/config/v1/daemons.pb.h"
#include "titan/config/v1/job.pb.h"
#include "titan/orchestrator/v1/orchestrator.pb.h"

namespace titan::rpc {
namespace {

using config::v1::ClusterConfig;
using config::v1::GeneratorConfig;
using config::v1::JobSpec;

std::string ErrorOf(std::string_view text, google::protobuf::Message* message) {
  ConfigOrigins origins;
  const Status status = ReadConfigText(text, "c.json", message, &origins);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  return MessageOf(status);
}

template <typename T>
std::string ErrorOf(std::string_view text) {
  T message;
  return ErrorOf(text, &message);
}

TEST(ConfigTest, UnknownFieldNamesPlaceAndNearestName) {
  EXPECT_EQ(ErrorOf<GeneratorConfig>("{\n  \"kv_cache_byte\": 3\n}"),
            "c.json:2:3: kv_cache_byte: unknown field; did you mean \"kv_cache_bytes\"?");
  EXPECT_EQ(ErrorOf<JobSpec>("{\"training\": {\n\t\"leaning_rate\": 1e-5}}"),
            "c.json:2:2: training.leaning_rate: unknown field; did you mean \"learning_rate\"?");
  EXPECT_EQ(ErrorOf<JobSpec>("{\"parity\": {\"zzzzzz\": 1}}"),
            "c.json:1:13: parity.zzzzzz: unknown field; valid here: share, on_difference");
}

TEST(ConfigTest, WrongTypesAndRangesAreRefusedWithThePath) {
  EXPECT_EQ(ErrorOf<GeneratorConfig>("{\"max_versions\": \"3\"}"),
            "c.json:1:18: max_versions: wants a number, has a string: \"3\"");
  EXPECT_EQ(ErrorOf<GeneratorConfig>("{\"max_versions\": 3.5}"),
            "c.json:1:18: max_versions: wants an integer, has 3.5");
  EXPECT_EQ(ErrorOf<GeneratorConfig>("{\"max_versions\": -1}"),
            "c.json:1:18: max_versions: -1 is out of range; valid: 0 to 4294967295");
  EXPECT_EQ(ErrorOf<GeneratorConfig>("{\"max_versions\": 4294967296}"),
            "c.json:1:18: max_versions: 4294967296 is out of range; valid: 0 to "
            "4294967295");
  EXPECT_EQ(ErrorOf<JobSpec>("{\"rollout\": {\"temperature\": 1e39}}"),
            "c.json:1:29: rollout.temperature: 1e39 is out of range of the type");
  EXPECT_EQ(ErrorOf<JobSpec>("{\"training\": 3}"),
            "c.json:1:14: training: wants an object, has a number: 3");
  EXPECT_EQ(ErrorOf<JobSpec>("{\"training\": {\"max_gradient_norm\": true}}"),
            "c.json:1:36: training.max_gradient_norm: wants a number, has a boolean: true");
  EXPECT_EQ(ErrorOf<JobSpec>("{\"training\": {\"max_gradient_norm\": 1e-400}}"),
            "c.json:1:36: training.max_gradient_norm: 1e-400 is out of range of the type");
  EXPECT_EQ(ErrorOf<JobSpec>("{\"name\": [null]}"),
            "c.json:1:10: name: wants a string, has an array");
  EXPECT_EQ(ErrorOf<ClusterConfig>("{\"generators\": [{}, {\"daemon\": {\"listn\": \"x\"}}]}"),
            "c.json:1:33: generators[1].daemon.listn: unknown field; did you mean \"listen\"?");
  EXPECT_EQ(ErrorOf<ClusterConfig>("{\"generators\": {}}"),
            "c.json:1:16: generators: wants an array, has an object");
  EXPECT_EQ(ErrorOf<JobSpec>("[]"), "c.json:1:1: the document: wants an object, has an array");
}

TEST(ConfigTest, NullIsAsIfTheFieldWereNotWritten) {
  JobSpec spec;
  spec.set_name("before");
  ConfigOrigins origins;
  const Status status = ReadConfigText(
      R"({"name": null, "training": {"beta1": null}, "model": null})", "c.json", &spec, &origins);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(spec.name(), "before");
  EXPECT_FALSE(spec.training().has_beta1());
  EXPECT_FALSE(spec.has_model());
  EXPECT_NE(ErrorOf<JobSpec>("{\"nmae\": null}"), "");
}

TEST(ConfigTest, AllProblemsAreReportedAtOnce) {
  const std::string error = ErrorOf<GeneratorConfig>("{\"x\": 1,\n \"max_versions\": true}");
  EXPECT_NE(error.find("c.json:1:2: x: unknown field"), std::string::npos) << error;
  EXPECT_NE(error.find("\nc.json:2:18: max_versions: wants a number"), std::string::npos) << error;
}

TEST(ConfigTest, TextThatIsNotStrictJsonIsRefusedWithThePlace) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "c.json:1:1: the file is empty; it wants one JSON object, { ... }"},
      {" \n", "c.json:2:1: the file is empty; it wants one JSON object, { ... }"},
      {"{\"seed\":", "c.json:1:9: the document ends where a value should stand"},
      {"model: smollm2\n",
       "c.json:1:1: this is not JSON: it begins with 'm'; wanted is one JSON object, { \"field\": "
       "value, ... }"},
      {"GGUF\x03",
       "c.json:1:1: this is not JSON: it begins with 'G'; wanted is one JSON object, { \"field\": "
       "value, ... }"},
      {"{\"name\": \"a\",}", "c.json:1:14: a ',' may not stand before '}'"},
      {"{\"name\": \"a\" \"kind\": \"b\"}", "c.json:1:14: ',' or '}' should stand here"},
      {"{// hello\n}", "c.json:1:2: a field name in double quotes should stand here"},
      {"{\"name\": \"a\", \"name\": \"b\"}",
       "c.json:1:15: field \"name\" stands twice in one object"},
      {"{\"seed\": 01}", "c.json:1:11: a number does not start with 0"},
      {"{\"seed\": +1}",
       "c.json:1:10: a value should stand here: object, array, string, number, true, false or "
       "null"},
      {"{\"seed\": NaN}",
       "c.json:1:10: a value should stand here: object, array, string, number, true, false or "
       "null"},
      {"{\"name\": \"a\nb\"}", "c.json:1:12: control character in a string"},
      {"{\"name\": \"\\ud800\"}", "c.json:1:17: lone surrogate in a string"},
      {"{\"name\": \"\\x\"}", "c.json:1:12: unknown escape in a string"},
      {"{\"name\": \"a", "c.json:1:12: the document ends inside a string"},
      {"{\n\"name\": \"\xc0\xaf\"}",
       "c.json:2:10: not UTF-8, so this is no JSON text; is it another kind of file?"},
      {"{} x", "c.json:1:4: text after the end of the document"},
  };
  for (const auto& [text, error] : cases) EXPECT_EQ(ErrorOf<JobSpec>(text), error);
  EXPECT_EQ(ErrorOf<JobSpec>(std::string(100, '[')), "c.json:1:66: nested deeper than 64");
}

TEST(ConfigTest, EveryCutOfAValidTextIsRefusedAndNothingCrashes) {
  const std::string text =
      R"({"name": "a\u00e9\ud83d\ude00\n", "seed": 18446744073709551615, "training": {"beta1": 9e-1, "shards": 2}})";
  JobSpec spec;
  ConfigOrigins origins;
  ASSERT_TRUE(ReadConfigText(text, "c.json", &spec, &origins).ok());
  EXPECT_EQ(spec.name(), "a\xc3\xa9\xf0\x9f\x98\x80\n");
  EXPECT_EQ(spec.seed(), 18446744073709551615u);
  EXPECT_EQ(spec.training().beta1(), 0.9);
  for (size_t cut = 0; cut < text.size(); ++cut) {
    JobSpec partial;
    EXPECT_FALSE(ReadConfigText(text.substr(0, cut), "c.json", &partial, &origins).ok()) << cut;
  }
}

TEST(ConfigTest, MissingFieldsKeepTheirDefaultsAndOriginsSayWhence) {
  GeneratorConfig generator;
  settings::FillDaemonDefaults("generator", generator.mutable_daemon());
  generator.set_max_versions(3);
  ConfigOrigins origins;
  ASSERT_TRUE(ReadConfigText("{\"max_versions\": 0,\n \"daemon\": {\"data_folder\": \"/d\"}}",
                             "g.json", &generator, &origins)
                  .ok());
  origins.SetFromFlag("daemon.listen", "--listen");
  EXPECT_EQ(generator.daemon().worker_id(), "generator");
  EXPECT_EQ(generator.max_versions(), 0u);
  const auto printed = nlohmann::json::parse(PrintConfig(generator, origins));
  EXPECT_EQ(printed["config"]["daemon"]["shutdown_deadline_ms"], 10000);
  EXPECT_EQ(printed["origins"]["daemon.shutdown_deadline_ms"], "default");
  EXPECT_EQ(printed["origins"]["max_versions"], "g.json:1:18");
  EXPECT_EQ(printed["origins"]["daemon.data_folder"], "g.json:2:28");
  EXPECT_EQ(printed["origins"]["daemon.listen"], "flag --listen");
}

TEST(ConfigTest, WhatIsMissingHasThePlaceOfTheObjectThatLacksIt) {
  JobSpec spec;
  ConfigOrigins origins;
  ASSERT_TRUE(
      ReadConfigText("{\"name\": \"a\",\n \"reward\": {}}", "c.json", &spec, &origins).ok());
  ASSERT_TRUE(SetConfigValue("data.held_out=3", "--set", &spec, &origins).ok());
  const std::string error = MessageOf(ProblemsToStatus({{"reward.grader", "is required"},
                                                        {"model.path", "is required"},
                                                        {"name", "is bad"},
                                                        {"data.held_out", "is 3"}},
                                                       origins));
  EXPECT_EQ(error,
            "c.json:2:12: reward.grader: is required\nc.json:1:1: model.path: is required\n"
            "c.json:1:10: name: is bad\n--set data.held_out=3: data.held_out: is 3");
  EXPECT_EQ(MessageOf(ProblemsToStatus({{"name", "is bad"}}, ConfigOrigins())), "name: is bad");
}

TEST(ConfigTest, PrintedMessageReadsBackEqual) {
  JobSpec spec;
  spec.set_seed(9007199254740993);
  spec.mutable_training()->set_learning_rate(0.1 + 0.2);
  spec.mutable_rollout()->set_temperature(0.7f);
  spec.mutable_training()->set_clip_low(0);
  ConfigOrigins origins;
  for (const bool all_fields : {true, false}) {
    JobSpec back;
    ASSERT_TRUE(ReadConfigText(ToJsonText(spec, all_fields), "x", &back, &origins).ok());
    EXPECT_EQ(back.SerializeAsString(), spec.SerializeAsString()) << all_fields;
  }
  EXPECT_NE(ToJsonText(spec).find("9007199254740993"), std::string::npos);
  EXPECT_NE(ToJsonText(spec).find("\"temperature\": 0.7,"), std::string::npos) << ToJsonText(spec);
}

TEST(ConfigTest, WhatACheckRefusesIsToldByTheReaderAsWell) {
  GeneratorConfig generator;
  settings::FillDefaults(&generator);
  const auto valid = ValidByCheck(
      generator, [](const google::protobuf::Message& message, ConfigProblems* problems) {
        settings::Validate(static_cast<const GeneratorConfig&>(message), problems);
      });
  ConfigOrigins origins;
  const Status read = ReadConfigText(
      R"({"max_versions": -1, "kv_cache_bytes": 99999999999999999999, "max_queued_groups": "7",
 "daemon": {"debug": {"rpc_delay_seed": -5, "rpc_delay_max_ms": -5}, "log_level": 3}})",
      "g.json", &generator, &origins, valid);
  EXPECT_EQ(MessageOf(read),
            "g.json:1:18: max_versions: -1 is out of range; valid: 1 to 64\n"
            "g.json:1:40: kv_cache_bytes: 99999999999999999999 is out of range; valid: 65536 to "
            "17592186044416\n"
            "g.json:1:83: max_queued_groups: wants a number, has a string: \"7\"; valid: 1 to "
            "1048576\n"
            "g.json:2:41: daemon.debug.rpc_delay_seed: -5 is out of range; valid: 0 to "
            "18446744073709551615\n"
            "g.json:2:65: daemon.debug.rpc_delay_max_ms: -5 is out of range; valid: 0 to 60000 "
            "ms\n"
            "g.json:2:83: daemon.log_level: wants a string, has a number: 3; valid: debug, info, "
            "warning, error");
}

TEST(ConfigTest, WhatIsSaidOfAFieldIsSaidOnce) {
  ConfigProblems problems = {{"daemon.listn", "unknown field", "", "daemon.listen"},
                             {"kernels", "wants an object"},
                             {"max_versions", "wants a number"}};
  AddProblems({{"daemon.listen", "is required"},
               {"kernels.threads", "is 0"},
               {"kernels_too", "is 0"},
               {"max_versions", "is 0"},
               {"daemon", "is twice"},
               {"daemon", "here"}},
              &problems);
  std::string text;
  for (const ConfigProblem& problem : problems)
    text += problem.path + ":" + problem.description + "; ";
  EXPECT_EQ(text,
            "daemon.listn:unknown field; kernels:wants an object; max_versions:wants a number; "
            "kernels_too:is 0; daemon:is twice; daemon:here; ");
}

TEST(ConfigTest, DaemonChecksNameTheFieldAndItsPlace) {
  GeneratorConfig generator;
  settings::FillDaemonDefaults("generator", generator.mutable_daemon());
  ConfigOrigins origins;
  ASSERT_TRUE(
      ReadConfigText(R"({"daemon": {"listen": "0.0.0.0:80", "worker_id": "a/b", "log_level": "loud",
      "health_listen": "0.0.0.0:90", "debug": {"rpc_delay_max_ms": 5}}})",
                     "g.json", &generator, &origins)
          .ok());
  ConfigProblems problems;
  settings::ValidateDaemon(generator.daemon(), &problems);
  const std::string error = MessageOf(ProblemsToStatus(problems, origins));
  EXPECT_NE(error.find("g.json:1:23: daemon.listen: '0.0.0.0:80' is not on loopback"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("daemon.data_folder: is required"), std::string::npos) << error;
  EXPECT_NE(error.find("daemon.worker_id: wants 1 to 64 letters"), std::string::npos) << error;
  EXPECT_NE(error.find("daemon.log_level: is \"loud\"; valid: debug, info, warning, error"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("daemon.debug.rpc_delay_max_ms: is a test seam"), std::string::npos)
      << error;
}

}  // namespace
}  // namespace titan::rpc
