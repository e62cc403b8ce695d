# SPDX-License-Identifier: Apache-2.0
titan_test(services_rpc_test LABEL unit TIMEOUT 60
  SOURCES unit/services/rpc/config_test.cc unit/services/rpc/wait_notice_test.cc unit/services/rpc/status_convert_test.cc unit/services/rpc/bridge_test.cc
          unit/services/rpc/api_lock_test.cc
  USES services/settings services/rpc core/runtime core/base LIBS nlohmann_json::nlohmann_json)
titan_test(services_daemon_test LABEL unit TIMEOUT 60
  SOURCES unit/services/rpc/daemon_test.cc
  USES services/settings services/rpc core/runtime core/base LIBS nlohmann_json::nlohmann_json)
titan_test(services_settings_test LABEL unit TIMEOUT 60
  SOURCES unit/services/settings/settings_test.cc
  USES services/settings services/rpc core/kernels core/base)
titan_test(services_contract_test LABEL unit TIMEOUT 60
  SOURCES unit/services/contract/contract_test.cc
  USES services/contract core/model core/kernels core/formats core/base)
titan_test(clients_test LABEL unit TIMEOUT 60
  SOURCES unit/clients/cluster/process_group_test.cc unit/clients/cluster/cluster_test.cc unit/clients/demo_test.cc
          unit/clients/cluster/job_file_test.cc unit/clients/cli/arguments_test.cc unit/clients/cli/views_test.cc
          unit/clients/cli/doctor_test.cc unit/clients/cli/report_test.cc unit/clients/cli/weights_test.cc
  USES clients/cli clients/demo clients/cluster orchestrator services/rpc core/runtime core/base LIBS CLI11::CLI11 nlohmann_json::nlohmann_json)
titan_test(services_reward_test LABEL unit TIMEOUT 60
  SOURCES unit/services/reward/reward_service_test.cc
  USES services/reward services/rpc rewards core/runtime core/base)

# titanctl and the demo program over stand-ins of the other daemons.
titan_include_root(fake_daemon fake_daemon_root services/settings services/rpc core/runtime core/base)
add_executable(fake_daemon integration/cluster/fake_daemon.cc)
set_target_properties(fake_daemon PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
target_include_directories(fake_daemon PRIVATE ${fake_daemon_root})
target_link_libraries(fake_daemon PRIVATE titan_services_settings titan_services_rpc)
titan_test(cluster_programs_test LABEL integration TIMEOUT 120
  SOURCES integration/cluster/cluster_programs_test.cc
  USES core/base LIBS nlohmann_json::nlohmann_json DEPENDS fake_daemon titanctl titan-demo titan-reward)
