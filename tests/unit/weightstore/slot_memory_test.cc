// SPDX-License-Identifier: Apache-2.0
//
// Goal: a slot has all its pages at once, huge ones as it says, and every map of it lies where the
// kernel can use them. Oracle: the kernel's own account of the maps.
#include "weightstore/slot_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

namespace titan::weightstore {
namespace {

constexpr uint64_t kBytes = 2 * kHugePageBytes + 12 * 4096;

// A figure of /proc/self/smaps for the map that starts there, in bytes.
uint64_t Figure(const void* start, const std::string& name) {
  std::ifstream maps("/proc/self/smaps");
  std::ostringstream head;
  head << std::hex << reinterpret_cast<uintptr_t>(start) << "-";
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("-") < line.find(":")) here = line.starts_with(head.str());
    if (here && line.starts_with(name + ":"))
      return std::stoull(line.substr(name.size() + 1)) * 1024;
  }
  ADD_FAILURE() << "no " << name << " of the map at " << head.str();
  return 0;
}

// MADV_COLLAPSE works on a memory file that is there in small pages.
bool SystemMakesHugePages() {
  const UniqueFd file(memfd_create("probe", MFD_CLOEXEC));
  if (ftruncate(file.get(), 2 * kHugePageBytes) != 0) return false;
  void* map = mmap(nullptr, 2 * kHugePageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (map == MAP_FAILED) return false;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(map) + kHugePageBytes - 1) / kHugePageBytes;
  std::memset(map, 1, 2 * kHugePageBytes);
  const bool made = madvise(reinterpret_cast<void*>(begin * kHugePageBytes), kHugePageBytes,
                            /*MADV_COLLAPSE*/ 25) == 0;
  munmap(map, 2 * kHugePageBytes);
  return made;
}

TEST(SlotMemoryTest, TellsHowMuchOfItIsInHugePages) {
  const auto slot = SlotMemory::Create(7, kBytes, SlotMemory::Writer::kDaemon);
  ASSERT_TRUE(slot.ok()) << slot.status();
  std::byte* bytes = (*slot)->writable_bytes().data();
  struct stat taken = {};
  ASSERT_EQ(fstat((*slot)->DuplicateForReader()->get(), &taken), 0);
  EXPECT_GE(static_cast<uint64_t>(taken.st_blocks) * 512, kBytes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes) % kHugePageBytes, 0u);
  std::memset(bytes, 1, kBytes);
  EXPECT_EQ((*slot)->huge_bytes(), Figure(bytes, "ShmemPmdMapped"));
  EXPECT_EQ(Figure(bytes, "Rss"), kBytes);
  if (SystemMakesHugePages()) {
    EXPECT_EQ((*slot)->huge_bytes(), 2 * kHugePageBytes);
  }
}

TEST(SlotMemoryTest, ReadersSeeTheBytesInTheSamePages) {
  const auto slot = SlotMemory::Create(8, kBytes, SlotMemory::Writer::kDaemon);
  ASSERT_TRUE(slot.ok()) << slot.status();
  for (uint64_t i = 0; i < kBytes; i += 4096) {
    EXPECT_EQ((*slot)->bytes()[i], std::byte{0});
    (*slot)->writable_bytes()[i] = static_cast<std::byte>(i / 4096 % 251);
  }
  const auto file = (*slot)->DuplicateForReader();
  ASSERT_TRUE(file.ok());
  const auto map = MappedMemory::Map(file->get(), kBytes, /*writable=*/false);
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(map->data()) % kHugePageBytes, 0u);
  for (uint64_t i = 0; i < kBytes; i += 4096) {
    ASSERT_EQ(map->data()[i], static_cast<std::byte>(i / 4096 % 251)) << i;
  }
  EXPECT_EQ(Figure(map->data(), "ShmemPmdMapped"), (*slot)->huge_bytes());
}

TEST(SlotMemoryTest, OneOfLessThanAHugePageHasSmallOnes) {
  const auto slot = SlotMemory::Create(9, 3 * 4096, SlotMemory::Writer::kDaemon);
  ASSERT_TRUE(slot.ok()) << slot.status();
  EXPECT_EQ((*slot)->huge_bytes(), 0u);
  EXPECT_EQ((*slot)->bytes().size(), 3u * 4096);
}

}  // namespace
}  // namespace titan::weightstore
