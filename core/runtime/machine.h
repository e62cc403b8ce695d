// SPDX-License-Identifier: Apache-2.0
//
// What this machine has left. Any thread; calls read /proc and block briefly.
#ifndef TITAN_CORE_RUNTIME_MACHINE_H_
#define TITAN_CORE_RUNTIME_MACHINE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/status.h"

namespace titan::runtime {

// Bytes that can be taken without swapping: of the machine (MemAvailable), or of this process's
// control group where that is less. Unavailable: /proc/meminfo does not say.
StatusOr<uint64_t> AvailableMemory();

// Names the memory that AvailableMemory speaks of: equal in all processes of a container (control
// group namespace), or of a machine outside of containers, until it starts again. "": the system
// does not say.
std::string MemoryName();

// The turn to take much of this machine's memory: what is free is looked at and taken by one
// process before the next one looks. It ends with the object, and with the process, however that
// ends. Moves between threads.
class MemoryTurn {
 public:
  // nullopt: another holder has it, in this process or another one. Where there is no folder
  // /dev/shm, on which it is a lock, everybody has it.
  static std::optional<MemoryTurn> Try();

  MemoryTurn(MemoryTurn&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  MemoryTurn& operator=(MemoryTurn&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~MemoryTurn();

 private:
  explicit MemoryTurn(int fd) : fd_(fd) {}
  int fd_;  // -1: none
};

// The bytes that /proc/meminfo calls MemAvailable.
std::optional<uint64_t> AvailableFromMeminfo(std::string_view text);
// What a control group leaves, from its memory.max and memory.current; nullopt: no limit.
std::optional<uint64_t> FreeOfControlGroup(std::string_view max, std::string_view current);

}  // namespace titan::runtime

#endif  // TITAN_CORE_RUNTIME_MACHINE_H_
