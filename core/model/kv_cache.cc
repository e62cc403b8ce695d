// SPDX-License-Identifier: Apache-2.0
#include "core/model/kv_cache.h"

#include <limits>
#include <string>

#include "core/kernels/attention.h"
#include "core/model/memory.h"

namespace titan::model {
namespace {

int64_t PageFloatsOf(const formats::ModelConfig& config) {
  return kernels::PageFloats(kernels::AttentionShape{.num_heads = config.num_heads,
                                                     .num_kv_heads = config.num_kv_heads,
                                                     .head_dim = config.head_dim,
                                                     .scale = 1});
}

}  // namespace

int64_t KvCache::PageBytes(const formats::ModelConfig& config) {
  return config.num_layers * PageFloatsOf(config) * static_cast<int64_t>(sizeof(float));
}

StatusOr<KvCache> KvCache::Create(const formats::ModelConfig& config, int64_t num_pages,
                                  kernels::Pool& pool) {
  if (num_pages < 1 || num_pages > std::numeric_limits<int32_t>::max()) {
    return InvalidArgument("kv cache: num_pages is " + std::to_string(num_pages) +
                           ", it must lie in 1..2147483647");
  }
  KvCache cache;
  cache.num_layers_ = config.num_layers;
  cache.num_pages_ = num_pages;
  cache.layer_floats_ = num_pages * PageFloatsOf(config);
  TITAN_ASSIGN_OR_RETURN(cache.memory_, AllocateFloats(cache.num_layers_ * cache.layer_floats_));
  TakePages(pool, cache.memory_.get(), cache.num_layers_ * cache.layer_floats_);
  return cache;
}

}  // namespace titan::model
