# SPDX-License-Identifier: Apache-2.0
titan_test(formats_test LABEL unit
  SOURCES unit/core/formats/convert_test.cc unit/core/formats/gguf_test.cc
          unit/core/formats/model_config_test.cc unit/core/formats/safetensors_test.cc
  USES core/formats core/base)

find_package(OpenSSL REQUIRED)
titan_test(gguf_golden_test LABEL golden SOURCES golden_runner/gguf_golden_test.cc
  USES core/formats core/base LIBS OpenSSL::Crypto)
set_property(GLOBAL APPEND PROPERTY TITAN_GOLDEN_FILES model/gguf_tensors.json
  formats/gguf_blocks.json)
