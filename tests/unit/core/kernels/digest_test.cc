// SPDX-License-Identifier: Apache-2.0
//
// The kernels' contract items are the same for both instruction sets and any number of threads and
// equal the values in this file, so that machines compare through the repository. docs/cpus.md
// lists the CPUs on which they did.
#include "core/kernels/digest.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "core/kernels/isa.h"
#include "tests/support/cpu_line.h"
#include "tests/support/kernel_cases.h"
#include "tests/support/recorded_items.h"
#include "tests/support/sanitized.h"

namespace titan::kernels {
namespace {

// A change of either is a change of the contract: weights and journals made before do not replay.
constexpr char kForwardDigest[] = "dd652c8140300143931d5e93d422c90e";
constexpr char kTrainingDigest[] = "21f5038759f8378114cc0f71af91273c";
constexpr char kForwardW16Digest[] = "4327a492568048e9cd140649188e44b9";
constexpr char kTrainingW16Digest[] = "c427ec73707872dc9d7049107bbd9863";
constexpr char kForwardBf16Digest[] = "4bbe1c83377b46d7123204ea0e66b55d";
constexpr char kTrainingBf16Digest[] = "b7ca15e42cfb86fe5c4ae4ead692ff66";

std::string Text(const std::vector<ContractItem>& items) {
  std::string text;
  for (const ContractItem& item : items) text += item.name + "=" + item.value + "\n";
  return text;
}

TEST(DigestTest, SameForEveryInstructionSetAndThreadCountAndAsRecorded) {
  std::vector<std::string> isas = tests::IsaNames(Inputs::kBf16);
  isas.push_back("auto");
  std::string names;
  for (const std::string& isa : isas) names += " " + isa;
  std::printf("CPU: %s; run with%s\n", titan::testing::CpuLine().c_str(), names.c_str());
  for (const std::string& isa : isas) {
    ASSERT_TRUE(SetIsa(isa).ok());
    for (const int threads : {1, 3}) {
      if (titan::testing::kSanitized && threads == 1) continue;
      Pool pool(threads);
      const std::vector<ContractItem> forward = ForwardKernelItems(pool);
      const std::vector<ContractItem> training = TrainingKernelItems(pool);
      EXPECT_EQ(DigestOf(forward), kForwardDigest) << isa << " " << threads << "\n"
                                                   << Text(forward);
      EXPECT_EQ(titan::testing::ItemOf(forward, "canned.linear"), titan::testing::kRecordedLinear);
      EXPECT_EQ(DigestOf(training), kTrainingDigest) << isa << " " << threads << "\n"
                                                     << Text(training);
      const std::vector<ContractItem> forward_w16 = ForwardW16Items(pool);
      const std::vector<ContractItem> training_w16 = TrainingW16Items(pool);
      EXPECT_EQ(DigestOf(forward_w16), kForwardW16Digest) << isa << " " << threads << "\n"
                                                          << Text(forward_w16);
      EXPECT_EQ(DigestOf(training_w16), kTrainingW16Digest) << isa << " " << threads << "\n"
                                                            << Text(training_w16);
      const std::vector<ContractItem> forward_bf16 = ForwardBf16Items(pool);
      const std::vector<ContractItem> training_bf16 = TrainingBf16Items(pool);
      EXPECT_EQ(DigestOf(forward_bf16), kForwardBf16Digest) << isa << " " << threads << "\n"
                                                            << Text(forward_bf16);
      EXPECT_EQ(DigestOf(training_bf16), kTrainingBf16Digest) << isa << " " << threads << "\n"
                                                              << Text(training_bf16);
    }
  }
  ASSERT_TRUE(SetIsa("auto").ok());
}

TEST(DigestTest, ItemsHaveDistinctNamesAndValues) {
  Pool pool(2);
  std::vector<ContractItem> items = ForwardKernelItems(pool);
  for (const auto& more : {TrainingKernelItems(pool), ForwardW16Items(pool), TrainingW16Items(pool),
                           ForwardBf16Items(pool), TrainingBf16Items(pool)}) {
    items.insert(items.end(), more.begin(), more.end());
  }
  std::set<std::string> names, values;
  for (const ContractItem& item : items) {
    names.insert(item.name);
    values.insert(item.value);
  }
  EXPECT_EQ(names.size(), items.size());
  EXPECT_EQ(values.size(), items.size());
}

TEST(DigestTest, NamesAndValuesEnterTheDigest) {
  const std::vector<ContractItem> items = {{"a", "1"}, {"b", "2"}};
  EXPECT_EQ(DigestOf(items), DigestOf(std::vector<ContractItem>(items)));
  const std::vector<ContractItem> others[] = {
      {{"a", "1"}, {"b", "3"}}, {{"a", "1"}}, {{"a", "1"}, {"c", "2"}}, {{"b", "2"}, {"a", "1"}}};
  for (const auto& other : others) EXPECT_NE(DigestOf(items), DigestOf(other));
}

}  // namespace
}  // namespace titan::kernels
