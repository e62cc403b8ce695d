// SPDX-License-Identifier: Apache-2.0
//
// Defaults and checks of each daemon's configuration, in one place: for the daemon that starts with
// it and for the clients that write it. Looks at the CPU (cores, instruction sets) and does no
// other I/O, so that a config can be checked where nothing may start. Pure functions, any thread.
#ifndef TITAN_SERVICES_SETTINGS_SETTINGS_H_
#define TITAN_SERVICES_SETTINGS_SETTINGS_H_

#include <string>
#include <vector>

#include "services/rpc/config.h"
#include "titan/config/v1/daemons.pb.h"

namespace titan::settings {

// Every default, those of `daemon` included; a file is read over them. Fields without one stay
// empty: required ones, and those that say so in daemons.proto (limits measured at the start).
void FillDefaults(config::v1::OrchestratorConfig* config);
void FillDefaults(config::v1::GeneratorConfig* config);
void FillDefaults(config::v1::TrainerConfig* config);
void FillDefaults(config::v1::WeightStoreConfig* config);
void FillDefaults(config::v1::RewardConfig* config);

// Every check of a config with its defaults filled in: adds what is wrong, with the field's path
// ("daemon.listen").
void Validate(const config::v1::OrchestratorConfig& config, rpc::ConfigProblems* problems);
void Validate(const config::v1::GeneratorConfig& config, rpc::ConfigProblems* problems);
void Validate(const config::v1::TrainerConfig& config, rpc::ConfigProblems* problems);
void Validate(const config::v1::WeightStoreConfig& config, rpc::ConfigProblems* problems);
void Validate(const config::v1::RewardConfig& config, rpc::ConfigProblems* problems);

// Fields that are set but have no effect, one sentence each; `prefix` stands before their paths
// ("trainer." in a cluster's file).
std::vector<std::string> Warnings(const config::v1::DaemonConfig& daemon,
                                  const std::string& prefix);

// The weight store's unix socket: socket_path, or <data_folder>/ws.sock.
std::string SocketPathOf(const config::v1::WeightStoreConfig& config);

}  // namespace titan::settings

#endif  // TITAN_SERVICES_SETTINGS_SETTINGS_H_
