// SPDX-License-Identifier: Apache-2.0
//
// Reads the parameter object of a grader: every field is known, has its type and is in its range,
// or the error names the field. Read all fields, then call Finish.
#ifndef TITAN_REWARDS_PARAMETERS_H_
#define TITAN_REWARDS_PARAMETERS_H_

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "rewards/grader.h"

namespace titan::rewards {

class Parameters {
 public:
  // `json` must outlive this object. owner: the grader's name, the first word of every message.
  Parameters(std::string owner, const Json& json);

  // Each gives the field's value, or the default when the field is absent.
  double Number(const std::string& field, double otherwise);  // finite
  bool Flag(const std::string& field, bool otherwise);
  std::string Text(const std::string& field, const std::string& otherwise);
  // One of the options; the first is the default.
  std::string Option(const std::string& field, std::initializer_list<std::string_view> options);

  // InvalidArgument for the first bad field, or for a field that nobody asked for.
  Status Finish() const;

 private:
  const Json* Find(const std::string& field);
  void Fail(const std::string& field, std::string_view what);

  std::string owner_;
  const Json& json_;
  std::vector<std::string> known_;
  Status status_;
};

}  // namespace titan::rewards

#endif  // TITAN_REWARDS_PARAMETERS_H_
