// SPDX-License-Identifier: Apache-2.0
#include "services/settings/settings.h"
#include "services/settings/shared.h"

namespace titan::settings {
namespace {

constexpr uint32_t kMaxSequences = 65536;
constexpr uint32_t kMaxBatchTokens = 1 << 20;

}  // namespace

void FillDefaults(config::v1::GeneratorConfig* config) {
  FillDaemonDefaults("generator", config->mutable_daemon());
  FillKernelDefaults(config->mutable_kernels());
  config->set_max_versions(3);
  config->set_max_running_sequences(64);
  config->set_max_batch_tokens(512);
  config->set_kv_cache_bytes(uint64_t{512} << 20);
  config->set_max_queued_groups(256);
}

void Validate(const config::v1::GeneratorConfig& config, rpc::ConfigProblems* problems) {
  ValidateDaemon(config.daemon(), problems);
  ValidateKernels(config.kernels(), problems);
  ValidatePeerAddress("orchestrator_address", config.orchestrator_address(), problems);
  ValidatePeerAddress("weightstore_address", config.weightstore_address(), problems);
  const auto range = [problems](const char* path, uint64_t value, uint64_t low, uint64_t high) {
    ValidateRange(path, value, low, high, "", problems);
  };
  range("max_versions", config.max_versions(), 1, 64);
  const uint32_t sequences = config.max_running_sequences();
  range("max_running_sequences", sequences, 1, kMaxSequences);
  if (sequences <= kMaxSequences && config.max_batch_tokens() < sequences) {
    problems->push_back(
        rpc::InvalidValue("max_batch_tokens", std::to_string(config.max_batch_tokens()),
                          std::to_string(sequences) + " (max_running_sequences) to " +
                              std::to_string(kMaxBatchTokens)));
  } else {
    range("max_batch_tokens", config.max_batch_tokens(), 1, kMaxBatchTokens);
  }
  ValidateDevice(config.rdma_device(), config.require_rdma(),
                 config.daemon().debug().shm_test_lane(), problems);
  range("kv_cache_bytes", config.kv_cache_bytes(), 1 << 16, uint64_t{1} << 44);
  range("max_queued_groups", config.max_queued_groups(), 1, 1 << 20);
}

}  // namespace titan::settings
