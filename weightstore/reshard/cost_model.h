// SPDX-License-Identifier: Apache-2.0
//
// What moving a region costs, in whole picoseconds, so that every machine makes the same plan from
// the same numbers. Pure functions, any thread.
#ifndef TITAN_WEIGHTSTORE_RESHARD_COST_MODEL_H_
#define TITAN_WEIGHTSTORE_RESHARD_COST_MODEL_H_

#include <cstdint>

namespace titan::weightstore::reshard {

// How a region travels.
enum class Method : uint8_t {
  kDirect = 1,    // one read for each contiguous run, into its place
  kOverRead = 2,  // the range around all runs as one read, the reader picks them out
  kPack = 3,      // the source gathers the runs, one read, the reader puts them into place
};

// time = reads * read + bytes * byte. The defaults are those of the lane tcp between two processes
// of one machine of two cores, as bench/weightstore measures them (tcp, cost/tcp_read,
// cost/tcp_packed_run, copy): a small read beside others on the way 20 us, 2 to 3 GB/s on the wire,
// 10 GB/s for a copy of long runs, 20 ns more for each run that is gathered or placed.
struct CostModel {
  uint64_t read_ps = 20'000'000;      // for each request, whatever its size
  uint64_t wire_ps_per_byte = 400;    // of the range that is read
  uint64_t copy_ps_per_byte = 100;    // gathering or placing in memory
  uint64_t run_ps = 20'000;           // start of each run that is gathered or placed
  uint64_t max_read_bytes = 4 << 20;  // larger ones are several reads
  bool can_pack = true;               // the source can gather

  friend bool operator==(const CostModel&, const CostModel&) = default;
};

// The lane of the same host: the slot is mapped, so runs are copied where they are.
CostModel MappedLaneCosts();

// A region in numbers. All at least 1; range_bytes >= num_runs * run_bytes.
struct RegionSize {
  uint64_t num_runs = 1;
  uint64_t run_bytes = 1;
  uint64_t range_bytes = 1;            // in the source, from the first byte to the last one
  bool destination_contiguous = true;  // packed bytes need no placing
};

struct Choice {
  Method method = Method::kDirect;
  uint64_t cost_ps = 0;  // saturates
};

uint64_t CostOf(const CostModel& model, const RegionSize& size, Method method);
// The cheapest; of equals the first one of kDirect, kOverRead, kPack.
Choice Cheapest(const CostModel& model, const RegionSize& size);

}  // namespace titan::weightstore::reshard

#endif  // TITAN_WEIGHTSTORE_RESHARD_COST_MODEL_H_
