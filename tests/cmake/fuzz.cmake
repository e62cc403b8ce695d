# SPDX-License-Identifier: Apache-2.0
# titan_fuzz(<name> USES <modules> CORPUS <files or folders, from the top of the repository or absolute>
#            [LIBS ...] [METHODS ...]): build/tests/fuzz_<name> out of tests/fuzz/<name>_fuzz.cc; two seconds
# of it in make test, a million mutations in make test-long, with METHODS a million of each.

function(titan_fuzz name)
  cmake_parse_arguments(PARSE_ARGV 1 F "" "" "USES;CORPUS;LIBS;METHODS")
  set(corpus)
  foreach(path IN LISTS F_CORPUS)
    get_filename_component(path ${path} ABSOLUTE BASE_DIR ${PROJECT_SOURCE_DIR})
    list(APPEND corpus ${path})
  endforeach()
  set(closure core/base tests/fuzz tests/support)
  foreach(used IN LISTS F_USES)
    get_property(below GLOBAL PROPERTY "TITAN_CLOSURE_${used}")
    list(APPEND closure ${below})
  endforeach()
  list(REMOVE_DUPLICATES closure)
  titan_include_root(fuzz_${name} root ${closure})
  titan_targets_of(targets ${F_USES})
  add_executable(fuzz_${name} fuzz/${name}_fuzz.cc fuzz/driver.cc)
  set_target_properties(fuzz_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_include_directories(fuzz_${name} PRIVATE ${root})
  target_link_libraries(fuzz_${name} PRIVATE ${targets} titan_core_base ${F_LIBS})
  add_test(NAME unit/fuzz_${name} COMMAND fuzz_${name} --seconds 2 ${corpus})
  set_tests_properties(unit/fuzz_${name} PROPERTIES LABELS unit TIMEOUT 120)
  target_compile_definitions(fuzz_${name} PRIVATE TITAN_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  if(F_METHODS)
    foreach(method IN LISTS F_METHODS)
      add_test(NAME long/fuzz_${name}/${method}
        COMMAND fuzz_${name} --method ${method} --runs 1000000 --seed 2 ${corpus})
      set_tests_properties(long/fuzz_${name}/${method} PROPERTIES LABELS long TIMEOUT 3600)
    endforeach()
  else()
    add_test(NAME long/fuzz_${name} COMMAND fuzz_${name} --runs 1000000 --seed 2 ${corpus})
    set_tests_properties(long/fuzz_${name} PROPERTIES LABELS long TIMEOUT 3600)
  endif()
  set_property(GLOBAL APPEND PROPERTY TITAN_ASAN_TESTS fuzz_${name})
endfunction()

titan_fuzz(gguf USES core/text core/formats CORPUS tests/fuzz/corpus/gguf tests/cases/gguf)
titan_fuzz(safetensors USES core/formats
  CORPUS tests/fuzz/corpus/safetensors tests/cases/safetensors/empty_metadata.safetensors
         tests/cases/safetensors/metadata_only.safetensors)
titan_fuzz(tokenizer_json USES core/text CORPUS tests/fuzz/corpus/tokenizer_json tests/cases/tokenizer)
titan_fuzz(chat_template USES core/text
  CORPUS tests/fuzz/corpus/chat_template ${TITAN_TEST_WHEELS}/trl/chat_templates)
file(GLOB tiny_configs ${PROJECT_SOURCE_DIR}/tests/golden/model/tiny/*/config.json)
titan_fuzz(model_config USES core/formats CORPUS tests/fuzz/corpus/model_config ${tiny_configs})
titan_fuzz(jsonl USES orchestrator CORPUS tests/fuzz/corpus/jsonl)
titan_fuzz(daemon_config USES services/rpc CORPUS tests/fuzz/corpus/daemon_config)
# The handlers behind every RPC, without gRPC's transport, which would be most of the time.
titan_fuzz(orchestrator_rpc USES services/orchestrator
  CORPUS tests/fuzz/corpus/orchestrator_rpc
  METHODS SubmitJob GetJob ListJobs WatchJob CancelJob RegisterWorker Heartbeat ListWorkers CheckJob
          ListRollouts Chat UploadData ListData)
titan_fuzz(weight_request USES weightstore/transport CORPUS tests/fuzz/corpus/weight_request)
titan_fuzz(weightstore_rpc USES services/weightstore
  CORPUS tests/fuzz/corpus/weightstore_rpc
  METHODS RegisterTrainer BeginVersion PutDone CommitVersion AcquireLease ReleaseLease PinForEvaluation
          UnpinEvaluation ListVersions WatchVersions EndRun AdvanceOrchestratorEpoch ImportModel GetStoredModel
          ListStoredModels DeleteStoredModel CollectGarbage ReadBlob PutBundle PutCheckpoint GetCheckpoint)
# Leader and host daemon, each before a hostile other one.
titan_fuzz(weightstore_host USES services/weightstore
  CORPUS tests/fuzz/corpus/weightstore_host
  METHODS Attach Report Command Answer)
