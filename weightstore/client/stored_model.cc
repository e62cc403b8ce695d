// SPDX-License-Identifier: Apache-2.0
#include "weightstore/client/stored_model.h"

#include <algorithm>

namespace titan::weightstore {
namespace {

constexpr size_t kMaxName = 64;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

uint64_t StoredModel::num_bytes() const {
  uint64_t bytes = bundle_bytes;
  for (const TensorEntry& tensor : manifest->tensors) bytes += tensor.num_bytes;
  return bytes;
}

std::string StoredModelId(const Hash128& weights_digest, const std::string& bundle) {
  const std::string content = ToHex(weights_digest) + bundle;
  return ToHex(Hash128Of(content.data(), content.size(), 0));
}

Status CheckModelName(const std::string& name) {
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '_' ||
           c == '-';
  });
  if (name.empty() || name.size() > kMaxName || !plain || name[0] == '-' || name[0] == '.') {
    return InvalidArgument("name '" + name.substr(0, kMaxName) +
                           "': wants 1 to 64 letters, digits, '.', '_' or '-', and a letter, "
                           "digit or '_' first");
  }
  Hash128 ignored;
  if (FromHex(name, &ignored)) {
    return InvalidArgument("name '" + name + "': 32 hex digits are an id, choose another name");
  }
  if (name.starts_with("job-")) {
    return InvalidArgument("name '" + name + "': names that begin with job- are those of jobs");
  }
  return OkStatus();
}

Status CheckBlob(const Hash128& digest, std::optional<uint64_t> num_bytes, std::string_view bytes) {
  if (num_bytes.has_value() && bytes.size() != *num_bytes) {
    return DataLoss("blob " + ToHex(digest) + " of the weight store is damaged: it has " +
                    std::to_string(bytes.size()) + " bytes, " + std::to_string(*num_bytes) +
                    " were stored");
  }
  const Hash128 found = Hash128Of(bytes.data(), bytes.size(), 0);
  if (found == digest) return OkStatus();
  return DataLoss("blob " + ToHex(digest) +
                  " of the weight store is damaged: its bytes have digest " + ToHex(found));
}

}  // namespace titan::weightstore
