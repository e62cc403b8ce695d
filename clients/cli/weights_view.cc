// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/weights_view.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <charconv>

namespace titan::cli {

using namespace weightstore::v1;  // NOLINT: every name here is of the weight store's protocol

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

std::string NameOf(VersionState state) {
  const std::string name = VersionState_Name(state);
  constexpr std::string_view kPrefix = "VERSION_STATE_";
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : "UNKNOWN";
}

bool IsReadable(VersionState state) { return state == VERSION_STATE_COMMITTED; }

StatusOr<VersionInfo> ChooseVersion(const ListVersionsResponse& versions, const VersionName& name) {
  const VersionInfo* chosen = nullptr;
  for (const VersionInfo& version : versions.versions()) {
    if (name.version.has_value() ? version.version() == *name.version
                                 : IsReadable(version.state())) {
      chosen = &version;
    }
  }
  if (chosen == nullptr && name.version.has_value()) {
    return NotFound(name.job + " has no version " + std::to_string(*name.version));
  }
  if (chosen == nullptr || !IsReadable(chosen->state())) {
    return FailedPrecondition((chosen == nullptr
                                   ? name.job + " has no version whose weights are in memory"
                                   : "version " + std::to_string(chosen->version()) + " of " +
                                         name.job + " is " + NameOf(chosen->state()) +
                                         ": its weights are not in memory") +
                              "; the store holds the newest versions while the job lives");
  }
  return *chosen;
}

std::vector<std::string> VersionHead() {
  return {"JOB", "VERSION", "STATE", "DIGEST", "STEP", "COMMITTED", "HOLDERS"};
}

std::vector<std::string> VersionRow(const std::string& job, const VersionInfo& version) {
  const auto seconds = static_cast<std::time_t>(version.committed_unix_ms() / 1000);
  return {job,
          std::to_string(version.version()),
          NameOf(version.state()),
          version.weights_digest().empty() ? "-" : version.weights_digest(),
          version.version() == 0 ? "-" : std::to_string(version.train_step()),
          seconds == 0 ? "-" : fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::gmtime(seconds)),
          fmt::format("{}", fmt::join(version.holders(), ", "))};
}

}  // namespace titan::cli
