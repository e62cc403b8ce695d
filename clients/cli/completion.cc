// SPDX-License-Identifier: Apache-2.0
// Completion scripts. Both shells share one form: the words so far give the path of the command,
// a table gives the words that may follow it, and everything else is a file name.
#include <CLI/CLI.hpp>

#include "clients/cli/arguments.h"

namespace titan::cli {
namespace {

struct Row {
  std::string path;      // "submit"; empty: the program itself
  std::string commands;  // names, a space between
  std::string options;
};

void Collect(const CLI::App& app, const std::string& path, std::vector<Row>* rows) {
  Row row{path, "", ""};
  std::vector<const CLI::App*> commands;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_group().empty()) continue;
    commands.push_back(command);
    row.commands += (row.commands.empty() ? "" : " ") + command->get_name();
  }
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      row.options += (row.options.empty() ? "--" : " --") + name;
    }
    for (const std::string& name : option->get_snames()) row.options += " -" + name;
  }
  rows->push_back(row);
  for (const CLI::App* command : commands) {
    Collect(*command, path.empty() ? command->get_name() : path + " " + command->get_name(), rows);
  }
}

// case "$path" in ... esac, which sets `commands` and `options`.
std::string Table(const std::vector<Row>& rows) {
  std::string text = "  case \"$at\" in\n";
  for (const Row& row : rows) {
    text += "    \"" + row.path + "\") commands=\"" + row.commands + "\" options=\"" + row.options +
            "\" ;;\n";
  }
  return text + "  esac\n";
}

}  // namespace

std::string CompletionScript(const CLI::App& parser, const std::string& shell) {
  std::vector<Row> rows;
  Collect(parser, "", &rows);
  // What both shells run. The callers own the variables that it sets.
  const std::string shared = "_titanctl_lookup() {\n  local at=\"$1\"\n" + Table(rows) + R"(}
# The words before the current one: what may follow them, in commands, options and values.
_titanctl_walk() {
  local word previous=""
  at="" commands="" options="" values=""
  for word in "$@"; do
    _titanctl_lookup "$at"
    if [[ " $commands " == *" $word "* ]]; then at="${at:+$at }$word"; fi
    previous="$word"
  done
  _titanctl_lookup "$at"
  case "$previous" in
    -o | --output) values="table json" ;;
    completion) values="bash zsh" ;;
  esac
}
)";
  if (shell == "bash") {
    return "# bash completion of titanctl; use it with: source <(titanctl completion bash)\n" +
           shared + R"(_titanctl() {
  local current="${COMP_WORDS[COMP_CWORD]}" at commands options values
  _titanctl_walk "${COMP_WORDS[@]:1:COMP_CWORD-1}"
  if [[ -n "$values" ]]; then
    COMPREPLY=($(compgen -W "$values" -- "$current"))
  elif [[ "$current" == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$current"))
  elif [[ -n "$commands" ]]; then
    COMPREPLY=($(compgen -W "$commands" -- "$current"))
  else
    COMPREPLY=($(compgen -f -- "$current"))
  fi
}
complete -o filenames -F _titanctl titanctl
)";
  }
  return "#compdef titanctl\n# zsh completion of titanctl; put it into a folder of $fpath as "
         "_titanctl\n" +
         shared + R"(_titanctl() {
  local current="${words[CURRENT]}" at commands options values
  _titanctl_walk "${words[@]:1:CURRENT-2}"
  if [[ -n "$values" ]]; then
    compadd -- ${=values}
  elif [[ "$current" == -* ]]; then
    compadd -- ${=options}
  elif [[ -n "$commands" ]]; then
    compadd -- ${=commands}
  else
    _files
  fi
}
if [[ "$funcstack[1]" == _titanctl ]]; then _titanctl "$@"; else compdef _titanctl titanctl; fi
)";
}

}  // namespace titan::cli
