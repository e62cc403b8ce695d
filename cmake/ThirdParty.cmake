# SPDX-License-Identifier: Apache-2.0
# Every third-party library, found once, its version checked. Who may use which: Layers.cmake.
find_package(Threads REQUIRED)
find_package(Protobuf 3.21 REQUIRED)
find_package(gRPC 1.51 CONFIG REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(Boost 1.81 REQUIRED)
find_package(RocksDB 7.8 CONFIG REQUIRED)
find_package(spdlog 1.10 CONFIG REQUIRED)
find_package(fmt 9 CONFIG REQUIRED)
find_package(nlohmann_json 3.11 CONFIG REQUIRED)
find_package(CLI11 2.1 CONFIG REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(GTest 1.12 CONFIG REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(UCX REQUIRED IMPORTED_TARGET ucx)

# LibTorch out of the wheel: torch_cpu and c10 only, no find_package(Torch), so that CUDA stays out of
# the configure step. The include folder comes last (-idirafter): the wheel carries an old google/protobuf.
set(torch_root ${TITAN_WHEELS}/torch)
if(NOT EXISTS ${torch_root}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "LibTorch not found in ${torch_root}. Run tools/setup.sh (make build does).")
endif()
add_library(titan_torch INTERFACE)
add_library(titan::torch ALIAS titan_torch)
target_compile_options(titan_torch INTERFACE
  "SHELL:-idirafter ${torch_root}/include" "SHELL:-idirafter ${torch_root}/include/torch/csrc/api/include")
# Shared objects by path; what libtorch_cpu.so needs beyond them is found through its own run path.
target_link_libraries(titan_torch INTERFACE ${torch_root}/lib/libtorch_cpu.so ${torch_root}/lib/libc10.so)
target_link_options(titan_torch INTERFACE -Wl,-rpath,${torch_root}/lib -Wl,--unresolved-symbols=ignore-in-shared-libs)
