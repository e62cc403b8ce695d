// SPDX-License-Identifier: Apache-2.0
//
// The canonical form in which two runs of a job are compared (scheduling.md section 4): one line a
// fact, sorted, without worker, attempt number, time, ids of run and request, and repeats. Pure
// functions.
#ifndef TITAN_ORCHESTRATOR_CANONICAL_H_
#define TITAN_ORCHESTRATOR_CANONICAL_H_

#include <string>
#include <vector>

#include "orchestrator/facts.h"

namespace titan::orchestrator {

// One line, without a line end; text fields are escaped. Floating point as hexadecimal, so that
// equal lines mean equal bits.
std::string CanonicalLine(const Fact& fact);

// Sorted lines without repeats.
std::vector<std::string> CanonicalForm(const std::vector<Fact>& facts);

}  // namespace titan::orchestrator

#endif  // TITAN_ORCHESTRATOR_CANONICAL_H_
