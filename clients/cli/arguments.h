// SPDX-License-Identifier: Apache-2.0
//
// What stands on titanctl's command line, parsed. Reads nothing but argv: no file, no socket, so
// that help and wrong use answer at once.
#ifndef TITAN_CLIENTS_CLI_ARGUMENTS_H_
#define TITAN_CLIENTS_CLI_ARGUMENTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "clients/cli/exit_codes.h"

namespace CLI {
class App;
}

namespace titan::cli {

// Options that most commands share.
struct Common {
  std::string data = "titan-data";  // data folder of the embedded cluster
  std::string address;              // orchestrator host:port instead of the data folder's
  bool json = false;                // -o json
};

struct UpOptions {
  std::string config;  // ClusterConfig file; may be empty
  int generators = 0;  // 0: as the config says
  bool print_config = false;
  bool check_config = false;
};

struct SubmitOptions {
  std::string file;
  bool watch = false;
  bool check = false;
  bool print_config = false;
  std::vector<std::string> set;  // path=value
};

struct RolloutOptions {
  std::optional<uint64_t> step;
  std::vector<std::string> groups;  // ids as printed
  int limit = 20;                   // groups
  bool texts = false;               // without the tokens
};

struct ChatOptions {
  std::optional<uint64_t> version;
  std::string message;  // empty: a conversation, line by line
  std::string system;
  float temperature = 1;
  int max_new_tokens = 256;
  uint64_t seed = 0;
};

struct ReportOptions {
  std::string file;  // empty: <job>.html
};

struct LogOptions {
  std::string daemon;  // empty: all
  bool follow = false;
  int lines = 100;  // 0: all
};

struct MetricsOptions {
  std::string daemon;  // empty: all
  std::string name;    // part of the metric's name
  bool raw = false;    // the exposition text
};

struct DoctorOptions {
  std::string job;     // file
  std::string config;  // ClusterConfig file
};

struct DataOptions {
  std::string file;
  std::string name;
};

struct WeightsOptions {
  std::string name;   // JOB, JOB@VERSION or a model; of `ls` a job, empty: all; of `import` a path;
                      // of `diff` also a path
  std::string other;  // of `diff`: what `name` is compared with
  std::string to;     // of `export`: the folder to write
  std::string id;     // of `import`: a name beside the id; empty: none
  bool without_tokenizer = false;  // of `import`
  bool all = false;                // of `ls`: also versions that are only a record
  uint32_t keep = 0;               // of `gc`: kept versions of so many jobs stay
  bool yes = false;                // of `gc`: delete
};

struct Arguments {
  std::string command;  // "submit", "completion"; empty: none was given
  Common common;
  UpOptions up;
  int report_fd = -1;  // of the hidden command `supervise`
  SubmitOptions submit;
  std::string job;
  std::string reason = "cancelled by user";
  RolloutOptions rollouts;
  ChatOptions chat;
  ReportOptions report;
  LogOptions logs;
  MetricsOptions metrics;
  DoctorOptions doctor;
  DataOptions upload;
  std::string data_id;
  WeightsOptions weights;
  std::string shell;  // of `completion`
};

// Builds the parser; it writes into `arguments`, which must outlive it.
std::unique_ptr<CLI::App> MakeParser(Arguments* arguments);

// A run that ends with the command line: the text and the stream it belongs to.
struct Answer {
  int exit_code = kExitOk;
  std::string text;
};
// Fills `arguments`; an answer when there is nothing to run: --help, --version, wrong use (exit
// code 2, with the nearest name of a misspelt command or option).
std::optional<Answer> ParseArguments(const std::vector<std::string>& words, Arguments* arguments);

// The script that completes commands and options in `shell`: bash or zsh.
std::string CompletionScript(const CLI::App& parser, const std::string& shell);

}  // namespace titan::cli

#endif  // TITAN_CLIENTS_CLI_ARGUMENTS_H_
