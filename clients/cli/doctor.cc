// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/doctor.h"

#include <fmt/format.h>

#include <algorithm>

namespace titan::cli {
namespace {

constexpr uint64_t kMib = 1u << 20;
constexpr uint64_t kGib = 1u << 30;
// For journal and logs; the weight store leaves it free.
constexpr uint64_t kLeastDisk = 256 * kMib;
constexpr int64_t kBuildEra = 1735689600;  // 2025-01-01: a clock before it is wrong

std::string Size(uint64_t bytes) {
  return bytes >= kGib ? fmt::format("{:.1f} GiB", static_cast<double>(bytes) / kGib)
                       : fmt::format("{} MiB", bytes / kMib);
}

class Findings {
 public:
  void Good(const std::string& subject, const std::string& text) {
    all_.push_back({Health::kGood, subject, text, ""});
  }
  void Warning(const std::string& subject, const std::string& text, const std::string& fix) {
    all_.push_back({Health::kWarning, subject, text, fix});
  }
  void Bad(const std::string& subject, const std::string& text, const std::string& fix) {
    all_.push_back({Health::kBad, subject, text, fix});
  }
  std::vector<Finding> Take() { return std::move(all_); }

 private:
  std::vector<Finding> all_;
};

void ExamineCpu(const MachineFacts& facts, Findings* out) {
  std::string missing;
  for (const char* flag : {"avx2", "fma"}) {
    if (!facts.cpu_flags.contains(flag))
      missing += (missing.empty() ? "" : ", ") + std::string(flag);
  }
  if (!missing.empty()) {
    out->Bad("cpu", facts.cpu_name + " lacks " + missing,
             "use an x86-64 CPU with AVX2 and FMA; every kernel needs them");
    return;
  }
  const bool avx512 = facts.cpu_flags.contains("avx512f") && facts.cpu_flags.contains("avx512bw") &&
                      facts.cpu_flags.contains("avx512dq") && facts.cpu_flags.contains("avx512vl");
  const bool dot = avx512 && facts.cpu_flags.contains("avx512_bf16");
  out->Good("cpu", fmt::format("{}: AVX2, FMA{}{}", facts.cpu_name, avx512 ? ", AVX-512" : "",
                               dot ? ", AVX512_BF16" : ""));
  const std::string cores =
      fmt::format("{} core{} for this process", facts.cores, facts.cores == 1 ? "" : "s");
  if (facts.cores < 2) {
    out->Warning("cores", cores, "trainer and generators take turns; 2 or more overlap");
  } else {
    out->Good("cores", cores);
  }
}

void ExamineMemory(const MachineFacts& facts, const std::optional<JobNeeds>& job, Findings* out) {
  if (!facts.memfd_reason.empty()) {
    out->Bad("memory files", "sealed memory files do not work: " + facts.memfd_reason,
             "Linux 3.17 or later without a filter on memfd_create; weights travel in them");
  } else {
    out->Good("memory files", "memfd_create and seals work");
  }
  if (!facts.memory_available_bytes.has_value()) {
    out->Warning("memory", "/proc/meminfo does not say how much is free", "");
  } else if (*facts.memory_available_bytes < kGib) {
    out->Warning("memory", Size(*facts.memory_available_bytes) + " are free",
                 "SmolLM2-135M needs about 6 GiB; end other programs");
  } else {
    out->Good("memory", Size(*facts.memory_available_bytes) + " are free" +
                            (facts.swap_used_bytes > 0
                                 ? ", " + Size(facts.swap_used_bytes) + " are swapped out"
                                 : ""));
  }
  if (!job.has_value()) return;
  if (!job->problem.empty()) {
    out->Bad("job", job->problem,
             "mend it or name another file; titanctl submit FILE --check looks at a job in full");
    return;
  }
  const std::string problem =
      facts.memory_available_bytes.has_value()
          ? orchestrator::MemoryProblem(job->memory, *facts.memory_available_bytes)
          : "";
  if (!problem.empty()) {
    out->Bad(
        "job", problem,
        "use a smaller model, lower schedule.max_age or the generators' kv_cache_bytes, or free "
        "memory");
    return;
  }
  const uint64_t volume =
      facts.disk_available_bytes - std::min(facts.disk_available_bytes, kLeastDisk);
  const uint64_t room = std::min(volume, job->disk_left_bytes.value_or(volume));
  const std::string more_room =
      room < volume
          ? "raise weightstore.disk_limit_bytes of the cluster's configuration, or delete "
            "with titanctl weights gc"
          : "free the volume of " + facts.folder;
  if (const std::string disk = orchestrator::DiskProblem(job->disk, room); !disk.empty()) {
    out->Bad("job", disk,
             more_room +
                 ", choose another folder with --data, or keep nothing with "
                 "weightstore.disk_limit_bytes 0 of the cluster's configuration");
    return;
  }
  uint64_t total = 0;
  for (const auto& need : job->memory) total += need.bytes;
  const std::string text = "needs at least " + Size(total) + " of memory and " +
                           Size(job->disk.version + job->disk.checkpoints) + " of disk for weights";
  const std::string warning = orchestrator::CheckpointWarning(job->disk, room);
  if (warning.empty()) {
    out->Good("job", text);
  } else {
    out->Warning("job", text + "; " + warning, more_room);
  }
}

void ExamineDisk(const MachineFacts& facts, Findings* out) {
  if (!facts.folder_reason.empty()) {
    out->Bad("data folder", facts.folder_reason, "choose another folder with --data");
    return;
  }
  const std::string text =
      fmt::format("{}: {} free, a synced write takes {:.1f} ms{}", facts.folder,
                  Size(facts.disk_available_bytes), facts.disk_sync_seconds * 1e3,
                  facts.folder_in_use ? "; a cluster runs in it" : "");
  if (facts.disk_available_bytes < kLeastDisk) {
    out->Bad("data folder", text, "free the disk: journal and logs grow there");
  } else if (facts.disk_available_bytes < kGib) {
    out->Warning("data folder", text, "free the disk before long jobs");
  } else if (facts.disk_sync_seconds > 0.1) {
    out->Warning("data folder", text, "every step waits for its record; use a local disk");
  } else {
    out->Good("data folder", text);
  }
}

void ExamineLimits(const MachineFacts& facts, Findings* out) {
  if (facts.open_files < 1024) {
    out->Warning("open files", fmt::format("at most {}", facts.open_files), "ulimit -n 4096");
  } else {
    out->Good("open files", fmt::format("at most {}", facts.open_files));
  }
  // Only RDMA pins memory; on one machine weights are mapped.
  out->Good("memlock",
            (facts.memlock_unlimited ? std::string("unlimited")
                                     : Size(facts.memlock_bytes) + " may be locked") +
                "; one machine needs none, with RDMA a weight store needs its memory_limit_bytes");
  if (facts.has_shm) {
    out->Good("/dev/shm",
              Size(facts.shm_available_bytes) + " free; weights use memory files instead");
  } else {
    out->Good("/dev/shm", "not mounted; weights use memory files instead");
  }
}

void ExamineNetworkAndClock(const MachineFacts& facts, Findings* out) {
  if (!facts.loopback_reason.empty()) {
    out->Bad("ports", "cannot listen on 127.0.0.1: " + facts.loopback_reason,
             "bring the loopback interface up: ip link set lo up");
  } else if (!facts.port_reason.empty()) {
    out->Bad("ports", facts.port_reason, "choose another port, or 0 for a free one");
  } else {
    out->Good("ports", "127.0.0.1 can be listened on");
  }
  if (facts.unix_seconds < kBuildEra) {
    out->Bad("clock", "is before 2025", "set the clock: deadlines and times depend on it");
  } else if (facts.clock_synchronized == false) {
    out->Warning("clock", "is not synchronized",
                 "run chrony or systemd-timesyncd; only times shown "
                 "to people depend on it on one machine");
  } else {
    out->Good("clock", facts.clock_synchronized == true ? "synchronized" : "plausible");
  }
}

}  // namespace

std::vector<Finding> Examine(const MachineFacts& facts, const std::optional<JobNeeds>& job) {
  Findings out;
  ExamineCpu(facts, &out);
  ExamineMemory(facts, job, &out);
  ExamineDisk(facts, &out);
  ExamineLimits(facts, &out);
  ExamineNetworkAndClock(facts, &out);
  if (facts.missing_programs.empty()) {
    out.Good("programs", "all daemons are beside titanctl");
  } else {
    std::string list;
    for (const std::string& name : facts.missing_programs)
      list += (list.empty() ? "" : ", ") + name;
    out.Bad("programs", "missing beside titanctl: " + list, "make build");
  }
  return out.Take();
}

bool IsFit(const std::vector<Finding>& findings) {
  return std::none_of(findings.begin(), findings.end(),
                      [](const Finding& finding) { return finding.health == Health::kBad; });
}

std::string FormatFindings(const std::vector<Finding>& findings,
                           const cluster::Terminal& terminal) {
  using cluster::Cell;
  std::vector<std::vector<Cell>> rows;
  for (const Finding& finding : findings) {
    const Cell mark = finding.health == Health::kGood ? Cell("ok", cluster::Color::kGreen)
                      : finding.health == Health::kWarning
                          ? Cell("warning", cluster::Color::kYellow)
                          : Cell("bad", cluster::Color::kRed);
    rows.push_back({mark, finding.subject, finding.text});
    if (!finding.fix.empty()) rows.push_back({"", "", "fix: " + finding.fix});
  }
  // What to do is never cut.
  return cluster::FormatTable(rows, terminal.Uncut());
}

}  // namespace titan::cli
