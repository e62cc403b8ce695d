// SPDX-License-Identifier: Apache-2.0
#include "weightstore/transport/rma_source.h"

#include <cstring>

namespace titan::weightstore::lanes {
namespace {

using titan::transport::RmaWindowKey;

constexpr uint64_t kMagic = 0x31435253414d5254;  // "TRMASRC1"

// Numbers little-endian; a text is its length and its bytes.
class Writer {
 public:
  explicit Writer(std::vector<std::byte>* out) : out_(out) {}
  void Put(uint64_t value) { Append(&value, sizeof(value)); }
  void Put(const std::string& text) {
    Put(text.size());
    Append(text.data(), text.size());
  }
  void Put(const RmaWindowKey& key) {
    Put(key.address);
    Put(key.bytes);
    Put(key.key);
    Put(key.file);
  }

 private:
  void Append(const void* data, size_t size) {
    const auto* bytes = static_cast<const std::byte*>(data);
    out_->insert(out_->end(), bytes, bytes + size);
  }
  std::vector<std::byte>* const out_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> rest) : rest_(rest) {}
  uint64_t Number() {
    uint64_t value = 0;
    Take(&value, sizeof(value));
    return value;
  }
  std::string Text() {
    const uint64_t size = Number();
    if (size > rest_.size()) good_ = false;
    std::string text(good_ ? size : 0, '\0');
    Take(text.data(), text.size());
    return text;
  }
  RmaWindowKey Key() {
    RmaWindowKey key;
    key.address = Number();
    key.bytes = Number();
    key.key = Text();
    key.file = Text();
    return key;
  }
  bool good() const { return good_; }

 private:
  void Take(void* to, size_t size) {
    if (size > rest_.size()) good_ = false;
    if (!good_ || size == 0) return;
    std::memcpy(to, rest_.data(), size);
    rest_ = rest_.subspan(size);
  }
  std::span<const std::byte> rest_;
  bool good_ = true;
};

}  // namespace

StatusOr<std::vector<std::byte>> EncodeRmaSource(const RmaSource& source) {
  std::vector<std::byte> bytes;
  Writer out(&bytes);
  out.Put(kMagic);
  out.Put(source.slot_id);
  out.Put(source.address);
  out.Put(source.bytes);
  out.Put(source.header);
  if (bytes.size() > kRmaSourceBytes) {
    return Internal("where a slot's windows are takes " + std::to_string(bytes.size()) +
                    " bytes, an answer has " + std::to_string(kRmaSourceBytes) +
                    "; name one adapter by rdma_device");
  }
  bytes.resize(kRmaSourceBytes);
  return bytes;
}

StatusOr<RmaSource> ParseRmaSource(std::span<const std::byte> bytes) {
  Reader in(bytes);
  const bool known = in.Number() == kMagic;
  RmaSource source;
  source.slot_id = in.Number();
  source.address = in.Text();
  source.bytes = in.Key();
  source.header = in.Key();
  if (!known || !in.good()) return DataLoss("not the windows of a slot");
  return source;
}

}  // namespace titan::weightstore::lanes
