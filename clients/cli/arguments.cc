// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/arguments.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include <CLI/CLI.hpp>

#include "core/base/nearest_name.h"

namespace titan::cli {
namespace {

constexpr char kVersion[] = "titanctl 0.1.0";

// Adds commands and the options that several of them have.
class Builder {
 public:
  Builder(CLI::App* app, Arguments* arguments) : app_(app), args_(arguments) {}

  CLI::App* Command(const std::string& name, const std::string& summary,
                    const std::string& examples) {
    return Command(app_, name, name, summary, examples);
  }
  CLI::App* Command(CLI::App* parent, const std::string& name, const std::string& path,
                    const std::string& summary, const std::string& examples) {
    CLI::App* command = parent->add_subcommand(name, summary);
    command->footer("Examples:\n" + examples);
    command->callback([args = args_, path] { args->command = path; });
    return command;
  }
  // --data: the cluster of a data folder on this machine.
  void Local(CLI::App* command) {
    command->add_option("--data", args_->common.data, "Data folder of the cluster")
        ->capture_default_str();
  }
  // --data or --address.
  void Remote(CLI::App* command) {
    Local(command);
    command->add_option("--address", args_->common.address,
                        "Orchestrator host:port, instead of the data folder's cluster");
  }
  void Output(CLI::App* command) {
    command
        ->add_option_function<std::string>(
            "-o,--output",
            [args = args_](const std::string& v) { args->common.json = v == "json"; },
            "table (for people) or json (for programs)")
        ->check(CLI::IsMember({"table", "json"}))
        ->default_str("table");
  }
  void Job(CLI::App* command) { command->add_option("job", args_->job, "Job id")->required(); }

 private:
  CLI::App* const app_;
  Arguments* const args_;
};

void AddClusterCommands(CLI::App* app, Builder* builder, Arguments* args) {
  CLI::App* up = builder->Command("up", "Start every daemon on this machine",
                                  "  titanctl up --data run\n"
                                  "  titanctl up --data run --generators 1 --config cluster.json\n"
                                  "  titanctl up --config cluster.json --print_config");
  CLI::App* supervise = app->add_subcommand("supervise", "Run the supervisor in the foreground");
  supervise->callback([args] { args->command = "supervise"; });
  supervise->group("");  // not in the help: what `up` runs
  for (CLI::App* command : {up, supervise}) {
    builder->Local(command);
    command->add_option("--config", args->up.config, "Cluster configuration, strict JSON");
    command->add_option("--generators", args->up.generators, "Number of generators")
        ->check(CLI::Range(1, 64));
  }
  up->add_flag("--check_config", args->up.check_config, "Check the configuration and exit");
  up->add_flag("--print_config", args->up.print_config,
               "Print the resolved configuration and where each value came from, and exit");
  builder->Output(up);
  supervise->add_option("--report_fd", args->report_fd,
                        "Descriptor that gets the outcome of the start");
  CLI::App* down = builder->Command("down", "End every daemon", "  titanctl down --data run");
  builder->Local(down);
  builder->Output(down);
  CLI::App* status = builder->Command("status", "Show processes, workers and jobs",
                                      "  titanctl status --data run\n"
                                      "  titanctl status --data run -o json");
  builder->Remote(status);
  builder->Output(status);
}

void AddJobCommands(Builder* builder, Arguments* args) {
  CLI::App* submit = builder->Command(
      "submit", "Submit a job",
      "  titanctl submit job.json -w\n"
      "  titanctl submit job.json --set training.learning_rate=2e-6 --set schedule.steps=20\n"
      "  titanctl submit job.json --check");
  builder->Remote(submit);
  builder->Output(submit);
  submit->add_option("file", args->submit.file, "Job file, strict JSON; it may extend another one")
      ->required();
  submit->add_flag("-w,--watch", args->submit.watch, "Watch it until it ends; Ctrl-C detaches");
  submit->add_option("--set", args->submit.set, "path=value: change a field of the job; repeatable")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->type_name("PATH=VALUE");
  submit->add_flag("--check", args->submit.check,
                   "Say what the job would do and need, without submitting it");
  submit->add_flag("--print_config", args->submit.print_config,
                   "Print the resolved job and where each value came from, without submitting it");
  CLI::App* list = builder->Command("list", "List the jobs",
                                    "  titanctl list --data run\n"
                                    "  titanctl list -o json");
  builder->Remote(list);
  builder->Output(list);
  CLI::App* get = builder->Command("get", "Show one job: state, spec, results",
                                   "  titanctl get job-1\n"
                                   "  titanctl get job-1 -o json");
  builder->Remote(get);
  builder->Output(get);
  builder->Job(get);
  CLI::App* watch =
      builder->Command("watch", "Show the progress of a job until it ends; Ctrl-C detaches",
                       "  titanctl watch job-1\n"
                       "  titanctl watch job-1 -o json     one event a line");
  builder->Remote(watch);
  builder->Output(watch);
  builder->Job(watch);
  CLI::App* cancel =
      builder->Command("cancel", "End a job", "  titanctl cancel job-1 --reason 'wrong data'");
  builder->Remote(cancel);
  builder->Output(cancel);
  builder->Job(cancel);
  cancel->add_option("--reason", args->reason, "Shown in the job")->capture_default_str();
}

void AddLookCommands(Builder* builder, Arguments* args) {
  CLI::App* rollouts = builder->Command(
      "rollouts", "Read the rollouts of a job: texts, rewards, tokens with log-prob and version",
      "  titanctl rollouts job-1 --step 3\n"
      "  titanctl rollouts job-1 --group 0x0000000003000100\n"
      "  titanctl rollouts job-1 --texts --limit 4 -o json     one group a line");
  builder->Remote(rollouts);
  builder->Output(rollouts);
  builder->Job(rollouts);
  rollouts->add_option("--step", args->rollouts.step, "Only groups of this step; the first is 0");
  rollouts->add_option("--group", args->rollouts.groups, "Only this group, by its id; repeatable")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  rollouts->add_option("--limit", args->rollouts.limit, "At most this many groups")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  rollouts->add_flag("--texts", args->rollouts.texts, "Without the single tokens");
  CLI::App* chat = builder->Command(
      "chat", "Talk to a version that the generators of a running job hold",
      "  titanctl chat job-1\n"
      "  titanctl chat job-1 --version 3 --message 'What is 2 + 3?' --temperature 0");
  builder->Remote(chat);
  builder->Output(chat);
  builder->Job(chat);
  chat->add_option("--version", args->chat.version, "Policy version; default: the newest held");
  chat->add_option("--message", args->chat.message, "Say this and end; without it, line by line");
  chat->add_option("--system", args->chat.system, "System message");
  chat->add_option("--temperature", args->chat.temperature, "0 is greedy")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  chat->add_option("--max_new_tokens", args->chat.max_new_tokens, "Longest reply")
      ->check(CLI::Range(1, 1 << 17))
      ->capture_default_str();
  chat->add_option("--seed", args->chat.seed, "The same seed and messages give the same reply")
      ->capture_default_str();
  CLI::App* report =
      builder->Command("report", "Write one HTML file with curves and samples of a job",
                       "  titanctl report job-1\n"
                       "  titanctl report job-1 --out report.html");
  builder->Remote(report);
  builder->Output(report);
  builder->Job(report);
  report->add_option("--out", args->report.file, "File to write; default: JOB.html");
  CLI::App* logs = builder->Command("logs", "Show the logs of the daemons",
                                    "  titanctl logs --data run\n"
                                    "  titanctl logs trainer -n 20\n"
                                    "  titanctl logs -f generator");
  builder->Local(logs);
  builder->Output(logs);
  logs->add_option("daemon", args->logs.daemon, "Name of a daemon, or generator for all of them");
  logs->add_flag("-f,--follow", args->logs.follow, "Go on until Ctrl-C");
  logs->add_option("-n,--lines", args->logs.lines, "Last lines to show; 0: all")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  CLI::App* metrics = builder->Command("metrics", "Show the metrics of the daemons",
                                       "  titanctl metrics --data run\n"
                                       "  titanctl metrics orchestrator --name parity\n"
                                       "  titanctl metrics generator-0 --raw     Prometheus text");
  builder->Local(metrics);
  builder->Output(metrics);
  metrics->add_option("daemon", args->metrics.daemon,
                      "Name of a daemon, or generator for all of them");
  metrics->add_option("--name", args->metrics.name, "Only metrics with this in their name");
  metrics->add_flag("--raw", args->metrics.raw, "The text as the daemon gives it");
}

void AddDataCommands(CLI::App* app, Builder* builder, Arguments* args) {
  CLI::App* data = app->add_subcommand("data", "Store data files at the orchestrator");
  data->require_subcommand(1);
  data->footer(
      "Examples:\n  titanctl data upload questions.jsonl\n  titanctl data list\n"
      "  titanctl data rm ID");
  CLI::App* upload = builder->Command(
      data, "upload", "data upload", "Check a JSONL file and store it; prints the id for data.id",
      "  titanctl data upload questions.jsonl\n"
      "  titanctl submit job.json --set data.id=$(titanctl data upload questions.jsonl)");
  builder->Remote(upload);
  builder->Output(upload);
  upload->add_option("file", args->upload.file, "JSONL: one object a line with id, prompt, answer")
      ->required();
  upload->add_option("--name", args->upload.name, "For people; default: the file's name");
  CLI::App* list =
      builder->Command(data, "list", "data list", "List the stored files", "  titanctl data list");
  builder->Remote(list);
  builder->Output(list);
  CLI::App* removed = builder->Command(
      data, "rm", "data rm",
      "Delete a stored file that no job needs any more: neither one that runs nor one that is "
      "queued. Rollouts of ended jobs on it are then shown as tokens, without text",
      "  titanctl data rm $(titanctl data upload questions.jsonl)");
  builder->Remote(removed);
  builder->Output(removed);
  removed->add_option("id", args->data_id, "As data list shows it")->required();
}

void AddWeightsCommands(CLI::App* app, Builder* builder, Arguments* args) {
  CLI::App* weights = app->add_subcommand("weights",
                                          "Versions of a job's weights and stored models: list, "
                                          "check, compare, import, export, delete");
  weights->require_subcommand(1);
  weights->footer("Examples:\n  titanctl weights ls\n  titanctl weights verify job-1@3");
  CLI::App* ls = builder->Command(weights, "ls", "weights ls",
                                  "List versions and who holds them, stored models, checkpoints of "
                                  "jobs that run, and the disk",
                                  "  titanctl weights ls\n"
                                  "  titanctl weights ls job-1 --all");
  ls->add_option("job", args->weights.name, "Job id; default: all jobs, models and checkpoints");
  ls->add_flag("--all", args->weights.all, "Also versions that are neither in memory nor on disk");
  CLI::App* show =
      builder->Command(weights, "show", "weights show", "Show weights: digest, config, tensors",
                       "  titanctl weights show job-1\n"
                       "  titanctl weights show job-1@3 -o json");
  CLI::App* verify = builder->Command(weights, "verify", "weights verify",
                                      "Hash the bytes of weights and compare with their record",
                                      "  titanctl weights verify job-1@3\n"
                                      "  titanctl weights verify base");
  CLI::App* imported = builder->Command(
      weights, "import", "weights import",
      "Check a GGUF file or a Hugging Face folder in full and store it by its content, for "
      "model.id",
      "  titanctl weights import model.gguf --data run\n"
      "  titanctl weights import folder --id base     \"model\": {\"id\": \"base\"}");
  imported->add_option("path", args->weights.name, "GGUF file or Hugging Face folder")->required();
  imported->add_option("--id", args->weights.id, "Name for model.id, beside the id of the content");
  imported->add_flag(
      "--without_tokenizer", args->weights.without_tokenizer,
      "Leave tokenizer and chat template unread: for weights to export, not for jobs");
  CLI::App* exported = builder->Command(
      weights, "export", "weights export",
      "Write weights as a Hugging Face folder (f32 safetensors, tokenizer, chat template)",
      "  titanctl weights export job-1@3 --to exported\n"
      "  titanctl weights export job-1 --to exported     the newest version, also of an ended job");
  exported->add_option("--to", args->weights.to, "Folder to write; it must not exist or be empty")
      ->required();
  CLI::App* removed = builder->Command(weights, "rm", "weights rm",
                                       "Delete a stored model, or the kept version of an ended job",
                                       "  titanctl weights rm base\n"
                                       "  titanctl weights rm job-1");
  CLI::App* collected = builder->Command(
      weights, "gc", "weights gc",
      "Delete the kept versions of ended jobs but those of the newest; without --yes say which",
      "  titanctl weights gc --keep 3\n"
      "  titanctl weights gc --keep 3 --yes");
  collected
      ->add_option("--keep", args->weights.keep,
                   "The versions of that many ended jobs stay, the newest; models stay in any case")
      ->required();
  collected->add_flag("--yes", args->weights.yes, "Delete them");
  CLI::App* diff = builder->Command(
      weights, "diff", "weights diff",
      "Compare two sets of weights tensor by tensor; the exit code is that of diff: 0 equal, 1 "
      "different, 2 or more for trouble",
      "  titanctl weights diff base job-1       a stored model and the newest version of a job\n"
      "  titanctl weights diff base ./tuned     and a folder\n"
      "  titanctl weights diff base model.gguf -o json");
  for (const auto& [name, field] :
       {std::pair("a", &args->weights.name), std::pair("b", &args->weights.other)}) {
    diff->add_option(name, *field,
                     "JOB (its newest version), JOB@VERSION, a model's id or name, or a path: a "
                     "GGUF file or Hugging Face folder, with a '/' or ending in .gguf")
        ->required();
  }
  for (CLI::App* command : {show, verify, exported, removed}) {
    command
        ->add_option("weights", args->weights.name,
                     "JOB (its newest version), JOB@VERSION, or a model's id or name")
        ->required();
  }
  for (CLI::App* command : {ls, show, verify, imported, exported, removed, collected, diff}) {
    builder->Local(command);
    builder->Output(command);
  }
}

void AddToolCommands(Builder* builder, Arguments* args) {
  CLI::App* doctor = builder->Command(
      "doctor", "Check that this machine is fit: CPU, memory, limits, ports, clock, disk",
      "  titanctl doctor --data run\n"
      "  titanctl doctor --job job.json     and whether the job's memory is there");
  builder->Local(doctor);
  builder->Output(doctor);
  doctor->add_option("--job", args->doctor.job, "Job file whose model must fit");
  doctor->add_option(
      "--config", args->doctor.config,
      "Cluster configuration whose ports must be free, and whose generators the job needs");

  CLI::App* completion =
      builder->Command("completion", "Print a script that completes commands in a shell",
                       "  source <(titanctl completion bash)\n"
                       "  titanctl completion zsh > ~/.zfunc/_titanctl");
  completion->add_option("shell", args->shell, "bash or zsh")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh"}));
}

std::vector<const CLI::App*> VisibleCommands(const CLI::App& app) {
  std::vector<const CLI::App*> visible;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_group().empty()) visible.push_back(command);
  }
  return visible;
}

std::vector<std::string> OptionNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

const CLI::App* FindCommand(const CLI::App& app, const std::string& name) {
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() == name) return command;
  }
  return nullptr;
}

std::string PathOf(const CLI::App& app) {
  return app.get_parent() == nullptr ? app.get_name()
                                     : PathOf(*app.get_parent()) + " " + app.get_name();
}

std::string SeeHelp(const CLI::App& app) { return "\nsee: " + PathOf(app) + " --help\n"; }

// Does the command, or one below it, have the option?
bool HasOption(const CLI::App& app, const std::string& name) {
  if (app.get_option_no_throw(name) != nullptr) return true;
  for (const CLI::App* command : VisibleCommands(app)) {
    if (HasOption(*command, name)) return true;
  }
  return false;
}

// What to say to `titanctl --data run list`: titanctl has no such option, but its commands have.
std::string BelongsAfterCommand(const CLI::App& app, const std::vector<std::string>& words,
                                const std::string& name) {
  if (!HasOption(app, name)) return "";
  // The command that was meant: the first word that names one which has the option.
  std::string command = "COMMAND";
  for (const std::string& word : words) {
    const CLI::App* found = FindCommand(app, word);
    if (found == nullptr || !HasOption(*found, name)) continue;
    command = word;
    break;
  }
  return PathOf(app) + ": the option '" + name + "' belongs after the command: " + PathOf(app) +
         " " + command + " " + name + " ..." + SeeHelp(app);
}

// The first word that names no command or option, as a message; empty when there is none.
std::string UnknownWord(const CLI::App& parser, const std::vector<std::string>& words) {
  const CLI::App* app = &parser;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--") return "";
    const auto commands = VisibleCommands(*app);
    if (word.size() < 2 || word[0] != '-') {
      if (const CLI::App* command = FindCommand(*app, word); command != nullptr) {
        app = command;
      } else if (!commands.empty()) {
        std::vector<std::string> names;
        for (const CLI::App* c : commands) names.push_back(c->get_name());
        const std::string nearest = NearestName(word, names);
        return PathOf(*app) + ": unknown command '" + word + "'" +
               (nearest.empty() ? "" : "; did you mean '" + nearest + "'?") + SeeHelp(*app);
      }
      continue;
    }
    const std::string name = word.substr(0, word.find('='));
    const bool is_short = name[1] != '-';
    const CLI::Option* option = app->get_option_no_throw(is_short ? name.substr(0, 2) : name);
    if (option == nullptr) {
      if (const std::string hint = BelongsAfterCommand(*app, words, name); !hint.empty()) {
        return hint;
      }
      const std::string nearest = NearestName(name, OptionNames(*app));
      return PathOf(*app) + ": unknown option '" + name + "'" +
             (nearest.empty() ? "" : "; did you mean '" + nearest + "'?") + SeeHelp(*app);
    }
    const bool takes_value = option->get_items_expected_max() > 0;
    const bool has_value = word.find('=') != std::string::npos || (is_short && word.size() > 2);
    if (takes_value && !has_value) ++i;
  }
  return "";
}

// The deepest command that the words name.
const CLI::App& CommandOf(const CLI::App& parser, const std::vector<std::string>& words) {
  const CLI::App* app = &parser;
  for (const std::string& word : words) {
    if (const CLI::App* command = FindCommand(*app, word); command != nullptr) app = command;
  }
  return *app;
}

}  // namespace

std::unique_ptr<CLI::App> MakeParser(Arguments* arguments) {
  auto app = std::make_unique<CLI::App>("Controls a TitanRL cluster and its jobs.", "titanctl");
  app->footer(
      "Examples:\n"
      "  titanctl up --data run                   start every daemon on this machine\n"
      "  titanctl submit job.json -w --data run   submit a job and watch it\n"
      "  titanctl watch job-1 --data run          come back to it\n"
      "  titanctl down --data run                 end every daemon\n\n"
      "`titanctl COMMAND --help` shows the options and examples of a command.\n\nExit codes:\n" +
      ExitCodeTable() + "\nNO_COLOR turns colours off.");
  app->require_subcommand(1);
  app->set_version_flag("--version", kVersion);
  app->set_help_flag("-h,--help", "Print this help and exit");
  Builder builder(app.get(), arguments);
  AddClusterCommands(app.get(), &builder, arguments);
  AddJobCommands(&builder, arguments);
  AddLookCommands(&builder, arguments);
  AddDataCommands(app.get(), &builder, arguments);
  AddWeightsCommands(app.get(), &builder, arguments);
  AddToolCommands(&builder, arguments);
  return app;
}

std::optional<Answer> ParseArguments(const std::vector<std::string>& given, Arguments* arguments) {
  std::vector<std::string> words = given;
  if (!words.empty() && words[0] == "help") {  // help COMMAND is COMMAND --help
    words.erase(words.begin());
    words.push_back("--help");
  }
  const auto parser = MakeParser(arguments);
  if (const std::string unknown = UnknownWord(*parser, words); !unknown.empty()) {
    return Answer{kExitUsage, unknown};
  }
  try {
    std::vector<std::string> reversed(words.rbegin(), words.rend());  // as CLI11 wants them
    parser->parse(reversed);
  } catch (const CLI::ParseError& e) {
    std::ostringstream out, err;
    if (parser->exit(e, out, err) == 0) return Answer{kExitOk, out.str()};
    const CLI::App& app = CommandOf(*parser, words);
    return Answer{kExitUsage, PathOf(app) + ": " + e.what() + SeeHelp(app)};
  }
  return std::nullopt;
}

}  // namespace titan::cli
