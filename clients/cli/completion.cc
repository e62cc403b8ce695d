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
  std::string lookup = "_titanctl_lookup() {\n  local at=\"$1\"\n" + Table(rows) + "}\n";
  if (shell == "bash") {
    return "# bash completion of titanctl; use it with: source <(titanctl completion bash)\n" +
           lookup + R"(_titanctl() {
  local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"
  local at="" commands="" options="" word i
  for ((i = 1; i < COMP_CWORD; i++)); do
    word="${COMP_WORDS[i]}"
    _titanctl_lookup "$at"
    if [[ " $commands " == *" $word "* ]]; then at="${at:+$at }$word"; fi
  done
  commands="" options=""
  _titanctl_lookup "$at"
  case "$previous" in
    -o | --output) COMPREPLY=($(compgen -W "table json" -- "$current")); return ;;
    completion) COMPREPLY=($(compgen -W "bash zsh" -- "$current")); return ;;
  esac
  if [[ "$current" == -* ]]; then
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
         lookup + R"(_titanctl() {
  local current="${words[CURRENT]}" previous="${words[CURRENT-1]}"
  local at="" commands="" options="" word i
  for ((i = 2; i < CURRENT; i++)); do
    word="${words[i]}"
    _titanctl_lookup "$at"
    if [[ " $commands " == *" $word "* ]]; then at="${at:+$at }$word"; fi
  done
  commands="" options=""
  _titanctl_lookup "$at"
  case "$previous" in
    -o | --output) compadd -- table json; return ;;
    completion) compadd -- bash zsh; return ;;
  esac
  if [[ "$current" == -* ]]; then
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
