// SPDX-License-Identifier: Apache-2.0
//
// Job files as people write them: strict JSON of config.v1.JobSpec, which may build on another file
// ("extends": "base.json", from the folder of the file that says so) and be changed by assignments
// of the command line. Later wins: base, file, assignments. data.path and data.id replace each other.
#ifndef TITAN_CLIENTS_CLUSTER_JOB_FILE_H_
#define TITAN_CLIENTS_CLUSTER_JOB_FILE_H_

#include <string>
#include <vector>

#include "core/base/status.h"
#include "services/rpc/config.h"
#include "titan/config/v1/job.pb.h"

namespace titan::cluster {

inline constexpr int kMaxExtends = 16;  // files in one chain

struct JobFile {
  config::v1::JobSpec spec;
  rpc::ConfigOrigins origins;  // of the fields that are set
};

// Reads the file, its bases and the assignments (path=value, of --set). Relative model.path and
// data.path are taken from the folder of the file that names them (from the working folder for
// assignments), made absolute and must exist; a job without one of them is left as it is.
// InvalidArgument: what is wrong, with file, line and column.
StatusOr<JobFile> ReadJobFile(const std::string& file,
                              const std::vector<std::string>& assignments = {});

}  // namespace titan::cluster

#endif  // TITAN_CLIENTS_CLUSTER_JOB_FILE_H_
