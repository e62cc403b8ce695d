# SPDX-License-Identifier: Apache-2.0
find_package(OpenSSL REQUIRED)
titan_test(tokenizer_golden_test LABEL golden TIMEOUT 300 SOURCES golden_runner/tokenizer_golden_test.cc
  USES core/text core/formats core/base LIBS OpenSSL::Crypto)
set_property(GLOBAL APPEND PROPERTY TITAN_GOLDEN_FILES
  tokenizer/smollm2.json tokenizer/smollm2_bytes.json tokenizer/smollm2_decode.json
  tokenizer/tiny_bpe.json tokenizer/qwen3.json tokenizer/qwen3_5.json tokenizer/llama3.json
  tokenizer/sentencepiece.json)

titan_test(tokenizer_test LABEL unit
  SOURCES unit/core/text/import_model_test.cc unit/core/text/piece_model_test.cc
          unit/core/text/tokenizer_test.cc
  USES core/text core/formats core/base)
