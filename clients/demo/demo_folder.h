// SPDX-License-Identifier: Apache-2.0
//
// The folder of the demo: whose it is, and what of it a later run may delete. Any thread; calls
// block.
#ifndef TITAN_CLIENTS_DEMO_DEMO_FOLDER_H_
#define TITAN_CLIENTS_DEMO_DEMO_FOLDER_H_

#include <string>

#include "core/base/status.h"

namespace titan::demo {

// Says in the folder that this program made it, so that a later run may delete what this one
// leaves. InvalidArgument: a cluster stands there without that word; it is somebody else's.
Status ClaimFolder(const std::string& folder, const std::string& cluster_folder);

// Deletes what a cluster of the demo wrote into its folder: locks, state, configurations, logs,
// the folders of its daemons. InvalidArgument: something else lies there; then nothing is deleted.
// REQUIRES: no cluster runs there.
Status RemoveClusterFiles(const std::string& cluster_folder);

}  // namespace titan::demo

#endif  // TITAN_CLIENTS_DEMO_DEMO_FOLDER_H_
