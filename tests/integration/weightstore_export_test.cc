// SPDX-License-Identifier: Apache-2.0
//
// Goal: an export of what is on the store's disk has the right bytes or is none, whatever is
// removed meanwhile. Method: titan-weightstore, the real program; the export that titanctl does, in
// this process, which lets garbage be collected between two tensors of it.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/formats/model_bundle.h"
#include "core/kernels/pool.h"
#include "core/model/memory.h"
#include "core/model/model_files.h"
#include "core/model/parameters.h"
#include "core/text/import_model.h"
#include "services/models/manifest_of.h"
#include "services/models/stored_source.h"
#include "tests/support/test_files.h"
#include "tests/support/weightstore_daemon.h"

namespace titan::services {
namespace {

std::vector<float> AllValues(const formats::ModelSource& source) {
  std::vector<float> out;
  for (const formats::TensorSpec& tensor : source.tensors()) {
    std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
    EXPECT_TRUE(source.ReadTensorF32(tensor.name, values).ok()) << tensor.name;
    out.insert(out.end(), values.begin(), values.end());
  }
  return out;
}

class WeightStoreExportTest : public weightstore::testing::WeightStoreDaemonTest {
 protected:
  // The model as version 0 of a run that has ended, on disk alone.
  weightstore::StoredModel Keep(const text::ImportedModel& model, const std::string& run_id) {
    auto table = *model::ParameterTable::Of(model.bundle.config);
    kernels::Pool pool(1);
    const auto slot = *model::AllocateFloats(table.slot_floats());
    EXPECT_TRUE(model::LoadWeights(pool, *model.source, table, slot.get()).ok());
    weightstore::Manifest manifest = ManifestOf(table, model.bundle.config);
    manifest.bundle = ToHex(*leader_->PutBundle(formats::EncodeBundle(model.bundle)));
    auto publisher = *weightstore::Publisher::Register(*leader_, {.socket_path = socket_path(),
                                                                  .run_id = run_id,
                                                                  .request_id = run_id,
                                                                  .manifest = std::move(manifest),
                                                                  .max_age = 0});
    const auto begun = publisher->Begin(0, std::chrono::seconds(10));
    EXPECT_TRUE(begun.ok()) << begun.status();
    std::memcpy(begun->bytes.data(), slot.get(), begun->bytes.size());
    EXPECT_TRUE(publisher->Finish().ok());
    EXPECT_TRUE(publisher->Commit("plan", 0).ok());
    grpc::ClientContext context;
    weightstore::v1::EndRunRequest end;
    end.set_run_id(run_id);
    weightstore::v1::EndRunResponse ended;
    EXPECT_TRUE(stub_->EndRun(&context, end, &ended).ok());
    const auto kept = leader_->FindVersion(run_id, 0);
    EXPECT_TRUE(kept.ok()) << kept.status();
    return *kept;
  }
  void CollectAll() {
    grpc::ClientContext context;
    weightstore::v1::CollectGarbageRequest request;
    request.set_request_id("gc");
    weightstore::v1::CollectGarbageResponse response;
    EXPECT_TRUE(stub_->CollectGarbage(&context, request, &response).ok());
    EXPECT_EQ(response.versions_size(), 1);
  }
};

TEST_F(WeightStoreExportTest, GarbageThatIsCollectedMeanwhileEndsItOrChangesNothing) {
  const auto original =
      text::ImportModel(std::string(TITAN_SOURCE_DIR) + "/tests/fuzz/corpus/gguf/q4_0.gguf");
  ASSERT_TRUE(original.ok()) << original.status();
  const size_t num_tensors = original->source->tensors().size();
  ASSERT_GT(num_tensors, 2u);
  for (const size_t collected_after : {size_t{1}, num_tensors - 1, num_tensors}) {
    const std::string run_id = "run-" + std::to_string(collected_after);
    const weightstore::StoredModel kept = Keep(*original, run_id);
    const auto model = OpenStoredModel(*leader_, kept);
    ASSERT_TRUE(model.ok()) << model.status();
    size_t written = 0;
    const auto go_on = [&] {
      if (++written == collected_after) CollectAll();
      return OkStatus();
    };
    const TempFolder out;
    const Status exported =
        model::ExportHfFolder(*model->source, model->bundle, out.path("m"), go_on);
    EXPECT_EQ(leader_->FindVersion(run_id, 0).status().code(), StatusCode::kNotFound);
    if (collected_after == num_tensors) {
      ASSERT_TRUE(exported.ok()) << exported;
      EXPECT_EQ(AllValues(*text::ImportModel(out.path("m"))->source), AllValues(*original->source));
      continue;
    }
    EXPECT_EQ(exported.code(), StatusCode::kNotFound) << exported;
    const std::string next = original->source->tensors()[collected_after].name;
    EXPECT_NE(MessageOf(exported).find("version 0 of run " + run_id + ": tensor " + next +
                                       " was removed from the weight store's disk while"),
              std::string::npos)
        << exported;
    EXPECT_TRUE(std::filesystem::is_empty(out.path()));  // nor a part of it
  }
}

}  // namespace
}  // namespace titan::services
