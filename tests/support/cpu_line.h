// SPDX-License-Identifier: Apache-2.0
//
// The CPU that a test runs on, in a line: what docs/cpus.md lists. From the instruction itself, so
// that an emulated CPU says its own name. Any thread.
#ifndef TITAN_TESTS_SUPPORT_CPU_LINE_H_
#define TITAN_TESTS_SUPPORT_CPU_LINE_H_

#include <cpuid.h>

#include <cstdint>
#include <string>
#include <utility>

namespace titan::testing {

// "AMD EPYC, family 25 model 17 stepping 1: avx2 fma bmi2 ..."
inline std::string CpuLine() {
  uint32_t registers[4] = {};
  std::string line;
  for (uint32_t leaf = 0x80000002u; leaf <= 0x80000004u; ++leaf) {
    if (__get_cpuid(leaf, &registers[0], &registers[1], &registers[2], &registers[3]) == 0) break;
    line.append(reinterpret_cast<const char*>(registers), sizeof(registers));
  }
  line = line.substr(0, line.find('\0'));
  line.erase(line.find_last_not_of(' ') + 1);
  if (line.empty()) line = "unnamed CPU";
  if (__get_cpuid(1, &registers[0], &registers[1], &registers[2], &registers[3]) != 0) {
    const uint32_t id = registers[0];
    uint32_t family = id >> 8 & 0xf, model = id >> 4 & 0xf;
    if (family == 6 || family == 15) model += (id >> 16 & 0xf) << 4;
    if (family == 15) family += id >> 20 & 0xff;
    line += ", family " + std::to_string(family) + " model " + std::to_string(model) +
            " stepping " + std::to_string(id & 0xf);
  }
  __builtin_cpu_init();
  const std::pair<const char*, bool> flags[] = {
      {"avx2", __builtin_cpu_supports("avx2")},
      {"fma", __builtin_cpu_supports("fma")},
      {"bmi2", __builtin_cpu_supports("bmi2")},
      {"avx512f", __builtin_cpu_supports("avx512f")},
      {"avx512vl", __builtin_cpu_supports("avx512vl")},
      {"avx512dq", __builtin_cpu_supports("avx512dq")},
      {"avx512bw", __builtin_cpu_supports("avx512bw")},
      {"avx512_bf16", __builtin_cpu_supports("avx512bf16")}};
  line += ":";
  for (const auto& [name, there] : flags) {
    if (there) line += std::string(" ") + name;
  }
  return line;
}

}  // namespace titan::testing

#endif  // TITAN_TESTS_SUPPORT_CPU_LINE_H_
