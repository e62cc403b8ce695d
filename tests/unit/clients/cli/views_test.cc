// SPDX-License-Identifier: Apache-2.0
// Goal: what people see of jobs, rollouts, logs and metrics is what the messages and files say;
// colours never change the columns; strange bytes stay harmless.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include <nlohmann/json.hpp>

#include "clients/cli/down_view.h"
#include "clients/cli/job_view.h"
#include "clients/cli/log_view.h"
#include "clients/cli/metrics_view.h"
#include "clients/cli/rollout_view.h"
#include "clients/cli/weights_view.h"
#include "clients/cluster/progress.h"
#include "services/rpc/config.h"

namespace titan::cli {
namespace {

using namespace orchestrator::v1;  // NOLINT: the test speaks of little else
using cluster::Terminal;

TEST(TableTest, ColoursAndCodePointsDoNotShiftColumns) {
  const Terminal colors(true);
  const std::string red = colors.Paint(cluster::Color::kRed, "bad");
  EXPECT_EQ(cluster::VisibleWidth(red), 3u);
  EXPECT_EQ(cluster::VisibleWidth("\xc3\xa4\xe2\x86\x92"), 2u);
  using Rows = std::vector<std::vector<cluster::Cell>>;
  const Rows rows = {{"A", "B", "C"}, {{"bad", cluster::Color::kRed}, "x", ""}, {"long", "", ""}};
  EXPECT_EQ(cluster::FormatTable(rows, colors), "A     B  C\n" + red + "   x\nlong\n");
  EXPECT_EQ(cluster::FormatTable(rows, Terminal(false)), "A     B  C\nbad   x\nlong\n");
}

TEST(TableTest, CellsCannotSpeakToTheTerminal) {
  const std::string text =
      cluster::FormatTable({{"A", "B"}, {"\x1b[2Jx\n", "\x1b]0;t\x07\xc2\x9b\t"}});
  EXPECT_EQ(text, "A           B\n\\x1b[2Jx\\n  \\x1b]0;t\\x07\\x9b\\t\n");
  EXPECT_EQ(cluster::PrintableLine("a\n\tb\\"), "a\\n\\tb\\");
}

TEST(TableTest, TheLastCellIsCutToTheTerminal) {
  const std::string reason = "a reason that goes on\xc3\xa4 and on";
  const auto last_line = [&](size_t width) {
    const std::vector<std::vector<cluster::Cell>> rows = {{"JOB", "REASON"}, {"job-1", reason}};
    const std::string text = cluster::FormatTable(rows, Terminal(false, width));
    return text.substr(text.find('\n') + 1);
  };
  EXPECT_EQ(last_line(0), "job-1  " + reason + "\n");
  EXPECT_EQ(last_line(36), "job-1  " + reason + "\n");  // fits exactly
  EXPECT_EQ(last_line(35), "job-1  a reason that goes on\xc3\xa4 an...\n");
  EXPECT_EQ(last_line(32), "job-1  a reason that goes on\xc3\xa4...\n");
  EXPECT_EQ(last_line(31), "job-1  a reason that goes on...\n");
  EXPECT_EQ(last_line(1), "job-1  a rea...\n");  // a little of it always stays
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

TEST(DownViewTest, SaysWhichJobsEndAndWhichStay) {
  ListJobsResponse jobs;
  EXPECT_EQ(FormatJobsAtDown(SortForDown(jobs), "titanctl up --data run"),
            "no job runs or waits\n");
  *jobs.add_jobs() = SomeJob();  // FAILED
  const auto add = [&jobs](const std::string& id, JobState state) {
    *jobs.add_jobs() = SomeJob();
    jobs.mutable_jobs(jobs.jobs_size() - 1)->set_job_id(id);
    jobs.mutable_jobs(jobs.jobs_size() - 1)->set_state(state);
  };
  EXPECT_EQ(FormatJobsAtDown(SortForDown(jobs), "titanctl up --data run"),
            "no job runs or waits\n");
  add("job-8", JOB_STATE_QUEUED);
  EXPECT_EQ(FormatJobsAtDown(SortForDown(jobs), "titanctl up --data run"),
            "1 job has not begun and stays queued; titanctl up --data run runs it: job-8\n");
  add("job-9", JOB_STATE_STARTING);
  add("job-10", JOB_STATE_RUNNING);
  add("job-11", JOB_STATE_STOPPING);
  jobs.mutable_jobs(jobs.jobs_size() - 1)->clear_name();
  EXPECT_EQ(
      FormatJobsAtDown(SortForDown(jobs), "titanctl up --data run"),
      "job-10 (adds) is RUNNING, 2 of 5 steps done: it ends with the cluster and is not "
      "resumed, and its newest version is kept; submit it again after the next start\n"
      "job-11 is STOPPING, 2 of 5 steps done: it ends with the cluster\n"
      "2 jobs have not begun and stay queued; titanctl up --data run runs them in this order: "
      "job-9, job-8\n");
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

TEST(ExitCodesTest, DamageIsNeitherWrongInputNorAnyFailure) {
  EXPECT_EQ(ExitCodeOf(DataLoss("blob 1 is damaged")), kExitDamaged);
  EXPECT_EQ(ExitCodeOf(InvalidArgument("model.path: no such file")), kExitUsage);
  EXPECT_EQ(ExitCodeOf(FailedPrecondition("the job has ended")), kExitFailed);
}

TEST(JobViewTest, TheOrchestratorSaysWhichJobsItHas) {
  ListJobsResponse jobs;
  *jobs.add_jobs() = SomeJob();
  EXPECT_EQ(DoingOf(jobs), "ready, no job to do");
  Job job = SomeJob();
  job.set_state(JOB_STATE_QUEUED);
  job.set_reason("");
  *jobs.add_jobs() = job;
  EXPECT_EQ(DoingOf(jobs), "ready, 1 queued");
  jobs.mutable_jobs(1)->set_reason("waits: no trainer");
  *jobs.add_jobs() = job;
  EXPECT_EQ(DoingOf(jobs), "ready, 2 queued (job-7 waits: no trainer)");
  jobs.mutable_jobs()->RemoveLast();
  jobs.mutable_jobs(1)->set_reason("");
  job.set_state(JOB_STATE_RUNNING);
  job.set_job_id("job-2");
  *jobs.add_jobs() = job;
  EXPECT_EQ(DoingOf(jobs), "ready, job-2 is RUNNING, 1 queued");
}

TEST(JobViewTest, NamesReasonsAndMessagesAreHarmless) {
  Job job = SomeJob();
  job.set_name("a\x1b[31mb");
  job.set_reason("no\x1b[2J\nline");
  job.mutable_evaluations(1)->set_skipped_reason("\x1b[1A");
  job.mutable_spec()->set_name("\xc2\x9b");
  ListJobsResponse jobs;
  *jobs.add_jobs() = job;
  const Terminal plain(false);
  cluster::JobProgress progress(plain);
  WatchJobResponse change, message, evaluation;
  *change.mutable_state_changed() = job;
  message.set_message("\x1b]0;x\x07");
  *evaluation.mutable_evaluation_done() = job.evaluations(1);
  std::string all = FormatJobs(jobs, 0, plain) + FormatJob(job, 0, plain);
  for (const auto& event : {change, message, evaluation}) all += progress.OnEvent(event);
  for (const char* bad : {"\x1b", "\x07", "\xc2\x9b"}) {
    EXPECT_EQ(all.find(bad), std::string::npos) << all;
  }
  EXPECT_NE(all.find("no\\x1b[2J\\nline"), std::string::npos) << all;
}

TEST(JobViewTest, JsonHasZeroFieldsAndNullForWhatIsNotThere) {
  Job job = SomeJob();
  job.mutable_spec()->mutable_schedule();
  const auto json = nlohmann::json::parse(rpc::ToJsonText(job));
  EXPECT_EQ(json.at("last_step").at("step"), 0);
  ASSERT_TRUE(json.at("last_step").contains("parity"));
  EXPECT_TRUE(json.at("last_step").at("parity").is_null());
  EXPECT_EQ(json.at("evaluations").at(0).at("version"), 0);
  EXPECT_EQ(json.at("evaluations").at(0).at("skipped_reason"), "");
  const auto& schedule = json.at("spec").at("schedule");
  EXPECT_EQ(schedule.at("steps"), 0);
  ASSERT_TRUE(schedule.contains("max_age"));  // optional
  EXPECT_TRUE(schedule.at("max_age").is_null());
  ASSERT_TRUE(json.at("spec").contains("training"));
  EXPECT_TRUE(json.at("spec").at("training").is_null());
  job.mutable_parity()->set_tokens_compared(7);
  job.clear_last_step();
  const auto without = nlohmann::json::parse(rpc::ToJsonText(job));
  EXPECT_EQ(without.at("parity").at("tokens_differing"), 0);
  ASSERT_TRUE(without.contains("last_step"));
  EXPECT_TRUE(without.at("last_step").is_null());
  WatchJobResponse event;
  event.mutable_step_done();
  const auto done = nlohmann::json::parse(rpc::ToJsonText(event));
  EXPECT_EQ(done.at("step_done").at("step"), 0);
  EXPECT_FALSE(done.contains("message"));  // another member of the oneof
  EXPECT_EQ(rpc::ToJsonText(event, /*all_fields=*/false, -1), "{\"step_done\":{}}");
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
  EXPECT_TRUE(ParseGroupId("0x3000100", &id));
  EXPECT_EQ(id, 0x3000100u);
  EXPECT_TRUE(ParseGroupId("50331904", &id));  // as -o json prints it
  EXPECT_EQ(id, 0x3000100u);
  for (const char* bad : {"", "0x", "0x12g", "0x11112222333344445", "-1", "0x-1", "abc", "30f"}) {
    EXPECT_FALSE(ParseGroupId(bad, &id)) << bad;
  }
  EXPECT_EQ(Escape("a\\\x1b[2J\t"), "a\\\\\\x1b[2J\\t");
  EXPECT_EQ(cluster::Printable("\u00e4\x1b[31m\n\t\x7f\u009b1m\\"),
            "\u00e4\\x1b[31m\n\t\\x7f\\x9b1m\\");
  ListRolloutsResponse group;
  group.set_prompt("\x1b]0;title\x07");
  group.set_closed(true);
  group.set_reason("\x1b[1m");
  group.add_samples()->set_text("\x1b[31mred");
  group.mutable_samples(0)->set_worker_id("\x1b");
  group.mutable_samples(0)->set_model_fault("the pattern is not in the reply\x1b");
  (*group.mutable_samples(0)->mutable_reward_components())["\x1b"] = 1;
  const std::string text = FormatRollout(group, false, Terminal(false));
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_NE(text.find("grader: the pattern is not in the reply"), std::string::npos) << text;
  EXPECT_EQ(text.find("fault"), std::string::npos) << text;
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
  for (const char* line :
       {R"({"event":"e","reason":"\u001b[2J"})", R"({"event":"e","time":"\u001b"})",
        R"({"event":"\u001b","level":"\u001b"})", R"({"event":"e","\u001b":["\u009b"]})"}) {
    const std::string shown = FormatLogLine(line, "t", plain);
    EXPECT_EQ(shown.find('\x1b'), std::string::npos) << shown;
    EXPECT_EQ(shown.find("\xc2\x9b"), std::string::npos) << shown;
  }
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

TEST(MetricsViewTest, AMetricThatIsNotThereIsSaidWithTheNearest) {
  const std::vector<std::string> names = {"titan_parity_tokens_total", "titan_steps_total"};
  Status status = NoSuchMetric("titan_step_total", names, "run");
  EXPECT_EQ(ExitCodeOf(status), kExitNoSuchThing);
  EXPECT_EQ(MessageOf(status),
            "no metric has 'titan_step_total' in its name; did you mean 'titan_steps_total'? see "
            "them all with: titanctl metrics --data run");
  EXPECT_NE(MessageOf(NoSuchMetric("partiy", names, "run")).find("did you mean 'parity'?"),
            std::string::npos);
  EXPECT_EQ(MessageOf(NoSuchMetric("nothing", names, "run")).find("did you"), std::string::npos);
}

TEST(WeightsViewTest, WhatIsNeitherInMemoryNorOnDiskIsCountedNotShown) {
  using namespace weightstore::v1;  // NOLINT: its states
  const auto exists = [](VersionState state, uint64_t kept) {
    VersionInfo version;
    version.set_state(state);
    version.set_kept_bytes(kept);
    return Exists(version);
  };
  for (const auto state :
       {VERSION_STATE_OPEN, VERSION_STATE_SEALED, VERSION_STATE_COMMITTED, VERSION_STATE_RETIRED}) {
    EXPECT_TRUE(exists(state, 0)) << state;
  }
  for (const auto state : {VERSION_STATE_FREE, VERSION_STATE_ABORTED, VERSION_STATE_LOST}) {
    EXPECT_FALSE(exists(state, 0)) << state;
    EXPECT_TRUE(exists(state, 1)) << state;
  }
  EXPECT_EQ(NotShown(0), "");
  EXPECT_EQ(NotShown(1),
            "1 version neither in memory nor on disk is not shown; show it with: --all\n");
  EXPECT_EQ(NotShown(3),
            "3 versions neither in memory nor on disk are not shown; show them with: --all\n");
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
  weightstore::v1::VersionInfo open;  // its step is not known before it is committed
  open.set_version(7);
  open.set_state(weightstore::v1::VERSION_STATE_OPEN);
  EXPECT_EQ(VersionRow("j", open)[4], "-");
  open.set_train_step(6);
  open.set_committed_unix_ms(1000);
  EXPECT_EQ(VersionRow("j", open)[4], "6");
  EXPECT_TRUE(IsVersionName("job-1"));
  EXPECT_TRUE(IsVersionName("job-1@3"));
  EXPECT_FALSE(IsVersionName("smollm2"));
}

}  // namespace
}  // namespace titan::cli
