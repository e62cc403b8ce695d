// SPDX-License-Identifier: Apache-2.0
//
// Goal: the data file is read exactly and refused with its line; the order is that of numerics.md
// section 9, recomputed here from the block function.
#include "orchestrator/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/base/philox.h"

namespace titan::orchestrator {
namespace {

TEST(DatasetTest, LinesEndAtLineFeedOnly) {
  const std::string text =
      "{\"id\":\"r1\",\"prompt\":\"3 + 4\xe2\x80\xa8in one line?\",\"answer\":\"7\"}\n"
      "{\"id\":\"r2\",\"prompt\":\"next\xc2\x85line and \xe2\x80\xa9paragraph\",\"answer\":\"0\"}\n"
      "{\"id\":\"r3\",\"prompt\":\"escaped \\u2028 stays\",\"answer\":\"5\"}\n"
      "{\"id\":\"r4\",\"prompt\":\"carriage return\",\"answer\":\"1\"}\r\n"
      "\n"
      "{\"id\":\"r5\",\"prompt\":\"no newline\",\"answer\":\"2\"}";
  const auto data = ParseDataset(text, "f.jsonl");
  ASSERT_TRUE(data.ok()) << data.status();
  ASSERT_EQ(data->rows.size(), 5u);
  EXPECT_EQ(data->rows[0].prompt, "3 + 4\xe2\x80\xa8in one line?");
  EXPECT_EQ(data->rows[1].prompt, "next\xc2\x85line and \xe2\x80\xa9paragraph");
  EXPECT_EQ(data->rows[2].prompt, "escaped \xe2\x80\xa8 stays");
  EXPECT_EQ(data->rows[3].answer, "1");
  EXPECT_EQ(data->rows[4].id, "r5");
  EXPECT_EQ(data->rows[4].line, 6u);
}

TEST(DatasetTest, FieldsOfARow) {
  const auto data = ParseDataset(
      R"({"id":12,"prompt":[{"role":"system","content":"s"},{"role":"user","content":"u"}],)"
      R"("answer":-4,"metadata":{"level":2},"source":"x"})",
      "f.jsonl");
  ASSERT_TRUE(data.ok()) << data.status();
  const DataRow& row = data->rows[0];
  EXPECT_EQ(row.id, "12");
  ASSERT_EQ(row.messages.size(), 2u);
  EXPECT_EQ(row.messages[1].role, "user");
  EXPECT_EQ(row.answer, "-4");
  EXPECT_EQ(row.metadata_json, R"({"level":2,"source":"x"})");
}

TEST(DatasetTest, ErrorsNameFileLineAndField) {
  const std::string good = "{\"id\":\"a\",\"prompt\":\"p\",\"answer\":\"1\"}\n";
  const struct {
    std::string line;
    std::string named;
  } cases[] = {
      {"{\"id\":\"b\",\"prompt\":\"cut",
       "f.jsonl:2: not valid JSON: column 24: the text ends where it should go on"},
      {"{\"id\":\"b\",\"prompt\":p}", "f.jsonl:2: not valid JSON: column 20: 'p' should"},
      {"{\"id\":\"b\",\"answer\":1e999}", "f.jsonl:2: a number is out of range"},
      {"[1]", "f.jsonl:2"},
      {"{\"prompt\":\"p\"}", "f.jsonl:2: id"},
      {"{\"id\":1.5,\"prompt\":\"p\"}", "f.jsonl:2: id"},
      {"{\"id\":\"a\",\"prompt\":\"p\"}", "f.jsonl:2: id"},
      {"{\"id\":\"b\"}", "f.jsonl:2: prompt"},
      {"{\"id\":\"b\",\"promt\":\"p\"}",
       "f.jsonl:2: prompt: is required; did you mean it by \"promt\"?"},
      {"{\"id\":\"b\",\"prompt\":[]}", "f.jsonl:2: prompt"},
      {"{\"id\":\"b\",\"prompt\":[{\"role\":\"user\"}]}", "f.jsonl:2: prompt[0].content"},
      {"{\"id\":\"b\",\"prompt\":[{\"role\":\"user\",\"content\":1}]}",
       "f.jsonl:2: prompt[0].content"},
      {"{\"id\":\"b\",\"prompt\":\"p\",\"answer\":[1]}", "f.jsonl:2: answer"},
      {"{\"id\":\"b\",\"prompt\":\"p\",\"metadata\":3}", "f.jsonl:2: metadata"},
      {"{\"id\":\"b\",\"id\":\"c\",\"prompt\":\"p\"}", "f.jsonl:2"},
      {"{\"id\":\"b\",\"prompt\":\"\xff\"}",
       "f.jsonl:2: not valid JSON: column 21: a byte that is not UTF-8"},
  };
  for (const auto& c : cases) {
    const auto data = ParseDataset(good + c.line + "\n", "f.jsonl");
    ASSERT_FALSE(data.ok()) << c.line;
    EXPECT_EQ(data.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(MessageOf(data.status()).rfind(c.named, 0), 0u) << MessageOf(data.status());
    EXPECT_EQ(MessageOf(data.status()).find("exception"), std::string::npos) << c.line;
  }
  EXPECT_FALSE(ParseDataset("", "f.jsonl").ok());
  EXPECT_FALSE(ParseDataset("\n \n", "f.jsonl").ok());
}

Dataset Rows(uint32_t num, bool reversed = false) {
  Dataset data;
  for (uint32_t i = 0; i < num; ++i) {
    DataRow row;
    row.id = "pair-" + std::to_string(reversed ? num - 1 - i : i);
    data.rows.push_back(row);
  }
  return data;
}

TEST(DataOrderTest, HeldOutAndTrainingRowsPartitionTheFile) {
  const Dataset data = Rows(441);
  for (const uint64_t seed : {1, 2, 3}) {
    const auto order = DataOrder::Create(data, seed, 200);
    ASSERT_TRUE(order.ok());
    EXPECT_EQ(order->held_out_rows().size(), 200u);
    std::set<uint32_t> all(order->held_out_rows().begin(), order->held_out_rows().end());
    for (const uint32_t row : order->training_rows()) EXPECT_TRUE(all.insert(row).second);
    EXPECT_EQ(all.size(), 441u);
  }
}

TEST(DataOrderTest, FollowsTheDefinedShuffles) {
  const Dataset data = Rows(30);
  auto order = DataOrder::Create(data, 5, 10);
  ASSERT_TRUE(order.ok());
  std::vector<std::string> ids;
  for (const DataRow& row : data.rows) ids.push_back(row.id);
  std::sort(ids.begin(), ids.end());
  const auto shuffle = [](std::vector<std::string> list, uint32_t domain, uint32_t epoch) {
    for (uint32_t i = static_cast<uint32_t>(list.size()) - 1; i >= 1; --i) {
      const uint64_t word = Philox4x32({epoch, 0, i, domain << 24}, {5, 0})[0];
      std::swap(list[i], list[(word * (i + 1)) >> 32]);
    }
    return list;
  };
  std::vector<std::string> held = shuffle(ids, 3, 0);
  held.resize(10);
  for (uint32_t i = 0; i < 10; ++i) EXPECT_EQ(data.rows[order->held_out_rows()[i]].id, held[i]);
  std::vector<std::string> training;
  for (const std::string& id : ids) {
    if (std::find(held.begin(), held.end(), id) == held.end()) training.push_back(id);
  }
  for (const uint32_t epoch : {0u, 1u, 7u}) {
    const auto expected = shuffle(training, 1, epoch);
    for (uint32_t i = 0; i < 20; ++i) {
      EXPECT_EQ(data.rows[order->RowAt(epoch * 20 + i)].id, expected[i]);
    }
  }
  const GroupId group = MakeGroupId(3, 2, 1);
  const uint64_t word = Philox4x32(
      {static_cast<uint32_t>(group.value), static_cast<uint32_t>(group.value >> 32), 0, 2u << 24},
      {5, 0})[0];
  EXPECT_EQ(data.rows[order->CandidateRow(group)].id, training[(word * 20) >> 32]);
}

TEST(DataOrderTest, DoesNotDependOnTheOrderOfTheFile) {
  const Dataset forward = Rows(50), backward = Rows(50, true);
  auto a = DataOrder::Create(forward, 9, 7);
  auto b = DataOrder::Create(backward, 9, 7);
  ASSERT_TRUE(a.ok() && b.ok());
  for (uint64_t position = 0; position < 200; ++position) {
    EXPECT_EQ(forward.rows[a->RowAt(position)].id, backward.rows[b->RowAt(position)].id);
  }
  // Going back to an old epoch gives the same row again.
  const uint32_t row = a->RowAt(3);
  for (uint64_t epoch = 0; epoch < 20; ++epoch) a->RowAt(epoch * 43);
  EXPECT_EQ(a->RowAt(3), row);
}

TEST(DataOrderTest, RefusesToHoldOutEverything) {
  const auto order = DataOrder::Create(Rows(10), 1, 10);
  EXPECT_EQ(order.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(MessageOf(order.status()).find("data.held_out"), std::string::npos);
}

}  // namespace
}  // namespace titan::orchestrator
