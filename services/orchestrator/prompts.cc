// SPDX-License-Identifier: Apache-2.0
#include "services/orchestrator/prompts.h"

#include <filesystem>
#include <set>
#include <utility>

#include "core/base/hash.h"
#include "core/formats/model_bundle.h"
#include "core/runtime/files.h"

namespace titan::orchestrator {
namespace {

std::string LineOf(const std::string& file, const DataRow& row) {
  return file + ":" + std::to_string(row.line) + ": prompt";
}

// UNAVAILABLE is said of the weight store alone, which is waited for: a disk does not come back.
Status OfFile(const Status& status, const std::string& field) {
  const bool broken = status.code() == StatusCode::kUnavailable;
  return Annotate(broken ? FailedPrecondition(MessageOf(status)) : status, field);
}

}  // namespace

StatusOr<std::unique_ptr<PromptRenderer>> PromptRenderer::Open(const JobSpec& spec,
                                                               const ModelTexts& model) {
  const formats::ModelConfig& config = model.config;
  if (spec.model.max_sequence_tokens > static_cast<uint32_t>(config.max_position_embeddings)) {
    return InvalidArgument(
        "model.max_sequence_tokens: is " + std::to_string(spec.model.max_sequence_tokens) +
        "; the model's context is " + std::to_string(config.max_position_embeddings));
  }
  std::unique_ptr<PromptRenderer> renderer(new PromptRenderer());
  renderer->config_ = config;
  if (model.tokenizer.empty()) {
    return InvalidArgument(model.field + ": " + model.name +
                           ": comes without a tokenizer, which prompts and replies need");
  }
  auto tokenizer = text::Tokenizer::FromMaterial(model.tokenizer, model.name);
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), model.field);
  renderer->tokenizer_ = *std::move(tokenizer);
  if (renderer->tokenizer_->vocab_size() > config.vocab_size) {
    return InvalidArgument(model.field + ": " + model.name + ": its tokenizer has " +
                           std::to_string(renderer->tokenizer_->vocab_size()) +
                           " tokens, its weights know " + std::to_string(config.vocab_size) +
                           " (vocab_size); take tokenizer and weights of one model");
  }
  if (!model.chat_template.empty()) {
    auto parsed = text::ChatTemplate::Parse(model.chat_template);
    if (!parsed.ok()) return Annotate(parsed.status(), model.field + ": " + model.name);
    renderer->chat_template_ = *std::move(parsed);
  }
  const text::Tokenizer& t = *renderer->tokenizer_;
  std::set<TokenId> stops(config.eos_token_ids.begin(), config.eos_token_ids.end());
  if (t.eos_id() >= 0) stops.insert(t.eos_id());
  renderer->stop_token_ids_.assign(stops.begin(), stops.end());
  if (t.bos_id() >= 0) renderer->variables_["bos_token"] = std::string(t.TokenText(t.bos_id()));
  if (t.eos_id() >= 0) renderer->variables_["eos_token"] = std::string(t.TokenText(t.eos_id()));
  return renderer;
}

StatusOr<std::string> PromptRenderer::RenderRow(const JobSpec& spec, const std::string& place,
                                                const DataRow& row) const {
  if (!chat_template_.has_value()) {
    if (!row.messages.empty()) {
      return InvalidArgument(place +
                             ": is chat messages, but the model has no chat template; give text");
    }
    return row.prompt;
  }
  text::ChatInput input;
  const auto add = [&](const std::string& role, const std::string& content) {
    text::Json message = text::Json::object();
    message["role"] = role;
    message["content"] = content;
    input.messages.push_back(std::move(message));
  };
  const bool has_system = !row.messages.empty() && row.messages[0].role == "system";
  if (!spec.data.system_prompt.empty() && !has_system) add("system", spec.data.system_prompt);
  for (const ChatMessage& message : row.messages) add(message.role, message.content);
  if (row.messages.empty()) add("user", row.prompt);
  input.add_generation_prompt = true;
  input.variables = variables_;
  auto rendered = chat_template_->Render(input);
  if (!rendered.ok()) return Annotate(rendered.status(), place);
  return rendered;
}

StatusOr<std::vector<TokenId>> PromptRenderer::Tokenize(const std::string& place,
                                                        const std::string& text) const {
  text::EncodeOptions options;
  // A template writes its special tokens itself; plain text gets what the tokenizer puts around it,
  // and cannot spell special tokens.
  options.add_special = !chat_template_.has_value();
  options.parse_special = chat_template_.has_value();
  auto ids = tokenizer_->Encode(text, options);
  if (!ids.ok()) return Annotate(ids.status(), place);
  if (ids->empty()) return InvalidArgument(place + ": has no tokens");
  return ids;
}

StatusOr<std::vector<TokenId>> PromptRenderer::RenderChat(
    const JobSpec& spec, const std::vector<ChatMessage>& messages) const {
  DataRow row;
  if (chat_template_.has_value()) {
    row.messages = messages;
  } else {  // a model without a template continues text
    if (messages.size() != 1) {
      return InvalidArgument(
          "messages: the model has no chat template; give one message, its text");
    }
    row.prompt = messages[0].content;
  }
  TITAN_ASSIGN_OR_RETURN(const std::string text, RenderRow(spec, "messages", row));
  return Tokenize("messages", text);
}

Status PromptRenderer::Render(const JobSpec& spec, const std::string& file,
                              Dataset* dataset) const {
  if (!chat_template_.has_value() && !spec.data.system_prompt.empty()) {
    return InvalidArgument("data.system_prompt: the model has no chat template to put it into");
  }
  const uint32_t reply = std::max(spec.rollout.max_new_tokens,
                                  spec.data.held_out > 0 ? spec.EvaluationTokens() : uint32_t{0});
  for (DataRow& row : dataset->rows) {
    const std::string place = LineOf(file, row);
    TITAN_ASSIGN_OR_RETURN(row.rendered_prompt, RenderRow(spec, place, row));
    TITAN_ASSIGN_OR_RETURN(row.prompt_token_ids, Tokenize(place, row.rendered_prompt));
    if (row.prompt_token_ids.size() + reply > spec.model.max_sequence_tokens) {
      return InvalidArgument(place + ": has " + std::to_string(row.prompt_token_ids.size()) +
                             " tokens; with " + std::to_string(reply) +
                             " new tokens that is more than model.max_sequence_tokens (" +
                             std::to_string(spec.model.max_sequence_tokens) + ")");
    }
  }
  return OkStatus();
}

StatusOr<ModelTexts> ReadModelTexts(const JobSpec& spec, weightstore::ModelPort& models) {
  ModelTexts texts;
  if (spec.model.id.empty()) {
    texts.field = "model.path";
    texts.name = spec.model.path;
    const auto source = formats::OpenModelSource(spec.model.path);
    if (!source.ok()) return OfFile(source.status(), texts.field);
    texts.config = (*source)->config();
    texts.tokenizer = (*source)->tokenizer();
    texts.chat_template = (*source)->chat_template();
    return texts;
  }
  texts.field = "model.id";
  const auto model = models.FindModel(spec.model.id);
  if (!model.ok()) return Annotate(model.status(), texts.field);
  texts.id = model->id;
  texts.name = "model " + spec.model.id;
  Hash128 digest;
  if (!FromHex(model->bundle, &digest)) {
    return FailedPrecondition("model.id: " + texts.name + ": has no configuration and tokenizer");
  }
  const auto text = models.ReadBlob(digest, model->bundle_bytes);
  if (!text.ok()) return Annotate(text.status(), "model.id: " + texts.name);
  const auto bundle = formats::DecodeBundle(*text, texts.name);
  if (!bundle.ok()) return Annotate(bundle.status(), texts.field);
  texts.config = bundle->config;
  texts.tokenizer = formats::TokenizerMaterialOf(*bundle);
  texts.chat_template = bundle->chat_template;
  return texts;
}

StatusOr<PreparedData> PrepareData(const JobSpec& spec, const DataFiles& data_files,
                                   weightstore::ModelPort& models) {
  const bool stored = !spec.data.id.empty();
  const std::string field = stored ? "data.id" : "data.path";
  // A pipe or a device would hold this thread as long as it likes.
  std::error_code error;
  const auto type = std::filesystem::status(spec.data.path, error).type();
  if (!stored && type != std::filesystem::file_type::regular &&
      type != std::filesystem::file_type::not_found && type != std::filesystem::file_type::none) {
    return InvalidArgument("data.path: '" + spec.data.path + "' is not a regular file");
  }
  const auto bytes =
      stored ? data_files.Read(spec.data.id) : runtime::ReadFile(spec.data.path, kMaxDataBytes);
  if (!bytes.ok()) return OfFile(bytes.status(), field);
  const std::string name = stored ? "data " + spec.data.id : spec.data.path;
  TITAN_ASSIGN_OR_RETURN(Dataset dataset, ParseDataset(*bytes, name));
  TITAN_RETURN_IF_ERROR(DataOrder::Create(dataset, spec.seed, spec.data.held_out).status());
  TITAN_ASSIGN_OR_RETURN(const ModelTexts texts, ReadModelTexts(spec, models));
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<PromptRenderer> renderer,
                         PromptRenderer::Open(spec, texts));
  TITAN_RETURN_IF_ERROR(renderer->Render(spec, name, &dataset));
  PreparedData prepared;
  prepared.renderer = std::move(renderer);
  prepared.model_id = texts.id;
  prepared.data_digest = DataIdOf(*bytes);
  prepared.dataset = std::make_shared<const Dataset>(std::move(dataset));
  return prepared;
}

}  // namespace titan::orchestrator
