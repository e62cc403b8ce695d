// SPDX-License-Identifier: Apache-2.0
// Goal: rollouts are put together from facts in any amount and cut into messages of bounded size;
// an uploaded file is found by its content, whole, and bad rows are refused by line and field.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "core/base/hash.h"
#include "services/orchestrator/data_files.h"
#include "services/orchestrator/prompts.h"
#include "services/orchestrator/rollouts.h"

namespace titan::orchestrator {
namespace {

Fact Make(auto body) { return {"job-1", {}, std::move(body)}; }

SampleGenerated Sample(GroupId group, uint32_t index, uint32_t attempt, TokenId token) {
  SampleGenerated sample;
  sample.group = group;
  sample.sample_index = index;
  sample.sample = MakeSampleId(group, index);
  sample.attempt = attempt;
  sample.version = 4;
  sample.reply = std::make_shared<Reply>(Reply{{token, token}, {-1.0f, -2.0f}});
  return sample;
}

std::vector<Fact> SomeFacts() {
  std::vector<Fact> facts;
  for (const GroupId group : {MakeGroupId(1, 1, 0), MakeGroupId(0, 0, 0), MakeGroupId(1, 0, 2)}) {
    facts.push_back(Make(GroupAdmitted{group, 0, 4}));
    facts.push_back(Make(Sample(group, 1, 1, 7)));
    facts.push_back(Make(Sample(group, 1, 2, 9)));  // a retry that came too late
    facts.push_back(Make(Sample(group, 0, 1, 8)));
    SampleScored score;
    score.sample = MakeSampleId(group, 1);
    score.value = 0.5;
    score.components["format"] = 1;
    facts.push_back(Make(score));
    score.value = 0.25;  // the first counts
    facts.push_back(Make(score));
    facts.push_back(Make(GroupClosed{group, false, "zero_variance"}));
  }
  return facts;
}

TEST(RolloutsTest, GroupsAreOrderedAndTheFirstReplyAndScoreCount) {
  const auto all = CollectRollouts(SomeFacts(), {}, nullptr);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].step(), 0u);
  EXPECT_EQ(all[1].candidate(), 2u);
  EXPECT_EQ(all[2].slot(), 1u);
  EXPECT_EQ(all[2].version(), 4u);
  EXPECT_EQ(all[2].reason(), "zero_variance");
  ASSERT_EQ(all[2].samples_size(), 2);
  EXPECT_EQ(all[2].samples(0).token_ids(0), 8);
  EXPECT_FALSE(all[2].samples(0).scored());
  const v1::RolloutSample& second = all[2].samples(1);
  EXPECT_EQ(second.token_ids(0), 7);
  EXPECT_EQ(second.attempt(), 1u);
  EXPECT_EQ(second.reward(), 0.5);
  EXPECT_EQ(second.reward_components().at("format"), 1);
  EXPECT_EQ(second.logprobs(1), -2.0f);
  EXPECT_EQ(second.spans(0).num_tokens(), 2u);
}

TEST(RolloutsTest, QueriesChooseStepsGroupsAndTokens) {
  v1::ListRolloutsRequest request;
  EXPECT_EQ(FromProto(request).max_groups, 1000u);
  request.set_step(1);
  request.set_without_tokens(true);
  auto chosen = CollectRollouts(SomeFacts(), FromProto(request), nullptr);
  ASSERT_EQ(chosen.size(), 2u);
  EXPECT_EQ(chosen[0].samples(0).token_ids_size(), 0);
  EXPECT_EQ(chosen[0].samples(0).num_tokens(), 2u);
  request.add_group_ids(MakeGroupId(1, 1, 0).value);
  EXPECT_EQ(CollectRollouts(SomeFacts(), FromProto(request), nullptr).size(), 1u);
  request.add_group_ids(MakeGroupId(0, 0, 0).value);  // of another step
  EXPECT_EQ(CollectRollouts(SomeFacts(), FromProto(request), nullptr).size(), 1u);
  RolloutQuery one;
  one.max_groups = 1;
  EXPECT_EQ(CollectRollouts(SomeFacts(), one, nullptr).size(), 1u);
}

TEST(RolloutsTest, LargeGroupsAreCutIntoMessages) {
  v1::ListRolloutsResponse group;
  group.set_group_id(5);
  for (uint32_t i = 0; i < 10; ++i) {
    group.add_samples()->set_sample_index(i);
    group.mutable_samples(static_cast<int>(i))->set_text(std::string(100, 'x'));
  }
  EXPECT_EQ(SplitRollout(group, 1 << 20).size(), 1u);
  const auto parts = SplitRollout(group, 250);
  EXPECT_GT(parts.size(), 3u);
  uint32_t next = 0;
  for (const auto& part : parts) {
    EXPECT_EQ(part.group_id(), 5u);
    EXPECT_LE(part.ByteSizeLong(), 350u);
    for (const auto& sample : part.samples()) EXPECT_EQ(sample.sample_index(), next++);
  }
  EXPECT_EQ(next, 10u);
  EXPECT_EQ(SplitRollout(group, 1).size(), 10u);  // one sample always goes
}

class DataFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/titan_data_files_XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

TEST_F(DataFilesTest, TheSameBytesHaveOneIdAndAreReadBack) {
  const DataFiles files(folder_ + "/data");
  ASSERT_TRUE(files.MakeFolder().ok());
  EXPECT_TRUE(files.List()->empty());
  const std::string rows = "{\"id\": 1, \"prompt\": \"a\"}\n{\"id\": 2, \"prompt\": \"b\"}\n";
  bool existed = true;
  const auto stored = files.Store("rows.jsonl", rows, 5, &existed);
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_FALSE(existed);
  EXPECT_EQ(stored->rows(), 2u);
  EXPECT_EQ(stored->id(), DataIdOf(rows));
  Hash128 ignored;
  EXPECT_TRUE(FromHex(stored->id(), &ignored));
  EXPECT_EQ(files.Store("other name", rows, 9, &existed)->name(), "rows.jsonl");
  EXPECT_TRUE(existed);
  EXPECT_EQ(*files.Read(stored->id()), rows);
  EXPECT_EQ(files.List()->size(), 1u);
  std::ofstream(folder_ + "/data/" + stored->id() + ".jsonl") << "changed";
  EXPECT_EQ(files.Read(stored->id()).status().code(), StatusCode::kDataLoss);
  ASSERT_TRUE(files.Store("rows.jsonl", rows, 5, &existed).ok());  // uploading again repairs
  EXPECT_FALSE(existed);
  EXPECT_EQ(*files.Read(stored->id()), rows);
}

TEST_F(DataFilesTest, TwoWhoStoreTheSameBytesAtOnceBothHaveThem) {
  const DataFiles files(folder_ + "/data");
  ASSERT_TRUE(files.MakeFolder().ok());
  for (int round = 0; round < 50; ++round) {
    const std::string rows = "{\"id\": " + std::to_string(round) + ", \"prompt\": \"a\"}\n";
    const auto store = [&] {
      bool existed = false;
      const auto stored = files.Store("rows", rows, 0, &existed);
      EXPECT_TRUE(stored.ok()) << stored.status();
    };
    std::thread other(store);
    store();
    other.join();
    EXPECT_EQ(*files.Read(DataIdOf(rows)), rows);
  }
}

TEST_F(DataFilesTest, WhatCannotBeReadAtTheMomentStaysThere) {
  const DataFiles files(folder_ + "/data");
  ASSERT_TRUE(files.MakeFolder().ok());
  const std::string rows = "{\"id\": 1, \"prompt\": \"a\"}\n";
  bool existed = false;
  ASSERT_TRUE(files.Store("rows", rows, 0, &existed).ok());
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none = {0, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);  // no new descriptors
  const Status refused = files.Store("rows", rows, 0, &existed).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_NE(MessageOf(refused).find("Too many open files"), std::string::npos) << refused;
  EXPECT_EQ(*files.Read(DataIdOf(rows)), rows);
  ASSERT_TRUE(files.Store("rows", rows, 0, &existed).ok());
  EXPECT_TRUE(existed);
}

TEST_F(DataFilesTest, BadRowsAreNamedAndNothingIsStored) {
  const DataFiles files(folder_ + "/data");
  ASSERT_TRUE(files.MakeFolder().ok());
  bool existed = false;
  const auto bad =
      files.Store("r.jsonl", "{\"id\": 1, \"prompt\": \"a\"}\n{\"id\": 2}\n", 0, &existed);
  EXPECT_EQ(bad.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(MessageOf(bad.status()).find("r.jsonl:2: prompt"), std::string::npos) << bad.status();
  EXPECT_EQ(files.Store("e", "\n\n", 0, &existed).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(std::filesystem::is_empty(folder_ + "/data"));
  EXPECT_EQ(files.Read(std::string(32, '0')).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(files.Read("../../etc/passwd").status().code(), StatusCode::kInvalidArgument);
}

// A store that nobody reaches.
class StoreAway final : public weightstore::ModelPort {
  using StoredModel = weightstore::StoredModel;
  StatusOr<StoredModel> FindModel(const std::string&) override { return away_; }
  StatusOr<StoredModel> FindVersion(const std::string&, uint64_t) override { return away_; }
  StatusOr<std::string> ReadBlob(const Hash128&, std::optional<uint64_t>) override { return away_; }
  StatusOr<Hash128> PutBundle(const std::string&) override { return away_; }
  const Status away_ = Unavailable("no answer");
};

// A job that an earlier life queued waits for what is UNAVAILABLE, and all others with it.
TEST(PrepareDataTest, TheStoreIsWaitedForAndABrokenDiskIsNot) {
  const std::string folder = ::testing::TempDir() + "prepare_data";
  std::filesystem::create_directories(folder);
  const DataFiles files(folder);
  StoreAway store;
  JobSpec spec;
  spec.model.id = "model";
  spec.data.path = folder + "/rows.jsonl";
  std::ofstream(spec.data.path) << "{\"id\": \"r\", \"prompt\": \"1 + 1 =\", \"answer\": \"2\"}\n";
  const Status silent = PrepareData(spec, files, store).status();
  EXPECT_EQ(silent.code(), StatusCode::kUnavailable) << silent;
  EXPECT_EQ(MessageOf(silent), "model.id: no answer");

  spec.data.path = "/proc/self/mem";  // a regular file whose first byte is EIO
  const Status broken = PrepareData(spec, files, store).status();
  EXPECT_EQ(broken.code(), StatusCode::kFailedPrecondition) << broken;
  EXPECT_EQ(MessageOf(broken), "data.path: cannot read '/proc/self/mem': Input/output error");
}

}  // namespace
}  // namespace titan::orchestrator
