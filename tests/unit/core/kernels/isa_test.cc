// SPDX-License-Identifier: Apache-2.0
//
// The forced instruction set and the numeric environment of threads.
#include "core/kernels/isa.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/kernels/order.h"

namespace titan::kernels {
namespace {

TEST(IsaTest, ForcesWhatTheCpuHasAndRefusesOtherNames) {
  const StatusOr<Isa> best = DetectIsa();
  ASSERT_TRUE(best.ok());
  ASSERT_TRUE(SetIsa("avx2").ok());
  EXPECT_EQ(CurrentIsa(), Isa::kAvx2);
  if (*best == Isa::kAvx512) {
    ASSERT_TRUE(SetIsa("avx512").ok());
    EXPECT_EQ(CurrentIsa(), Isa::kAvx512);
  } else {
    EXPECT_EQ(SetIsa("avx512").code(), StatusCode::kFailedPrecondition);
  }
  EXPECT_EQ(SetIsa("sse4").code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(SetIsa("auto").ok());
  EXPECT_EQ(CurrentIsa(), *best);
  EXPECT_EQ(IsaName(Isa::kAvx2), "avx2");
}

TEST(IsaTest, NumericThreadFlushesDenormalsAndRestores) {
  volatile float tiny = std::numeric_limits<float>::min();
  volatile float half = 0.5f;
  {
    const NumericThread environment;
    EXPECT_TRUE(NumericEnvironmentIsSet());
    volatile float flushed = tiny * half;
    EXPECT_EQ(flushed, 0.0f);
  }
  EXPECT_FALSE(NumericEnvironmentIsSet());
  volatile float kept = tiny * half;
  EXPECT_NE(kept, 0.0f);
}

TEST(LeafCountTest, FollowsTheContractForSmolLm2) {
  EXPECT_EQ(LeafCount(576, 0), 2);    // q, k, v, gate, up, head forward; o and down backward
  EXPECT_EQ(LeafCount(576, 64), 1);   // o forward; dX of q
  EXPECT_EQ(LeafCount(192, 64), 1);   // dX of k and v
  EXPECT_EQ(LeafCount(1536, 0), 4);   // down forward; dX of gate and up
  EXPECT_EQ(LeafCount(49152, 0), 8);  // dX of the head
  EXPECT_EQ(LeafCount(512, 0), 2);
  EXPECT_EQ(LeafCount(510, 0), 1);  // half of it is odd
  EXPECT_EQ(LeafCount(2048, 128), 8);
  EXPECT_EQ(LeafCount(2048, 192), 1);  // no part is a multiple of the head
}

}  // namespace
}  // namespace titan::kernels
