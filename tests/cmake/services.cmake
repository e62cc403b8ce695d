# SPDX-License-Identifier: Apache-2.0
titan_test(services_rpc_test LABEL unit TIMEOUT 60
  SOURCES unit/services/rpc/config_test.cc unit/services/rpc/status_convert_test.cc unit/services/rpc/bridge_test.cc
          unit/services/rpc/api_lock_test.cc
  USES services/rpc core/runtime core/base LIBS nlohmann_json::nlohmann_json)
titan_test(services_daemon_test LABEL unit TIMEOUT 60
  SOURCES unit/services/rpc/daemon_test.cc
  USES services/rpc core/runtime core/base LIBS nlohmann_json::nlohmann_json)
titan_test(clients_test LABEL unit TIMEOUT 60
  SOURCES unit/clients/cluster/process_group_test.cc unit/clients/cluster/cluster_test.cc unit/clients/demo_test.cc
  USES clients/demo clients/cluster services/rpc core/runtime core/base LIBS nlohmann_json::nlohmann_json)
titan_test(services_reward_test LABEL unit TIMEOUT 60
  SOURCES unit/services/reward/reward_service_test.cc
  USES services/reward services/rpc rewards core/runtime core/base)
