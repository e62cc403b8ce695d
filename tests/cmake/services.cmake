# SPDX-License-Identifier: Apache-2.0
titan_test(services_rpc_test LABEL unit TIMEOUT 60
  SOURCES unit/services/rpc/config_test.cc unit/services/rpc/status_convert_test.cc unit/services/rpc/bridge_test.cc
          unit/services/rpc/api_lock_test.cc
  USES services/rpc core/runtime core/base LIBS nlohmann_json::nlohmann_json)
