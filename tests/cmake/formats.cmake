# SPDX-License-Identifier: Apache-2.0
titan_test(formats_test LABEL unit
  SOURCES unit/core/formats/model_config_test.cc
  USES core/formats core/base)
