// SPDX-License-Identifier: Apache-2.0
// A chat template: parsed, rendered on a conversation with every kind of message, within small
// limits.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/text/chat_template.h"

using namespace titan;

namespace {

text::ChatInput Conversation() {
  text::ChatInput input;
  input.messages = text::Json::parse(R"([
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello <b>\n"},
    {"role": "assistant", "content": null, "reasoning_content": "hm",
     "tool_calls": [{"id": "1", "type": "function",
                     "function": {"name": "add", "arguments": {"a": 1, "b": 2.5}}}]},
    {"role": "tool", "content": "3", "tool_call_id": "1"},
    {"role": "user", "content": [{"type": "text", "text": "and?"}]},
    {"role": "assistant", "content": "Three."}])");
  input.tools = text::Json::parse(R"([{"type": "function", "function": {
    "name": "add", "description": "adds", "parameters": {"type": "object", "properties": {
      "a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a"]}}}])");
  input.variables =
      text::Json::parse(R"({"bos_token": "<s>", "eos_token": "</s>", "x": [1, "y"]})");
  input.add_generation_prompt = true;
  input.now = std::chrono::sys_seconds(std::chrono::seconds(1'700'000'000));
  input.limits.max_steps = 200'000;
  input.limits.max_output_bytes = 1 << 18;
  return input;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const text::ChatInput kInput = Conversation();
  const auto parsed =
      text::ChatTemplate::Parse(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!parsed.ok()) return 0;
  const auto rendered = parsed->RenderWithSpans(kInput);
  if (rendered.ok() && rendered->text.size() > kInput.limits.max_output_bytes) std::abort();
  return 0;
}
