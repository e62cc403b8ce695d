// SPDX-License-Identifier: Apache-2.0
#include "clients/demo/demo_result.h"

#include <fmt/format.h>

#include <cmath>

#include <nlohmann/json.hpp>

#include "clients/cluster/job_client.h"

namespace titan::demo {

using Json = nlohmann::ordered_json;
using orchestrator::v1::EvaluationReport;
using orchestrator::v1::Job;
using orchestrator::v1::StepReport;

std::vector<std::string> Failures(const Job& job, const cluster::JobProgress& progress) {
  std::vector<std::string> failures;
  if (job.state() != orchestrator::v1::JOB_STATE_SUCCEEDED) {
    failures.push_back(
        fmt::format("the job is {}: {}", cluster::NameOf(job.state()), job.reason()));
  }
  if (progress.steps().size() != job.steps_total()) {
    failures.push_back(
        fmt::format("{} of {} steps were done", progress.steps().size(), job.steps_total()));
  }
  const auto parity = progress.parity();
  if (parity.tokens_compared() == 0) {
    failures.push_back("no token was compared between rollout and training");
  } else if (parity.tokens_differing() > 0 || !(parity.logprob_difference_max() == 0)) {
    failures.push_back("rollout and training differ: " + cluster::FormatParity(parity));
  }
  return failures;
}

std::string ResultText(const Job& job, const cluster::JobProgress& progress,
                       const std::vector<cluster::ProcessState>& processes,
                       const std::vector<std::string>& failures) {
  std::vector<EvaluationReport> made;
  for (const EvaluationReport& report : progress.evaluations()) {
    if (report.skipped_reason().empty()) made.push_back(report);
  }
  Json json;
  json["heldout_questions"] = made.empty() ? Json() : Json(made.front().questions());
  json["heldout_accuracy_start"] =
      !made.empty() && made.front().version() == 0 ? Json(made.front().accuracy()) : Json();
  json["heldout_accuracy_end"] = !made.empty() && made.back().version() == job.steps_total()
                                     ? Json(made.back().accuracy())
                                     : Json();
  Json reached = Json::object();
  for (const double goal : {0.6, 0.7, 0.8}) {
    Json& seconds = reached[fmt::format("{:.1f}", goal)];
    for (const EvaluationReport& report : made) {
      if (seconds.is_null() && report.accuracy() >= goal) seconds = report.seconds_since_running();
    }
  }
  json["seconds_to_accuracy"] = reached;
  json["steps"] = progress.steps().size();
  const auto parity = progress.parity();
  json["logprob_diff_max"] =
      parity.tokens_compared() > 0 ? Json(parity.logprob_difference_max()) : Json();
  json["tokens_differing"] = parity.tokens_differing();
  json["tokens_compared"] = parity.tokens_compared();
  json["final_weights_digest"] =
      progress.steps().empty() ? Json() : Json(progress.steps().back().weights_digest());
  json["seconds"] =
      job.running_unix_ms() > 0 && job.ended_unix_ms() > 0
          ? Json(static_cast<double>(job.ended_unix_ms() - job.running_unix_ms()) / 1e3)
          : Json();
  json["processes"] = Json::array();
  for (const auto& process : processes) {
    for (const auto& past : process.exits) {
      Json row;
      row["name"] = process.spec.name;
      row["pid"] = past.pid;
      row["exe"] = process.spec.exe;
      row["exit"] = past.exit.code;
      row["peak_memory_mib"] = past.exit.peak_memory_kib / 1024;
      json["processes"].push_back(std::move(row));
    }
  }
  // Beyond what the format asks for: what the figures above rest on.
  json["job_id"] = job.job_id();
  json["seed"] = job.spec().seed();
  json["state"] = cluster::NameOf(job.state());
  json["failures"] = failures;
  json["samples_per_pack_min"] = progress.samples_per_pack_min();
  json["sequences_running_max"] = progress.sequences_running_max();
  json["overlap_share"] = progress.overlap_share();
  json["evaluations"] = Json::array();
  for (const EvaluationReport& report : made) {
    json["evaluations"].push_back({{"version", report.version()},
                                   {"accuracy", report.accuracy()},
                                   {"seconds", report.seconds_since_running()},
                                   {"completion_tokens_mean", report.completion_tokens_mean()}});
  }
  json["step_reports"] = Json::array();
  for (const StepReport& step : progress.steps()) {
    Json row;
    row["step"] = step.step();
    row["weights_digest"] = step.weights_digest();
    row["reward_mean"] = step.reward_mean();
    row["tokens_generated"] = step.tokens_generated();
    row["tokens_trained"] = step.tokens_trained();
    row["tokens_compared"] = step.parity().tokens_compared();
    row["tokens_differing"] = step.parity().tokens_differing();
    row["wall_seconds"] = step.phases().wall();
    row["generate_seconds"] = step.phases().generate();
    row["score_seconds"] = step.phases().score();
    row["wait_for_samples_seconds"] = step.phases().wait_for_samples();
    row["parity_forward_seconds"] = step.phases().parity_forward();
    row["forward_seconds"] = step.phases().forward();
    row["backward_seconds"] = step.phases().backward();
    row["optimizer_seconds"] = step.phases().optimizer();
    row["publish_seconds"] = step.phases().publish();
    row["generators"] = Json::array();
    for (const auto& share : step.generator_shares()) {
      row["generators"].push_back({{"worker_id", share.worker_id()},
                                   {"tokens", share.tokens()},
                                   {"batch_fingerprint", share.batch_fingerprint()}});
    }
    json["step_reports"].push_back(std::move(row));
  }
  return json.dump(2) + "\n";
}

}  // namespace titan::demo
