// SPDX-License-Identifier: Apache-2.0
//
// Configuration: strict JSON into a proto message by reflection. An unknown field names the nearest
// valid one; every problem names file, line, column and field path; every value remembers where it
// came from. A missing field, and one that is null, keeps the value of the message it is read into:
// fill the defaults in first. Pure functions and values, any thread.
#ifndef TITAN_SERVICES_RPC_CONFIG_H_
#define TITAN_SERVICES_RPC_CONFIG_H_

#include <google/protobuf/message.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "services/rpc/json_tree.h"

namespace titan::rpc {

// Where each value of a resolved config came from.
class ConfigOrigins {
 public:
  // `where` is the file as the user named it.
  void SetFromFile(const std::string& path, const std::string& where, JsonPosition position);
  void SetFromFlag(const std::string& path, const std::string& flag);
  // Words of the caller.
  void Set(const std::string& path, const std::string& origin) { origins_[path] = origin; }
  // "default", "file.json:3:5", "flag --listen" or what Set was told.
  std::string Of(const std::string& path) const;
  bool IsDefault(const std::string& path) const { return !origins_.contains(path); }

 private:
  std::map<std::string, std::string> origins_;
};

// One wrong field; the validators of daemons and jobs collect them.
struct ConfigProblem {
  std::string path;         // for example daemon.listen
  std::string description;  // what is wrong and which values are valid
  std::string valid = {};   // of InvalidValue: the last part of the description
  std::string meant = {};   // of a field that does not exist: the path that is like it, if any
};
using ConfigProblems = std::vector<ConfigProblem>;
// Adds what a check found after `problems` were found on the way to it: only what they do not speak
// of, since a field that could not be read has its default when it is checked.
void AddProblems(ConfigProblems more, ConfigProblems* problems);
// "is <value>; valid: <valid>".
ConfigProblem InvalidValue(const std::string& path, const std::string& value,
                           const std::string& valid);

// What a field may be ("1 to 64"), by its path, where that is less than its type holds; empty: not
// known. For messages about values that the type cannot hold.
using ValidValues = std::function<std::string(const std::string& path)>;
// Those of a check that speaks by InvalidValue: what it says of a copy of `complete`, which it
// accepts but for what is required, when the field has the ends of its type.
ValidValues ValidByCheck(
    const google::protobuf::Message& complete,
    std::function<void(const google::protobuf::Message&, ConfigProblems*)> check);

// Reads JSON text into `message`. Fields absent from the text are left as they are, repeated fields
// are replaced. InvalidArgument: all problems found, one a line, each "<where>:<line>:<column>:
// <path>: ...".
Status ReadConfigText(std::string_view text, const std::string& where,
                      google::protobuf::Message* message, ConfigOrigins* origins,
                      const ValidValues& valid = {});
// InvalidArgument also for a file that cannot be read.
Status ReadConfigFile(const std::string& file, google::protobuf::Message* message,
                      ConfigOrigins* origins, const ValidValues& valid = {});
// For callers with a check of their own, which tell all problems at once: those of fields go to
// `problems`, and all else is read. InvalidArgument: no such file, or it is not JSON.
Status ReadConfigFile(const std::string& file, google::protobuf::Message* message,
                      ConfigOrigins* origins, const ValidValues& valid, ConfigProblems* problems);
// A document that is parsed already, for callers that take parts of it out first.
Status ReadConfigTree(const JsonNode& root, const std::string& where,
                      google::protobuf::Message* message, ConfigOrigins* origins,
                      const ValidValues& valid = {});

// One value from the command line: `assignment` is path=value with dots in the path, for example
// training.learning_rate=2e-6. The value is JSON; text for a string field needs no quotes.
// InvalidArgument names `flag` and the path, and the nearest field when it is misspelt.
Status SetConfigValue(const std::string& assignment, const std::string& flag,
                      google::protobuf::Message* message, ConfigOrigins* origins,
                      const ValidValues& valid = {});

// All problems in one InvalidArgument, each with its place in the file: that of the value, or of
// the object that lacks it.
Status ProblemsToStatus(const ConfigProblems& problems, const ConfigOrigins& origins);

// The message as JSON text: numbers as numbers (64 bits too), enums by name. With `all_fields`
// every field: zero and empty ones with their value, optional values and messages that are not set
// as null, of a oneof the member that is set. Without: only what has a value.
std::string ToJsonText(const google::protobuf::Message& message, bool all_fields = true,
                       int indent = 2);

// {"config": {...}, "origins": {"daemon.listen": "default", ...}}: what --print_config shows.
std::string PrintConfig(const google::protobuf::Message& message, const ConfigOrigins& origins);

}  // namespace titan::rpc

#endif  // TITAN_SERVICES_RPC_CONFIG_H_
