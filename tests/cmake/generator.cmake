# SPDX-License-Identifier: Apache-2.0
titan_test(generator_test LABEL parity
  SOURCES unit/generator/engine_test.cc unit/generator/page_pool_test.cc
  USES generator core/model core/formats core/kernels)
