// SPDX-License-Identifier: Apache-2.0
// The TCP lane of the weight store: bytes as a request and as an answer, the check made right so
// that what lies behind it is reached; ranges that were accepted are packed out of a real slot.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "core/base/hash.h"
#include "weightstore/transport/pack.h"
#include "weightstore/transport/wire.h"

using namespace titan;
using namespace titan::weightstore::lanes;

namespace {

template <size_t kBytes>
std::array<std::byte, kBytes> WithCheck(const uint8_t* data, size_t size, bool right) {
  std::array<std::byte, kBytes> bytes = {};
  if (size > 0) std::memcpy(bytes.data(), data, std::min(size, kBytes));
  if (right) {
    const uint64_t check = Hash64(bytes.data(), kBytes - sizeof(check));
    std::memcpy(bytes.data() + kBytes - sizeof(check), &check, sizeof(check));
  }
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<std::byte> slot(4096);
  for (const bool right : {false, true}) {
    const auto bytes = WithCheck<kRequestBytes>(data, size, right);
    const auto request = ParseRequest(bytes);
    if (request.ok()) {
      if (EncodeRequest(*request) != bytes) std::abort();  // one request, one form
      const auto wanted = CheckRange(*request, slot.size());
      if (wanted.ok() && *wanted <= kMaxAnswerBytes) {
        std::vector<std::byte> out(*wanted);
        PackRuns(slot, request->offset, request->length,
                 std::span(request->loops).first(request->num_loops), out.data());
      }
    }
    const auto answer = ParseAnswer(WithCheck<kAnswerBytes>(data, size, right));
    if (answer.ok() && answer->length > kMaxAnswerBytes) std::abort();
  }
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)DecodeError(StatusCode::kAborted, text);
  return 0;
}
