// SPDX-License-Identifier: Apache-2.0
//
// What a misspelt name was meant to be: fields of configs and parameters, commands, flags. A pure
// function, any thread.
#ifndef TITAN_CORE_BASE_NEAREST_NAME_H_
#define TITAN_CORE_BASE_NEAREST_NAME_H_

#include <string>
#include <string_view>
#include <vector>

namespace titan {

// The candidate with the least edit distance (Levenshtein), the first of several; empty when none
// is near enough to be what was meant: two edits, or a third of a long name.
std::string NearestName(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace titan

#endif  // TITAN_CORE_BASE_NEAREST_NAME_H_
