# SPDX-License-Identifier: Apache-2.0
titan_test(orchestrator_test LABEL unit
  SOURCES unit/orchestrator/advantage_test.cc unit/orchestrator/dataset_test.cc unit/orchestrator/job_spec_test.cc
          unit/orchestrator/run_engine_test.cc unit/orchestrator/run_engine_queue_test.cc unit/orchestrator/driver_test.cc
          unit/orchestrator/worker_registry_test.cc unit/orchestrator/memory_needs_test.cc unit/orchestrator/disk_needs_test.cc unit/orchestrator/words_test.cc
          support/small_model.cc
  USES orchestrator generator core/model core/kernels core/formats core/storage)
titan_test(services_orchestrator_test LABEL unit TIMEOUT 60
  SOURCES unit/services/orchestrator/inspect_test.cc unit/services/orchestrator/probe_test.cc
  USES services/orchestrator)
titan_test(orchestrator_process_test LABEL integration TIMEOUT 180
  SOURCES integration/orchestrator_test.cc integration/hostile_job_test.cc
  USES services/rpc core/runtime core/base LIBS titan_proto_rpc
  DEPENDS titan-orchestrator titan-journal titan-reward)
titan_test(orchestrator_sync_test LABEL integration TIMEOUT 300
  SOURCES integration/orchestrator_sync_test.cc
  USES services/rpc core/runtime core/base LIBS titan_proto_rpc DEPENDS titan-orchestrator titan-journal)
# A reward service that misbehaves, as a process.
add_executable(nonsense_reward integration/nonsense_reward.cc)
set_target_properties(nonsense_reward PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
target_link_libraries(nonsense_reward PRIVATE titan_proto_rpc gRPC::grpc++)
titan_test(reward_faults_test LABEL integration TIMEOUT 180
  SOURCES integration/reward_faults_test.cc
  USES services/rpc core/runtime core/base LIBS titan_proto_rpc
  DEPENDS titan-orchestrator titan-journal nonsense_reward)
