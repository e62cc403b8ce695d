// SPDX-License-Identifier: Apache-2.0
// Goal: the house rules hold over the whole source tree, and each check finds what it is there to
// find. Method: tests/support/tidy_rules.h over the tree, and each rule over small samples in
// memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/tidy_rules.h"

namespace titan::tidy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Uses of libm that cannot reach a log-prob, a loss or a gradient.
const std::vector<MathException>& MathExceptions() {
  static const std::vector<MathException> kExceptions = {};
  return kExceptions;
}

const std::vector<SourceFile>& Tree() {
  static const std::vector<SourceFile> kTree = ReadTree(TITAN_SOURCE_DIR);
  return kTree;
}

template <typename Check>
void ExpectNone(Check check) {
  for (const SourceFile& file : Tree()) {
    for (const std::string& finding : check(file)) ADD_FAILURE() << finding;
  }
}

TEST(TidyTree, IsRead) {
  EXPECT_GT(Tree().size(), 100u);
  const auto named = [](std::string_view path) {
    return std::any_of(Tree().begin(), Tree().end(),
                       [&](const auto& file) { return file.path == path; });
  };
  EXPECT_TRUE(named("tests/unit/tidy/tidy_test.cc"));
  EXPECT_TRUE(named("core/base/status.h"));
  EXPECT_TRUE(named("CMakeLists.txt"));
  EXPECT_TRUE(named("docs/numerics.md"));
  for (const SourceFile& file : Tree()) {
    EXPECT_FALSE(file.path.starts_with("build") || file.path.starts_with("third_party"))
        << file.path;
  }
}

TEST(TidyTree, ThirdPartyHeadersStayHome) { ExpectNone(CheckThirdParty); }
TEST(TidyTree, IncludesAreRepositoryPaths) { ExpectNone(CheckRelativeIncludes); }
TEST(TidyTree, AwaitedCallsTakeNoTemporaryClosure) { ExpectNone(CheckAwaitedClosures); }
TEST(TidyTree, FilesStartWithTheLicence) { ExpectNone(CheckLicence); }
TEST(TidyTree, FilesAreShort) { ExpectNone(CheckLength); }
TEST(TidyTree, DeterministicModulesUseOrderedContainers) { ExpectNone(CheckContainers); }
TEST(TidyTree, NumericsUseNoLibm) {
  ExpectNone([](const SourceFile& file) { return CheckMath(file, MathExceptions()); });
}
TEST(TidyTree, FewFilesIncludeTorch) { EXPECT_THAT(CheckTorchFiles(Tree()), IsEmpty()); }
TEST(TidyTree, EveryTestIsBuilt) { EXPECT_THAT(CheckTestsAreListed(Tree()), IsEmpty()); }
TEST(TidyTree, PagesNameTestsThatExist) { EXPECT_THAT(CheckNamedTests(Tree()), IsEmpty()); }
TEST(TidyTree, MathExceptionsAreNeeded) {
  for (const MathException& e : MathExceptions()) {
    EXPECT_FALSE(e.reason.empty()) << e.path;
    size_t found = 0;
    for (const SourceFile& file : Tree()) {
      if (file.path != e.path) continue;
      for (const std::string& finding : CheckMath(file, {}))
        found += finding.find(e.function) != std::string::npos;
    }
    EXPECT_GT(found, 0u) << e.path << " uses no " << e.function << " any more";
  }
}

// ---- each check finds its sample

TEST(TidyRule, ThirdParty) {
  const struct {
    const char* path;
    const char* include;
    bool allowed;
  } kSamples[] = {
      {"orchestrator/engine.cc", "<grpcpp/grpcpp.h>", false},
      {"services/orchestrator/main.cc", "<grpcpp/grpcpp.h>", true},
      {"orchestrator/engine.cc", "\"titan/generator/v1/generator.pb.h\"", false},
      {"orchestrator/engine.cc", "\"titan/generator/v1/generator.grpc.pb.h\"", false},
      {"orchestrator/journal.cc", "<google/protobuf/message.h>", true},
      {"orchestrator/journal_reader.h", "\"titan/storage/v1/journal.pb.h\"", true},
      {"orchestrator/my_journal.cc", "<google/protobuf/message.h>", false},
      {"weightstore/chunk_index.cc", "<google/protobuf/message.h>", true},
      {"trainer/index.cc", "<google/protobuf/message.h>", false},
      {"core/model/decoder.cc", "<torch/torch.h>", false},
      {"core/model/torch/block.cc", "<torch/torch.h>", true},
      {"trainer/loss.cc", "<ATen/ATen.h>", true},
      {"generator/engine.cc", "<c10/core/Device.h>", false},
      {"tests/unit/generator/engine_test.cc", "<ATen/ATen.h>", false},
      {"tests/unit/core/model/torch/block_test.cc", "<ATen/ATen.h>", true},
      {"core/base/net.cc", "<ucp/api/ucp.h>", false},
      {"core/transport/ucx.cc", "<ucp/api/ucp.h>", true},
      {"core/base/net.cc", "<nccl.h>", false},
      {"orchestrator/journal.cc", "<rocksdb/db.h>", false},
      {"core/storage/store.cc", "<rocksdb/db.h>", true},
      {"core/model/decoder.cc", "<hwy/highway.h>", false},
      {"core/kernels/tile.cc", "<hwy/highway.h>", true},
      {"generator/engine.cc", "<boost/asio.hpp>", false},
      {"core/runtime/server.cc", "<boost/asio.hpp>", true},
      {"generator/engine.cc", "<prometheus/counter.h>", false},
      {"services/rpc/host.cc", "<prometheus/counter.h>", false},
      {"core/runtime/metrics.cc", "<prometheus/counter.h>", true},
      {"tests/unit/core/runtime/x_test.cc", "<prometheus/counter.h>", true},
      {"core/base/a.cc", "<vector>", true},
      {"core/base/a.cc", "\"core/model/torch/guard.h\"", true},
  };
  for (const auto& sample : kSamples) {
    const SourceFile file{sample.path, std::string("\n#include ") + sample.include + "\n"};
    const Findings findings = CheckThirdParty(file);
    EXPECT_EQ(findings.empty(), sample.allowed) << sample.path << " " << sample.include;
    if (!findings.empty()) {
      EXPECT_THAT(findings[0], HasSubstr(std::string(sample.path) + ":2: "));
    }
  }
  EXPECT_EQ(CheckThirdParty({"core/base/a.cc", "  #  include   <rocksdb/db.h>"}).size(), 1u);
}

TEST(TidyRule, AwaitedClosures) {
  EXPECT_THAT(
      CheckAwaitedClosures(
          {"a.cc", "\n  auto x =\n      co_await pool.Run(\n          [k] { return *k; });\n"}),
      ElementsAre(HasSubstr("a.cc:4: ")));
  EXPECT_THAT(CheckAwaitedClosures({"a.cc", "co_await Run(1, [&](int i) { return i; });"}),
              ElementsAre(HasSubstr("a.cc:1: ")));
  EXPECT_THAT(CheckAwaitedClosures(
                  {"a.cc", "x =\n  co_await Run({1}, Options{1, \"a\"});\nuse(Options{2});"}),
              ElementsAre(HasSubstr("a.cc:2: ")));
  EXPECT_THAT(CheckAwaitedClosures({"a.cc",
                                    "if (co_await Done()) {\n}\nwhile (true) { use(A{}); }\n"
                                    "RETURN_IF(co_await f(a)) + g(B{1});"}),
              IsEmpty());
  EXPECT_THAT(CheckAwaitedClosures({"a.cc",
                                    "auto f = [k] { return k; };\nco_await Run(f, a[1], b[i]);\n"
                                    "x = Run([k] { return 1; });"}),
              IsEmpty());
}

TEST(TidyRule, TorchFiles) {
  std::vector<SourceFile> files;
  for (int i = 0; i < 25; ++i)
    files.push_back({"trainer/a" + std::to_string(i) + ".cc", "#include <ATen/ATen.h>\n"});
  files.push_back({"trainer/b.cc", "#include \"core/model/torch/guard.h\"\n"});
  EXPECT_THAT(CheckTorchFiles(files), IsEmpty());
  files.push_back({"trainer/c.cc", "#include <torch/torch.h>\n"});
  EXPECT_EQ(CheckTorchFiles(files).size(), 1u);
}

TEST(TidyRule, RelativeIncludes) {
  EXPECT_EQ(CheckRelativeIncludes({"a/b.cc", "#include \"../c/d.h\"\n#include \"./e.h\"\n"}).size(),
            2u);
  EXPECT_THAT(CheckRelativeIncludes({"a/b.cc", "#include \"c/d.h\"\n// ../x\n"}), IsEmpty());
}

TEST(TidyRule, TestsAreListed) {
  const std::vector<SourceFile> files = {
      {"tests/cmake/a.cmake", "titan_test(x SOURCES unit/a/one_test.cc\n unit/a/b_two_test.cc)"},
      {"tests/unit/a/one_test.cc", ""},
      {"tests/unit/a/b_two_test.cc", ""},
      {"tests/unit/a/two_test.cc", ""},  // only a part of another name stands there
      {"tests/unit/b/one_test.cc", ""},
      {"tests/unit/b/helper.cc", ""},
  };
  EXPECT_THAT(CheckTestsAreListed(files),
              ElementsAre(HasSubstr("unit/a/two_test.cc"), HasSubstr("unit/b/one_test.cc")));
}

TEST(TidyRule, NamedTests) {
  const std::vector<SourceFile> files = {
      {"tests/unit/a/one_test.cc", "\nTEST(ATest, Adds) {}\nTEST_F(\n    BTest, Ends) {}\n"},
      {"core/a.cc", "\nTEST(ATest, Lies) {}\n"},
      {"docs/a.md",
       "`a_test: ATest.Adds`, `BTest.*`, `ATest.A*`. A Test.\n`ATest.Lies`\n`ATest.Add`, "
       "`CTest.*`"},
  };
  EXPECT_THAT(CheckNamedTests(files),
              ElementsAre(HasSubstr("docs/a.md:2: there is no test ATest.Lies"),
                          HasSubstr("ATest.Add;"), HasSubstr("CTest.*")));
}

TEST(TidyRule, Licence) {
  const std::string slashes = "// SPDX-License-Identifier: Apache-2.0\n";
  const std::string hash = "# SPDX-License-Identifier: Apache-2.0\n";
  EXPECT_THAT(CheckLicence({"a.cc", slashes}), IsEmpty());
  EXPECT_THAT(CheckLicence({"a.proto", slashes}), IsEmpty());
  EXPECT_THAT(CheckLicence({"a.cmake", hash}), IsEmpty());
  EXPECT_THAT(CheckLicence({"a.sh", "#!/bin/sh\n" + hash}), IsEmpty());
  EXPECT_THAT(CheckLicence({"a.json", "{}"}), IsEmpty());
  EXPECT_EQ(CheckLicence({"a.cc", ""}).size(), 1u);
  EXPECT_EQ(CheckLicence({"a.h", "\n" + slashes}).size(), 1u);
  EXPECT_EQ(CheckLicence({"a.sh", "#!/bin/sh\n"}).size(), 1u);
  EXPECT_EQ(CheckLicence({"a/CMakeLists.txt", slashes}).size(), 1u);
}

TEST(TidyRule, Length) {
  EXPECT_THAT(CheckLength({"a.cc", std::string(800, '\n')}), IsEmpty());
  EXPECT_EQ(CheckLength({"a.cc", std::string(801, '\n')}).size(), 1u);
  EXPECT_THAT(CheckLength({"docs/numerics.md", std::string(300, '\n')}), IsEmpty());
  EXPECT_THAT(CheckLength({"docs/numerics.md", std::string(301, '\n')}),
              ElementsAre(HasSubstr("docs/numerics.md: 301 lines, at most 300")));
  EXPECT_THAT(CheckLength({"docs/tutorial.md", std::string(900, '\n')}), IsEmpty());
}

TEST(TidyRule, Containers) {
  EXPECT_THAT(CheckContainers({"trainer/a.h", "\nstd::unordered_map<int, int> m;\n"}),
              ElementsAre(HasSubstr("trainer/a.h:2: ")));
  EXPECT_EQ(CheckContainers({"orchestrator/a.h", "absl::flat_hash_map<int, int> m;"}).size(), 1u);
  EXPECT_EQ(CheckContainers({"generator/a.cc", "#include <unordered_set>"}).size(), 1u);
  EXPECT_THAT(CheckContainers(
                  {"generator/a.cc", "// no unordered_map\nconst char* s = \"unordered_map\";"}),
              IsEmpty());
  EXPECT_THAT(CheckContainers({"core/text/a.h", "std::unordered_map<int, int> m;"}), IsEmpty());
}

TEST(TidyRule, Math) {
  const auto found = [](const char* path, const char* text) {
    return CheckMath({path, text}, {}).size();
  };
  EXPECT_EQ(found("trainer/a.cc", "y = std::exp(x);"), 1u);
  EXPECT_EQ(found("trainer/a.cc", "y = exp (x);"), 1u);
  EXPECT_EQ(found("trainer/a.cc", "y = ::expf(x) + tanhf(x) + std::log1p(x);"), 3u);
  EXPECT_EQ(found("core/kernels/a-inl.h", "float y = std::pow(x, 2);"), 1u);
  EXPECT_EQ(found("core/kernels/a.inc", "y = std::pow(x, 2);"), 1u);
  EXPECT_EQ(
      found("core/model/torch/a.cc", "y = at::softmax(x, 1); z = t.exp(); w = torch::log(t);"), 3u);
  EXPECT_EQ(found("trainer/a.cc", "y = std::sqrt(x) + std::fma(a, b, c) + std::fabs(x);"), 0u);
  EXPECT_EQ(
      found("trainer/a.cc", "y = kernels::exp(x); z = dexp(x); Expand(x); int log = 1; log + 1;"),
      0u);
  EXPECT_EQ(found("trainer/a.cc",
                  "// exp(x)\n/* log(x) */ const char* s = \"exp(x)\"; auto r = R\"(exp(x))\";"),
            0u);
  EXPECT_EQ(found("trainer/a.cc", "int n = 1'000; y = exp(x); int m = 2'000;"), 1u);
  EXPECT_EQ(found("services/a.cc", "y = std::exp(x);"), 0u);
  const std::vector<MathException> exceptions = {{"trainer/a.cc", "cos", "sample"}};
  EXPECT_THAT(CheckMath({"trainer/a.cc", "y = std::cos(x);"}, exceptions), IsEmpty());
  EXPECT_EQ(CheckMath({"trainer/b.cc", "y = std::cos(x);"}, exceptions).size(), 1u);
}

}  // namespace
}  // namespace titan::tidy
