// SPDX-License-Identifier: Apache-2.0
//
// Mutations of a message that know its fields: numbers at the edges of their types, words that mean
// something to the target, parts added and taken away. For fuzz targets; not thread-safe.
#ifndef TITAN_TESTS_FUZZ_MESSAGE_MUTATOR_H_
#define TITAN_TESTS_FUZZ_MESSAGE_MUTATOR_H_

#include <google/protobuf/message.h>

#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <span>
#include <string>

#include "core/base/hash.h"

namespace titan::fuzz {

class Dice {
 public:
  explicit Dice(uint64_t seed) : seed_(seed) {}
  uint64_t Next() { return HashFields(seed_, ++count_); }
  uint64_t Below(uint64_t n) { return n == 0 ? 0 : Next() % n; }

 private:
  uint64_t seed_;
  uint64_t count_ = 0;
};

inline uint64_t Number(Dice* dice) {
  constexpr uint64_t kNumbers[] = {0,       1,          2,          3,           255,
                                   65535,   65536,      0x7fffffff, 0x80000000u, 0xffffffffu,
                                   1 << 17, 1ull << 40, 1ull << 63, ~0ull,       ~0ull - 1};
  return dice->Below(3) == 0 ? dice->Next() : kNumbers[dice->Below(std::size(kNumbers))];
}

inline double Real(Dice* dice) {
  constexpr double kReals[] = {0.0, -0.0, 1.0, -1.0, 0.5, 1e-320, 1e300, -1e300, 1e-3, 100.0};
  const uint64_t kind = dice->Below(14);
  if (kind == 0) return std::numeric_limits<double>::quiet_NaN();
  if (kind == 1) return std::numeric_limits<double>::infinity();
  if (kind == 2) return -std::numeric_limits<double>::infinity();
  return kReals[dice->Below(std::size(kReals))];
}

inline std::string Text(Dice* dice, std::span<const char* const> words) {
  const uint64_t kind = dice->Below(8);
  if (kind == 0) return std::string(dice->Below(20000), static_cast<char>('a' + dice->Below(26)));
  std::string text = words[dice->Below(words.size())];
  if (kind == 1) text += words[dice->Below(words.size())];
  return text;
}

inline void MutateMessage(google::protobuf::Message* message, Dice* dice,
                          std::span<const char* const> words, int depth = 0);

inline void SetField(google::protobuf::Message* m, const google::protobuf::FieldDescriptor* f,
                     Dice* dice, std::span<const char* const> words, int depth) {
  using google::protobuf::FieldDescriptor;
  const auto* r = m->GetReflection();
  const bool many = f->is_repeated();
  switch (f->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      many ? r->AddInt32(m, f, static_cast<int32_t>(Number(dice)))
           : r->SetInt32(m, f, static_cast<int32_t>(Number(dice)));
      break;
    case FieldDescriptor::CPPTYPE_INT64:
      many ? r->AddInt64(m, f, static_cast<int64_t>(Number(dice)))
           : r->SetInt64(m, f, static_cast<int64_t>(Number(dice)));
      break;
    case FieldDescriptor::CPPTYPE_UINT32:
      many ? r->AddUInt32(m, f, static_cast<uint32_t>(Number(dice)))
           : r->SetUInt32(m, f, static_cast<uint32_t>(Number(dice)));
      break;
    case FieldDescriptor::CPPTYPE_UINT64:
      many ? r->AddUInt64(m, f, Number(dice)) : r->SetUInt64(m, f, Number(dice));
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      many ? r->AddDouble(m, f, Real(dice)) : r->SetDouble(m, f, Real(dice));
      break;
    case FieldDescriptor::CPPTYPE_FLOAT:
      many ? r->AddFloat(m, f, static_cast<float>(Real(dice)))
           : r->SetFloat(m, f, static_cast<float>(Real(dice)));
      break;
    case FieldDescriptor::CPPTYPE_BOOL:
      many ? r->AddBool(m, f, dice->Below(2) == 0) : r->SetBool(m, f, dice->Below(2) == 0);
      break;
    case FieldDescriptor::CPPTYPE_ENUM: {
      const int value = static_cast<int>(dice->Below(7)) - 1;
      many ? r->AddEnumValue(m, f, value) : r->SetEnumValue(m, f, value);
      break;
    }
    case FieldDescriptor::CPPTYPE_STRING:
      many ? r->AddString(m, f, Text(dice, words)) : r->SetString(m, f, Text(dice, words));
      break;
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (depth > 4) return;
      if (many && r->FieldSize(*m, f) > 0 && dice->Below(3) != 0) {
        const int at = static_cast<int>(dice->Below(static_cast<uint64_t>(r->FieldSize(*m, f))));
        MutateMessage(r->MutableRepeatedMessage(m, f, at), dice, words, depth + 1);
      } else {
        MutateMessage(many ? r->AddMessage(m, f) : r->MutableMessage(m, f), dice, words, depth + 1);
      }
      break;
  }
}

inline void MutateMessage(google::protobuf::Message* message, Dice* dice,
                          std::span<const char* const> words, int depth) {
  const auto* descriptor = message->GetDescriptor();
  if (descriptor->field_count() == 0) return;
  const auto* field = descriptor->field(
      static_cast<int>(dice->Below(static_cast<uint64_t>(descriptor->field_count()))));
  if (dice->Below(16) == 0) {
    message->GetReflection()->ClearField(message, field);
  } else {
    SetField(message, field, dice, words, depth);
  }
}

// The bytes of a message as LLVMFuzzerCustomMutator wants them changed; the new size, `size` if
// they do not decode or would become too long.
inline size_t MutateBytes(const google::protobuf::Message& prototype, uint8_t* data, size_t size,
                          size_t max_size, uint64_t seed, std::span<const char* const> words) {
  const std::unique_ptr<google::protobuf::Message> message(prototype.New());
  if (!message->ParseFromArray(data, static_cast<int>(size))) return size;
  Dice dice(seed);
  for (uint64_t count = 1 + dice.Below(3); count > 0; --count) {
    MutateMessage(message.get(), &dice, words);
  }
  const std::string bytes = message->SerializeAsString();
  if (bytes.size() > max_size) return size;
  std::memcpy(data, bytes.data(), bytes.size());
  return bytes.size();
}

}  // namespace titan::fuzz

#endif  // TITAN_TESTS_FUZZ_MESSAGE_MUTATOR_H_
