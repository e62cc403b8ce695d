# SPDX-License-Identifier: Apache-2.0
titan_test(weightstore_reshard_test LABEL unit TIMEOUT 60
  SOURCES unit/weightstore/reshard/plan_test.cc unit/weightstore/reshard/plan_property_test.cc
          unit/weightstore/reshard/placement_test.cc
  USES core/base weightstore/client weightstore/reshard)
add_test(NAME long/weightstore_reshard_pairs COMMAND weightstore_reshard_test --gtest_filter=PlanPropertyTest.*)
set_tests_properties(long/weightstore_reshard_pairs PROPERTIES LABELS long TIMEOUT 1200 ENVIRONMENT TITAN_RESHARD_PAIRS=1000000)
