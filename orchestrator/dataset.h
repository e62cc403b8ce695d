// SPDX-License-Identifier: Apache-2.0
//
// The rows of a data file and the order in which they are trained and held out (learning.md section
// 4, numerics.md section 9). The order is a pure function of (seed, epoch, ids). No I/O: the bytes
// come from the caller, and so do the token ids of the prompts. Dataset is immutable after
// construction except for the prompts that the caller fills in before sharing it; DataOrder is not
// thread-safe.
#ifndef TITAN_ORCHESTRATOR_DATASET_H_
#define TITAN_ORCHESTRATOR_DATASET_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/ids.h"
#include "core/base/status.h"

namespace titan::orchestrator {

struct ChatMessage {
  std::string role;
  std::string content;
};

struct DataRow {
  std::string id;
  std::string prompt;                 // text; empty if the prompt is chat messages
  std::vector<ChatMessage> messages;  // chat messages; a text prompt stays in `prompt`
  std::string answer;                 // a number becomes its JSON text
  std::string metadata_json;          // every other field, as one JSON object; "{}": none
  uint64_t line = 0;                  // in the file, from 1
  // Filled in by who renders and tokenizes.
  std::string rendered_prompt;
  std::vector<TokenId> prompt_token_ids;
};

struct Dataset {
  std::vector<DataRow> rows;  // in file order
};

// Larger files are refused.
inline constexpr uint64_t kMaxDataBytes = uint64_t{4} << 30;

// Parses JSON Lines: one object a line, lines end at LF alone (a CR before it belongs to the line
// end), the last one may lack it, empty lines are skipped. Fields: `id` (text or integer, unique),
// `prompt` (text or [{role, content}]), `answer` (text or number; may be missing), `metadata` and
// any others. InvalidArgument: "<file>:<line>: <field>: what is wrong"; no row is used then.
StatusOr<Dataset> ParseDataset(std::string_view bytes, std::string_view file);

// Which rows are held out, and the training row at each position and candidate.
class DataOrder {
 public:
  // InvalidArgument (naming data.held_out): fewer than one training row would be left.
  // REQUIRES: fewer than 2^32 rows. `dataset` need not outlive the order.
  static StatusOr<DataOrder> Create(const Dataset& dataset, uint64_t seed, uint32_t held_out);

  // Rows of the file, in the order of the domain-3 shuffle.
  const std::vector<uint32_t>& held_out_rows() const { return held_out_; }
  // Rows of the file, sorted bytewise by id.
  const std::vector<uint32_t>& training_rows() const { return training_; }

  // Row of the file at a position of the data order; epoch = position div number of training rows.
  uint32_t RowAt(uint64_t position);
  // Row of the file of a candidate after the first.
  uint32_t CandidateRow(GroupId group) const;

 private:
  DataOrder() = default;

  uint64_t seed_ = 0;
  std::vector<uint32_t> held_out_;
  std::vector<uint32_t> training_;
  std::map<uint64_t, std::vector<uint32_t>> epochs_;  // the last few used
};

}  // namespace titan::orchestrator

#endif  // TITAN_ORCHESTRATOR_DATASET_H_
