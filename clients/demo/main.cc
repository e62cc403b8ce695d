// SPDX-License-Identifier: Apache-2.0
// titan-demo: what `make demo` runs.
#include <CLI/CLI.hpp>

#include "clients/demo/demo.h"
#include "core/runtime/log.h"
#include "core/runtime/shutdown.h"

int main(int argc, char** argv) {
  titan::runtime::InitLog(
      {.level = titan::runtime::LogLevel::kError});  // the terminal is for people
  titan::runtime::ShutdownSignal signal(             // before any other thread
      {"titan-demo: interrupted twice; left at once, its daemons end by themselves", 130});
  CLI::App app("Trains SmolLM2-135M on additions with every daemon on this machine.", "titan-demo");
  titan::demo::DemoOptions options;
  options.model = TITAN_DEMO_MODEL;
  options.output = "demo";
  app.add_option("--steps", options.steps, "Training steps")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Seed of the job")
      ->check([](const std::string& text) {
        return text.starts_with("-") ? "must not be negative" : std::string();
      })
      ->capture_default_str();
  app.add_option("--output", options.output, "Folder of data, logs and result.json")
      ->capture_default_str();
  app.add_option("--model", options.model, "GGUF file of the model")->capture_default_str();
  app.add_option("--cluster", options.cluster_config, "Cluster configuration, strict JSON")
      ->check(CLI::ExistingFile);
  app.footer("Example:\n  titan-demo --steps 40 --seed 1 --output build/demo");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  return titan::demo::RunDemo(options, signal);
}
