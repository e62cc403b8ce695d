// SPDX-License-Identifier: Apache-2.0
//
// Puts settings.h into the frame of a daemon.
#ifndef TITAN_SERVICES_SETTINGS_DAEMON_SPEC_H_
#define TITAN_SERVICES_SETTINGS_DAEMON_SPEC_H_

#include "services/rpc/daemon.h"
#include "services/settings/settings.h"

namespace titan::settings {

// Defaults, checks and warnings of `spec`.
template <typename Config>
void UseSettings(rpc::DaemonSpec<Config>* spec) {
  spec->fill_defaults = [](Config* config) { FillDefaults(config); };
  spec->validate = [](const Config& config, rpc::ConfigProblems* problems) {
    Validate(config, problems);
  };
  spec->warnings = [](const Config& config) { return Warnings(config.daemon(), ""); };
}

}  // namespace titan::settings

#endif  // TITAN_SERVICES_SETTINGS_DAEMON_SPEC_H_
