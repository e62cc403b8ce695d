// SPDX-License-Identifier: Apache-2.0
#include "orchestrator/dataset.h"

#include <algorithm>
#include <numeric>

#include "core/base/nearest_name.h"
#include "core/base/philox.h"
#include "core/formats/json.h"

namespace titan::orchestrator {
namespace {

using formats::Json;

constexpr size_t kEpochsKept = 4;
constexpr size_t kMaxLineBytes = size_t{16} << 20;

Status AtLine(std::string_view file, uint64_t line, std::string_view field,
              std::string_view problem) {
  std::string text = std::string(file) + ":" + std::to_string(line) + ": ";
  if (!field.empty()) text += std::string(field) + ": ";
  return InvalidArgument(text + std::string(problem));
}

// The text of a number as JSON writes it: integers without a fraction, others shortest round trip.
std::string NumberText(const Json& number) { return number.dump(); }

StatusOr<std::vector<ChatMessage>> ParseMessages(const Json& list, std::string_view file,
                                                 uint64_t line) {
  if (list.empty()) return AtLine(file, line, "prompt", "has no messages");
  std::vector<ChatMessage> messages;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string field = "prompt[" + std::to_string(i) + "]";
    const Json& item = list[i];
    if (!item.is_object()) return AtLine(file, line, field, "must be an object {role, content}");
    for (const auto& [key, value] : item.items()) {
      if (key != "role" && key != "content") {
        return AtLine(file, line, field + "." + key, "unknown field; valid: role, content");
      }
      if (!value.is_string()) return AtLine(file, line, field + "." + key, "must be text");
    }
    if (!item.contains("role")) return AtLine(file, line, field + ".role", "is required");
    if (!item.contains("content")) return AtLine(file, line, field + ".content", "is required");
    messages.push_back({item["role"].get<std::string>(), item["content"].get<std::string>()});
  }
  return messages;
}

// A field of the row that may be `name`, misspelt.
std::string MeantBy(const Json& row, const std::string& name) {
  std::vector<std::string> fields;
  for (const auto& [key, value] : row.items()) fields.push_back(key);
  const std::string nearest = NearestName(name, fields);
  return nearest.empty() ? "" : "; did you mean it by \"" + nearest + "\"?";
}

StatusOr<DataRow> ParseRow(std::string_view text, std::string_view file, uint64_t line) {
  auto parsed = formats::ParseJson(text, std::string(file) + ":" + std::to_string(line));
  if (!parsed.ok()) return parsed.status();
  const Json& object = *parsed;
  if (!object.is_object()) return AtLine(file, line, "", "a line must be one JSON object");
  DataRow row;
  row.line = line;
  Json rest = Json::object();
  bool has_prompt = false;
  for (const auto& [key, value] : object.items()) {
    if (key == "id") {
      if (value.is_string()) {
        row.id = value.get<std::string>();
      } else if (value.is_number_integer()) {
        row.id = NumberText(value);
      } else {
        return AtLine(file, line, "id", "must be text or an integer");
      }
      if (row.id.empty()) return AtLine(file, line, "id", "is empty");
    } else if (key == "prompt") {
      has_prompt = true;
      if (value.is_string()) {
        row.prompt = value.get<std::string>();
        if (row.prompt.empty()) return AtLine(file, line, "prompt", "is empty");
      } else if (value.is_array()) {
        TITAN_ASSIGN_OR_RETURN(row.messages, ParseMessages(value, file, line));
      } else {
        return AtLine(file, line, "prompt", "must be text or a list of {role, content}");
      }
    } else if (key == "answer") {
      if (value.is_string()) {
        row.answer = value.get<std::string>();
      } else if (value.is_number()) {
        row.answer = NumberText(value);
      } else {
        return AtLine(file, line, "answer", "must be text or a number");
      }
    } else if (key == "metadata") {
      if (!value.is_object()) return AtLine(file, line, "metadata", "must be an object");
      for (const auto& [name, entry] : value.items()) {
        if (rest.contains(name) || object.contains(name)) {
          return AtLine(file, line, "metadata." + name, "stands beside a field of the same name");
        }
        rest[name] = entry;
      }
    } else if (key == "environment") {
      return AtLine(file, line, "environment", "environments are not supported; remove the field");
    } else {
      rest[key] = value;
    }
  }
  if (row.id.empty()) return AtLine(file, line, "id", "is required" + MeantBy(rest, "id"));
  if (!has_prompt) return AtLine(file, line, "prompt", "is required" + MeantBy(rest, "prompt"));
  row.metadata_json = rest.dump();
  return row;
}

}  // namespace

StatusOr<Dataset> ParseDataset(std::string_view bytes, std::string_view file) {
  if (bytes.size() > kMaxDataBytes) {
    return InvalidArgument(std::string(file) + ": is larger than 4 GiB; split the file");
  }
  if (bytes.starts_with("\xef\xbb\xbf")) bytes.remove_prefix(3);
  Dataset dataset;
  std::map<std::string, uint64_t, std::less<>> lines;  // id -> line
  uint64_t line = 0;
  for (size_t at = 0; at < bytes.size();) {
    ++line;
    const size_t end = std::min(bytes.find('\n', at), bytes.size());
    std::string_view text = bytes.substr(at, end - at);
    at = end + 1;
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (text.find_first_not_of(" \t") == std::string_view::npos) continue;
    if (text.size() > kMaxLineBytes) {
      return AtLine(file, line, "", "is longer than 16 MiB");
    }
    TITAN_ASSIGN_OR_RETURN(DataRow row, ParseRow(text, file, line));
    const auto [known, fresh] = lines.emplace(row.id, line);
    if (!fresh) {
      return AtLine(file, line, "id",
                    "\"" + row.id + "\" stands already in line " + std::to_string(known->second));
    }
    dataset.rows.push_back(std::move(row));
  }
  if (dataset.rows.empty()) return InvalidArgument(std::string(file) + ": has no rows");
  if (dataset.rows.size() >= (uint64_t{1} << 32)) {
    return InvalidArgument(std::string(file) + ": has 2^32 rows or more");
  }
  return dataset;
}

StatusOr<DataOrder> DataOrder::Create(const Dataset& dataset, uint64_t seed, uint32_t held_out) {
  const auto num_rows = static_cast<uint32_t>(dataset.rows.size());
  if (held_out >= num_rows) {
    return InvalidArgument("data.held_out: is " + std::to_string(held_out) + ", but the file has " +
                           std::to_string(num_rows) +
                           " rows and at least one must be left to train on");
  }
  std::vector<uint32_t> sorted(num_rows);
  std::iota(sorted.begin(), sorted.end(), 0u);
  // std::string compares as unsigned bytes.
  std::sort(sorted.begin(), sorted.end(),
            [&](uint32_t a, uint32_t b) { return dataset.rows[a].id < dataset.rows[b].id; });
  DataOrder order;
  order.seed_ = seed;
  std::vector<bool> is_held_out(num_rows, false);
  const std::vector<uint32_t> shuffled =
      RandomPermutation(seed, RandomDomain::kHeldOut, /*epoch=*/0, num_rows);
  for (uint32_t i = 0; i < held_out; ++i) {
    is_held_out[shuffled[i]] = true;
    order.held_out_.push_back(sorted[shuffled[i]]);
  }
  for (uint32_t i = 0; i < num_rows; ++i) {
    if (!is_held_out[i]) order.training_.push_back(sorted[i]);
  }
  return order;
}

uint32_t DataOrder::RowAt(uint64_t position) {
  const uint64_t epoch = position / training_.size();
  auto found = epochs_.find(epoch);
  if (found == epochs_.end()) {
    if (epochs_.size() >= kEpochsKept) epochs_.erase(epochs_.begin());
    found = epochs_
                .emplace(epoch, RandomPermutation(seed_, RandomDomain::kDataOrder, epoch,
                                                  static_cast<uint32_t>(training_.size())))
                .first;
  }
  return training_[found->second[position % training_.size()]];
}

uint32_t DataOrder::CandidateRow(GroupId group) const {
  return training_[RandomCandidateRow(seed_, group.value, static_cast<uint32_t>(training_.size()))];
}

}  // namespace titan::orchestrator
