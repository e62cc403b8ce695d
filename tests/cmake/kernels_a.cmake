# SPDX-License-Identifier: Apache-2.0
titan_test(kernels_linear_test LABEL parity ALSO_UNIT TIMEOUT 120
  SOURCES
    unit/core/kernels/digest_test.cc
    unit/core/kernels/dot_test.cc
    unit/core/kernels/head_test.cc
    unit/core/kernels/isa_test.cc
    unit/core/kernels/linear_test.cc
    unit/core/kernels/panels_test.cc
    unit/core/kernels/pool_test.cc unit/core/kernels/shares_test.cc
    unit/core/kernels/w16_test.cc
  USES core/base core/kernels)

# The same test with a perturbed Linear in place of the real one must fail: by its expectation, for calls of
# more than 14 rows and for no others, and run to its end. A crash does not pass.
titan_test(kernels_perturbed_linear_test LABEL parity TIMEOUT 120
  SOURCES unit/core/kernels/linear_test.cc
  USES core/base core/kernels
  LIBS titan_core_kernels_perturbed
  ARGS --gtest_filter=*EqualsTheReferenceForEveryNumberOfRows*
  PROPERTIES
    PASS_REGULAR_EXPRESSION "Value of: SameBits.*Actual: false.*m 1000\n.*m 15\n.*FAILED  . [12] tests?, listed below"
    FAIL_REGULAR_EXPRESSION "m ([1-9]|1[0-4])\n")

titan_test(kernels_sweep_test LABEL parity TIMEOUT 240
  SOURCES unit/core/kernels/sweep_attention_test.cc unit/core/kernels/sweep_blocks_test.cc
    unit/core/kernels/sweep_test.cc
  USES core/base core/kernels)
# The same over 50 million outputs of each group.
add_test(NAME parity/kernels_sweep_long COMMAND kernels_sweep_test --outputs=50000000)
set_tests_properties(parity/kernels_sweep_long PROPERTIES LABELS long TIMEOUT 7200)
