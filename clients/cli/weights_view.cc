// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/weights_view.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <charconv>

namespace titan::cli {

using namespace weightstore::v1;  // NOLINT: every name here is of the weight store's protocol

namespace {

// What is on disk of a run: job, version, digest, time and bytes.
std::vector<std::string> OnDiskRow(const StoredModel& stored,
                                   const std::map<std::string, std::string>& job_of_run) {
  const auto job = job_of_run.find(stored.run_id());
  const auto seconds = static_cast<std::time_t>(stored.stored_unix_ms() / 1000);
  return {job == job_of_run.end() ? stored.run_id() : job->second, std::to_string(stored.version()),
          stored.weights_digest(), fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::gmtime(seconds)),
          MebiBytes(stored.num_bytes())};
}

}  // namespace

StatusOr<VersionName> ParseVersionName(const std::string& text) {
  VersionName name;
  const size_t at = text.find('@');
  name.job = text.substr(0, at);
  if (at != std::string::npos) {
    uint64_t version = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + at + 1, end, version);
    if (error != std::errc() || stop != end) {
      return InvalidArgument("'" + text + "': wants JOB or JOB@VERSION, for example job-1@3");
    }
    name.version = version;
  }
  if (name.job.empty()) {
    return InvalidArgument("'" + text + "': wants JOB or JOB@VERSION, for example job-1@3");
  }
  return name;
}

bool IsVersionName(const std::string& text) {
  return text.find('@') != std::string::npos || text.starts_with("job-");
}

std::string StateOf(const VersionInfo& version) {
  if (!IsMapped(version) && version.kept_bytes() > 0) return "KEPT";
  const std::string name = VersionState_Name(version.state());
  constexpr std::string_view kPrefix = "VERSION_STATE_";
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : "UNKNOWN";
}

bool IsMapped(const VersionInfo& version) { return version.state() == VERSION_STATE_COMMITTED; }
bool IsReadable(const VersionInfo& version) {
  return IsMapped(version) || version.kept_bytes() > 0;
}

bool Exists(const VersionInfo& version) {
  switch (version.state()) {
    case VERSION_STATE_OPEN:
    case VERSION_STATE_SEALED:
    case VERSION_STATE_COMMITTED:
    case VERSION_STATE_RETIRED:
      return true;
    default:
      return version.kept_bytes() > 0;
  }
}

std::string NotShown(size_t versions) {
  if (versions == 0) return "";
  return fmt::format(
      "{} version{} neither in memory nor on disk {} not shown; show {} with: --all\n", versions,
      versions == 1 ? "" : "s", versions == 1 ? "is" : "are", versions == 1 ? "it" : "them");
}

std::string MebiBytes(uint64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

StatusOr<VersionInfo> ChooseVersion(const ListVersionsResponse& versions, const VersionName& name) {
  const VersionInfo* chosen = nullptr;
  std::string reason;
  for (const VersionInfo& version : versions.versions()) {
    if (!version.not_kept_reason().empty())
      reason = "; it was not kept: " + version.not_kept_reason();
    if (name.version.has_value() ? version.version() == *name.version : IsReadable(version)) {
      chosen = &version;
    }
  }
  if (chosen == nullptr && name.version.has_value()) {
    return NotFound(name.job + " has no version " + std::to_string(*name.version));
  }
  if (chosen != nullptr && IsReadable(*chosen)) return *chosen;
  if (chosen == nullptr) {
    return FailedPrecondition(name.job + " has no version whose weights are in memory or on disk" +
                              reason);
  }
  return FailedPrecondition("version " + std::to_string(chosen->version()) + " of " + name.job +
                            " is " + StateOf(*chosen) +
                            ": its weights are neither in memory nor on disk; the newest versions "
                            "are in memory while the job lives, its last one is kept" +
                            (chosen->not_kept_reason().empty() ? "" : reason));
}

std::vector<std::string> VersionHead() {
  return {"JOB", "VERSION", "STATE", "DIGEST", "STEP", "COMMITTED", "DISK", "HOLDERS"};
}

std::vector<std::string> VersionRow(const std::string& job, const VersionInfo& version) {
  const auto seconds = static_cast<std::time_t>(version.committed_unix_ms() / 1000);
  return {job,
          std::to_string(version.version()),
          StateOf(version),
          version.weights_digest().empty() ? "-" : version.weights_digest(),
          version.version() == 0 || seconds == 0 ? "-" : std::to_string(version.train_step()),
          seconds == 0 ? "-" : fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::gmtime(seconds)),
          version.kept_bytes() == 0 ? "-" : MebiBytes(version.kept_bytes()),
          fmt::format("{}", fmt::join(version.holders(), ", "))};
}

std::vector<std::string> ModelHead() { return {"MODEL", "NAMES", "DIGEST", "STORED", "DISK"}; }

std::vector<std::string> ModelRow(const StoredModel& model) {
  const auto seconds = static_cast<std::time_t>(model.stored_unix_ms() / 1000);
  return {model.id(),
          model.names().empty() ? "-" : fmt::format("{}", fmt::join(model.names(), ", ")),
          model.weights_digest(), fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::gmtime(seconds)),
          MebiBytes(model.num_bytes())};
}

std::string FormatCheckpoints(const ListStoredModelsResponse& stored,
                              const std::map<std::string, std::string>& job_of_run) {
  if (stored.checkpoints().empty()) return "";
  std::vector<std::vector<std::string>> rows = {
      {"JOB", "CHECKPOINT", "DIGEST OF STATE", "STORED", "DISK"}};
  for (const StoredModel& checkpoint : stored.checkpoints()) {
    rows.push_back(OnDiskRow(checkpoint, job_of_run));
  }
  return cluster::FormatTable(rows);
}

std::string FormatCollected(const CollectGarbageResponse& collected,
                            const std::map<std::string, std::string>& job_of_run,
                            const std::string& command) {
  const bool deleted = command.empty();
  const auto versions = [](uint64_t n) {
    return fmt::format("{} version{}", n, n == 1 ? "" : "s");
  };
  const uint64_t left = collected.versions_left();
  const std::string rest = left == 0 ? ""
                                     : fmt::format("; {} of ended jobs {}", versions(left),
                                                   left == 1 ? "stays" : "stay");
  if (collected.versions().empty() && collected.freed_bytes() == 0) {
    return "there is nothing to delete" + rest + "\n";
  }
  std::vector<std::vector<std::string>> rows = {{"JOB", "VERSION", "DIGEST", "STORED", "DISK"}};
  for (const StoredModel& version : collected.versions()) {
    rows.push_back(OnDiskRow(version, job_of_run));
  }
  const std::string table = rows.size() == 1 ? "" : cluster::FormatTable(rows) + "\n";
  const std::string what =
      versions(static_cast<uint64_t>(collected.versions_size()) + collected.versions_not_listed());
  uint64_t listed = 0;
  for (const StoredModel& version : collected.versions()) listed += version.num_bytes();
  const std::string bytes = MebiBytes(collected.freed_bytes());
  const std::string shared =
      collected.freed_bytes() < listed
          ? " (what several of them name is counted once, what others name stays)"
          : "";
  if (deleted) return table + fmt::format("{} deleted, {} freed{}{}\n", what, bytes, shared, rest);
  return table + fmt::format("{} would be deleted and at most {} freed{}{}\ndelete with: {}\n",
                             what, bytes, shared, rest, command);
}

}  // namespace titan::cli
