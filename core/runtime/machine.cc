// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/machine.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <string>

#include "core/runtime/files.h"

namespace titan::runtime {
namespace {

// The number that the text begins with, after blanks.
std::optional<uint64_t> LeadingNumber(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  uint64_t number = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  if (result.ec != std::errc()) return std::nullopt;
  return number;
}

}  // namespace

std::optional<uint64_t> AvailableFromMeminfo(std::string_view text) {
  constexpr std::string_view kKey = "MemAvailable:";
  const size_t at = text.find(kKey);
  if (at == std::string_view::npos) return std::nullopt;
  const std::optional<uint64_t> kib = LeadingNumber(text.substr(at + kKey.size()));
  if (!kib.has_value() || *kib > (uint64_t{1} << 50)) return std::nullopt;
  return *kib * 1024;
}

std::optional<uint64_t> FreeOfControlGroup(std::string_view max, std::string_view current) {
  const std::optional<uint64_t> limit = LeadingNumber(max);  // "max": none
  const std::optional<uint64_t> used = LeadingNumber(current);
  if (!limit.has_value() || !used.has_value()) return std::nullopt;
  return *limit > *used ? *limit - *used : 0;
}

StatusOr<uint64_t> AvailableMemory() {
  TITAN_ASSIGN_OR_RETURN(const std::string meminfo, ReadFile("/proc/meminfo"));
  std::optional<uint64_t> free = AvailableFromMeminfo(meminfo);
  if (!free.has_value()) {
    return Unavailable("/proc/meminfo has no MemAvailable");
  }
  const auto max = ReadFile("/sys/fs/cgroup/memory.max");
  const auto current = ReadFile("/sys/fs/cgroup/memory.current");
  if (max.ok() && current.ok()) {
    free = std::min(*free, FreeOfControlGroup(*max, *current).value_or(*free));
  }
  return *free;
}

std::string MemoryName() {
  const auto boot = ReadFile("/proc/sys/kernel/random/boot_id");
  std::error_code unknown;
  const std::string group = std::filesystem::read_symlink("/proc/self/ns/cgroup", unknown).string();
  if (!boot.ok() || unknown) return "";
  return boot->substr(0, boot->find('\n')) + " " + group;
}

std::optional<MemoryTurn> MemoryTurn::Try() {
  const int fd = ::open("/dev/shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return MemoryTurn(-1);
  MemoryTurn turn(fd);
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return std::nullopt;
  return turn;
}

MemoryTurn::~MemoryTurn() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace titan::runtime
