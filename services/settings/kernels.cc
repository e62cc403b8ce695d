// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <thread>

#include "core/kernels/isa_check.h"
#include "services/settings/shared.h"

namespace titan::settings {
namespace {

constexpr uint32_t kMaxThreads = 1024;

}  // namespace

void FillKernelDefaults(config::v1::KernelConfig* kernels) {
  kernels->set_threads(std::clamp(std::thread::hardware_concurrency(), 1u, kMaxThreads));
  kernels->set_isa("auto");
}

void ValidateKernels(const config::v1::KernelConfig& kernels, rpc::ConfigProblems* problems) {
  ValidateRange("kernels.threads", kernels.threads(), 1, kMaxThreads, "", problems);
  const Status isa = kernels::CheckIsa(kernels.isa());
  if (isa.code() == StatusCode::kInvalidArgument) {
    problems->push_back(rpc::InvalidValue("kernels.isa", "\"" + kernels.isa() + "\"",
                                          "auto, avx2, avx512, avx512_bf16"));
  } else if (!isa.ok()) {
    problems->push_back({"kernels.isa", MessageOf(isa)});
  }
}

}  // namespace titan::settings
