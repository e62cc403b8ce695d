// SPDX-License-Identifier: Apache-2.0
#include "core/storage/key_value_store.h"

namespace titan::storage {

void WriteBatch::Put(std::string_view key, std::string_view value) {
  operations_.push_back({Operation::Kind::kPut, std::string(key), std::string(value)});
}

void WriteBatch::Erase(std::string_view key) {
  operations_.push_back({Operation::Kind::kErase, std::string(key), {}});
}

void WriteBatch::EraseRange(std::string_view begin, std::string_view end) {
  operations_.push_back({Operation::Kind::kEraseRange, std::string(begin), std::string(end)});
}

std::string BigEndianKey(uint64_t number) {
  std::string key(8, '\0');
  for (int i = 7; i >= 0; --i, number >>= 8) key[i] = static_cast<char>(number & 0xff);
  return key;
}

std::optional<uint64_t> NumberFromBigEndianKey(std::string_view bytes) {
  if (bytes.size() < 8) return std::nullopt;
  uint64_t number = 0;
  for (int i = 0; i < 8; ++i) number = number << 8 | static_cast<unsigned char>(bytes[i]);
  return number;
}

std::string PrefixEnd(std::string_view prefix) {
  std::string end(prefix);
  while (!end.empty() && static_cast<unsigned char>(end.back()) == 0xff) end.pop_back();
  if (!end.empty()) end.back() = static_cast<char>(static_cast<unsigned char>(end.back()) + 1);
  return end;
}

}  // namespace titan::storage
