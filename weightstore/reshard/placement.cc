// SPDX-License-Identifier: Apache-2.0
#include "weightstore/reshard/placement.h"

#include <cstring>
#include <string_view>

namespace titan::weightstore::reshard {
namespace {

class Encoder {
 public:
  template <typename Int>
  void Number(Int value) {
    char bytes[sizeof(value)];
    std::memcpy(bytes, &value, sizeof(value));
    bytes_.append(bytes, sizeof(value));
  }
  void Text(std::string_view text) {
    Number(static_cast<uint64_t>(text.size()));
    bytes_.append(text);
  }
  template <typename Int>
  void Numbers(const std::vector<Int>& values) {
    Number(static_cast<uint64_t>(values.size()));
    for (const Int value : values) Number(value);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

constexpr uint64_t kDigestForm = 1;  // changes with what Encoder is fed with

}  // namespace

Hash128 DigestOf(const Placement& placement) {
  Encoder encoder;
  encoder.Number(kDigestForm);
  encoder.Number(static_cast<uint64_t>(placement.tensors.size()));
  for (const TensorSpec& tensor : placement.tensors) {
    encoder.Text(tensor.name);
    encoder.Numbers(tensor.shape);
    encoder.Number(static_cast<uint8_t>(tensor.dtype));
    encoder.Number(static_cast<uint8_t>(tensor.layout));
  }
  encoder.Number(static_cast<uint64_t>(placement.participants.size()));
  for (const Participant& participant : placement.participants) {
    encoder.Number(participant.slot_bytes);
    encoder.Number(static_cast<uint64_t>(participant.fragments.size()));
    for (const Fragment& fragment : participant.fragments) {
      encoder.Number(fragment.tensor);
      encoder.Numbers(fragment.begin);
      encoder.Numbers(fragment.shape);
      encoder.Number(fragment.slot_offset);
      encoder.Numbers(fragment.strides);
    }
  }
  return Hash128Of(encoder.bytes().data(), encoder.bytes().size(), 0);
}

}  // namespace titan::weightstore::reshard
