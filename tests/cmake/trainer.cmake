# SPDX-License-Identifier: Apache-2.0
titan_test(trainer_test LABEL unit
  SOURCES unit/trainer/contract_test.cc unit/trainer/gradient_digest_test.cc
    unit/trainer/packing_test.cc unit/trainer/policy_loss_test.cc unit/trainer/ranks_test.cc
    unit/trainer/train_state_test.cc
  USES trainer core/model core/formats core/kernels)
titan_test(policy_loss_golden_test LABEL golden SOURCES golden_runner/policy_loss_golden_test.cc
  USES trainer orchestrator LIBS nlohmann_json::nlohmann_json)
set_property(GLOBAL APPEND PROPERTY TITAN_GOLDEN_FILES loss/policy_loss.json)
titan_test(trainer_generator_parity_test LABEL parity TIMEOUT 240
  SOURCES parity/trainer_generator_parity_test.cc parity/w16_parity_test.cc
  USES trainer generator core/model core/formats core/kernels)
titan_test(layout_fuzz_test LABEL parity TIMEOUT 240
  SOURCES parity/layout_fuzz_test.cc support/small_model.cc
  USES trainer generator core/model core/formats core/kernels
  LIBS nlohmann_json::nlohmann_json)
# A few layouts in make test, all of them in the long suite.
add_test(NAME long/layout_fuzz COMMAND layout_fuzz_test)
set_tests_properties(long/layout_fuzz PROPERTIES LABELS long TIMEOUT 7200 ENVIRONMENT TITAN_LAYOUTS=3)
titan_test(perturbed_kernel_parity_test LABEL parity
  SOURCES parity/perturbed_kernel_parity_test.cc
  USES trainer generator core/model core/formats core/kernels)
# Its objects come before the library of the product, whose members are then not taken.
target_sources(perturbed_kernel_parity_test PRIVATE $<TARGET_OBJECTS:titan_core_kernels_perturbed>)
titan_test(train_job_test LABEL unit TIMEOUT 60
  SOURCES unit/services/trainer/train_job_test.cc unit/services/trainer/checkpointer_test.cc
    unit/services/trainer/checkpoint_test.cc support/small_model.cc
  USES services/trainer services/rpc services/models trainer weightstore/client core/model core/kernels core/formats core/runtime
       core/text core/base LIBS nlohmann_json::nlohmann_json)
titan_test(trainer_checkpoint_test LABEL integration TIMEOUT 240
  SOURCES integration/trainer_checkpoint_test.cc support/small_model.cc
  USES services/trainer services/rpc services/models services/weightstore_client trainer weightstore/client core/model core/kernels core/formats
       core/runtime core/text core/base
  LIBS nlohmann_json::nlohmann_json DEPENDS titan-weightstore titan-trainer)
