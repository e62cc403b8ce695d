# SPDX-License-Identifier: Apache-2.0
titan_test(weightstore_reshard_test LABEL unit TIMEOUT 60
  SOURCES unit/weightstore/reshard/plan_test.cc unit/weightstore/reshard/plan_property_test.cc
          unit/weightstore/reshard/placement_test.cc
  USES core/base weightstore/client weightstore/reshard)
