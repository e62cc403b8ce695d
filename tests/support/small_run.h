// SPDX-License-Identifier: Apache-2.0
//
// A run of a small model whose versions are in a weight store. Test code.
#ifndef TITAN_TESTS_SUPPORT_SMALL_RUN_H_
#define TITAN_TESTS_SUPPORT_SMALL_RUN_H_

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/kernels/pool.h"
#include "core/model/decoder.h"
#include "services/contract/contract.h"
#include "tests/support/small_model.h"
#include "weightstore/client/leader_port.h"
#include "weightstore/client/publisher.h"

namespace titan::test {

inline SmallModelOptions OptionsOfRun(int32_t num_layers) {
  SmallModelOptions options;
  options.hidden_size = 64;
  options.intermediate_size = 64;
  options.vocab_size = 96;
  options.num_layers = num_layers;
  options.num_heads = 2;
  options.num_kv_heads = 1;
  options.head_dim = 32;
  options.max_position_embeddings = 128;
  return options;
}

// A run of a small model with versions 0..n-1 in a store.
class SmallRun {
 public:
  SmallRun(weightstore::LeaderPort& leader, const std::string& socket_path, kernels::Pool& pool,
           const std::string& run_id, int32_t num_layers, uint64_t num_versions,
           const std::string& contract = "") {
    const formats::ModelConfig config = SmallModelConfig(OptionsOfRun(num_layers));
    auto decoder = model::Decoder::Create(config, 0, model::Mode::kF32);
    EXPECT_TRUE(decoder.ok()) << decoder.status();
    weightstore::Manifest manifest;
    for (const model::Parameter& parameter : (*decoder)->table().parameters()) {
      weightstore::TensorEntry entry;
      entry.name = parameter.name;
      entry.shape = parameter.shape;
      entry.dtype = weightstore::DType::kF32;
      if (parameter.layout == model::Layout::kPanels) {
        entry.layout = weightstore::Layout::kPanels32;
      }
      entry.offset = static_cast<uint64_t>(parameter.offset);
      entry.num_bytes = static_cast<uint64_t>(parameter.bytes);
      manifest.tensors.push_back(std::move(entry));
    }
    manifest.slot_bytes = static_cast<uint64_t>((*decoder)->table().slot_bytes());
    manifest.model_config_json = formats::ToHfConfigJson(config);
    manifest.numerics_mode = model::ModeName(model::Mode::kF32);
    manifest.contract_forward = contract;
    if (contract.empty()) {
      manifest.contract_forward = *services::RunForwardDigest(pool, config, model::Mode::kF32);
    }
    manifest.contract_training = "training";
    auto made = weightstore::Publisher::Register(leader, {.socket_path = socket_path,
                                                          .run_id = run_id,
                                                          .request_id = run_id + "@" + socket_path,
                                                          .manifest = std::move(manifest),
                                                          .max_age = 2});
    EXPECT_TRUE(made.ok()) << made.status();
    publisher = *std::move(made);
    for (uint64_t version = 0; version < num_versions; ++version) {
      const auto begun = publisher->Begin(version, std::chrono::seconds(5));
      EXPECT_TRUE(begun.ok()) << begun.status();
      FillSmallModelSlot(pool, (*decoder)->table(), version, OptionsOfRun(num_layers),
                         begun->bytes.data());
      const auto digest = publisher->Finish();
      EXPECT_TRUE(digest.ok()) << digest.status();
      EXPECT_TRUE(publisher->Commit("plan", version).ok());
      digests.push_back(ToHex(*digest));
    }
  }

  std::unique_ptr<weightstore::Publisher> publisher;
  std::vector<std::string> digests;
};

}  // namespace titan::test

#endif  // TITAN_TESTS_SUPPORT_SMALL_RUN_H_
