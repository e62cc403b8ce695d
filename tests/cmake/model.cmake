# SPDX-License-Identifier: Apache-2.0
titan_test(model_test LABEL unit
  SOURCES unit/core/model/parameters_test.cc unit/core/model/decoder_test.cc
    unit/core/model/gradient_test.cc unit/core/model/w16_model_test.cc
    unit/core/model/model_files_test.cc support/small_model.cc
  USES core/base core/formats core/kernels core/model
  LIBS nlohmann_json::nlohmann_json)

titan_test(trainable_decoder_test LABEL unit
  SOURCES unit/core/model/torch/trainable_decoder_test.cc
    unit/core/model/torch/tensor_parallel_test.cc support/small_model.cc
  USES core/base core/formats core/kernels core/model core/model/torch
  LIBS nlohmann_json::nlohmann_json)
# LibTorch is not built for the sanitizers: the asan preset leaves this label out.
set_tests_properties(unit/trainable_decoder_test PROPERTIES LABELS "unit;torch")

titan_test(model_golden_test LABEL golden TIMEOUT 900
  SOURCES golden_runner/model_golden_test.cc golden_runner/family_golden_test.cc
  USES core/base core/formats core/kernels core/model
  LIBS nlohmann_json::nlohmann_json)
set_property(GLOBAL APPEND PROPERTY TITAN_GOLDEN_FILES model/tiny.json model/smollm2_135m.json
  families/gemma3/golden.json families/mistral/golden.json families/qwen2/golden.json)

titan_test(model_perturbed_test LABEL unit
  SOURCES unit/core/model/perturbed_parity_test.cc support/small_model.cc
  USES core/base core/formats core/kernels core/model
  LIBS nlohmann_json::nlohmann_json)
# Its objects come before the library of the product, whose members are then not taken.
target_sources(model_perturbed_test PRIVATE $<TARGET_OBJECTS:titan_core_kernels_perturbed>)

titan_test(small_model_test LABEL unit
  SOURCES unit/support/small_model_test.cc support/small_model.cc
  USES core/base core/formats core/text core/kernels core/model
  LIBS nlohmann_json::nlohmann_json)
