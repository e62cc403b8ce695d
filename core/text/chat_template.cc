// SPDX-License-Identifier: Apache-2.0
#include "core/text/chat_template.h"

#include <array>
#include <stdexcept>

#include "core/text/jinja_eval.h"
#include "core/text/jinja_parser.h"
#include "core/text/jinja_unicode.h"

namespace titan::text {
namespace {

// Stands behind the last message's content while it is rendered, to find where that content ends.
constexpr std::string_view kContinueTag = "CONTINUE_FINAL_MESSAGE_TAG ";
constexpr size_t kMaxTemplateBytes = size_t{1} << 20;

// Names under which clients and templates pass a message's reasoning.
constexpr std::array<const char*, 3> kReasoningFields = {"reasoning_content", "thinking",
                                                         "reasoning"};

// Reasoning given under one name is shown to the template under those that templates read.
Json WithReasoningNames(const Json& message) {
  const Json* reasoning = nullptr;
  for (const char* name : kReasoningFields) {
    const auto it = message.find(name);
    if (it != message.end() && !it->is_null()) {
      reasoning = &*it;
      break;
    }
  }
  if (reasoning == nullptr) return message;
  Json out = Json::object();
  out["thinking"] = *reasoning;
  for (auto it = message.begin(); it != message.end(); ++it) out[it.key()] = it.value();
  out["reasoning_content"] = *reasoning;
  return out;
}

// Copying a Json recurses; what nests deeper than a template may see is refused before that.
bool NestsDeeperThan(const Json& value, int levels) {
  if (!value.is_structured()) return false;
  if (levels == 0) return true;
  for (const Json& item : value) {
    if (NestsDeeperThan(item, levels - 1)) return true;
  }
  return false;
}

Status CheckArrayOfObjects(const Json& value, std::string_view name) {
  if (NestsDeeperThan(value, jinja::kMaxValueDepth)) {
    return ResourceExhausted(std::string(name) + ": nests deeper than " +
                             std::to_string(jinja::kMaxValueDepth));
  }
  if (!value.is_array())
    return InvalidArgument(std::string(name) + ": must be an array of objects");
  for (size_t i = 0; i < value.size(); ++i) {
    if (!value[i].is_object()) {
      return InvalidArgument(std::string(name) + "[" + std::to_string(i) + "]: must be an object");
    }
  }
  return OkStatus();
}

// Marks the end of the text to continue and returns that text.
StatusOr<std::string> MarkFinalContent(Json* messages) {
  if (messages->empty()) {
    return InvalidArgument("continue_final_message: there is no message to continue");
  }
  const std::string field = "messages[" + std::to_string(messages->size() - 1) + "].content";
  Json& last = messages->back();
  const auto content = last.find("content");
  if (content == last.end() || content->is_null()) {
    return InvalidArgument(field + ": continue_final_message is set, but there is no content");
  }
  Json* text = nullptr;
  if (content->is_string()) {
    text = &*content;
  } else if (content->is_array()) {
    for (size_t i = content->size(); i-- > 0 && text == nullptr;) {
      Json& part = (*content)[i];
      if (part.is_object() && part.contains("text") && part["text"].is_string())
        text = &part["text"];
    }
  }
  if (text == nullptr) {
    return InvalidArgument(field +
                           ": continue_final_message is set, but there is no text to continue");
  }
  std::string original = text->get<std::string>();
  *text = original + std::string(kContinueTag);
  return original;
}

Status CutAtFinalContent(const std::string& content, jinja::Rendered* rendered) {
  const std::string_view tag = jinja::Strip(kContinueTag, nullptr, true, true);
  const size_t at = rendered->text.rfind(tag);
  const std::string_view stripped = jinja::Strip(content, nullptr, true, true);
  if (at == std::string::npos || rendered->text.find(stripped) == std::string::npos) {
    return InvalidArgument(
        "continue_final_message: the template does not show the content of the last message as it "
        "is");
  }
  const bool spacing_kept = rendered->text.compare(at, kContinueTag.size(), kContinueTag) == 0;
  rendered->text.resize(at);
  if (!spacing_kept) {
    // The template trims contents, so the space before the tag is not what it would have written.
    rendered->text.resize(jinja::Strip(rendered->text, nullptr, false, true).size());
  }
  const int64_t end = jinja::CountCodePoints(rendered->text);
  for (auto& span : rendered->generation_spans) {
    span.first = std::min(span.first, end);
    span.second = std::min(span.second, end);
  }
  return OkStatus();
}

}  // namespace

struct ChatTemplate::Parsed {
  jinja::Block root;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Parsed> parsed) : parsed_(std::move(parsed)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

StatusOr<ChatTemplate> ChatTemplate::Parse(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) {
    return InvalidArgument("chat template: " + std::to_string(source.size()) +
                           " bytes, the limit is " + std::to_string(kMaxTemplateBytes));
  }
  if (!jinja::IsValidUtf8(source)) return InvalidArgument("chat template: not valid UTF-8");
  try {
    auto parsed = std::make_unique<Parsed>();
    parsed->root = jinja::ParseTemplate(source);
    return ChatTemplate(std::move(parsed));
  } catch (const jinja::Raise& raise) {
    return MakeStatus(raise.code, "chat template: " + raise.message);
  }
}

StatusOr<RenderedChat> ChatTemplate::RenderWithSpans(const ChatInput& input) const {
  TITAN_RETURN_IF_ERROR(CheckArrayOfObjects(input.messages, "messages"));
  if (!input.tools.is_null()) TITAN_RETURN_IF_ERROR(CheckArrayOfObjects(input.tools, "tools"));
  if (!input.documents.is_null()) {
    TITAN_RETURN_IF_ERROR(CheckArrayOfObjects(input.documents, "documents"));
  }
  if (!input.variables.is_object()) return InvalidArgument("variables: must be an object");
  Json messages = Json::array();
  for (const Json& message : input.messages) messages.push_back(WithReasoningNames(message));
  std::string final_content;
  if (input.continue_final_message) {
    if (input.add_generation_prompt) {
      return InvalidArgument(
          "continue_final_message and add_generation_prompt exclude each other: set one of them");
    }
    TITAN_ASSIGN_OR_RETURN(final_content, MarkFinalContent(&messages));
  }
  jinja::RenderLimits limits;
  limits.max_steps = input.limits.max_steps;
  limits.max_output_bytes = input.limits.max_output_bytes;
  try {
    std::vector<std::pair<std::string, jinja::Value>> variables;
    variables.emplace_back("messages", jinja::FromJson(messages, "messages"));
    variables.emplace_back("tools", jinja::FromJson(input.tools, "tools"));
    variables.emplace_back("documents", jinja::FromJson(input.documents, "documents"));
    variables.emplace_back("add_generation_prompt",
                           jinja::Value::Bool(input.add_generation_prompt));
    for (auto it = input.variables.begin(); it != input.variables.end(); ++it) {
      for (const auto& [name, value] : variables) {
        if (name == it.key()) {
          return InvalidArgument("variables." + name + ": is set by its own field");
        }
      }
      variables.emplace_back(it.key(), jinja::FromJson(it.value(), "variables." + it.key()));
    }
    jinja::Rendered rendered =
        jinja::RenderBlock(parsed_->root, std::move(variables), input.now, limits);
    if (input.continue_final_message) {
      TITAN_RETURN_IF_ERROR(CutAtFinalContent(final_content, &rendered));
    }
    return RenderedChat{std::move(rendered.text), std::move(rendered.generation_spans)};
  } catch (const jinja::Raise& raise) {
    return MakeStatus(raise.code, "chat template: " + raise.message);
  }
}

StatusOr<std::string> ChatTemplate::Render(const ChatInput& input) const {
  TITAN_ASSIGN_OR_RETURN(RenderedChat rendered, RenderWithSpans(input));
  return std::move(rendered.text);
}

Status DecodeToolArguments(Json* messages) {
  if (!messages->is_array()) return InvalidArgument("messages: must be an array of objects");
  for (size_t i = 0; i < messages->size(); ++i) {
    Json& message = (*messages)[i];
    if (!message.is_object()) continue;  // named by Render
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || !calls->is_array()) continue;
    for (size_t j = 0; j < calls->size(); ++j) {
      Json& call = (*calls)[j];
      if (!call.is_object()) continue;
      std::string field =
          "messages[" + std::to_string(i) + "].tool_calls[" + std::to_string(j) + "]";
      Json* function = &call;
      if (call.contains("function") && call["function"].is_object()) {
        function = &call["function"];
        field += ".function";
      }
      const auto arguments = function->find("arguments");
      if (arguments == function->end() || !arguments->is_string()) continue;
      Json decoded = Json::parse(arguments->get_ref<const std::string&>(), nullptr, false);
      if (!decoded.is_object() || NestsDeeperThan(decoded, jinja::kMaxValueDepth / 2)) {
        return InvalidArgument(
            field + ".arguments: must be an object, or a text that holds the JSON of one");
      }
      *arguments = std::move(decoded);
    }
  }
  return OkStatus();
}

}  // namespace titan::text
