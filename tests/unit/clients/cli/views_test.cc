// SPDX-License-Identifier: Apache-2.0
// Goal: what people see of jobs, rollouts, logs and metrics is what the messages and files say;
// colours never change the columns; strange bytes stay harmless.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "clients/cli/job_view.h"
#include "clients/cli/log_view.h"
#include "clients/cli/metrics_view.h"
#include "clients/cli/rollout_view.h"
#include "clients/cli/weights_view.h"

namespace titan::cli {
namespace {

using namespace orchestrator::v1;  // NOLINT: the test speaks of little else
using cluster::Terminal;

TEST(TableTest, ColoursAndCodePointsDoNotShiftColumns) {
  const Terminal colors(true);
  const std::string red = colors.Paint(cluster::Color::kRed, "bad");
  EXPECT_EQ(cluster::VisibleWidth(red), 3u);
  EXPECT_EQ(cluster::VisibleWidth("\xc3\xa4\xe2\x86\x92"), 2u);
  EXPECT_EQ(cluster::FormatTable({{"A", "B", "C"}, {red, "x", ""}, {"long", "", ""}}),
            "A     B  C\n" + red + "   x\nlong\n");
}

Job SomeJob() {
  Job job;
  job.set_job_id("job-7");
  job.set_name("adds");
  job.set_state(JOB_STATE_FAILED);
  job.set_reason("the disk is full");
  job.set_steps_done(2);
  job.set_steps_total(5);
  job.set_submitted_unix_ms(1000);
  job.set_ended_unix_ms(66000);
  job.mutable_last_step()->set_reward_mean(0.25);
  auto* report = job.add_evaluations();
  report->set_accuracy(0.5);
  report->set_questions(4);
  report->set_correct(2);
  job.add_evaluations()->set_skipped_reason("retired");
  job.mutable_spec()->set_seed(3);
  return job;
}

TEST(JobViewTest, ListAndDetailSayStateStepsAndReason) {
  ListJobsResponse jobs;
  const Terminal plain(false);
  EXPECT_NE(FormatJobs(jobs, 0, plain).find("titanctl submit"), std::string::npos);
  *jobs.add_jobs() = SomeJob();
  const std::string list = FormatJobs(jobs, 99999999, plain);
  EXPECT_NE(list.find("job-7  adds  FAILED  2/5    0.250   0.500     1m05s  the disk is full"),
            std::string::npos)
      << list;
  const std::string detail = FormatJob(SomeJob(), 99999999, plain);
  EXPECT_NE(detail.find("reason      the disk is full"), std::string::npos) << detail;
  EXPECT_NE(detail.find("not made: retired"), std::string::npos) << detail;
  EXPECT_NE(detail.find("\"seed\": 3"), std::string::npos) << detail;
  EXPECT_EQ(ExitCodeOf(SomeJob()), kExitJobFailed);
}

TEST(RolloutViewTest, EveryTokenHasItsLogProbAndVersion) {
  ListRolloutsResponse group;
  group.set_group_id(0x3000100);
  group.set_step(3);
  group.set_slot(1);
  group.set_prompt("2+2?\nanswer:");
  group.set_closed(true);
  group.set_reason("zero_variance");
  auto* sample = group.add_samples();
  sample->set_text("4\n");
  sample->set_scored(true);
  sample->set_reward(1);
  sample->set_num_tokens(2);
  sample->add_token_ids(11);
  sample->add_token_ids(12);
  sample->add_logprobs(-0.5f);
  sample->add_logprobs(-0.25f);
  sample->add_token_texts("4");
  sample->add_token_texts("\n");
  auto* span = sample->add_spans();
  span->set_version(2);
  span->set_num_tokens(1);
  span = sample->add_spans();
  span->set_version(3);
  span->set_num_tokens(1);
  const std::string text = FormatRollout(group, true, Terminal(false));
  EXPECT_NE(text.find("group 0x0000000003000100  step 3  slot 1"), std::string::npos) << text;
  EXPECT_NE(text.find("not trained: zero_variance"), std::string::npos) << text;
  EXPECT_NE(text.find("  | 2+2?\n  | answer:\n"), std::string::npos) << text;
  EXPECT_NE(text.find("log-prob -0.750000"), std::string::npos) << text;
  EXPECT_NE(text.find("   0  11  -0.500000  0.6065  2        '4'"), std::string::npos) << text;
  EXPECT_NE(text.find("   1  12  -0.250000  0.7788  3        '\\n'"), std::string::npos) << text;
  EXPECT_EQ(FormatRollout(group, false, Terminal(false)).find("LOG-PROB"), std::string::npos);
}

TEST(RolloutViewTest, GroupIdsReadBackAndControlBytesAreEscaped) {
  uint64_t id = 0;
  EXPECT_TRUE(ParseGroupId(FormatGroupId(0xfedcba9876543210), &id));
  EXPECT_EQ(id, 0xfedcba9876543210u);
  EXPECT_TRUE(ParseGroupId("3000100", &id));
  EXPECT_EQ(id, 0x3000100u);
  for (const char* bad : {"", "0x", "12g", "0x11112222333344445", "-1"}) {
    EXPECT_FALSE(ParseGroupId(bad, &id)) << bad;
  }
  EXPECT_EQ(Escape("a\\\x1b[2J\t"), "a\\\\\\x1b[2J\\t");
  EXPECT_EQ(cluster::Printable("\u00e4\x1b[31m\n\t\x7f\u009b1m\\"),
            "\u00e4\\x1b[31m\n\t\\x7f\\x9b1m\\");
  ListRolloutsResponse group;
  group.set_prompt("\x1b]0;title\x07");
  group.add_samples()->set_text("\x1b[31mred");
  EXPECT_EQ(FormatRollout(group, false, Terminal(false)).find('\x1b'), std::string::npos);
}

TEST(LogViewTest, LinesAreReadableAndForeignTextStays) {
  const Terminal plain(false);
  EXPECT_EQ(FormatLogLine(R"({"time":"2026-01-31T12:00:00.123Z","level":"warning","worker":"g",)"
                          R"("event":"worker_lost","version":7,"reason":"no heartbeat"})",
                          "generator-0", plain),
            "12:00:00.123 generator-0  warning worker_lost version=7 reason=\"no heartbeat\"");
  EXPECT_EQ(FormatLogLine("Segmentation fault", "trainer", plain),
            "             trainer      Segmentation fault");
  EXPECT_EQ(FormatLogLine("{\"a\":", "t", plain).substr(26), "{\"a\":");
  EXPECT_EQ(FormatLogLine("\x1b[2J", "t", plain).substr(26), "\\x1b[2J");
  EXPECT_EQ(FormatLogLine(R"({"event":"e","reason":"\u001b[2J"})", "t", plain).find('\x1b'),
            std::string::npos);
}

TEST(LogViewTest, MergesByTimeAndKeepsTheLast) {
  const auto line = [](const std::string& time, const std::string& event) {
    return R"({"time":")" + time + R"(","event":")" + event + "\"}";
  };
  const auto merged = MergeLogs({{"a", {line("1", "one"), "stack", line("4", "four")}},
                                 {"b", {line("2", "two"), line("3", "three")}}},
                                4);
  ASSERT_EQ(merged.size(), 4u);
  EXPECT_EQ(merged[0].text, "stack");  // stays behind its line
  EXPECT_EQ(merged[1].daemon, "b");
  EXPECT_EQ(merged[3].time, "4");
}

TEST(LogViewTest, AGrowingFileIsReadByWholeLinesAndAReplacedOneAgain) {
  char pattern[] = "/tmp/titan_log_view_XXXXXX";
  ASSERT_NE(mkdtemp(pattern), nullptr);
  const std::string path = std::string(pattern) + "/x.log";
  LogFile file("x", path);
  EXPECT_TRUE(file.ReadNew().empty());
  std::ofstream(path) << "one\ntw";
  EXPECT_EQ(file.ReadNew(), std::vector<std::string>{"one"});
  std::ofstream(path, std::ios::app) << "o\n";
  EXPECT_EQ(file.ReadNew(), std::vector<std::string>{"two"});
  EXPECT_TRUE(file.ReadNew().empty());
  std::ofstream(path) << "new\n";
  EXPECT_EQ(file.ReadNew(), std::vector<std::string>{"new"});
  unlink(path.c_str());
  rmdir(pattern);
}

TEST(MetricsViewTest, ReadsSamplesLabelsAndSkipsBuckets) {
  const auto metrics = ParseMetrics(
      "# HELP x Help\n# TYPE x counter\nx 3\ny{role=\"a b\",q=\"\\\"\"} 1.5e3\n"
      "h_bucket{le=\"+Inf\"} 2\nh_sum 0.25\nn NaN\n");
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  ASSERT_EQ(metrics->size(), 4u);
  EXPECT_EQ((*metrics)[0].value, 3);
  EXPECT_EQ(FormatLabels((*metrics)[1].labels), "q=\",role=a b");
  EXPECT_EQ((*metrics)[1].value, 1500);
  EXPECT_EQ((*metrics)[2].name, "h_sum");
  EXPECT_TRUE(std::isnan((*metrics)[3].value));
  for (const char* bad : {"x", "x{a=\"1\" 2", "{} 1", "x 1y z\n{", "x zz"}) {
    EXPECT_FALSE(ParseMetrics(bad).ok()) << bad;
  }
  EXPECT_EQ(FormatValue({"a_slot_bytes", {}, 3.0 * (1 << 30)}), "3.00 GiB");
  EXPECT_EQ(FormatValue({"a_seconds_sum", {}, 0.5}), "0.500 s");
  EXPECT_EQ(FormatValue({"a_seconds_count", {}, 12}), "12");
}

TEST(WeightsViewTest, NamesAreReadAndTheNewestReadableVersionIsChosen) {
  EXPECT_EQ(ParseVersionName("job-1@3")->version, 3u);
  EXPECT_FALSE(ParseVersionName("job-1")->version.has_value());
  for (const char* bad : {"", "@3", "job-1@", "job-1@x", "job-1@-1", "job-1@1@2"}) {
    EXPECT_EQ(ParseVersionName(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
  weightstore::v1::ListVersionsResponse versions;
  const auto add = [&](uint64_t number, weightstore::v1::VersionState state) {
    auto* version = versions.add_versions();
    version->set_version(number);
    version->set_state(state);
  };
  EXPECT_EQ(ChooseVersion(versions, {"j", {}}).status().code(), StatusCode::kFailedPrecondition);
  add(0, weightstore::v1::VERSION_STATE_FREE);
  add(1, weightstore::v1::VERSION_STATE_COMMITTED);
  add(2, weightstore::v1::VERSION_STATE_COMMITTED);
  add(3, weightstore::v1::VERSION_STATE_OPEN);
  EXPECT_EQ(ChooseVersion(versions, {"j", {}})->version(), 2u);
  EXPECT_EQ(ChooseVersion(versions, {"j", 1})->version(), 1u);
  EXPECT_EQ(ChooseVersion(versions, {"j", 9}).status().code(), StatusCode::kNotFound);
  const auto free = ChooseVersion(versions, {"j", 0});
  EXPECT_EQ(free.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(MessageOf(free.status()).find("is FREE"), std::string::npos);

  // After the job: the last version is on disk, or it says why not.
  for (auto& version : *versions.mutable_versions()) {
    version.set_state(weightstore::v1::VERSION_STATE_FREE);
  }
  versions.mutable_versions(2)->set_not_kept_reason("the disk has 3 bytes");
  for (const std::optional<uint64_t> number : {std::optional<uint64_t>(), {2}}) {
    const auto gone = ChooseVersion(versions, {"j", number});
    EXPECT_EQ(gone.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(MessageOf(gone.status()).find("not kept: the disk has 3 bytes"), std::string::npos)
        << gone.status();
  }
  versions.mutable_versions(2)->set_kept_bytes(5 << 20);
  const auto kept = ChooseVersion(versions, {"j", {}});
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->version(), 2u);
  EXPECT_FALSE(IsMapped(*kept));
  EXPECT_EQ(StateOf(*kept), "KEPT");
  EXPECT_EQ(VersionRow("j", *kept)[6], "5.0 MiB");
  EXPECT_TRUE(IsVersionName("job-1"));
  EXPECT_TRUE(IsVersionName("job-1@3"));
  EXPECT_FALSE(IsVersionName("smollm2"));
}

}  // namespace
}  // namespace titan::cli
