// SPDX-License-Identifier: Apache-2.0
//
// Strict JSON: parsing that refuses duplicate keys and says where the text is wrong, and typed
// access to the fields of an object with messages that name the field. Pure functions, any thread;
// no exception leaves this file.
#ifndef TITAN_CORE_FORMATS_JSON_H_
#define TITAN_CORE_FORMATS_JSON_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "core/base/status.h"

namespace titan::formats {

using Json = nlohmann::json;

// Nesting deeper than this is refused.
inline constexpr int kMaxJsonDepth = 64;

// Parses one JSON document. `where` (a path or a field) stands first in messages. InvalidArgument:
// not JSON, a key twice in one object, nested deeper than kMaxJsonDepth, or not UTF-8.
StatusOr<Json> ParseJson(std::string_view text, std::string_view where);

// Reads fields of one JSON object. Every getter fails with InvalidArgument "<where>: <field>: ..."
// if the field is of another type or outside the range. A field whose value is null counts as
// missing. The object must outlive the reader.
class JsonFields {
 public:
  // REQUIRES: object.is_object().
  JsonFields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  bool Has(const char* field) const;
  bool IsNull(const char* field) const;  // there, and null
  // Integers in [low, high]; 4.0 is accepted for 4, 4.5 is not.
  StatusOr<int64_t> Int(const char* field, int64_t low, int64_t high) const;
  StatusOr<int64_t> IntOr(const char* field, int64_t low, int64_t high, int64_t missing) const;
  // Finite numbers in [low, high].
  StatusOr<double> Number(const char* field, double low, double high) const;
  StatusOr<double> NumberOr(const char* field, double low, double high, double missing) const;
  StatusOr<bool> BoolOr(const char* field, bool missing) const;
  StatusOr<std::string> String(const char* field) const;
  StatusOr<std::string> StringOr(const char* field, std::string_view missing) const;
  // The value, or null if the field is missing.
  const Json& Value(const char* field) const;

  Status Error(std::string_view field, std::string_view problem) const;
  Status Refuse(std::string_view field, std::string_view problem) const;  // Unimplemented
  const std::string& where() const { return where_; }

 private:
  const Json& object_;
  std::string where_;
};

}  // namespace titan::formats

#endif  // TITAN_CORE_FORMATS_JSON_H_
