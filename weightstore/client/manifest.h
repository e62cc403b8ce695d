// SPDX-License-Identifier: Apache-2.0
//
// What lies where in a slot: the tensors of a run, in the layout in which kernels read them. The
// same for every version of a run. Values, any thread.
#ifndef TITAN_WEIGHTSTORE_CLIENT_MANIFEST_H_
#define TITAN_WEIGHTSTORE_CLIENT_MANIFEST_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/hash.h"
#include "core/base/status.h"

namespace titan::weightstore {

enum class DType : uint8_t { kF32 = 1, kF16 = 2, kBf16 = 3 };

// kRows: row-major. The kernels' execution layouts of a matrix [N][K], pad lanes are not part of
// the tensor: kPanels32, f32, [ceil(N / 32)][K][32]; kPanels32K2, bf16, [ceil(N / 32)][ceil(K /
// 2)][32][2], the even k in the upper half of each 32-bit word.
enum class Layout : uint8_t { kRows = 1, kPanels32 = 2, kPanels32K2 = 3 };
std::string_view NameOf(Layout layout);  // "rows", "panels32", "panels32k2"

struct TensorEntry {
  std::string name;            // canonical HF name
  std::vector<int64_t> shape;  // logical; empty = one element
  DType dtype = DType::kF32;
  Layout layout = Layout::kRows;
  uint64_t offset = 0;     // bytes from the slot's start
  uint64_t num_bytes = 0;  // with pad lanes

  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

// One rule or kernel of the numerics contract: its text, or the hash of what it computes.
struct ContractItem {
  std::string name;
  std::string value;

  friend bool operator==(const ContractItem&, const ContractItem&) = default;
};

struct Manifest {
  std::vector<TensorEntry> tensors;
  uint64_t slot_bytes = 0;
  std::string model_config_json;  // canonical text of the model's config
  std::string contract_forward;   // digest of the forward contract the weights are made under
  std::string contract_training;
  std::string numerics_mode = "f32";  // a word of the trainer's and the generators'
  std::string bundle;                 // blob of the model's bundle, 32 hex digits; "" = none
  // What the contract digests are made of, so that a mismatch can be named; may be empty.
  std::vector<ContractItem> contract_items;

  friend bool operator==(const Manifest&, const Manifest&) = default;
};

int ElementBytes(DType dtype);
std::string_view NameOf(DType dtype);  // "f32", ...
// InvalidArgument: another name.
StatusOr<DType> DTypeFromName(std::string_view name);

// Rows = elements of the last dimension; one element has one row of one column. REQUIRES: a tensor
// of a validated manifest.
int64_t NumRows(const TensorEntry& tensor);
int64_t NumColumns(const TensorEntry& tensor);

// InvalidArgument, naming the tensor and field: no tensors, empty or doubled names, negative or
// overflowing sizes, num_bytes that is not what shape, dtype and layout need, offsets that are not
// multiples of 64, overlap, or lie outside slot_bytes; a layout that does not fit the shape.
Status Validate(const Manifest& manifest);

// For people: the first item that is not the same in both, "item x is a there and b here"; one that
// both have before one that only one of them has. Empty: there is none, or a list is empty.
std::string DifferingItem(const std::vector<ContractItem>& there,
                          const std::vector<ContractItem>& here);

// Bytes for the leader's record, and back. DataLoss: not what EncodeManifest made.
std::string EncodeManifest(const Manifest& manifest);
StatusOr<Manifest> DecodeManifest(std::string_view bytes);
// Equal for equal manifests, whatever their contract_items.
Hash128 ManifestId(const Manifest& manifest);

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_CLIENT_MANIFEST_H_
