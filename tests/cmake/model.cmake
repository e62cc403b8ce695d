# SPDX-License-Identifier: Apache-2.0
titan_test(model_test LABEL unit
  SOURCES unit/core/model/parameters_test.cc unit/core/model/decoder_test.cc
    unit/core/model/gradient_test.cc unit/core/model/model_files_test.cc support/small_model.cc
  USES core/base core/formats core/kernels core/model
  LIBS nlohmann_json::nlohmann_json)
