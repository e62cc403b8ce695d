// SPDX-License-Identifier: Apache-2.0
//
// Messages of orchestrator.v1, config.v1 and type.v1 to and from the orchestrator's own types. Pure
// functions, any thread.
#ifndef TITAN_SERVICES_ORCHESTRATOR_CONVERT_H_
#define TITAN_SERVICES_ORCHESTRATOR_CONVERT_H_

#include "core/base/status.h"
#include "orchestrator/journal.h"
#include "orchestrator/reports.h"
#include "orchestrator/worker_registry.h"
#include "titan/config/v1/job.pb.h"
#include "titan/orchestrator/v1/orchestrator.pb.h"

namespace titan::orchestrator {

// Fields that are not there get their documented defaults; `given` remembers the others. Nothing is
// checked: see CheckJobSpec.
JobSpec FromProto(const config::v1::JobSpec& proto);
// With every default filled in.
config::v1::JobSpec ToProto(const JobSpec& spec);

v1::StepReport ToProto(const StepReport& report);
StepReport FromProto(const v1::StepReport& proto);
v1::EvaluationReport ToProto(const EvaluationReport& report);
EvaluationReport FromProto(const v1::EvaluationReport& proto);
v1::Job ToProto(const JobInfo& job);

// InvalidArgument: the role is not one that registers.
StatusOr<WorkerRecord> FromProto(const v1::RegisterWorkerRequest& request);
type::v1::WorkerIdentity ToIdentity(const WorkerRecord& record);
WorkerName NameOf(const type::v1::WorkerIdentity& identity);

// Reports and specs as the bytes of these messages.
JournalCodec MakeJournalCodec();

}  // namespace titan::orchestrator

#endif  // TITAN_SERVICES_ORCHESTRATOR_CONVERT_H_
