// SPDX-License-Identifier: Apache-2.0
// titanctl: starts an embedded cluster, submits jobs and looks at them. The command line is read
// first and by itself; gRPC is touched by the commands that need it.
#include <iostream>

#include "clients/cli/arguments.h"
#include "clients/cli/commands.h"
#include "core/base/exit_codes.h"
#include "core/runtime/log.h"

int main(int argc, char** argv) {
  titan::cli::Arguments arguments;
  const auto answer = titan::cli::ParseArguments({argv + 1, argv + argc}, &arguments);
  if (answer.has_value()) {
    (answer->exit_code == titan::kExitOk ? std::cout : std::cerr) << answer->text;
    return answer->exit_code;
  }
  titan::runtime::InitLog(
      {.level = titan::runtime::LogLevel::kError});  // the terminal is for people
  return titan::cli::Run(arguments);
}
