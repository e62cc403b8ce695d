# SPDX-License-Identifier: Apache-2.0
titan_test(job_test LABEL e2e TIMEOUT 600
  SOURCES e2e/job_test.cc e2e/small_job.cc support/small_model.cc
  USES clients/cluster core/kernels core/model core/formats core/base
  LIBS nlohmann_json::nlohmann_json
  DEPENDS demo_programs titan-journal)
set_tests_properties(e2e/job_test PROPERTIES RUN_SERIAL ON)
titan_test(cli_test LABEL e2e TIMEOUT 600
  SOURCES e2e/cli_test.cc e2e/restart_test.cc e2e/tutorial_test.cc e2e/small_job.cc support/small_model.cc
  USES clients/cluster core/kernels core/model core/formats core/base
  LIBS nlohmann_json::nlohmann_json
  DEPENDS demo_programs titan-journal)
set_tests_properties(e2e/cli_test PROPERTIES RUN_SERIAL ON)
titan_test(cli_models_test LABEL e2e TIMEOUT 600
  SOURCES e2e/cli_models_test.cc e2e/small_job.cc support/small_model.cc
  USES clients/cluster core/kernels core/model core/formats core/base
  LIBS nlohmann_json::nlohmann_json
  DEPENDS demo_programs)
set_tests_properties(e2e/cli_models_test PROPERTIES RUN_SERIAL ON)
titan_test(smollm2_models_long_test LABEL e2e LONG TIMEOUT 1800
  SOURCES e2e/smollm2_models_long_test.cc e2e/small_job.cc support/small_model.cc
  USES clients/demo clients/cluster core/kernels core/model core/formats core/base
  LIBS nlohmann_json::nlohmann_json
  DEPENDS demo_programs)
set_tests_properties(e2e/smollm2_models_long_test PROPERTIES RUN_SERIAL ON)
titan_test(smollm2_long_test LABEL e2e LONG TIMEOUT 3600
  SOURCES e2e/smollm2_long_test.cc e2e/small_job.cc support/small_model.cc
  USES clients/demo clients/cluster core/kernels core/model core/formats core/base
  LIBS nlohmann_json::nlohmann_json
  DEPENDS demo_programs titan-journal)
set_tests_properties(e2e/smollm2_long_test PROPERTIES RUN_SERIAL ON)
# Two demos in make test, a hundred in the long suite.
titan_test(demo_leaks_test LABEL e2e TIMEOUT 300
  SOURCES e2e/demo_leaks_test.cc e2e/small_job.cc support/small_model.cc
  USES clients/cluster core/kernels core/model core/formats core/base
  LIBS nlohmann_json::nlohmann_json
  DEPENDS demo_programs titan-journal)
set_tests_properties(e2e/demo_leaks_test PROPERTIES RUN_SERIAL ON)
add_test(NAME long/demo_leaks_100 COMMAND demo_leaks_test)
set_tests_properties(long/demo_leaks_100 PROPERTIES LABELS long TIMEOUT 7200 RUN_SERIAL ON ENVIRONMENT TITAN_DEMOS=100)
