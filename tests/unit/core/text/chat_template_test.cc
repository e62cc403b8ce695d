// SPDX-License-Identifier: Apache-2.0
// Goal: templates are refused rather than misread, errors name their line, every render is bounded,
// and the parts that the golden cases do not reach behave as in the reference sandbox. Method:
// small templates of our own; hostile ones must end in an error, not in a crash or a hang.
#include "core/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace titan::text {
namespace {

using ::testing::HasSubstr;

StatusOr<std::string> TryRender(std::string_view source, ChatInput input = {}) {
  auto parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) return parsed.status();
  return parsed->Render(input);
}

std::string Render(std::string_view source, ChatInput input = {}) {
  const auto text = TryRender(source, std::move(input));
  EXPECT_TRUE(text.ok()) << text.status() << "\nin " << source;
  return text.ok() ? *text : "";
}

std::string ErrorOf(std::string_view source, ChatInput input = {}) {
  const auto text = TryRender(source, std::move(input));
  EXPECT_FALSE(text.ok()) << source << "\nrendered " << *text;
  return text.ok() ? "" : MessageOf(text.status());
}

ChatInput Hi() {
  ChatInput input;
  input.messages = Json::parse(R"([{"role": "user", "content": "hi"}])");
  return input;
}

TEST(ChatTemplateParse, RefusesWhatItDoesNotKnowWithTheLine) {
  const struct {
    const char* source;
    const char* name;
  } kCases[] = {
      {"\n{% for m in messages %}{% frobnicate m %}{% endfor %}", "frobnicate"},
      {"\n{% set l = [] %}{% do l.append(1) %}", "'do'"},
      {"\n{% for m in messages %}{{ m.content }}{% endif %}", "endif"},
      {"\n{{ messages[0].content", "}}"},
      {"\n{% if messages %}x{% elif %}y{% endif %}", "expression"},
      {"\n{% endfor %}", "endfor"},
      {"\n{% include 'system.jinja' %}", "include"},
      {"\n{% set = 3 %}", "="},
      {"\n{{ x | frobnicate }}", "frobnicate"},
      {"\n{{ x is frobnicated }}", "frobnicated"},
      {"\n{# never closed", "#"},
      {"\n{% raw %}never closed", "raw"},
      {"\n{% break %}", "break"},
      {"\n{{ 'never closed }}", "string"},
      {"\n{{ (1, 2] }}", "]"},
      {"\n{% macro f(a=1, b) %}{% endmacro %}", "default"},
      {"\n{{ f(a=1, 2) }}", "positional"},
      {"\n{{ 1 is odd is even }}", "chained"},
      {"\n{{ 012 }}", "0"},
      {"\n{{ '\\ud800' }}", "code point"},
      {"\n{% set true = 1 %}", "true"},
      {"\n{{ ? }}", "?"},
  };
  for (const auto& c : kCases) {
    const auto parsed = ChatTemplate::Parse(c.source);
    ASSERT_FALSE(parsed.ok()) << c.source;
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(MessageOf(parsed.status()), HasSubstr("line 2: ")) << c.source;
    EXPECT_THAT(MessageOf(parsed.status()), HasSubstr(c.name)) << c.source;
  }
  EXPECT_FALSE(ChatTemplate::Parse("\xff").ok());
  EXPECT_FALSE(ChatTemplate::Parse(std::string((1 << 20) + 1, 'x')).ok());
}

TEST(ChatTemplateRender, ErrorsNameTheLineOfTheFailure) {
  EXPECT_THAT(ErrorOf("a\n{{ frobnicate(messages) }}"),
              HasSubstr("line 2: 'frobnicate' is undefined"));
  EXPECT_THAT(ErrorOf("{% if true %}\n\n{{ 1\n+ 'a' }}{% endif %}"), HasSubstr("line 4: "));
  EXPECT_THAT(ErrorOf("\n\n{{ raise_exception('roles must alternate') }}"),
              HasSubstr("line 3: roles must alternate"));
  EXPECT_THAT(ErrorOf("{% macro f() %}\n{{ 1 // 0 }}{% endmacro %}\n\n{{ f() }}"),
              HasSubstr("line 2: "));
  EXPECT_THAT(ErrorOf("{{ strftime_now('%Y') }}"), HasSubstr("no time"));
}

TEST(ChatTemplateRender, InputOfTheWrongShapeIsNamed) {
  ChatInput input;
  input.messages = Json::parse(R"([{"role": "user"}, 3])");
  EXPECT_THAT(ErrorOf("x", input), HasSubstr("messages[1]"));
  input = {};
  input.tools = "tools";
  EXPECT_THAT(ErrorOf("x", input), HasSubstr("tools"));
  input = {};
  input.variables["messages"] = 1;
  EXPECT_THAT(ErrorOf("x", input), HasSubstr("variables.messages"));
  input = {};
  input.messages = Json::array();
  input.messages.push_back({{"content", "\xc3"}});
  EXPECT_THAT(ErrorOf("x", input), HasSubstr("messages[0].content"));
}

TEST(ChatTemplateRender, DeepInputIsRefusedBeforeItIsWalked) {
  for (const int depth : {200, 100000}) {
    ChatInput input = Hi();
    const std::string text = std::string(depth, '[') + std::string(depth, ']');
    input.messages[0]["content"] = Json::parse(text);
    const auto parsed = ChatTemplate::Parse("{{ messages }}");
    ASSERT_TRUE(parsed.ok());
    const auto rendered = parsed->Render(input);
    ASSERT_FALSE(rendered.ok());
    EXPECT_EQ(rendered.status().code(), StatusCode::kResourceExhausted);
  }
}

TEST(ChatTemplateLimits, HostileTemplatesEndInAnError) {
  const std::string deep_parens(5000, '(');
  std::string deep_ifs;
  for (int i = 0; i < 1000; ++i) deep_ifs += "{% if 1 %}";
  std::string long_sum = "{{ 1";
  for (int i = 0; i < 5000; ++i) long_sum += " + 1";
  std::string map_chain = "{{ 'a' | map(";
  for (int i = 0; i < 5000; ++i) map_chain += "'map', ";
  std::string nots = "{{ ";
  for (int i = 0; i < 5000; ++i) nots += "not ";
  const std::string kHostile[] = {
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f(g) %}{{ g(g) }}{% endmacro %}{{ f(f) }}",
      "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
      "{{ 'ab' * 10000000000 }}",
      "{{ [1] * 10000000000 }}",
      "{{ 'a' | center(100000000000) }}",
      "{{ '%99999999d' % 1 }}",
      "{{ '{:>99999999}'.format(1) }}",
      "{{ 'a' | indent(100000000000) }}",
      "{{ range(1000000000) }}",
      "{{ 2 ** 128 }}",
      "{{ 10 ** 10 ** 10 ** 10 }}",
      "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s "
      "%}{% endfor %}",
      "{% set ns = namespace(l=[]) %}{% for i in range(1000) %}{% set ns.l = [ns.l] %}{% endfor %}",
      "{% set ns = namespace(l=[]) %}{% for i in range(1000) %}{% set ns.l = [ns.l] | select %}{% "
      "endfor %}",
      "{% set ns = namespace(l=['x']) %}{% for i in range(100) %}{% set ns.l = [ns.l, ns.l] %}{% "
      "endfor %}{{ ns.l }}",
      "{% set ns = namespace(l=['x']) %}{% for i in range(100) %}{% set ns.l = [ns.l, ns.l] %}{% "
      "endfor %}{{ ns.l | tojson }}",
      "{% set a = namespace(l=[1]) %}{% set b = namespace(l=[1]) %}{% for i in range(100) %}"
      "{% set a.l = [a.l, a.l] %}{% set b.l = [b.l, b.l] %}{% endfor %}{{ a.l == b.l }}",
      "{% set ns = namespace() %}{% for i in [1] %}{% set ns.l = loop %}{% endfor %}",
      "{% for n in [1] recursive %}{{ loop([1]) }}{% endfor %}",
      "{{ " + deep_parens,
      "{{ " + std::string(5000, '[') + std::string(5000, ']') + " }}",
      deep_ifs,
      long_sum + " }}",
      map_chain + "'upper') | list }}",
      nots + "1 }}",
      "{{ " + std::string(5000, '-') + "1 }}",
      "{{ x" + std::string(5000, '(') + std::string(5000, ')') + " }}",
  };
  for (const std::string& source : kHostile) {
    ChatInput input;
    input.limits.max_steps = 1'000'000;
    ErrorOf(source, input);
  }
}

TEST(ChatTemplateLimits, StepsAndOutputAreTheCallersToChoose) {
  ChatInput input;
  input.limits.max_steps = 1000;
  const std::string loop = "{% for i in range(1000) %}x{% endfor %}";
  const auto slow = TryRender(loop, input);
  ASSERT_FALSE(slow.ok());
  EXPECT_EQ(slow.status().code(), StatusCode::kResourceExhausted);
  input.limits = {};
  input.limits.max_output_bytes = 999;
  const auto large = TryRender(loop, input);
  ASSERT_FALSE(large.ok());
  EXPECT_EQ(large.status().code(), StatusCode::kResourceExhausted);
  input.limits.max_output_bytes = 1000;
  EXPECT_EQ(Render(loop, input).size(), 1000u);
}

TEST(ChatTemplateRender, NamespacesMayHoldThemselves) {
  EXPECT_EQ(Render("{% set ns = namespace(a=1) %}{% set ns.me = ns %}{{ ns.me.me.me.a }}"), "1");
  EXPECT_EQ(Render("{% macro f() %}{{ x }}{% endmacro %}{% set x = 2 %}{% set g = f %}{{ g() }}"),
            "2");
}

TEST(ChatTemplateRender, TheSandboxShowsNothingOfTheHost) {
  EXPECT_EQ(Render("{{ ''.__class__ }}{{ [].__class__ }}"), "");
  EXPECT_THAT(ErrorOf("{{ ''.__class__.__mro__ }}"), HasSubstr("unsafe"));
  EXPECT_THAT(ErrorOf("{{ {}.update({'a': 1}) }}"), HasSubstr("unsafe"));
  EXPECT_THAT(ErrorOf("{% set ns = namespace() %}{% set ns._x = 1 %}"), HasSubstr("_x"));
  EXPECT_THAT(ErrorOf("{{ '{0.__class__.__name__}'.format(1) }}"), HasSubstr("unsafe"));
}

TEST(ChatTemplateRender, ClockIsInjected) {
  ChatInput input;
  input.now = std::chrono::sys_days(std::chrono::year(2026) / 1 / 2) + std::chrono::seconds(11045);
  EXPECT_EQ(
      Render("{{ strftime_now('%Y-%m-%d %H:%M:%S %B %b %A %a %j %p %I %-d %e %y%%') }}", input),
      "2026-01-02 03:04:05 January Jan Friday Fri 002 AM 03 2  2 26%");
  EXPECT_THAT(ErrorOf("{{ strftime_now('%Q') }}", input), HasSubstr("%Q"));
}

TEST(ChatTemplateRender, LazySequencesAreWalkedOnce) {
  EXPECT_EQ(Render("{% set l = [1, 2] | map('string') %}{{ l | join }}{{ l | join }}"), "12");
  EXPECT_THAT(ErrorOf("{{ [1] | map('string') }}"), HasSubstr("list"));
}

TEST(ChatTemplateRender, EscapedTextEscapesWhatJoinsIt) {
  EXPECT_EQ(Render("{{ ('<' | e) + '<' }}{{ '<' + ('<' | safe) }}{{ '<' ~ ('<' | e) }}"),
            "&lt;&lt;&lt;<<&lt;");
}

TEST(ChatTemplateRender, GenerationSpansCountCodePoints) {
  ChatInput input = Hi();
  input.messages.push_back({{"role", "assistant"}, {"content", "\u00e9t\u00e9"}});
  const auto parsed = ChatTemplate::Parse(
      "{% for m in messages %}\u00fc{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
      "{% endgeneration %}{% endif %}{% endfor %}");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const auto rendered = parsed->RenderWithSpans(input);
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  ASSERT_EQ(rendered->generation_spans.size(), 1u);
  EXPECT_EQ(rendered->generation_spans[0], std::make_pair(int64_t{2}, int64_t{5}));
}

TEST(ChatTemplateRender, ContinuesTheFinalMessage) {
  const char* source = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}";
  ChatInput input = Hi();
  input.messages.push_back({{"role", "assistant"}, {"content", "One, "}});
  input.continue_final_message = true;
  EXPECT_EQ(Render(source, input), "[hi][One,");
  EXPECT_EQ(Render("{% for m in messages %}[{{ m.content }}]{% endfor %}", input), "[hi][One, ");
  input.add_generation_prompt = true;
  EXPECT_THAT(ErrorOf(source, input), HasSubstr("add_generation_prompt"));
  input.add_generation_prompt = false;
  EXPECT_THAT(ErrorOf("{{ messages[0].content }}", input), HasSubstr("continue_final_message"));
  input.messages = Json::array();
  EXPECT_THAT(ErrorOf(source, input), HasSubstr("continue_final_message"));
}

TEST(ChatTemplateRender, ReasoningIsReadUnderAnyOfItsNames) {
  for (const char* name : {"reasoning", "reasoning_content", "thinking"}) {
    ChatInput input = Hi();
    input.messages[0][name] = "because";
    EXPECT_EQ(Render("{{ messages[0].reasoning_content }} {{ messages[0].thinking }}", input),
              "because because");
  }
}

// A turn that is appended gives the text that rendering the whole conversation gives.
TEST(ChatTemplateRender, TurnsEndWithTheNewlineOfTheTemplate) {
  const char* source =
      "{% for m in messages %}{% if m.role == 'tool' %}{{ '<|im_start|>user\\n<tool_response>\\n' "
      "+ "
      "m.content + '\\n</tool_response><|im_end|>\\n' }}{% else %}{{ '<|im_start|>' + m.role + "
      "'\\n' + "
      "m.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ "
      "'<|im_start|>assistant\\n' }}{% endif %}";
  ChatInput input;
  input.add_generation_prompt = true;
  input.messages.push_back({{"role", "user"}, {"content", "What is 6 x 7? Use the tool."}});
  const std::string first = Render(source, input);
  EXPECT_EQ(first,
            "<|im_start|>user\nWhat is 6 x 7? Use the tool.<|im_end|>\n<|im_start|>assistant\n");
  input.messages.push_back({{"role", "assistant"}, {"content", "<call>mul 6 7</call>"}});
  input.messages.push_back({{"role", "tool"}, {"content", "42"}});
  const std::string second = Render(source, input);
  const std::string so_far = first + "<call>mul 6 7</call><|im_end|>";
  ASSERT_TRUE(second.starts_with(so_far));
  EXPECT_EQ(second.substr(so_far.size()),
            "\n<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\n");
}

TEST(ToolArguments, TextBecomesTheObjectItHolds) {
  const char* source =
      "{% for c in messages[0].tool_calls %}{% for k, v in c.function.arguments | items %}"
      "{{ k }}={{ v if v is string else v | tojson }};{% endfor %}{% endfor %}";
  ChatInput input;
  input.messages = Json::parse(R"([{"role": "assistant", "content": "", "tool_calls": [
      {"function": {"name": "f", "arguments": "x"}}]}])");
  Json& arguments = input.messages[0]["tool_calls"][0]["function"]["arguments"];
  arguments =
      "{\"to\": \"Lyon\", \"after\": \"08:00\", \"seats\": 2, \"direct\": true, \"via\": null, "
      "\"price\": {\"max\": 49.50, \"currency\": \"EUR\"}, \"label\": \"a \\\"b\\\" \u00e9\"}";
  EXPECT_THAT(ErrorOf(source, input), HasSubstr("item pairs"));
  ASSERT_TRUE(DecodeToolArguments(&input.messages).ok());
  const std::string decoded = Render(source, input);
  EXPECT_EQ(decoded,
            "to=Lyon;after=08:00;seats=2;direct=true;via=null;price={\"max\": 49.5, \"currency\": "
            "\"EUR\"};label=a \"b\" \u00e9;");
  ASSERT_TRUE(DecodeToolArguments(&input.messages).ok());  // an object stays as it is
  EXPECT_EQ(Render(source, input), decoded);
  for (const char* bad : {"{bad", "[1,2]", "\"x\"", ""}) {
    arguments = bad;
    EXPECT_THAT(MessageOf(DecodeToolArguments(&input.messages)),
                HasSubstr("messages[0].tool_calls[0].function.arguments"));
  }
}

}  // namespace
}  // namespace titan::text
