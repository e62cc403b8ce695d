# SPDX-License-Identifier: Apache-2.0
titan_test(rewards_test LABEL unit SOURCES unit/rewards/graders_test.cc unit/rewards/registry_test.cc
  USES rewards core/base)
