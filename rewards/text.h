// SPDX-License-Identifier: Apache-2.0
//
// White space as graders see it: space, \t, \n, \v, \f, \r. Pure.
#ifndef TITAN_REWARDS_TEXT_H_
#define TITAN_REWARDS_TEXT_H_

#include <string_view>

namespace titan::rewards {

inline std::string_view TrimAscii(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\v\f\r";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return text.substr(0, 0);
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

}  // namespace titan::rewards

#endif  // TITAN_REWARDS_TEXT_H_
