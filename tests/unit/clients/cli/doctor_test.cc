// SPDX-License-Identifier: Apache-2.0
// Goal: each thing that makes a machine unfit is found and named with its fix, and a good machine
// is called fit; what is gathered here and now is plausible.
#include "clients/cli/doctor.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <functional>

namespace titan::cli {
namespace {

MachineFacts GoodMachine() {
  MachineFacts facts;
  facts.cpu_flags = {"avx2", "fma"};
  facts.cpu_name = "Some CPU";
  facts.cores = 4;
  facts.open_files = 4096;
  facts.unix_seconds = 1800000000;
  facts.folder = "/data";
  facts.disk_available_bytes = uint64_t{50} << 30;
  facts.memory_available_bytes = uint64_t{16} << 30;
  return facts;
}

std::string TextOf(const std::vector<Finding>& findings) {
  return FormatFindings(findings, cluster::Terminal(false));
}

TEST(DoctorTest, AGoodMachineIsFit) {
  const auto findings = Examine(GoodMachine(), std::nullopt);
  EXPECT_TRUE(IsFit(findings)) << TextOf(findings);
  for (const Finding& finding : findings) EXPECT_EQ(finding.health, Health::kGood) << finding.text;
}

TEST(DoctorTest, EveryFaultIsNamedWithItsFix) {
  struct Case {
    std::function<void(MachineFacts*)> fault;
    Health health;
    std::string text, fix;
  };
  const Case cases[] = {
      {[](MachineFacts* f) { f->cpu_flags = {"avx2"}; }, Health::kBad, "Some CPU lacks fma",
       "AVX2"},
      {[](MachineFacts* f) { f->cores = 1; }, Health::kWarning, "1 core", "2 or more"},
      {[](MachineFacts* f) { f->memfd_reason = "EPERM"; }, Health::kBad, "EPERM", "memfd"},
      {[](MachineFacts* f) { f->loopback_reason = "down"; }, Health::kBad, "down", "ip link"},
      {[](MachineFacts* f) { f->port_reason = "cannot listen on 127.0.0.1:80: used"; },
       Health::kBad, "127.0.0.1:80", "another port"},
      {[](MachineFacts* f) { f->unix_seconds = 0; }, Health::kBad, "before 2025", "clock"},
      {[](MachineFacts* f) { f->clock_synchronized = false; }, Health::kWarning, "not synchronized",
       "chrony"},
      {[](MachineFacts* f) { f->folder_reason = "read-only"; }, Health::kBad, "read-only",
       "--data"},
      {[](MachineFacts* f) { f->disk_available_bytes = 1000; }, Health::kBad, "0 MiB free", "disk"},
      {[](MachineFacts* f) { f->disk_sync_seconds = 2; }, Health::kWarning, "2000.0 ms", "local"},
      {[](MachineFacts* f) { f->open_files = 64; }, Health::kWarning, "at most 64", "ulimit"},
      {[](MachineFacts* f) { f->memory_available_bytes = 1 << 20; }, Health::kWarning, "1 MiB",
       "end other"},
      {[](MachineFacts* f) { f->missing_programs = {"titan-trainer"}; }, Health::kBad,
       "titan-trainer", "make build"},
  };
  for (const Case& one : cases) {
    MachineFacts facts = GoodMachine();
    one.fault(&facts);
    const auto findings = Examine(facts, std::nullopt);
    bool found = false;
    for (const Finding& finding : findings) {
      found = found ||
              (finding.health == one.health && finding.text.find(one.text) != std::string::npos &&
               finding.fix.find(one.fix) != std::string::npos);
    }
    EXPECT_TRUE(found) << one.text << "\n" << TextOf(findings);
    EXPECT_EQ(IsFit(findings), one.health != Health::kBad) << one.text;
  }
}

TEST(DoctorTest, AJobThatDoesNotFitIsNamedWithTheNumbers) {
  JobNeeds job;
  job.memory = {{"weightstore", uint64_t{20} << 30, "5 slots of 4096 MiB"}};
  const auto findings = Examine(GoodMachine(), job);
  EXPECT_FALSE(IsFit(findings));
  EXPECT_NE(TextOf(findings).find("needs at least 20480 MiB of memory, 16384 MiB are free"),
            std::string::npos)
      << TextOf(findings);
  job.memory[0].bytes = 1 << 20;
  EXPECT_TRUE(IsFit(Examine(GoodMachine(), job)));
  // 256 MiB of the volume stay free.
  MachineFacts small = GoodMachine();
  small.disk_available_bytes = uint64_t{768} << 20;
  job.disk.version = uint64_t{513} << 20;
  const std::string no_room = TextOf(Examine(small, job));
  EXPECT_FALSE(IsFit(Examine(small, job)));
  EXPECT_NE(no_room.find("needs 513 MiB of the weight store's disk, 512 MiB are available"),
            std::string::npos)
      << no_room;
  job.disk.version = uint64_t{200} << 20;
  job.disk.checkpoints = uint64_t{400} << 20;
  job.disk.num_checkpoints = 2;
  EXPECT_TRUE(IsFit(Examine(small, job)));
  EXPECT_NE(TextOf(Examine(small, job)).find("some will not be written"), std::string::npos);
  // disk_limit_bytes bounds more than the volume does.
  job.disk_left_bytes = uint64_t{199} << 20;
  const std::string limited = TextOf(Examine(small, job));
  EXPECT_FALSE(IsFit(Examine(small, job)));
  EXPECT_NE(limited.find("needs 200 MiB of the weight store's disk, 199 MiB are available"),
            std::string::npos)
      << limited;
  EXPECT_NE(limited.find("raise weightstore.disk_limit_bytes"), std::string::npos) << limited;
  job.disk_left_bytes = uint64_t{100} << 30;
  EXPECT_TRUE(IsFit(Examine(small, job)));
  job.problem = "model.path: no such file";
  EXPECT_FALSE(IsFit(Examine(GoodMachine(), job)));
}

TEST(DoctorTest, ThisMachineCanBeRead) {
  char pattern[] = "/tmp/titan_doctor_XXXXXX";
  ASSERT_NE(mkdtemp(pattern), nullptr);
  const MachineFacts facts = ReadMachine(std::string(pattern) + "/not/there/yet", pattern, {});
  EXPECT_FALSE(facts.cpu_flags.empty());
  EXPECT_GE(facts.cores, 1);
  EXPECT_GT(facts.open_files, 0u);
  EXPECT_EQ(facts.memfd_reason, "");
  EXPECT_EQ(facts.loopback_reason, "");
  EXPECT_EQ(facts.folder, pattern);
  EXPECT_EQ(facts.folder_reason, "");
  EXPECT_GT(facts.disk_available_bytes, 0u);
  EXPECT_TRUE(facts.memory_available_bytes.has_value());
  EXPECT_EQ(facts.missing_programs.size(), 5u);
  EXPECT_EQ(rmdir(pattern), 0);  // the probe is gone
}

}  // namespace
}  // namespace titan::cli
