// SPDX-License-Identifier: Apache-2.0
#include "rewards/grader.h"

namespace titan::rewards {

const char* GradeKindName(GradeKind kind) {
  switch (kind) {
    case GradeKind::kOk:
      return "kOk";
    case GradeKind::kModelFault:
      return "kModelFault";
    case GradeKind::kInfraFault:
      return "kInfraFault";
  }
  return "unknown";
}

Grade Grade::Ok(double value, std::vector<std::pair<std::string, double>> components) {
  Grade grade;
  grade.value = value;
  grade.components = std::move(components);
  return grade;
}

Grade Grade::ModelFault(std::string reason, double value) {
  Grade grade;
  grade.kind = GradeKind::kModelFault;
  grade.reason = std::move(reason);
  grade.value = value;
  return grade;
}

Grade Grade::InfraFault(std::string reason) {
  Grade grade;
  grade.kind = GradeKind::kInfraFault;
  grade.reason = std::move(reason);
  return grade;
}

}  // namespace titan::rewards
