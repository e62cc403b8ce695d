// SPDX-License-Identifier: Apache-2.0
//
// Memory of a paged key-value cache, all layers. It holds floats only: which sequence uses which
// page, how often a page is shared, and when it is free is the owner's business. A page id means
// the same page in every layer: page p holds 16 consecutive positions of one sequence in each
// layer, in the form that core/kernels/attention.h defines.
//
// Not thread-safe; the engine thread owns it.
#ifndef TITAN_CORE_MODEL_KV_CACHE_H_
#define TITAN_CORE_MODEL_KV_CACHE_H_

#include <cstdint>

#include "core/base/status.h"
#include "core/formats/model_config.h"
#include "core/kernels/pool.h"
#include "core/model/memory.h"

namespace titan::model {

class KvCache {
 public:
  // Bytes of one page over all layers of the model.
  static int64_t PageBytes(const formats::ModelConfig& config);

  // Takes all pages of memory now, by the threads of the pool. ResourceExhausted: the system
  // refuses the memory; it refuses less than it lacks, so compare with what is free before.
  // InvalidArgument: num_pages < 1 or above 2^31 - 1.
  static StatusOr<KvCache> Create(const formats::ModelConfig& config, int64_t num_pages,
                                  kernels::Pool& pool = kernels::Pool::OfThisThread());

  KvCache(KvCache&&) = default;
  KvCache& operator=(KvCache&&) = default;

  // Base of one layer's pages, for BlockForward.
  float* layer(int index) { return memory_.get() + index * layer_floats_; }
  int num_layers() const { return num_layers_; }
  int64_t num_pages() const { return num_pages_; }
  int64_t bytes() const {
    return num_layers_ * layer_floats_ * static_cast<int64_t>(sizeof(float));
  }

 private:
  KvCache() = default;

  Floats memory_;
  int num_layers_ = 0;
  int64_t num_pages_ = 0;
  int64_t layer_floats_ = 0;
};

}  // namespace titan::model

#endif  // TITAN_CORE_MODEL_KV_CACHE_H_
