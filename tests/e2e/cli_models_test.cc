// SPDX-License-Identifier: Apache-2.0
// Goal: a model lives in the weight store: imported once, used by model.id after its files are
// gone, trained, exported after the job has ended, imported again with the same digest, trained on,
// deleted; a damaged blob, a broken tokenizer and an interrupted program are named and leave
// nothing. Method: one small cluster, the real programs, a model made by Philox.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "clients/cluster/cluster.h"
#include "clients/cluster/job_file.h"
#include "core/base/exit_codes.h"
#include "services/rpc/config.h"
#include "tests/e2e/small_job.h"
#include "tests/support/test_files.h"
#include "titan/orchestrator/v1/orchestrator.grpc.pb.h"

namespace titan::e2e {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

class CliModelsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TestFolder("models");
    std::ofstream(Path("cluster.json")) << rpc::ToJsonText(SmallCluster(""));
    config::v1::JobSpec spec = SmallJob(2);
    std::ofstream(Path("job.json")) << rpc::ToJsonText(spec);
    ASSERT_EQ(Titanctl("up --config " + Path("cluster.json")), 0) << errors_;
  }
  static void TearDownTestSuite() {
    Titanctl("down");
    delete folder_;
    folder_ = nullptr;
  }

  // Standard output goes to output_, errors to errors_. `before`: a program that runs titanctl.
  static int Titanctl(const std::string& arguments, const std::string& before = "") {
    const std::string errors = Path("stderr");
    const std::string line = before + " " + TITAN_BINARY_DIR + "/bin/titanctl " + arguments +
                             " --data " + Path("run") + " 2>" + errors + " </dev/null";
    FILE* pipe = popen(line.c_str(), "r");
    output_.clear();
    char buffer[4096];
    while (const size_t n = fread(buffer, 1, sizeof(buffer), pipe)) output_.append(buffer, n);
    const int status = pclose(pipe);
    errors_ = ReadBytes(errors);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  static json Json(const std::string& arguments) {
    EXPECT_EQ(Titanctl(arguments + " -o json"), 0) << errors_;
    return json::parse(output_, nullptr, false);
  }
  static std::string Path(const std::string& name) { return folder_->path() + "/" + name; }
  static std::string Blobs() { return Path("run/weightstore/blobs"); }
  // Files of the store's disk, and how many of them are half written.
  static std::pair<size_t, size_t> NumBlobs() {
    std::pair<size_t, size_t> num;
    for (const auto& entry : fs::directory_iterator(Blobs())) {
      const bool half = entry.path().filename().string().ends_with(".partial");
      ++(half ? num.second : num.first);
    }
    return num;
  }
  static size_t NumPartialFolders() {
    size_t num = 0;
    for (const auto& entry : fs::directory_iterator(folder_->path())) {
      num += entry.path().filename().string().find(".partial") != std::string::npos;
    }
    return num;
  }
  static void CopyModel(const std::string& to) {
    fs::remove_all(to);
    fs::copy(SmallModelFolder(), to);
  }

  static inline TestFolder* folder_ = nullptr;
  static inline std::string output_, errors_;
};

TEST_F(CliModelsTest, AStoredModelIsTrainedExportedAndTrainedOnWithoutItsFiles) {
  CopyModel(Path("original"));
  const json imported = Json("weights import " + Path("original") + " --id base");
  EXPECT_FALSE(imported["existed"]);
  const std::string id = imported["id"];
  fs::remove_all(Path("original"));
  const auto [blobs, partial] = NumBlobs();
  EXPECT_GT(blobs, 10u);
  EXPECT_EQ(partial, 0u);

  // By its name; the job keeps the id, which no other content can take.
  const std::string job = "submit " + Path("job.json") + " --set model.id=base";
  ASSERT_EQ(Titanctl(job + " --check"), 0) << errors_;
  ASSERT_EQ(Titanctl(job + " -w"), 0) << output_ << errors_;
  EXPECT_NE(output_.find("job job-1: SUCCEEDED"), std::string::npos) << output_;
  EXPECT_EQ(Json("get job-1")["spec"]["model"]["id"], id);
  std::ofstream(Path("by_id.json")) << R"({"extends": "job.json", "model": {"id": "base"}})";
  Titanctl("doctor --job " + Path("by_id.json") + " -o json");
  EXPECT_EQ(output_.find("model.id"), std::string::npos) << output_;  // no problem with it

  // The job is over, its last version is on disk.
  EXPECT_EQ(Json("weights ls job-1").size(), 1u);
  const json versions = Json("weights ls job-1 --all");
  ASSERT_EQ(versions.size(), 3u);
  EXPECT_EQ(versions[0]["weights_digest"], imported["weights_digest"]);
  EXPECT_EQ(versions[0]["kept_bytes"], 0);
  EXPECT_GT(versions[2]["kept_bytes"], 0);
  const std::string digest = versions[2]["weights_digest"];
  EXPECT_NE(digest, imported["weights_digest"]);
  ASSERT_EQ(Titanctl("weights ls"), 0);
  EXPECT_NE(output_.find("KEPT"), std::string::npos) << output_;
  EXPECT_EQ(output_.find("FREE"), std::string::npos) << output_;
  EXPECT_NE(output_.find("2 versions neither in memory nor on disk are not shown"),
            std::string::npos)
      << output_;
  ASSERT_EQ(Titanctl("weights ls --all"), 0);
  EXPECT_NE(output_.find("FREE"), std::string::npos) << output_;
  EXPECT_EQ(output_.find("not shown"), std::string::npos) << output_;
  EXPECT_NE(output_.find("base"), std::string::npos) << output_;
  ASSERT_EQ(Titanctl("weights verify job-1"), 0) << errors_;
  EXPECT_NE(output_.find("on disk have the recorded digest " + digest), std::string::npos);
  EXPECT_EQ(Titanctl("weights export job-1@0 --to " + Path("gone")), 1);
  EXPECT_NE(errors_.find("neither in memory nor on disk"), std::string::npos) << errors_;

  // Trained weights differ from those they came from, and from themselves in nothing.
  ASSERT_EQ(Titanctl("weights diff base job-1"), 1) << errors_;
  EXPECT_NE(output_.find("model.embed_tokens.weight"), std::string::npos) << output_;
  EXPECT_NE(output_.find("tensors differ"), std::string::npos) << output_;
  ASSERT_EQ(Titanctl("weights diff job-1 job-1@2"), 0) << errors_;

  // Out and in again: the same digest, the same bundle, nothing twice.
  ASSERT_EQ(Json("weights export job-1 --to " + Path("tuned"))["weights_digest"], digest);
  for (const char* leaf : {"config.json", "tokenizer.json", "model.safetensors"}) {
    EXPECT_TRUE(fs::exists(Path("tuned/") + leaf)) << leaf;
  }
  EXPECT_EQ(Titanctl("weights diff job-1 " + Path("tuned")), 0) << output_ << errors_;
  const auto before = NumBlobs();
  const json again = Json("weights import " + Path("tuned") + " --id tuned");
  EXPECT_EQ(again["weights_digest"], digest);
  EXPECT_EQ(again["id"], versions[2]["stored_id"]);
  EXPECT_EQ(NumBlobs(), before);
  ASSERT_EQ(Json("weights export base --to " + Path("base"))["weights_digest"],
            imported["weights_digest"]);
  EXPECT_EQ(ReadBytes(Path("base/tokenizer.json")), ReadBytes(Path("tuned/tokenizer.json")));
  const json same = Json("weights import " + Path("base"));
  EXPECT_EQ(same["id"], id);
  EXPECT_TRUE(same["existed"]);

  // A kept version is a model: version 0 of the next job is the last one of this.
  ASSERT_EQ(Titanctl("submit " + Path("job.json") + " -w --set schedule.steps=1 --set model.id=" +
                     versions[2]["stored_id"].get<std::string>()),
            0)
      << output_ << errors_;
  EXPECT_EQ(Json("weights ls job-2 --all")[0]["weights_digest"], digest);

  // Deleted, and what nothing else names goes with it.
  EXPECT_EQ(Titanctl("weights rm job-1@0"), 1);
  // A collection says first what it would take: the older of two jobs' versions, no model.
  const json would = Json("weights gc --keep 1");
  EXPECT_EQ(would["deleted"], false);
  ASSERT_EQ(would["versions"].size(), 1u);
  EXPECT_EQ(would["versions"][0]["job_id"], "job-1");
  EXPECT_EQ(would["versions_left"], 1);
  EXPECT_EQ(would["freed_bytes"], 0);  // model tuned has the same files
  ASSERT_EQ(Titanctl("weights rm tuned"), 0) << errors_;
  const auto not_collected = NumBlobs();
  ASSERT_EQ(Titanctl("weights gc --keep 1"), 0) << errors_;
  EXPECT_NE(output_.find("1 version would be deleted"), std::string::npos) << output_;
  EXPECT_NE(output_.find("delete with: titanctl weights gc --keep 1 --yes --data "),
            std::string::npos)
      << output_;
  EXPECT_EQ(NumBlobs(), not_collected);
  EXPECT_EQ(Titanctl("weights verify job-1"), 0) << errors_;
  ASSERT_EQ(Titanctl("weights gc --keep 1 --yes"), 0) << errors_;
  EXPECT_NE(output_.find("1 version deleted"), std::string::npos) << output_;
  EXPECT_LT(NumBlobs().first, not_collected.first);
  EXPECT_EQ(Titanctl("weights export job-1 --to " + Path("gone")), 1);
  EXPECT_EQ(Titanctl("weights verify job-2"), 0) << errors_;
  ASSERT_EQ(Titanctl("weights gc --keep 1 --yes"), 0) << errors_;
  EXPECT_NE(output_.find("there is nothing to delete; 1 version"), std::string::npos) << output_;
  for (const char* name : {"base", "job-2"}) {
    EXPECT_EQ(Titanctl(std::string("weights rm ") + name), 0) << errors_;
  }
  EXPECT_EQ(Titanctl("weights rm base"), 7) << errors_;
  EXPECT_EQ(Json("weights ls")["models"].size(), 0u);
  EXPECT_EQ(Titanctl(job), 2) << errors_;
  EXPECT_NE(errors_.find("model.id: no model 'base' is stored"), std::string::npos) << errors_;
  EXPECT_EQ(Titanctl("weights export base --to " + Path("gone")), 7) << errors_;
  EXPECT_FALSE(fs::exists(Path("gone")));
}

// Adds `step` to element `index` of a tensor in a folder's model.safetensors (F32).
void ChangeElement(const std::string& folder, const std::string& tensor, size_t index, float step) {
  const std::string path = folder + "/model.safetensors";
  const std::string bytes = ReadBytes(path);
  uint64_t header = 0;
  memcpy(&header, bytes.data(), sizeof(header));
  const json names = json::parse(bytes.substr(8, header), nullptr, false);
  const size_t begin = names[tensor]["data_offsets"][0];
  const size_t at = 8 + header + begin + index * sizeof(float);
  float value = 0;
  memcpy(&value, bytes.data() + at, sizeof(value));
  value += step;
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(at));
  file.write(reinterpret_cast<const char*>(&value), sizeof(value));
}

TEST_F(CliModelsTest, ADifferenceIsFoundWhereItIs) {
  Json("weights import " + SmallModelFolder() + " --id left");
  ASSERT_EQ(Titanctl("weights diff left " + SmallModelFolder()), 0) << output_ << errors_;
  EXPECT_NE(output_.find("are equal: "), std::string::npos) << output_;
  // One element of the table's last rows, which no whole block of rows holds.
  ASSERT_EQ(Titanctl("weights export left --to " + Path("right")), 0) << errors_;
  const std::string table = "model.embed_tokens.weight";
  const json shown = Json("weights show left");
  size_t elements = 0;
  for (const json& tensor : shown["tensors"]) {
    if (tensor["name"] == table)
      elements = tensor["shape"][0].get<size_t>() * tensor["shape"][1].get<size_t>();
  }
  ASSERT_GT(elements, 0u);
  ChangeElement(Path("right"), table, elements - 1, 64);
  Json("weights import " + Path("right") + " --id right");
  for (const std::string& pair : {std::string("left right"), std::string("right left"),
                                  "left " + Path("right"), Path("right") + " left"}) {
    SCOPED_TRACE(pair);
    EXPECT_EQ(Titanctl("weights diff " + pair + " -o json"), 1) << errors_;
    const json out = json::parse(output_, nullptr, false);
    EXPECT_EQ(out["equal"], false);
    ASSERT_EQ(out["tensors"].size(), shown["tensors"].size());
    for (const json& tensor : out["tensors"]) {
      const bool changed = tensor["name"] == table;
      EXPECT_EQ(tensor["difference"], changed ? "values" : "none") << tensor;
      EXPECT_EQ(tensor["elements_differing"], changed ? 1 : 0) << tensor;
      if (!changed) continue;
      EXPECT_EQ(tensor["elements"], elements);
      EXPECT_NEAR(tensor["max_abs"].get<double>(), 64, 1e-5);
      EXPECT_NEAR(tensor["rms"].get<double>(), 64 / std::sqrt(static_cast<double>(elements)), 1e-5);
    }
  }
  // Another model: layers that only one has.
  EXPECT_EQ(Titanctl("weights diff left " + DeepModelFolder()), 1) << errors_;
  EXPECT_NE(output_.find("only in the second"), std::string::npos) << output_;
  // What cannot be compared is not "different".
  EXPECT_EQ(Titanctl("weights diff left nobody"), 7) << output_;
  EXPECT_EQ(Titanctl("weights diff left ./nothing"), 7) << output_;
  EXPECT_EQ(Titanctl("weights diff left " + SmallDataFile()), 2) << output_;
  EXPECT_EQ(Titanctl("weights rm left"), 0);
  EXPECT_EQ(Titanctl("weights rm right"), 0);
}

// The job has the model's id where the request has its name.
TEST_F(CliModelsTest, TheSameRequestAfterARestartIsTheSameJob) {
  const json imported = Json("weights import " + SmallModelFolder() + " --id again");
  auto job = cluster::ReadJobFile(Path("job.json"), {"model.id=again"});
  ASSERT_TRUE(job.ok()) << job.status();
  const auto submit = [&](std::string* job_id) {
    const auto address = cluster::OrchestratorAddressOf(Path("run"));
    EXPECT_TRUE(address.ok()) << address.status();
    const auto stub = orchestrator::v1::OrchestratorService::NewStub(
        grpc::CreateChannel(*address, grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    orchestrator::v1::SubmitJobRequest request;
    request.set_request_id("mine");
    *request.mutable_spec() = job->spec;
    orchestrator::v1::SubmitJobResponse response;
    const grpc::Status status = stub->SubmitJob(&context, request, &response);
    *job_id = status.ok() ? response.job_id() : status.error_message();
    return status.error_code();
  };
  std::string first, second;
  ASSERT_EQ(submit(&first), grpc::StatusCode::OK) << first;
  EXPECT_EQ(Json("get " + first)["spec"]["model"]["id"], imported["id"]);
  ASSERT_EQ(Titanctl("down"), 0) << errors_;
  ASSERT_EQ(Titanctl("up --config " + Path("cluster.json")), 0) << errors_;
  ASSERT_EQ(submit(&second), grpc::StatusCode::OK) << second;
  EXPECT_EQ(second, first);
  job->spec.set_seed(99);
  EXPECT_EQ(submit(&second), grpc::StatusCode::ALREADY_EXISTS) << second;
  Titanctl("cancel " + first);
  Titanctl("watch " + first);
  EXPECT_EQ(Titanctl("weights rm again"), 0) << errors_;
}

TEST_F(CliModelsTest, ADamagedBlobIsNamedByWhoeverReadsIt) {
  const json imported = Json("weights import " + SmallModelFolder() + " --id damaged");
  std::string largest;
  uintmax_t size = 0;
  for (const auto& entry : fs::directory_iterator(Blobs())) {
    if (entry.file_size() <= size) continue;
    size = entry.file_size();
    largest = entry.path().filename().string();
  }
  {
    std::fstream file(Blobs() + "/" + largest, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(size / 2));
    file.write("\x55\xaa", 2);
  }
  EXPECT_EQ(Titanctl("weights diff damaged " + SmallModelFolder()), kExitDamaged) << output_;
  EXPECT_NE(errors_.find("blob " + largest), std::string::npos) << errors_;
  EXPECT_EQ(Titanctl("weights verify damaged"), kExitDamaged);
  EXPECT_NE(errors_.find("blob " + largest), std::string::npos) << errors_;
  EXPECT_EQ(Titanctl("weights export damaged --to " + Path("damaged")), kExitDamaged);
  EXPECT_NE(errors_.find("blob " + largest), std::string::npos) << errors_;
  EXPECT_FALSE(fs::exists(Path("damaged")));
  EXPECT_EQ(NumPartialFolders(), 0u);
  EXPECT_EQ(Titanctl("submit " + Path("job.json") + " -w --set model.id=damaged"), 3) << output_;
  EXPECT_NE(output_.find("blob " + largest), std::string::npos) << output_;
  // Nor is a job wrong whose model's configuration is damaged.
  for (const auto& entry : fs::directory_iterator(Blobs())) {
    std::string bytes = ReadBytes(entry.path().string());
    if (bytes.find("model_type") == std::string::npos) continue;
    bytes[bytes.size() / 2] ^= 1;
    WriteBytes(entry.path().string(), bytes);
  }
  for (const char* how : {"", " --check"}) {
    EXPECT_EQ(Titanctl("submit " + Path("job.json") + how + " --set model.id=damaged"),
              kExitDamaged)
        << output_;
    EXPECT_NE(errors_.find("model.id: model damaged: blob "), std::string::npos) << errors_;
  }
  // Importing it again repairs it.
  EXPECT_EQ(Json("weights import " + SmallModelFolder())["id"], imported["id"]);
  EXPECT_EQ(Titanctl("weights verify damaged"), 0) << errors_;
  EXPECT_EQ(Titanctl("weights rm damaged"), 0);
}

TEST_F(CliModelsTest, AModelWithABrokenTokenizerIsRefusedOrImportedWithoutIt) {
  CopyModel(Path("broken"));
  std::ofstream(Path("broken/tokenizer.json")) << "{\"model\": 3}";
  EXPECT_EQ(Titanctl("weights import " + Path("broken")), 2);
  EXPECT_NE(errors_.find("broken"), std::string::npos) << errors_;
  EXPECT_NE(errors_.find("--without_tokenizer"), std::string::npos) << errors_;
  const json weights = Json("weights import " + Path("broken") + " --id bare --without_tokenizer");
  EXPECT_EQ(Titanctl("submit " + Path("job.json") + " --set model.id=bare"), 2);
  EXPECT_NE(errors_.find("model.id: model bare: comes without a tokenizer"), std::string::npos)
      << errors_;
  ASSERT_EQ(Titanctl("weights export bare --to " + Path("bare")), 0) << errors_;
  EXPECT_FALSE(fs::exists(Path("bare/tokenizer.json")));
  EXPECT_EQ(Json("weights import " + Path("bare"))["id"], weights["id"]);
  // Files that are known to break readers: refused by name, or whole.
  for (const std::string name : {"qk_llama", "qk_qwen2", "llama3_rope"}) {
    SCOPED_TRACE(name);
    const std::string file = CasePath("gguf/" + name + ".gguf");
    const int code = Titanctl("weights import " + file + " --id " + name);
    if (code != 0) {
      EXPECT_EQ(code, 2);
      EXPECT_NE(errors_.find("--without_tokenizer"), std::string::npos) << errors_;
      ASSERT_EQ(Titanctl("weights import " + file + " --without_tokenizer --id " + name), 0)
          << errors_;
    }
    ASSERT_EQ(Titanctl("weights export " + name + " --to " + Path(name)), 0) << errors_;
    EXPECT_EQ(Json("weights import " + Path(name))["weights_digest"],
              Json("weights show " + name)["weights_digest"]);
    EXPECT_EQ(Titanctl("weights rm " + name), 0);
  }
  for (const std::string name : {"count_huge", "key_length_huge", "pad_wrap"}) {
    const std::string file = CasePath("gguf/" + name + ".gguf");
    EXPECT_EQ(Titanctl("weights import " + file + " --without_tokenizer"), 2) << name;
    EXPECT_NE(errors_.find(name + ".gguf"), std::string::npos) << errors_;
    EXPECT_EQ(errors_.find("--without_tokenizer"), std::string::npos) << errors_;
  }
  EXPECT_EQ(Titanctl("weights import " + SmallModelFolder() + " --id job-7"), 2);
  EXPECT_EQ(Titanctl("weights rm bare"), 0);
}

TEST_F(CliModelsTest, InterruptedProgramsLeaveNothingHalf) {
  const json model = Json("weights import " + DeepModelFolder() + " --id deep");
  const auto before = NumBlobs();
  ASSERT_EQ(Titanctl("weights export deep --to " + Path("whole")), 0) << errors_;
  int interrupted = 0;
  for (int i = 1; i <= 12; ++i) {
    const std::string seconds = "0.0" + std::to_string(i * 7 + 10);
    for (const std::string signal : {"INT", "KILL"}) {
      const std::string folder = Path("cut");
      const size_t left_by_killed = NumPartialFolders();  // one that ends early leaves it there
      const int code = Titanctl("weights export deep --to " + folder,
                                "timeout --foreground -s " + signal + " " + seconds);
      interrupted += code != 0;
      EXPECT_TRUE(code != 0 || fs::exists(folder));
      if (fs::exists(folder)) {  // the signal may come when all is done: then it is whole
        EXPECT_EQ(fs::file_size(folder + "/model.safetensors"),
                  fs::file_size(Path("whole/model.safetensors")));
        EXPECT_TRUE(fs::exists(folder + "/tokenizer.json"));
      }
      EXPECT_TRUE(signal == "KILL" || NumPartialFolders() <= left_by_killed) << seconds;
      fs::remove_all(folder);
    }
    // The content is there already, so what an import leaves can only be half.
    interrupted += Titanctl("weights import " + DeepModelFolder(),
                            "timeout --foreground -s KILL " + seconds) != 0;
  }
  EXPECT_GT(interrupted, 0);
  // The next export takes away what killed ones left.
  ASSERT_EQ(Titanctl("weights export deep --to " + Path("cut")), 0) << errors_;
  EXPECT_EQ(NumPartialFolders(), 0u);
  for (int i = 0; i < 300 && NumBlobs() != before; ++i) usleep(10'000);
  EXPECT_EQ(NumBlobs(), before);
  EXPECT_EQ(Json("weights ls")["disk"]["reserved_bytes"], 0u);
  EXPECT_EQ(Titanctl("weights verify deep"), 0) << errors_;
}

}  // namespace
}  // namespace titan::e2e
