# SPDX-License-Identifier: Apache-2.0
titan_test(base_test LABEL unit
  SOURCES unit/core/base/double_exp_test.cc unit/core/base/durable_file_test.cc unit/core/base/hash_test.cc
          unit/core/base/ids_test.cc unit/core/base/nearest_name_test.cc
  USES core/base)
