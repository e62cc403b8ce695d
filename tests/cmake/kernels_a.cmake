# SPDX-License-Identifier: Apache-2.0
titan_test(kernels_linear_test LABEL parity TIMEOUT 120
  SOURCES unit/core/kernels/isa_test.cc unit/core/kernels/pool_test.cc
  USES core/base core/kernels)
