# SPDX-License-Identifier: Apache-2.0
titan_test(philox_golden_test LABEL golden SOURCES golden_runner/philox_golden_test.cc
  USES core/base LIBS nlohmann_json::nlohmann_json)
set_property(GLOBAL APPEND PROPERTY TITAN_GOLDEN_FILES
  philox/philox4x32_10.json philox/philox4x32_7.json philox/philox4x64_10.json philox/uniform.json)
