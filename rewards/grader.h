// SPDX-License-Identifier: Apache-2.0
//
// Grader: scores a finished sample. A pure function of the sample and the grader's parameters: no
// clock, no randomness, no I/O, bounded work whatever the reply holds. Immutable after it is made,
// so one grader serves any number of threads.
#ifndef TITAN_REWARDS_GRADER_H_
#define TITAN_REWARDS_GRADER_H_

#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace titan::rewards {

using Json = nlohmann::ordered_json;

struct Sample {
  std::string prompt;              // as the model saw it
  std::string completion;          // the reply, without the stop token
  std::string answer;              // of the data row; "" where it has none
  Json metadata = Json::object();  // other fields of the data row
};

enum class GradeKind {
  kOk,          // value counts
  kModelFault,  // value counts: the reply is at fault (no number in it, too expensive to read, ...)
  kInfraFault,  // no value: the grader or the data is at fault; the sample must not be trained on
};

// "kOk", "kModelFault", "kInfraFault"
const char* GradeKindName(GradeKind kind);

struct Grade {
  GradeKind kind = GradeKind::kOk;
  double value = 0;                                        // kOk, kModelFault
  std::vector<std::pair<std::string, double>> components;  // kOk: named parts of value
  std::string reason;                                      // of a fault, for people and metrics

  static Grade Ok(double value, std::vector<std::pair<std::string, double>> components);
  static Grade ModelFault(std::string reason, double value);
  static Grade InfraFault(std::string reason);
};

// What a reward service tells about a grader it offers.
struct GraderInfo {
  std::string name;
  int version = 1;  // grows when the same sample may get another grade
  bool deterministic = true;
  std::string summary;
  std::vector<std::pair<std::string, std::string>> parameters;  // name, meaning
};

class Grader {
 public:
  virtual ~Grader() = default;
  virtual const GraderInfo& info() const = 0;
  virtual Grade Score(const Sample& sample) const = 0;
};

}  // namespace titan::rewards

#endif  // TITAN_REWARDS_GRADER_H_
