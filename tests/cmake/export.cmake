# SPDX-License-Identifier: Apache-2.0
titan_test(smollm2_export_long_test LABEL e2e LONG TIMEOUT 600
  SOURCES e2e/smollm2_export_long_test.cc
  USES core/text core/model core/kernels core/formats core/base)
