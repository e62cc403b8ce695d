// SPDX-License-Identifier: Apache-2.0
// Goal: chat templates render to the oracle's text, character for character, and fail where it
// fails. Method: tests/golden/chat_template/cases.json (template and inputs in the file), and,
// real_templates.json, whose templates are read from the folder of unpacked test wheels.
#include <gtest/gtest.h>

#include <map>

#include "core/text/chat_template.h"
#include "tests/support/golden.h"
#include "tests/support/sha256.h"

namespace titan::text {
namespace {

using golden::GoldenFile;

// The cases of a file with the order of keys kept, which templates print.
std::vector<Json> OrderedCases(const GoldenFile& file) {
  if (!file.present()) return {};
  const std::string bytes = golden::ReadTestFile(golden::GoldenDir() / file.name());
  return Json::parse(bytes)["cases"].get<std::vector<Json>>();
}

ChatInput InputOf(const Json& inputs) {
  ChatInput input;
  for (auto it = inputs.begin(); it != inputs.end(); ++it) {
    if (it.key() == "messages") {
      input.messages = it.value();
    } else if (it.key() == "tools") {
      input.tools = it.value();
    } else if (it.key() == "documents") {
      input.documents = it.value();
    } else if (it.key() == "add_generation_prompt") {
      input.add_generation_prompt = it.value().get<bool>();
    } else {
      input.variables[it.key()] = it.value();
    }
  }
  return input;
}

StatusOr<RenderedChat> ParseAndRender(const std::string& source, const ChatInput& input) {
  auto parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) return parsed.status();
  return parsed->RenderWithSpans(input);
}

TEST(ChatTemplateGolden, Cases) {
  GoldenFile file("chat_template/cases.json");
  const std::vector<Json> cases = OrderedCases(file);
  size_t next = 0;
  file.Run([&](const nlohmann::json& sorted) -> std::string {
    const Json& c = cases[next++];
    EXPECT_EQ(c["name"].get<std::string>(), sorted["name"].get<std::string>());
    ChatInput input = InputOf(c["inputs"]);
    input.continue_final_message = c.value("continue_final_message", false);
    const auto rendered = ParseAndRender(c["template"].get<std::string>(), input);
    if (c.contains("error")) {
      EXPECT_FALSE(rendered.ok()) << "rendered: " << rendered->text;
      // The message counts where the template chose it.
      if (!rendered.ok() && c["error"]["jinja2_type"] == "TemplateError") {
        EXPECT_NE(MessageOf(rendered.status()).find(c["error"]["message"].get<std::string>()),
                  std::string::npos)
            << rendered.status();
      }
      return "";
    }
    if (!rendered.ok()) {
      ADD_FAILURE() << rendered.status();
      return "";
    }
    EXPECT_EQ(rendered->text, c["rendered"].get<std::string>());
    if (c.contains("assistant_char_spans")) {
      const auto spans = c["assistant_char_spans"].get<std::vector<std::pair<int64_t, int64_t>>>();
      EXPECT_EQ(rendered->generation_spans, spans);
    }
    return "";
  });
  file.ExpectSkipped(0);
}

TEST(ChatTemplateGolden, RealTemplates) {
  const std::filesystem::path root = TITAN_TEST_WHEELS_DIR;
  GoldenFile file("chat_template/real_templates.json");
  const std::vector<Json> cases = OrderedCases(file);
  size_t next = 0;
  file.Run([&](const nlohmann::json&) -> std::string {
    const Json& c = cases[next++];
    const std::filesystem::path path = root / c["template_file"].get<std::string>();
    if (!std::filesystem::exists(path))
      return "the template " + path.filename().string() + " is not here";
    const std::string source = golden::ReadTestFile(path);
    if (Sha256Hex(source.data(), source.size()) != c["template_sha256"]) {
      return "the template " + path.filename().string() + " is another version";
    }
    Json inputs = c["variables"];
    inputs["messages"] = c["messages"];
    inputs["tools"] = c["tools"];
    inputs["add_generation_prompt"] = c["add_generation_prompt"];
    ChatInput input = InputOf(inputs);
    using std::chrono::sys_days;
    input.now = sys_days(std::chrono::year(2026) / 1 / 2) + std::chrono::hours(3) +
                std::chrono::minutes(4) + std::chrono::seconds(5);
    const auto rendered = ParseAndRender(source, input);
    if (c.contains("error")) {
      EXPECT_FALSE(rendered.ok()) << "rendered: " << rendered->text;
      return "";
    }
    if (!rendered.ok()) {
      ADD_FAILURE() << rendered.status();
      return "";
    }
    if (Sha256Hex(rendered->text.data(), rendered->text.size()) != c["sha256"]) {
      std::string line;
      std::istringstream lines(rendered->text);
      size_t i = 0;
      for (; std::getline(lines, line); ++i) {
        const bool known = i < c["line_sha256_8"].size();
        if (!known || Sha256Hex(line.data(), line.size()).substr(0, 8) != c["line_sha256_8"][i])
          break;
      }
      ADD_FAILURE() << "the first wrong line is " << i + 1 << ": " << line << "\n"
                    << rendered->text;
    }
    return "";
  });
  file.ExpectSkipped(0);
}

}  // namespace
}  // namespace titan::text
