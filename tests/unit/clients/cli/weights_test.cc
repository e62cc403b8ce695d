// SPDX-License-Identifier: Apache-2.0
// Goal: what `weights diff` says of two tensors is what their elements are, in figures that a
// second way of computing them gives; what `weights gc` says is what the store answered.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include <nlohmann/json.hpp>

#include "clients/cli/weights_difference.h"
#include "clients/cli/weights_reader.h"
#include "clients/cli/weights_view.h"

namespace titan::cli {
namespace {

using nlohmann::json;

TEST(WeightsDifferenceTest, FiguresAreThoseOfTheElementsHoweverTheyAreCut) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<float> a(1 + random() % 3000), b;
    for (float& value : a) value = static_cast<float>(random() % 2000) / 64 - 8;
    b = a;
    uint64_t differing = 0;
    double largest = 0, sum = 0;
    for (size_t i = 0; i < b.size(); ++i) {
      if (random() % 5 != 0) continue;
      b[i] += static_cast<float>(random() % 9) / 4 - 1;  // now and then nothing
      const double d = std::abs(double{a[i]} - double{b[i]});
      differing += d != 0;
      largest = std::max(largest, d);
      sum += d * d;  // exact: multiples of 2^-12
    }
    ValueDifference values;
    for (size_t at = 0; at < a.size();) {
      const size_t take = std::min<size_t>(1 + random() % 700, a.size() - at);
      values.Add(std::span(a).subspan(at, take), std::span(b).subspan(at, take));
      at += take;
    }
    EXPECT_EQ(values.num_elements, a.size());
    EXPECT_EQ(values.num_differing, differing);
    EXPECT_EQ(values.max_abs, largest);
    EXPECT_EQ(values.rms(), std::sqrt(sum / static_cast<double>(a.size())));
  }
}

TEST(WeightsDifferenceTest, BitsDecideAndWhatIsNotFiniteIsCountedApart) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  ValueDifference values;
  const std::vector<float> a = {0.0f, kNan, kInf, kNan, 1, -3e38f};
  const std::vector<float> b = {-0.0f, kNan, kInf, 2, 1.5, 3e38f};
  values.Add(a, b);
  EXPECT_EQ(values.num_differing, 4u);  // the zeros' signs differ
  EXPECT_EQ(values.num_not_finite, 1u);
  EXPECT_EQ(values.max_abs, 2 * double{3e38f});
  ValueDifference zeros;
  zeros.Add(std::span(a).first(1), std::span(b).first(1));
  EXPECT_EQ(zeros.max_abs, 0);
  EXPECT_EQ(zeros.rms(), 0);
  EXPECT_EQ(ValueDifference().rms(), 0);
}

WeightsDifference SomeDifference() {
  WeightsDifference difference{"model base", "version 3 of job-1\x1b[2J", {}};
  const TensorHead head = {"w", {4, 2}, "f32"};
  difference.tensors.push_back({head, head, {.num_elements = 8}});
  difference.tensors.push_back(
      {TensorHead{"x", {8}, "f32"}, TensorHead{"x", {8}, "f32"}, {8, 2, 1, 0.25, 0.125}});
  return difference;
}

TEST(WeightsDifferenceTest, PeopleAndProgramsSeeWhatDiffers) {
  WeightsDifference difference = SomeDifference();
  difference.tensors.push_back(
      {TensorHead{"t", {8}, "f32"}, TensorHead{"t", {8}, "bf16"}, {.num_elements = 8}});
  difference.tensors.push_back({TensorHead{"s", {8}, "f32"}, TensorHead{"s", {2, 4}, "f32"}, {}});
  difference.tensors.push_back({TensorHead{"a", {}, "f32"}, {}, {}});
  difference.tensors.push_back({{}, TensorHead{"b", {3}, "f32"}, {}});
  EXPECT_EQ(FormatDifference(difference),
            "TENSOR  DIFFERS IN          SHAPE      TYPE        ELEMENTS  MAX ABS    RMS\n"
            "x       values              8          f32         2 of 8    2.500e-01  "
            "1.250e-01, 1 not finite\n"
            "t       type                8          f32 | bf16  0 of 8    0.000e+00  0.000e+00\n"
            "s       shape               8 | 2 x 4  f32\n"
            "a       only in the first   1          f32\n"
            "b       only in the second  3          f32\n"
            "\n"
            "model base and version 3 of job-1\\x1b[2J: 5 of 6 tensors differ, 1 in values, 1 in "
            "type, 1 in shape, 1 only in the first, 1 only in the second\n");
  const json out = json::parse(DifferenceJson(difference), nullptr, false);
  EXPECT_EQ(out["equal"], false);
  const char* kinds[] = {"none", "values", "dtype", "shape", "only_in_a", "only_in_b"};
  ASSERT_EQ(out["tensors"].size(), std::size(kinds));
  for (size_t i = 0; i < std::size(kinds); ++i) {
    EXPECT_EQ(out["tensors"][i]["difference"], kinds[i]);
    EXPECT_EQ(out["tensors"][i].contains("rms"), i < 3);
  }
  EXPECT_EQ(out["tensors"][1]["elements_differing"], 2);
  EXPECT_EQ(out["tensors"][1]["rms"], 0.125);
  EXPECT_EQ(out["tensors"][3]["b"]["shape"], json::array({2, 4}));
  EXPECT_TRUE(out["tensors"][4]["b"].is_null());
}

TEST(WeightsDifferenceTest, EqualWeightsAreSaidToBeEqual) {
  WeightsDifference difference = SomeDifference();
  difference.b = "b";
  difference.tensors.pop_back();
  EXPECT_TRUE(difference.equal());
  EXPECT_EQ(FormatDifference(difference), "model base and b are equal: 8 elements in 1 tensors\n");
}

TEST(WeightsReaderTest, RowsAndColumnsCoverEveryElement) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {5}, {7, 3}, {2, 3, 4}}) {
    const TensorHead head = {"w", shape, "f32"};
    EXPECT_EQ(RowsOf(head) * ColumnsOf(head), head.num_elements());
  }
}

TEST(CheckpointsTest, AreListedByJobOrElseByRun) {
  weightstore::v1::ListStoredModelsResponse stored;
  EXPECT_EQ(FormatCheckpoints(stored, {}), "");
  for (const uint64_t version : {4, 6}) {
    auto* checkpoint = stored.add_checkpoints();
    checkpoint->set_run_id("run-" + std::to_string(version));
    checkpoint->set_version(version);
    checkpoint->set_weights_digest("abc");
    checkpoint->set_stored_unix_ms(1000);
    checkpoint->set_num_bytes(3 << 19);
  }
  EXPECT_EQ(FormatCheckpoints(stored, {{"run-4", "job-2"}}),
            "JOB    CHECKPOINT  DIGEST OF STATE  STORED               DISK\n"
            "job-2  4           abc              1970-01-01 00:00:01  1.5 MiB\n"
            "run-6  6           abc              1970-01-01 00:00:01  1.5 MiB\n");
}

TEST(CollectedTest, SaysWhatWouldGoWhatWentAndWhatStays) {
  weightstore::v1::CollectGarbageResponse collected;
  EXPECT_EQ(FormatCollected(collected, {}, "do it"), "there is nothing to delete\n");
  collected.set_versions_left(1);
  EXPECT_EQ(FormatCollected(collected, {}, ""),
            "there is nothing to delete; 1 version of ended jobs stays\n");
  collected.set_versions_left(2);
  collected.set_freed_bytes(3 << 19);
  auto* version = collected.add_versions();
  version->set_run_id("run-7");
  version->set_version(4);
  version->set_weights_digest("abc");
  version->set_stored_unix_ms(1000);
  version->set_num_bytes(2 << 20);
  EXPECT_EQ(
      FormatCollected(collected, {{"run-7", "job-2"}}, "do it"),
      "JOB    VERSION  DIGEST  STORED               DISK\n"
      "job-2  4        abc     1970-01-01 00:00:01  2.0 MiB\n\n"
      "1 version would be deleted and at most 1.5 MiB freed (what several of them name is counted "
      "once, what others name stays); 2 versions of ended jobs stay\n"
      "delete with: do it\n");
  const std::string done = FormatCollected(collected, {}, "");
  EXPECT_NE(done.find("run-7  4"), std::string::npos) << done;
  EXPECT_NE(done.find("\n1 version deleted, 1.5 MiB freed (what several of them name is "
                      "counted once, what others name stays); 2 versions of ended jobs stay\n"),
            std::string::npos)
      << done;
}

}  // namespace
}  // namespace titan::cli
