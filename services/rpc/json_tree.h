// SPDX-License-Identifier: Apache-2.0
//
// Strict JSON with positions: what config errors need. Refuses duplicate keys, trailing text,
// comments, nesting deeper than 64, bytes that are not UTF-8. Pure functions, any thread.
#ifndef TITAN_SERVICES_RPC_JSON_TREE_H_
#define TITAN_SERVICES_RPC_JSON_TREE_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/status.h"

namespace titan::rpc {

struct JsonPosition {
  int line = 1;    // from 1
  int column = 1;  // from 1, in bytes
};

struct JsonNode {
  enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };
  struct Member;

  Kind kind = Kind::kNull;
  JsonPosition position;
  bool boolean = false;
  std::string text;  // of a string, decoded; of a number, as written
  std::vector<JsonNode> items;
  std::vector<Member> members;  // in file order
};

struct JsonNode::Member {
  std::string name;
  JsonPosition position;  // of the name
  JsonNode value;
};

// "an object", "a number", ... for messages.
std::string_view Describe(JsonNode::Kind kind);

// InvalidArgument: "<where>:<line>:<column>: <what is wrong>".
StatusOr<JsonNode> ParseJsonTree(std::string_view text, std::string_view where);

}  // namespace titan::rpc

#endif  // TITAN_SERVICES_RPC_JSON_TREE_H_
