// SPDX-License-Identifier: Apache-2.0
//
// Can this process listen at an address? Asked before a server is told to, whose own words are for
// its developers. Any thread.
#ifndef TITAN_CORE_RUNTIME_LISTEN_H_
#define TITAN_CORE_RUNTIME_LISTEN_H_

#include <string>

#include "core/base/status.h"
#include "core/runtime/address.h"

namespace titan::runtime {

// Binds, listens and lets go at once: 0, or the errno why not (EADDRNOTAVAIL as well for a host
// that is not an IP address). "localhost" is 127.0.0.1.
int TryListen(const HostPort& address);

// Unavailable: "cannot listen on <address>: <what `error` means>; <the fix>".
Status CannotListen(const HostPort& address, int error);

}  // namespace titan::runtime

#endif  // TITAN_CORE_RUNTIME_LISTEN_H_
