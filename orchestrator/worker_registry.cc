// SPDX-License-Identifier: Apache-2.0
#include "orchestrator/worker_registry.h"

#include <utility>

#include "core/base/worker_id.h"

namespace titan::orchestrator {
namespace {

bool HasContract(WorkerRole role) {
  return role == WorkerRole::kGenerator || role == WorkerRole::kTrainer;
}

// The first item in which the contracts differ, for people: one that both name, and only then one
// that one of them names (a trainer has items that no generator has).
std::string DescribeDifference(const Contract& mine, const Contract& theirs) {
  for (const auto& [name, value] : mine.items) {
    const auto other = theirs.items.find(name);
    if (other == theirs.items.end() || other->second == value) continue;
    return "item " + name + " is " + value + " here and " + other->second + " there";
  }
  for (const auto& [one, two] : {std::pair(&mine, &theirs), std::pair(&theirs, &mine)}) {
    for (const auto& [name, value] : one->items) {
      if (two->items.count(name) != 0) continue;
      return "item " + name + " (" + value + ") stands in one contract only";
    }
  }
  return "the forward digest is " + mine.forward + " here and " + theirs.forward +
         " there, with equal items";
}

}  // namespace

Status WorkerRegistry::CheckContract(const WorkerRecord& record) const {
  if (!HasContract(record.ready.role)) return OkStatus();
  if (record.contract.forward.empty()) {
    return InvalidArgument("contract.forward: is required for generators and trainers");
  }
  for (const auto& [id, other] : workers_) {
    if (!HasContract(other.ready.role) || id == record.ready.name.worker_id) continue;
    if (other.contract.forward == record.contract.forward) continue;
    return FailedPrecondition("the numerics contract of " + record.ready.name.worker_id +
                              " differs from that of " + id + ": " +
                              DescribeDifference(record.contract, other.contract) +
                              "; run the same build and kernels on both");
  }
  return OkStatus();
}

const WorkerRecord* WorkerRegistry::Rival(const WorkerRecord& record) const {
  const WorkerRecord* known = Find(record.ready.name.worker_id);
  const bool rival = known != nullptr && known->ready.name != record.ready.name &&
                     known->address != record.address;
  return rival ? known : nullptr;
}

Status WorkerRegistry::CheckRival(const WorkerRecord& record, Instant now) const {
  const WorkerRecord* rival = Rival(record);
  if (rival == nullptr) return OkStatus();
  const std::string other = "another process is registered as worker " +
                            rival->ready.name.worker_id + " (pid " + std::to_string(rival->pid) +
                            ", listens at " + rival->address + ")";
  if (StateOf(*rival, now) == "ready") {
    return AlreadyExists(other + "; give one of them another daemon.worker_id, or end the other");
  }
  return Unavailable(other + " and is silent; it is lost when it stays so");
}

StatusOr<WorkerRegistry::Registered> WorkerRegistry::Register(WorkerRecord record, Instant now) {
  const WorkerReady& ready = record.ready;
  if (ready.name.worker_id.empty()) return InvalidArgument("worker.worker_id: is required");
  if (!IsWorkerId(ready.name.worker_id)) {
    return InvalidArgument(std::string("worker.worker_id: ") + kWorkerIdRule);
  }
  if (ready.name.incarnation.empty()) return InvalidArgument("worker.incarnation: is required");
  if (record.address.empty()) return InvalidArgument("worker.address: is required");
  if (ready.role == WorkerRole::kGenerator && ready.max_versions == 0) {
    return InvalidArgument("max_versions: must be at least 1 for a generator");
  }
  if (ready.role == WorkerRole::kGenerator && ready.max_running_sequences == 0) {
    return InvalidArgument("max_running_sequences: must be at least 1 for a generator");
  }
  if (ready.role == WorkerRole::kReward && ready.graders.empty()) {
    return InvalidArgument("graders: a reward service names at least one");
  }
  TITAN_RETURN_IF_ERROR(CheckContract(record));
  TITAN_RETURN_IF_ERROR(CheckRival(record, now));
  Registered result;
  const auto known = workers_.find(ready.name.worker_id);
  if (known != workers_.end()) {
    if (known->second.ready.name == ready.name) {
      known->second.last_heartbeat = now;
      return result;
    }
    result.replaced = known->second.ready.name;
  }
  result.fresh = true;
  record.last_heartbeat = now;
  const std::string id = ready.name.worker_id;
  workers_[id] = std::move(record);
  return result;
}

Status WorkerRegistry::Heartbeat(const WorkerName& name, Instant now) {
  const auto found = workers_.find(name.worker_id);
  if (found == workers_.end() || found->second.ready.name != name) {
    return NotFound("worker " + name.worker_id + " is not registered; register again");
  }
  found->second.last_heartbeat = now;
  return OkStatus();
}

std::vector<WorkerName> WorkerRegistry::Expire(Instant now) {
  if (last_expire_.has_value() && now - *last_expire_ > timeout_ / 2) {
    for (auto& [id, record] : workers_) record.last_heartbeat += now - *last_expire_;
  }
  last_expire_ = now;
  std::vector<WorkerName> lost;
  for (const auto& [id, record] : workers_) {
    if (now - record.last_heartbeat > timeout_) lost.push_back(record.ready.name);
  }
  for (const WorkerName& name : lost) workers_.erase(name.worker_id);
  return lost;
}

bool WorkerRegistry::Remove(const WorkerName& name) {
  const auto found = workers_.find(name.worker_id);
  if (found == workers_.end() || found->second.ready.name != name) return false;
  workers_.erase(found);
  return true;
}

const WorkerRecord* WorkerRegistry::Find(const std::string& worker_id) const {
  const auto found = workers_.find(worker_id);
  return found == workers_.end() ? nullptr : &found->second;
}

std::string WorkerRegistry::StateOf(const WorkerRecord& record, Instant now) const {
  return now - record.last_heartbeat > timeout_ / 2 ? "suspect" : "ready";
}

}  // namespace titan::orchestrator
