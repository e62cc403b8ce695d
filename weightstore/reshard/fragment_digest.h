// SPDX-License-Identifier: Apache-2.0
//
// A rank's part of the weights digest (weightstore/client/weights_digest.h), from what it holds:
// the runs of 256 elements that lie wholly in a fragment. The parts of ranks that hold every
// element once add up to the digest of the whole weights. Any thread.
#ifndef TITAN_WEIGHTSTORE_RESHARD_FRAGMENT_DIGEST_H_
#define TITAN_WEIGHTSTORE_RESHARD_FRAGMENT_DIGEST_H_

#include <cstddef>
#include <span>
#include <vector>

#include "core/base/hash.h"
#include "core/base/status.h"
#include "weightstore/reshard/placement.h"

namespace titan::weightstore::reshard {

// InvalidArgument, naming the tensor: the last dimension is cut elsewhere than at a multiple of 256
// elements or its end, so that no rank has the bytes of some run; what Validate refuses of a
// fragment; a layout other than rows that is cut along its columns.
StatusOr<Hash128> FragmentDigest(const TensorSpec& tensor, const Fragment& fragment,
                                 std::span<const std::byte> slot);

// Participants and fragments whose parts are to be added: each box of a tensor once, by its first
// holder. out[p][i]: whether fragment i of participant p counts. InvalidArgument: "gap" as of
// CheckCovers; "overlap": two holders of a tensor hold boxes that meet and are not equal, so that
// no choice of whole fragments counts every element once.
StatusOr<std::vector<std::vector<bool>>> DigestShares(const Placement& placement);

}  // namespace titan::weightstore::reshard

#endif  // TITAN_WEIGHTSTORE_RESHARD_FRAGMENT_DIGEST_H_
