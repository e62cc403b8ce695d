// SPDX-License-Identifier: Apache-2.0
//
// Attention over a prefix that several segments of one call continue, by bits: kernel = scalar twin
// on both instruction sets and several thread counts; the forward, dq and the gradients of each
// continuation's own keys = those of separate copies; the prefix's keys get the copies' gradients
// added in the order of the segments, and another order differs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/kernels/attention.h"
#include "core/kernels/order.h"
#include "core/kernels/pool.h"
#include "core/kernels/reference_ops.h"
#include "tests/support/kernel_cases.h"

namespace titan::kernels {
namespace {

struct Group {
  int64_t prefix;
  std::vector<int64_t> children;
};

// Rows of a call: of each group the children's own rows in order, then the prefix.
class SharedBatch {
 public:
  SharedBatch(AttentionShape shape, std::vector<Group> groups, uint64_t seed)
      : shape_(shape), groups_(std::move(groups)) {
    for (const Group& group : groups_) {
      const int64_t whole = group.prefix / kPageTokens;
      std::vector<int32_t> prefix_pages = Take(NumPages(group.prefix));
      const auto parent = static_cast<int32_t>(segments_.size() + group.children.size());
      for (const int64_t length : group.children) {
        std::vector<int32_t> pages(prefix_pages.begin(), prefix_pages.begin() + whole);
        const std::vector<int32_t> own = Take(NumPages(group.prefix + length) - whole);
        pages.insert(pages.end(), own.begin(), own.end());
        Push(length, group.prefix, std::move(pages), parent);
      }
      Push(group.prefix, 0, std::move(prefix_pages), -1);
    }
    std::vector<int32_t> place(num_pages_);
    std::iota(place.begin(), place.end(), 0);
    tests::Random random(seed);
    for (int64_t i = num_pages_ - 1; i > 0; --i) std::swap(place[i], place[random.Between(0, i)]);
    for (auto& pages : pages_) {
      for (int32_t& page : pages) page = place[page];
    }
    for (size_t i = 0; i < segments_.size(); ++i) segments_[i].pages = pages_[i].data();
  }

  const AttentionShape& shape() const { return shape_; }
  const std::vector<Group>& groups() const { return groups_; }
  const std::vector<Segment>& segments() const { return segments_; }
  int64_t rows() const { return rows_; }
  int64_t num_pages() const { return num_pages_; }
  int64_t q_width() const { return int64_t{shape_.num_heads} * shape_.head_dim; }
  int64_t kv_width() const { return int64_t{shape_.num_kv_heads} * shape_.head_dim; }

 private:
  std::vector<int32_t> Take(int64_t n) {
    std::vector<int32_t> pages(n);
    std::iota(pages.begin(), pages.end(), static_cast<int32_t>(num_pages_));
    num_pages_ += n;
    return pages;
  }
  void Push(int64_t rows, int64_t position, std::vector<int32_t> pages, int32_t parent) {
    segments_.push_back({static_cast<int32_t>(rows_), static_cast<int32_t>(rows),
                         static_cast<int32_t>(position), nullptr, parent});
    pages_.push_back(std::move(pages));
    rows_ += rows;
  }

  AttentionShape shape_;
  std::vector<Group> groups_;
  std::vector<Segment> segments_;
  std::vector<std::vector<int32_t>> pages_;
  int64_t rows_ = 0;
  int64_t num_pages_ = 0;
};

// Inputs and results of one call.
struct Values {
  std::vector<float> q, k, v, dout, kv, out, max, sum, dq, dk, dv;

  Values(const AttentionShape& shape, int64_t rows, int64_t num_pages) {
    const int64_t q_floats = rows * shape.num_heads * shape.head_dim;
    const int64_t kv_floats = rows * shape.num_kv_heads * shape.head_dim;
    for (auto* array : {&q, &dout, &out, &dq}) array->assign(q_floats, NAN);
    for (auto* array : {&k, &v, &dk, &dv}) array->assign(kv_floats, NAN);
    for (auto* array : {&max, &sum}) array->assign(rows * shape.num_heads, NAN);
    kv.assign(num_pages * PageFloats(shape), NAN);
  }

  void Fill(uint64_t seed) {
    tests::Random random(seed);
    for (auto* array : {&q, &k, &v, &dout}) {
      for (float& value : *array) {
        value = static_cast<float>(random.Between(-1000, 1000)) / 512.0f;
      }
    }
  }

  void Run(Pool& pool, const AttentionShape& shape, std::span<const Segment> segments) {
    WriteKv(pool, shape, k.data(), v.data(), segments, kv.data());
    AttentionForward(pool, shape, q.data(), segments, kv.data(), out.data(), max.data(),
                     sum.data());
    AttentionBackward(pool, shape, q.data(), segments, kv.data(), out.data(), dout.data(),
                      max.data(), sum.data(), dq.data(), dk.data(), dv.data());
  }

  void RunReference(const AttentionShape& shape, std::span<const Segment> segments) {
    reference::WriteKv(shape, k.data(), v.data(), segments, kv.data());
    reference::AttentionForward(shape, q.data(), segments, kv.data(), out.data(), max.data(),
                                sum.data());
    reference::AttentionBackward(shape, q.data(), segments, kv.data(), out.data(), dout.data(),
                                 max.data(), sum.data(), dq.data(), dk.data(), dv.data());
  }
};

int64_t Differing(const std::vector<float>& a, const std::vector<float>& b) {
  return tests::CountDifferentBits(std::span(a), std::span(b));
}

std::vector<SharedBatch> Batches() {
  std::vector<SharedBatch> batches;
  const auto add = [&](int heads, int kv_heads, int head_dim, std::vector<Group> groups) {
    batches.emplace_back(AttentionShape{heads, kv_heads, head_dim, 0.3f}, std::move(groups),
                         batches.size() + 1);
  };
  add(9, 3, 64, {{40, {1, 12, 30}}, {16, {5, 5}}, {1, {3}}});
  add(4, 2, 32, {{64, {64, 1, 17, 9}}, {130, {40}}});
  add(3, 1, 16, {{530, {20, 8}}});
  add(2, 2, 20, {{15, {1, 1, 1}}, {33, {31, 2}}});
  add(1, 1, 1, {{7, {2, 9}}});
  add(2, 1, 128, {{20, {}}, {48, {16, 16}}});
  tests::Random random(7);
  for (int i = 0; i < 6; ++i) {
    const int kv = static_cast<int>(random.Between(1, 3));
    const int group = static_cast<int>(random.Between(1, 4));
    std::vector<Group> groups;
    for (int64_t g = random.Between(1, 3); g > 0; --g) {
      Group one{random.Between(1, 90), {}};
      for (int64_t c = random.Between(0, 5); c > 0; --c) {
        one.children.push_back(random.Between(1, 40));
      }
      groups.push_back(one);
    }
    add(kv * group, kv, static_cast<int>(random.Between(1, 70)), groups);
  }
  return batches;
}

TEST(AttentionPrefixTest, EqualsScalarTwinOnEveryIsaAndThreadCount) {
  const NumericThread numeric;
  for (const SharedBatch& batch : Batches()) {
    Values want(batch.shape(), batch.rows(), batch.num_pages());
    want.Fill(3);
    want.RunReference(batch.shape(), batch.segments());
    for (const Isa isa : tests::AllIsas()) {
      ASSERT_TRUE(SetIsa(isa).ok());
      for (const int threads : {1, 3}) {
        SCOPED_TRACE(testing::Message() << IsaName(isa) << " threads " << threads << " heads "
                                        << batch.shape().num_heads << " rows " << batch.rows());
        Pool pool(threads);
        Values got(batch.shape(), batch.rows(), batch.num_pages());
        got.Fill(3);
        got.Run(pool, batch.shape(), batch.segments());
        EXPECT_EQ(Differing(got.kv, want.kv), 0);
        EXPECT_EQ(Differing(got.out, want.out), 0);
        EXPECT_EQ(Differing(got.max, want.max), 0);
        EXPECT_EQ(Differing(got.sum, want.sum), 0);
        EXPECT_EQ(Differing(got.dq, want.dq), 0);
        EXPECT_EQ(Differing(got.dk, want.dk), 0);
        EXPECT_EQ(Differing(got.dv, want.dv), 0);
      }
    }
  }
}

// One group; the same sequences as copies of their own, packed end to end.
class CopiesTest : public testing::Test {
 protected:
  static constexpr int64_t kPrefix = 53;
  const AttentionShape shape_{6, 2, 32, 0.3f};
  const std::vector<int64_t> children_{11, 40, 1, 24};
  const NumericThread numeric_;
  Pool pool_{2};

  // Rows of `from` of the group's sequence c, as one sequence.
  static std::vector<float> Sequence(const std::vector<float>& from, int64_t width,
                                     const SharedBatch& batch, size_t child) {
    const Segment& own = batch.segments()[child];
    const Segment& prefix = batch.segments()[static_cast<size_t>(own.parent)];
    std::vector<float> rows(from.begin() + prefix.first_row * width,
                            from.begin() + (prefix.first_row + prefix.num_rows) * width);
    rows.insert(rows.end(), from.begin() + own.first_row * width,
                from.begin() + (own.first_row + own.num_rows) * width);
    return rows;
  }

  Values Copy(const SharedBatch& batch, const Values& shared, size_t child, bool with_prefix) {
    const int64_t rows = kPrefix + children_[child];
    Values copy(shape_, rows, NumPages(rows));
    copy.q = Sequence(shared.q, batch.q_width(), batch, child);
    copy.k = Sequence(shared.k, batch.kv_width(), batch, child);
    copy.v = Sequence(shared.v, batch.kv_width(), batch, child);
    copy.dout = Sequence(shared.dout, batch.q_width(), batch, child);
    // Only one copy carries the gradient that reaches the prefix's own rows.
    if (!with_prefix) std::fill_n(copy.dout.begin(), kPrefix * batch.q_width(), 0.0f);
    std::vector<int32_t> pages(NumPages(rows));
    std::iota(pages.begin(), pages.end(), 0);
    const Segment segment{0, static_cast<int32_t>(rows), 0, pages.data()};
    copy.Run(pool_, shape_, {&segment, 1});
    return copy;
  }
};

TEST_F(CopiesTest, ForwardAndOwnGradientsAreThoseOfSeparateSequences) {
  const SharedBatch batch(shape_, {{kPrefix, children_}}, 5);
  Values shared(shape_, batch.rows(), batch.num_pages());
  shared.Fill(9);
  shared.Run(pool_, shape_, batch.segments());
  std::vector<double> dk_sum(kPrefix * batch.kv_width(), 0.0);
  const auto prefix_floats = [](int64_t width) { return kPrefix * width; };
  for (size_t child = 0; child < children_.size(); ++child) {
    const Values copy = Copy(batch, shared, child, child == 0);
    EXPECT_EQ(Differing(Sequence(shared.out, batch.q_width(), batch, child), copy.out), 0);
    const auto own = [&](const std::vector<float>& rows, int64_t width) {
      return std::vector<float>(rows.begin() + prefix_floats(width), rows.end());
    };
    EXPECT_EQ(Differing(own(Sequence(shared.dq, batch.q_width(), batch, child), batch.q_width()),
                        own(copy.dq, batch.q_width())),
              0);
    EXPECT_EQ(Differing(own(Sequence(shared.dk, batch.kv_width(), batch, child), batch.kv_width()),
                        own(copy.dk, batch.kv_width())),
              0);
    for (size_t i = 0; i < dk_sum.size(); ++i) dk_sum[i] += copy.dk[i];
  }
  const Segment& prefix = batch.segments().back();
  double error = 0, norm = 0;
  for (size_t i = 0; i < dk_sum.size(); ++i) {
    const double got = shared.dk[static_cast<size_t>(prefix.first_row * batch.kv_width()) + i];
    error += (got - dk_sum[i]) * (got - dk_sum[i]);
    norm += dk_sum[i] * dk_sum[i];
  }
  EXPECT_LT(std::sqrt(error / norm), 1e-6);
}

TEST_F(CopiesTest, ContinuationsAddInTheOrderOfTheSegments) {
  const SharedBatch batch(shape_, {{kPrefix, {20, 20, 20}}}, 5);
  Values forward(shape_, batch.rows(), batch.num_pages());
  forward.Fill(9);
  Values backward = forward;
  forward.Run(pool_, shape_, batch.segments());
  // The same rows, the first and the last continuation exchanged.
  const std::vector<std::pair<std::vector<float>*, int64_t>> arrays = {
      {&backward.q, batch.q_width()},
      {&backward.k, batch.kv_width()},
      {&backward.v, batch.kv_width()},
      {&backward.dout, batch.q_width()}};
  for (const auto& [array, width] : arrays) {
    std::swap_ranges(array->begin(), array->begin() + 20 * width, array->begin() + 40 * width);
  }
  backward.Run(pool_, shape_, batch.segments());
  const int64_t at = batch.segments().back().first_row * batch.kv_width();
  const std::vector<float> a(forward.dk.begin() + at, forward.dk.end());
  const std::vector<float> b(backward.dk.begin() + at, backward.dk.end());
  EXPECT_GT(Differing(a, b), 50);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-4);
}

}  // namespace
}  // namespace titan::kernels
