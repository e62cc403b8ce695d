// SPDX-License-Identifier: Apache-2.0
// Goal: a fused multiply-add is executed only where the source writes one (numerics.md, section 1).
// Method: the machine code of this build, read with objdump. The compiler fuses nothing under the
// flags that every source is compiled with; the control shows that it would; and outside the vector
// kernels, which write their own, no FMA stands anywhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace titan::kernels {
namespace {

constexpr std::string_view kFma[] = {"\tvfm", "\tvfnm"};
constexpr std::string_view kDot[] = {"\tvdpbf16ps"};

// Instructions that begin with one of `names`, by the (demangled) function they stand in.
std::map<std::string, int> FusedOperations(const std::string& file,
                                           std::span<const std::string_view> names = kFma) {
  const std::string command =
      std::string(TITAN_OBJDUMP) + " --disassemble --demangle --no-show-raw-insn '" + file + "'";
  FILE* pipe = popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr) << command;
  std::map<std::string, int> fused;
  if (pipe == nullptr) return fused;
  std::string function;
  int functions = 0;
  char* line = nullptr;
  size_t capacity = 0;
  while (getline(&line, &capacity, pipe) > 0) {
    const std::string_view text = line;
    // "0000000000000000 <name>:" starts a function, "   4:\tvfmadd..." is an instruction.
    if (const size_t open = text.find(" <"); open == 16 && text.ends_with(">:\n")) {
      function = text.substr(open + 2, text.size() - open - 5);
      ++functions;
    } else if (std::any_of(names.begin(), names.end(),
                           [&](std::string_view name) { return text.find(name) != text.npos; })) {
      ++fused[function];
    }
  }
  free(line);
  EXPECT_EQ(pclose(pipe), 0) << command;
  EXPECT_GT(functions, 0) << command;
  return fused;
}

TEST(DisassemblyTest, TheProjectsFlagsFuseNothing) {
  EXPECT_TRUE(FusedOperations(TITAN_PROBE).empty());
  EXPECT_EQ(FusedOperations(TITAN_PROBE_CONTRACTED).size(), 2u);  // so this test can fail
}

TEST(DisassemblyTest, FusedOperationsStandInKernelsOnly) {
  const auto kernels = FusedOperations(TITAN_KERNELS);
  int avx2 = 0;
  int avx512 = 0;
  for (const auto& [function, count] : kernels) {
    const bool in_avx2 = function.find("N_AVX2::") != std::string::npos;
    const bool in_avx512 = function.find("N_AVX3") != std::string::npos;
    const bool in_reference = function.find("kernels::reference::") != std::string::npos;
    EXPECT_TRUE(in_avx2 || in_avx512 || in_reference) << function << ": " << count;
    avx2 += in_avx2 ? 1 : 0;
    avx512 += in_avx512 ? 1 : 0;
  }
  EXPECT_GT(avx2, 10);
  EXPECT_GT(avx512, 10);
  EXPECT_TRUE(FusedOperations(TITAN_MODEL).empty());
  EXPECT_TRUE(FusedOperations(TITAN_GENERATOR).empty());
}

TEST(DisassemblyTest, Bf16DotsStandInTheirKernelOnly) {
  const auto dots = FusedOperations(TITAN_KERNELS, kDot);
  int total = 0;
  for (const auto& [function, count] : dots) {
    EXPECT_NE(function.find("kernels::internal::"), std::string::npos) << function << ": " << count;
    total += count;
  }
  EXPECT_GT(total, 400);  // output and chain for every height of a tile
}

// The flag that the probe was built with is the last word for every source.
TEST(DisassemblyTest, EverySourceIsCompiledWithContractionOff) {
  std::ifstream file(std::string(TITAN_BINARY_DIR) + "/compile_commands.json");
  const auto commands = nlohmann::json::parse(file);
  size_t checked = 0;
  for (const auto& entry : commands) {
    const std::string object = entry.value("output", entry["command"].get<std::string>());
    if (object.find("titan_contraction_allowed") != std::string::npos) continue;  // the control
    std::istringstream words(entry["command"].get<std::string>());
    std::string last;
    for (std::string word; words >> word;) {
      if (word.starts_with("-ffp-contract=")) last = word;
      EXPECT_TRUE(word != "-ffast-math" && word != "-Ofast" &&
                  word != "-funsafe-math-optimizations" && word != "-fassociative-math" &&
                  word != "-march=native")
          << entry["file"] << ": " << word;
    }
    EXPECT_EQ(last, "-ffp-contract=off") << entry["file"];
    ++checked;
  }
  EXPECT_GT(checked, 100u);
}

}  // namespace
}  // namespace titan::kernels
