// SPDX-License-Identifier: Apache-2.0
#include "rewards/parameters.h"

#include <algorithm>
#include <cmath>

#include "core/base/nearest_name.h"

namespace titan::rewards {
namespace {

constexpr size_t kMaxName = 64;  // of a name from outside in a message

}  // namespace
Parameters::Parameters(std::string owner, const Json& json)
    : owner_(std::move(owner)), json_(json) {
  if (!json_.is_null() && !json_.is_object()) {
    status_ = InvalidArgument(owner_ + ": the parameters must be an object");
  }
}

const Json* Parameters::Find(const std::string& field) {
  known_.push_back(field);
  if (!json_.is_object()) return nullptr;
  const auto it = json_.find(field);
  return it == json_.end() ? nullptr : &*it;
}

void Parameters::Fail(const std::string& field, std::string_view what) {
  if (status_.ok()) status_ = InvalidArgument(owner_ + "." + field + ": " + std::string(what));
}

double Parameters::Number(const std::string& field, double otherwise) {
  const Json* json = Find(field);
  if (json == nullptr) return otherwise;
  if (!json->is_number() || !std::isfinite(json->get<double>())) {
    Fail(field, "must be a finite number");
    return otherwise;
  }
  return json->get<double>();
}

bool Parameters::Flag(const std::string& field, bool otherwise) {
  const Json* json = Find(field);
  if (json == nullptr) return otherwise;
  if (!json->is_boolean()) {
    Fail(field, "must be true or false");
    return otherwise;
  }
  return json->get<bool>();
}

std::string Parameters::Text(const std::string& field, const std::string& otherwise) {
  const Json* json = Find(field);
  if (json == nullptr) return otherwise;
  if (!json->is_string()) {
    Fail(field, "must be a text");
    return otherwise;
  }
  return json->get<std::string>();
}

std::string Parameters::Option(const std::string& field,
                               std::initializer_list<std::string_view> options) {
  std::string value = Text(field, std::string(*options.begin()));
  if (std::find(options.begin(), options.end(), value) != options.end()) return value;
  std::string list;
  std::vector<std::string> names;
  for (std::string_view option : options) {
    list += (list.empty() ? "" : ", ") + std::string(option);
    names.emplace_back(option);
  }
  const std::string nearest = NearestName(value, names);
  Fail(field, "'" + value.substr(0, kMaxName) + "' is none of " + list +
                  (nearest.empty() ? "" : "; did you mean '" + nearest + "'?"));
  return std::string(*options.begin());
}

Status Parameters::Finish() const {
  if (!status_.ok()) return status_;
  if (!json_.is_object()) return OkStatus();
  for (auto it = json_.begin(); it != json_.end(); ++it) {
    if (std::find(known_.begin(), known_.end(), it.key()) != known_.end()) continue;
    std::string message = owner_ + ": unknown parameter '" + it.key().substr(0, kMaxName) + "'";
    const std::string nearest = NearestName(it.key(), known_);
    if (!nearest.empty()) message += "; did you mean '" + nearest + "'?";
    return InvalidArgument(message);
  }
  return OkStatus();
}

}  // namespace titan::rewards
