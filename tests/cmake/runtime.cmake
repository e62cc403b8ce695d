# SPDX-License-Identifier: Apache-2.0
titan_test(runtime_test LABEL unit TIMEOUT 60
  SOURCES unit/core/runtime/log_test.cc unit/core/runtime/health_test.cc unit/core/runtime/files_test.cc
          unit/core/runtime/queue_test.cc unit/core/runtime/machine_test.cc
  USES core/runtime core/base LIBS nlohmann_json::nlohmann_json)
