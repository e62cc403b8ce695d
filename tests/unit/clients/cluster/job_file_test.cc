// SPDX-License-Identifier: Apache-2.0
// Goal: a job file, what it extends and what --set changes give one spec, the later one winning;
// every value knows where it came from; what is wrong is named with its place.
#include "clients/cluster/job_file.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "clients/cluster/job_fields.h"
#include "orchestrator/job_spec.h"

namespace titan::cluster {
namespace {

class JobFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/titan_job_file_XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    folder_ = pattern;
    std::filesystem::create_directories(folder_ + "/base");
    Write("rows.jsonl", "{}\n");
    Write("base/rows.jsonl", "{}\n");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name) << text;
    return folder_ + "/" + name;
  }
  std::string ErrorOf(const std::string& file, const std::vector<std::string>& set = {}) {
    const auto job = ReadJobFile(file, set);
    EXPECT_EQ(job.status().code(), StatusCode::kInvalidArgument) << job.status();
    return MessageOf(job.status());
  }

  std::string folder_;
};

TEST_F(JobFileTest, RelativePathsAreOfTheFileThatNamesThem) {
  Write("base/base.json",
        R"({"seed": 5, "name": "base", "data": {"path": "rows.jsonl", "held_out": 3}})");
  const std::string file =
      Write("job.json",
            R"({"extends": "base/base.json", "name": "mine", "model": {"path": "rows.jsonl"}})");
  const auto job = ReadJobFile(file, {"data.held_out=0", "training.learning_rate=2e-6"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.name(), "mine");
  EXPECT_EQ(job->spec.seed(), 5u);
  EXPECT_EQ(job->spec.data().path(), folder_ + "/base/rows.jsonl");
  EXPECT_EQ(job->spec.model().path(), folder_ + "/rows.jsonl");
  EXPECT_EQ(job->spec.data().held_out(), 0u);
  EXPECT_TRUE(job->spec.data().has_held_out());
  EXPECT_EQ(job->spec.training().learning_rate(), 2e-6);
  EXPECT_EQ(job->origins.Of("seed"), folder_ + "/base/base.json:1:10");
  EXPECT_EQ(job->origins.Of("name"), file + ":1:39");
  EXPECT_EQ(job->origins.Of("data.held_out"), "--set data.held_out=0");
  EXPECT_EQ(job->origins.Of("schedule.steps"), "default");
}

TEST_F(JobFileTest, SetTakesTextWithoutQuotesAndNamesTheNearestField) {
  const std::string file = Write("job.json", "{}");
  const auto job = ReadJobFile(
      file, {"name=two words", "reward.grader_parameters_json={\"pattern\": \"[0-9]+\"}",
             "schedule.kind=\"logical\"", "seed=18446744073709551615"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.name(), "two words");
  EXPECT_EQ(job->spec.reward().grader_parameters_json(), "{\"pattern\": \"[0-9]+\"}");
  EXPECT_EQ(job->spec.schedule().kind(), "logical");
  EXPECT_EQ(job->spec.seed(), ~uint64_t{0});
  EXPECT_EQ(ErrorOf(file, {"training.learning_rat=1"}),
            "--set training.learning_rat=1: training.learning_rat: unknown field; did you mean "
            "\"learning_rate\"?");
  EXPECT_NE(ErrorOf(file, {"seed=-1"}).find("--set seed=-1: seed: -1 is out of range"),
            std::string::npos);
  EXPECT_NE(ErrorOf(file, {"seed=\"1\""}).find("wants a number, has a string"), std::string::npos);
  EXPECT_NE(ErrorOf(file, {"seed"}).find("wants path=value"), std::string::npos);
  EXPECT_NE(ErrorOf(file, {"a..b=1"}).find("wants path=value"), std::string::npos);
  EXPECT_NE(ErrorOf(file, {"seed.x=1"}).find("seed: wants"), std::string::npos)
      << ErrorOf(file, {"seed.x=1"});
}

TEST_F(JobFileTest, ValuesThatAreNoneOfTheFieldNameItTheValueAndTheRange) {
  const std::string file = Write("job.json", "{}");
  EXPECT_EQ(ErrorOf(file, {"training.learning_rate=abc"}),
            "--set training.learning_rate=abc: training.learning_rate: wants a number, has a "
            "string: \"abc\"; valid: 0 to 1");
  EXPECT_EQ(ErrorOf(file, {"schedule.steps=99999999999999999999"}),
            "--set schedule.steps=99999999999999999999: schedule.steps: 99999999999999999999 is "
            "out of range; valid: 1 to 4294967295");
  EXPECT_EQ(ErrorOf(file, {"schedule.groups_per_step=-1"}),
            "--set schedule.groups_per_step=-1: schedule.groups_per_step: -1 is out of range; "
            "valid: 1 to 65535");
  EXPECT_EQ(ErrorOf(file, {"schedule.steps=2.5"}),
            "--set schedule.steps=2.5: schedule.steps: wants an integer, has 2.5; valid: 1 to "
            "4294967295");
  EXPECT_EQ(ErrorOf(file, {"training.learning_rate=1e999"}),
            "--set training.learning_rate=1e999: training.learning_rate: 1e999 is out of range; "
            "valid: 0 to 1");
  EXPECT_EQ(ErrorOf(file, {"model.path=nope"}).find("--set model.path=nope: model.path: 'nope' "),
            0u)
      << ErrorOf(file, {"model.path=nope"});
  EXPECT_EQ(ErrorOf(file, {"training=abc"}),
            "--set training=abc: training: wants an object, has a string: \"abc\"");
  EXPECT_EQ(ErrorOf(file, {"training.learning_rat=abc"}),
            "--set training.learning_rat=abc: training.learning_rat: unknown field; did you mean "
            "\"learning_rate\"?");
  EXPECT_NE(ErrorOf(file, {"training={\"a\": }"}).find("training: --set training={"),
            std::string::npos)
      << ErrorOf(file, {"training={\"a\": }"});
  const std::string in_file = Write("range.json", R"({"schedule": {"steps": -1}})");
  EXPECT_EQ(ErrorOf(in_file),
            in_file + ":1:24: schedule.steps: -1 is out of range; valid: 1 to 4294967295");
}

// The ranges are the orchestrator's own: just outside it refuses in the same words.
TEST(JobFieldsTest, RangesAreThoseOfTheCheck) {
  using orchestrator::JobSpec;
  const std::map<std::string, std::function<void(JobSpec*)>> wrong = {
      {"model.max_sequence_tokens", [](JobSpec* s) { s->model.max_sequence_tokens = 131073; }},
      {"schedule.max_age", [](JobSpec* s) { s->schedule.max_age = 65; }},
      {"schedule.steps", [](JobSpec* s) { s->schedule.steps = 0; }},
      {"schedule.groups_per_step", [](JobSpec* s) { s->schedule.groups_per_step = 65536; }},
      {"schedule.max_candidates", [](JobSpec* s) { s->schedule.max_candidates = 257; }},
      {"rollout.samples_per_group", [](JobSpec* s) { s->rollout.samples_per_group = 4097; }},
      {"rollout.temperature", [](JobSpec* s) { s->rollout.temperature = 101; }},
      {"rollout.max_new_tokens", [](JobSpec* s) { s->rollout.max_new_tokens = 131073; }},
      {"training.advantage_epsilon", [](JobSpec* s) { s->training.advantage_epsilon = 2; }},
      {"training.clip_low", [](JobSpec* s) { s->training.clip_low = 2; }},
      {"training.clip_high", [](JobSpec* s) { s->training.clip_high = 2e6; }},
      {"training.learning_rate", [](JobSpec* s) { s->training.learning_rate = 2; }},
      {"training.beta1", [](JobSpec* s) { s->training.beta1 = 1; }},
      {"training.beta2", [](JobSpec* s) { s->training.beta2 = 1; }},
      {"training.epsilon", [](JobSpec* s) { s->training.epsilon = 0; }},
      {"training.weight_decay", [](JobSpec* s) { s->training.weight_decay = 2; }},
      {"training.max_gradient_norm", [](JobSpec* s) { s->training.max_gradient_norm = 0; }},
      {"training.shards", [](JobSpec* s) { s->training.shards = 3; }},
      {"training.shared_group_tokens",
       [](JobSpec* s) { s->training.shared_group_tokens = 1048577; }},
      {"evaluation.slots", [](JobSpec* s) { s->evaluation.slots = 9; }},
      {"parity.share", [](JobSpec* s) { s->parity.share = 2; }},
      {"deadlines.first_step_ms", [](JobSpec* s) { s->deadlines.first_step_ms = 604800001; }},
      {"deadlines.step_ms", [](JobSpec* s) { s->deadlines.step_ms = 604800001; }},
      {"deadlines.reward_ms", [](JobSpec* s) { s->deadlines.reward_ms = 604800001; }},
      {"deadlines.workers_ms", [](JobSpec* s) { s->deadlines.workers_ms = 604800001; }},
  };
  EXPECT_EQ(wrong.size(), std::size(kJobFieldRanges));
  for (const JobFieldRange& row : kJobFieldRanges) {
    ASSERT_TRUE(wrong.contains(row.path)) << row.path;
    JobSpec spec;
    wrong.at(row.path)(&spec);
    bool found = false;
    for (const auto& problem : orchestrator::CheckJobSpec(spec).problems) {
      if (problem.path != row.path) continue;
      found = found || problem.description.ends_with(std::string("valid: ") + row.valid);
    }
    EXPECT_TRUE(found) << row.path << ": " << row.valid;
  }
}

TEST(JobFieldsTest, WhatIsLeftOutNamesBothWaysToGiveIt) {
  orchestrator::JobSpec spec;
  spec.reward.grader_parameters_json = "{";
  std::string all;
  for (const auto& problem : orchestrator::CheckJobSpec(spec).problems) {
    all += problem.path + ": " + problem.description + "\n";
  }
  EXPECT_NE(all.find("model.path: is required, or model.id"), std::string::npos) << all;
  EXPECT_NE(all.find("data.path: is required, or data.id"), std::string::npos) << all;
  EXPECT_NE(all.find("schedule.steps: is missing or 0; valid: 1 to"), std::string::npos) << all;
  EXPECT_NE(all.find("\nreward.grader_parameters_json: not valid JSON"), std::string::npos) << all;
}

TEST_F(JobFileTest, AByteOrderMarkIsNamed) {
  const std::string file = Write("job.json", "\xef\xbb\xbf{}");
  EXPECT_EQ(ErrorOf(file).find(file + ":1:1: begins with a byte order mark"), 0u) << ErrorOf(file);
}

TEST_F(JobFileTest, AnUploadedFileReplacesAPathAndTheOtherWayRound) {
  Write("base/base.json", R"({"data": {"path": "rows.jsonl"}})");
  const std::string by_id =
      Write("id.json", R"({"extends": "base/base.json", "data": {"id": "abc"}})");
  auto job = ReadJobFile(by_id);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.data().path(), "");
  EXPECT_EQ(job->spec.data().id(), "abc");
  job = ReadJobFile(by_id, {"data.path=" + folder_ + "/rows.jsonl"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.data().id(), "");
  // Both in one file is a contradiction, which the orchestrator names.
  job = ReadJobFile(Write("both.json", R"({"data": {"id": "abc", "path": "rows.jsonl"}})"));
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.data().id(), "abc");
  EXPECT_NE(job->spec.data().path(), "");
}

TEST_F(JobFileTest, AStoredModelReplacesAPathAndTheOtherWayRound) {
  Write("base/base.json", R"({"model": {"path": "rows.jsonl", "mode": "w16"}})");
  const std::string by_id =
      Write("id.json", R"({"extends": "base/base.json", "model": {"id": "base"}})");
  auto job = ReadJobFile(by_id);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.model().path(), "");
  EXPECT_EQ(job->spec.model().id(), "base");
  EXPECT_EQ(job->spec.model().mode(), "w16");
  job = ReadJobFile(by_id, {"model.path=" + folder_ + "/rows.jsonl"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.model().id(), "");
  job = ReadJobFile(folder_ + "/base/base.json", {"model.id=tuned", "data.id=abc"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.model().path(), "");
  EXPECT_EQ(job->spec.model().id(), "tuned");
}

TEST_F(JobFileTest, ChainsThatDoNotEndOrDoNotExistAreRefusedWithTheirPlace) {
  const std::string a = Write("a.json", "{\n  \"extends\": \"b.json\"}");
  Write("b.json", R"({"extends": "a.json"})");
  EXPECT_NE(ErrorOf(a).find("b.json:1:13: extends: '"), std::string::npos) << ErrorOf(a);
  EXPECT_NE(ErrorOf(a).find("a.json' extends itself"), std::string::npos);
  const std::string c = Write("c.json", "{\n  \"extends\": \"none.json\"}");
  EXPECT_NE(ErrorOf(c).find("c.json:2:14: extends: "), std::string::npos) << ErrorOf(c);
  EXPECT_NE(ErrorOf(Write("d.json", R"({"extends": 3})")).find("wants the path of a job file"),
            std::string::npos);
  Write("e0.json", "{}");
  for (int i = 1; i <= kMaxExtends; ++i) {
    Write("e" + std::to_string(i) + ".json",
          R"({"extends": "e)" + std::to_string(i - 1) + R"(.json"})");
  }
  EXPECT_NE(ErrorOf(folder_ + "/e" + std::to_string(kMaxExtends) + ".json").find("more than"),
            std::string::npos);
  EXPECT_TRUE(ReadJobFile(folder_ + "/e" + std::to_string(kMaxExtends - 1) + ".json").ok());
}

TEST_F(JobFileTest, MissingFilesAreNamedWithTheirPlace) {
  const std::string file = Write("job.json", "{\"model\": {\n\"path\": \"none.gguf\"}}");
  EXPECT_EQ(ErrorOf(file), file + ":2:9: model.path: 'none.gguf' does not exist (looked at '" +
                               folder_ + "/none.gguf')");
  EXPECT_NE(ErrorOf(folder_ + "/nothing.json").find("nothing.json"), std::string::npos);
  EXPECT_NE(ErrorOf(Write("bad.json", "{\"sed\": 1}")).find("did you mean \"seed\"?"),
            std::string::npos);
}

}  // namespace
}  // namespace titan::cluster
