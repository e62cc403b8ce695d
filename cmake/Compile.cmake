# SPDX-License-Identifier: Apache-2.0
# Flags of every target. -ffp-contract=off is part of the numerics contract: FMA only where written.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")
set(CMAKE_C_FLAGS_RELEASE "-O2 -g1")

add_compile_options(
  -march=x86-64-v2 -ffp-contract=off -fno-fast-math
  -Wall -Wextra -Werror -Wno-unused-parameter -Wno-missing-field-initializers
  -fdiagnostics-color=auto)
# -Wnon-virtual-dtor and friends are left to clang-tidy; generated code turns warnings off in Proto.cmake.
add_compile_definitions($<$<BOOL:${TITAN_DEBUG_CHECKS}>:TITAN_DEBUG_CHECKS=1>)
if(TITAN_SANITIZE)
  # GCC 12 reports uninitialized values that are none in instrumented code.
  add_compile_options(-fsanitize=${TITAN_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all
    -Wno-maybe-uninitialized)
  add_link_options(-fsanitize=${TITAN_SANITIZE})
  if(TITAN_SANITIZE STREQUAL "thread")
    # ThreadSanitizer does not know fences. asio's locks order the same accesses; the slot header's fields
    # are atomics.
    add_compile_definitions(BOOST_ASIO_DISABLE_FENCED_BLOCK)
    add_compile_options(-Wno-tsan)
  endif()
endif()
add_link_options(-Wl,--as-needed)

# Two heavy link or compile jobs at once are what 2 cores and 24 GiB bear.
set_property(GLOBAL APPEND PROPERTY JOB_POOLS torch_pool=2)
