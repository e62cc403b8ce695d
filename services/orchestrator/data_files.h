// SPDX-License-Identifier: Apache-2.0
//
// Data files that users uploaded, by content: <folder>/<id>.jsonl and <id>.json (name, size, rows,
// time), where id is the hash of the bytes in 32 hex digits. A file appears whole or not at all.
// Thread-safe; calls block.
#ifndef TITAN_SERVICES_ORCHESTRATOR_DATA_FILES_H_
#define TITAN_SERVICES_ORCHESTRATOR_DATA_FILES_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "titan/orchestrator/v1/orchestrator.pb.h"

namespace titan::orchestrator {

class DataFiles {
 public:
  explicit DataFiles(std::string folder) : folder_(std::move(folder)) {}

  // Before the first file is stored: so that power loss does not take the folder with what is in
  // it.
  Status MakeFolder() const;

  // Checks every row and stores the bytes. InvalidArgument: "<name>:<line>: <field>: ..." of the
  // first row that cannot be used, or no row at all; ResourceExhausted: the disk is full; the
  // system's reason where what is there cannot be read. `existed`: the same bytes were there
  // before; what is damaged is written anew.
  StatusOr<v1::DataInfo> Store(const std::string& name, const std::string& bytes, int64_t unix_ms,
                               bool* existed) const;
  // The bytes. NotFound names the id; DataLoss: they are not what was stored.
  StatusOr<std::string> Read(const std::string& id) const;
  // Deletes a file and answers what it was. NotFound names the id.
  StatusOr<v1::DataInfo> Remove(const std::string& id) const;
  // Ascending by time of storing.
  StatusOr<std::vector<v1::DataInfo>> List() const;

 private:
  const std::string folder_;
  mutable std::mutex storing_;
};

// The id of bytes.
std::string DataIdOf(const std::string& bytes);

}  // namespace titan::orchestrator

#endif  // TITAN_SERVICES_ORCHESTRATOR_DATA_FILES_H_
