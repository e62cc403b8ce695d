# SPDX-License-Identifier: Apache-2.0
# Reads the optimised machine code; instrumented or unoptimised code says nothing about it.
if(NOT CMAKE_BUILD_TYPE STREQUAL "Release")
  return()
endif()
add_library(titan_contraction_probe OBJECT EXCLUDE_FROM_ALL support/contraction_probe.cc)
add_library(titan_contraction_allowed OBJECT EXCLUDE_FROM_ALL support/contraction_probe.cc)
target_compile_options(titan_contraction_allowed PRIVATE -ffp-contract=fast)

titan_test(kernels_disassembly_test LABEL unit
  SOURCES unit/core/kernels/disassembly_test.cc
  USES core/kernels core/model generator
  LIBS nlohmann_json::nlohmann_json)
add_dependencies(kernels_disassembly_test titan_contraction_probe titan_contraction_allowed)
target_compile_definitions(kernels_disassembly_test PRIVATE
  TITAN_OBJDUMP="${CMAKE_OBJDUMP}"
  TITAN_PROBE="$<TARGET_OBJECTS:titan_contraction_probe>"
  TITAN_PROBE_CONTRACTED="$<TARGET_OBJECTS:titan_contraction_allowed>"
  TITAN_KERNELS="$<TARGET_FILE:titan_core_kernels>"
  TITAN_MODEL="$<TARGET_FILE:titan_core_model>"
  TITAN_GENERATOR="$<TARGET_FILE:titan_generator>")
