// SPDX-License-Identifier: Apache-2.0
//
// Between text and tokens: reads the tokenizer and the chat template of a job's model, renders and
// tokenizes the prompts of its data (once: the token is the truth), decodes replies for reward
// services.
#ifndef TITAN_SERVICES_ORCHESTRATOR_PROMPTS_H_
#define TITAN_SERVICES_ORCHESTRATOR_PROMPTS_H_

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/formats/model_config.h"
#include "core/formats/model_source.h"
#include "core/text/chat_template.h"
#include "core/text/tokenizer.h"
#include "orchestrator/dataset.h"
#include "orchestrator/job_spec.h"
#include "services/orchestrator/data_files.h"
#include "weightstore/client/stored_model.h"

namespace titan::orchestrator {

// What the orchestrator reads of a job's model.
struct ModelTexts {
  std::string field;  // model.path or model.id, for messages
  std::string name;   // for messages
  std::string id;     // of a model in the weight store; "" = it is read from its path
  formats::ModelConfig config;
  formats::TokenizerMaterial tokenizer;
  std::string chat_template;
};
// Out of spec.model.path, or of the bundle of spec.model.id in the weight store. Errors name the
// field. Blocks.
StatusOr<ModelTexts> ReadModelTexts(const JobSpec& spec, weightstore::ModelPort& models);

// Immutable; any thread.
class PromptRenderer {
 public:
  // Errors name the model's field or model.max_sequence_tokens.
  static StatusOr<std::unique_ptr<PromptRenderer>> Open(const JobSpec& spec,
                                                        const ModelTexts& model);

  // Fills rendered_prompt and prompt_token_ids of every row. InvalidArgument names the file (as
  // `file`), the line and the field: a template that refuses the messages, a prompt that leaves no
  // room for the reply.
  Status Render(const JobSpec& spec, const std::string& file, Dataset* dataset) const;
  // The tokens of one conversation, ready for a reply. InvalidArgument: as Render, naming messages.
  StatusOr<std::vector<TokenId>> RenderChat(const JobSpec& spec,
                                            const std::vector<ChatMessage>& messages) const;

  // The reply's text without special tokens.
  std::string Decode(std::span<const TokenId> ids) const { return tokenizer_->Decode(ids, true); }
  // Tokens that end a reply, ascending.
  const std::vector<TokenId>& stop_token_ids() const { return stop_token_ids_; }
  const text::Tokenizer& tokenizer() const { return *tokenizer_; }
  const formats::ModelConfig& config() const { return config_; }

 private:
  PromptRenderer() = default;
  StatusOr<std::string> RenderRow(const JobSpec& spec, const std::string& place,
                                  const DataRow& row) const;
  StatusOr<std::vector<TokenId>> Tokenize(const std::string& place, const std::string& text) const;

  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::optional<text::ChatTemplate> chat_template_;  // none: text prompts only
  text::Json variables_ = text::Json::object();
  std::vector<TokenId> stop_token_ids_;
  formats::ModelConfig config_;
};

// A job's data, ready to run.
struct PreparedData {
  std::shared_ptr<const PromptRenderer> renderer;
  std::shared_ptr<const Dataset> dataset;
  std::string model_id;     // what model.id stands for, when it may be a name; "" = there is none
  std::string data_digest;  // of the data file's bytes: the id that it would be stored under
};
// Reads the data file (the one at data.path, or of data.id in `data_files`) and the model's
// tokenizer, renders all prompts, checks data.held_out. Blocks. UNAVAILABLE and DEADLINE_EXCEEDED:
// the weight store does not answer; a file that cannot be read is FAILED_PRECONDITION.
StatusOr<PreparedData> PrepareData(const JobSpec& spec, const DataFiles& data_files,
                                   weightstore::ModelPort& models);

}  // namespace titan::orchestrator

#endif  // TITAN_SERVICES_ORCHESTRATOR_PROMPTS_H_
