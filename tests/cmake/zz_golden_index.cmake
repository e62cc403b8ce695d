# SPDX-License-Identifier: Apache-2.0
# Last in the alphabet: by now every runner has named its files.
get_property(golden_files GLOBAL PROPERTY TITAN_GOLDEN_FILES)
list(JOIN golden_files "\n" golden_list)
file(WRITE ${PROJECT_BINARY_DIR}/golden_files.txt "${golden_list}\n")
titan_test(golden_index_test LABEL golden SOURCES golden_runner/golden_index_test.cc
  LIBS nlohmann_json::nlohmann_json)
