// SPDX-License-Identifier: Apache-2.0
//
// The methods of a service as a fuzz target: the first byte of an input names one, unless
// `--method NAME` on the command line pins it; the rest is what it is given.
#ifndef TITAN_TESTS_FUZZ_METHODS_H_
#define TITAN_TESTS_FUZZ_METHODS_H_

#include <google/protobuf/message.h>
#include <google/protobuf/stubs/logging.h>
#include <malloc.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tests/fuzz/message_mutator.h"

namespace titan::fuzz {

struct Method {
  const char* name;
  const google::protobuf::Message* prototype;  // null: not one message
  std::function<void(const uint8_t*, size_t)> run;
};

class Methods {
 public:
  explicit Methods(std::vector<Method> all) : all_(std::move(all)) {}

  // What LLVMFuzzerInitialize of such a target does.
  void Initialize(int argc, char** argv) {
    mallopt(M_ARENA_MAX, 2);                   // the driver limits the address space
    google::protobuf::SetLogHandler(nullptr);  // bytes that do not decode are no news
    for (int i = 1; i + 1 < argc; ++i) {
      if (std::strcmp(argv[i], "--method") != 0) continue;
      for (size_t k = 0; k < all_.size(); ++k) {
        if (std::strcmp(all_[k].name, argv[i + 1]) == 0) pinned_ = k;
      }
      if (pinned_.has_value()) continue;
      std::fprintf(stderr, "no method %s\n", argv[i + 1]);
      std::abort();
    }
  }
  // A seed of another method is still bytes that decode to something. REQUIRES: size > 0.
  void Run(const uint8_t* data, size_t size) const { Of(data).run(data + 1, size - 1); }
  // As LLVMFuzzerCustomMutator; the method stays.
  size_t Mutate(uint8_t* data, size_t size, size_t max_size, unsigned int seed,
                std::span<const char* const> words) const {
    if (size == 0) return 0;
    const Method& method = Of(data);
    if (method.prototype == nullptr) return size;
    return 1 + MutateBytes(*method.prototype, data + 1, size - 1, max_size - 1, seed, words);
  }

 private:
  const Method& Of(const uint8_t* data) const {
    return all_[pinned_.value_or(data[0] % all_.size())];
  }

  const std::vector<Method> all_;
  std::optional<size_t> pinned_;
};

}  // namespace titan::fuzz

#endif  // TITAN_TESTS_FUZZ_METHODS_H_
