// SPDX-License-Identifier: Apache-2.0
//
// Names of host daemons, by which the leader tells them apart.
#ifndef TITAN_WEIGHTSTORE_CLIENT_HOST_NAME_H_
#define TITAN_WEIGHTSTORE_CLIENT_HOST_NAME_H_

#include <algorithm>
#include <string>

namespace titan::weightstore {

// 1 to 64 of [A-Za-z0-9._-].
inline bool IsHostName(const std::string& name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), allowed);
}

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_CLIENT_HOST_NAME_H_
