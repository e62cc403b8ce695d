// SPDX-License-Identifier: Apache-2.0
//
// Chat templates: the text a model was trained to see for a list of messages. A template is the
// model author's program in a subset of Jinja2; this is a small interpreter for it with the
// behaviour of the sandbox that Hugging Face tokenizers use (trim_blocks, lstrip_blocks, break and
// continue,
// {% generation %}, tojson, raise_exception, strftime_now).
//
// A template is untrusted: it reaches nothing but its input, and every render is bounded in steps,
// output and depth. Rendering is a pure function of (template, input); a clock is injected or
// absent. Not offered, and refused with the line: include, import, extends, block, autoescape, do,
// and the filters filesizeformat, pprint, random, striptags, urlize, wordwrap and xmlattr. Integers
// are 128 bits wide (more is an error), and lazy sequences have no printed form.
//
// Thread-safe: one ChatTemplate serves any number of concurrent renders.
#ifndef TITAN_CORE_TEXT_CHAT_TEMPLATE_H_
#define TITAN_CORE_TEXT_CHAT_TEMPLATE_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/base/status.h"

namespace titan::text {

// Keeps the order of keys, which templates print.
using Json = nlohmann::ordered_json;

struct ChatTemplateLimits {
  uint64_t max_steps = 20'000'000;  // one for a node, an element or 16 bytes of text
  uint64_t max_output_bytes = uint64_t{16} << 20;
};

struct ChatInput {
  Json messages = Json::array();  // [{"role": ..., "content": ..., ...}, ...]
  Json tools;                     // null or [{"type": "function", "function": {...}}, ...]
  Json documents;                 // null or [{"title": ..., "text": ...}, ...]
  bool add_generation_prompt = false;
  // The text stops right behind the content of the last message, for the model to go on with it.
  bool continue_final_message = false;
  // Further variables: an object such as {"bos_token": "<s>", "enable_thinking": false}.
  Json variables = Json::object();
  // What strftime_now shows; a template that asks for the time without one fails.
  std::optional<std::chrono::sys_seconds> now;
  ChatTemplateLimits limits;
};

struct RenderedChat {
  std::string text;
  // [start, end) in code points of text, of what stands inside {% generation %}: what the model
  // said.
  std::vector<std::pair<int64_t, int64_t>> generation_spans;
};

class ChatTemplate {
 public:
  // InvalidArgument "chat template: line N: ..." for syntax errors, unknown tags, filters and
  // tests.
  static StatusOr<ChatTemplate> Parse(std::string_view source);

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;
  ~ChatTemplate();

  // InvalidArgument: the input has a wrong shape (the message names the field), or the template
  // fails on it or refuses it (raise_exception; the message is the template's). ResourceExhausted:
  // a limit.
  StatusOr<std::string> Render(const ChatInput& input) const;
  StatusOr<RenderedChat> RenderWithSpans(const ChatInput& input) const;

 private:
  struct Parsed;
  explicit ChatTemplate(std::unique_ptr<Parsed> parsed);

  std::unique_ptr<Parsed> parsed_;
};

// Clients of the OpenAI protocol send the arguments of earlier tool calls as JSON text; most
// templates walk them as a mapping. Replaces each text in
// messages[i].tool_calls[j].function.arguments by what it holds, keys in their order.
// InvalidArgument names the field when it is not the JSON of an object.
Status DecodeToolArguments(Json* messages);

}  // namespace titan::text

#endif  // TITAN_CORE_TEXT_CHAT_TEMPLATE_H_
