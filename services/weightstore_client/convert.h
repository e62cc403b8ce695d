// SPDX-License-Identifier: Apache-2.0
//
// Manifests, digests and failures of the weight store between their messages and their domain
// types. Pure functions, any thread.
#ifndef TITAN_SERVICES_WEIGHTSTORE_CLIENT_CONVERT_H_
#define TITAN_SERVICES_WEIGHTSTORE_CLIENT_CONVERT_H_

#include <string>
#include <string_view>

#include "core/base/hash.h"
#include "core/base/status.h"
#include "titan/weightstore/v1/weightstore.pb.h"
#include "weightstore/client/manifest.h"
#include "weightstore/client/remote_lease.h"
#include "weightstore/client/stored_model.h"

namespace titan::weightstore {

v1::Manifest ToProto(const Manifest& manifest);
// InvalidArgument, naming the field: Validate's problems, unknown dtypes or layouts.
StatusOr<Manifest> FromProto(const v1::Manifest& message);

// whole: with the manifest and the blobs, which FromProto wants.
v1::StoredModel ToProto(const StoredModel& model, bool whole);
StatusOr<StoredModel> FromProto(const v1::StoredModel& message);

v1::Lane ToProto(Lane lane);
// InvalidArgument: none that this program knows.
StatusOr<Lane> FromProto(v1::Lane lane);

// InvalidArgument, naming `field`: not 32 hex digits.
StatusOr<Hash128> DigestFromProto(std::string_view field, const std::string& hex);

// The reason of a failure (weightstore/client/reason.h) as the ErrorInfo that travels, and back. A
// failure without a reason passes unchanged.
Status ReasonToRpc(const Status& status);
Status ReasonFromRpc(const Status& status);

}  // namespace titan::weightstore

#endif  // TITAN_SERVICES_WEIGHTSTORE_CLIENT_CONVERT_H_
