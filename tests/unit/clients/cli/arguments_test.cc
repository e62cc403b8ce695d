// SPDX-License-Identifier: Apache-2.0
// Goal: the command line says what was meant or what is wrong, without touching anything else: help
// with examples for every command, the nearest name of a misspelt command or option, options into
// their fields, completion scripts that a shell accepts and that complete what the parser knows.
#include "clients/cli/arguments.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>

#include <CLI/CLI.hpp>

namespace titan::cli {
namespace {

Answer Refused(const std::vector<std::string>& words) {
  Arguments arguments;
  const auto answer = ParseArguments(words, &arguments);
  EXPECT_TRUE(answer.has_value()) << words.back();
  return answer.value_or(Answer{});
}

Arguments Accepted(const std::vector<std::string>& words) {
  Arguments arguments;
  const auto answer = ParseArguments(words, &arguments);
  EXPECT_FALSE(answer.has_value()) << answer->text;
  return arguments;
}

TEST(ArgumentsTest, EveryCommandHasHelpWithExamples) {
  Arguments arguments;
  const auto parser = MakeParser(&arguments);
  const std::function<void(const CLI::App*, std::vector<std::string>)> check =
      [&](const CLI::App* app, std::vector<std::string> path) {
        auto words = path;
        words.push_back("--help");
        const Answer answer = Refused(words);
        EXPECT_EQ(answer.exit_code, kExitOk) << answer.text;
        const size_t examples = answer.text.find("Examples:\n  ");
        ASSERT_NE(examples, std::string::npos) << answer.text;
        EXPECT_NE(answer.text.find("titanctl", examples), std::string::npos) << answer.text;
        EXPECT_FALSE(app->get_description().empty());
        for (const CLI::App* command : app->get_subcommands([](const CLI::App*) { return true; })) {
          if (command->get_group().empty()) continue;
          auto below = path;
          below.push_back(command->get_name());
          check(command, below);
        }
      };
  check(parser.get(), {});
  const Answer help = Refused({"help", "submit"});
  EXPECT_EQ(help.exit_code, kExitOk);
  EXPECT_NE(help.text.find("--set"), std::string::npos) << help.text;
}

TEST(ArgumentsTest, HelpStatesEveryExitCode) {
  const Answer help = Refused({"--help"});
  for (const ExitCode& row : kExitCodes) {
    EXPECT_NE(help.text.find("  " + std::to_string(row.code) + " "), std::string::npos);
    EXPECT_NE(help.text.find(row.meaning), std::string::npos) << row.meaning;
  }
}

TEST(ArgumentsTest, MisspeltCommandsAndOptionsNameTheNearest) {
  Answer answer = Refused({"sumbit", "job.json"});
  EXPECT_EQ(answer.exit_code, kExitUsage);
  EXPECT_EQ(answer.text,
            "titanctl: unknown command 'sumbit'; did you mean 'submit'?\nsee: titanctl --help\n");
  answer = Refused({"submit", "job.json", "--wacth"});
  EXPECT_EQ(answer.text,
            "titanctl submit: unknown option '--wacth'; did you mean '--watch'?\n"
            "see: titanctl submit --help\n");
  answer = Refused({"submit", "--dat=x", "job.json"});
  EXPECT_NE(answer.text.find("unknown option '--dat'; did you mean '--data'?"), std::string::npos);
  answer = Refused({"status", "-x"});
  EXPECT_NE(answer.text.find("unknown option '-x'"), std::string::npos);
  EXPECT_NE(Refused({"conquer"}).text.find("unknown command 'conquer'\n"), std::string::npos);
}

TEST(ArgumentsTest, AnOptionBeforeItsCommandIsSentBehindIt) {
  const Answer answer = Refused({"--data", "run", "list"});
  EXPECT_EQ(answer.exit_code, kExitUsage);
  EXPECT_EQ(answer.text,
            "titanctl: the option '--data' belongs after the command: titanctl list --data ...\n"
            "see: titanctl --help\n");
  EXPECT_NE(Refused({"weights", "--to", "x", "export"}).text.find("titanctl weights export --to"),
            std::string::npos);
  EXPECT_NE(Refused({"--data=run"}).text.find("titanctl COMMAND --data"), std::string::npos);
  EXPECT_NE(Refused({"--dta", "run", "list"}).text.find("unknown option '--dta'"),
            std::string::npos);
}

TEST(ArgumentsTest, WrongUseSaysWhatIsMissingAndWhereTheHelpIs) {
  EXPECT_EQ(Refused({}).exit_code, kExitUsage);
  const Answer answer = Refused({"watch"});
  EXPECT_EQ(answer.exit_code, kExitUsage);
  EXPECT_NE(answer.text.find("titanctl watch: job is required"), std::string::npos) << answer.text;
  EXPECT_NE(answer.text.find("see: titanctl watch --help"), std::string::npos) << answer.text;
  EXPECT_EQ(Refused({"up", "--generators", "0"}).exit_code, kExitUsage);
  EXPECT_EQ(Refused({"status", "-o", "yaml"}).exit_code, kExitUsage);
  EXPECT_EQ(Refused({"get", "job-1", "job-2"}).exit_code, kExitUsage);
}

TEST(ArgumentsTest, OptionsReachTheirFields) {
  Arguments arguments = Accepted({"submit", "job.json", "-w", "--set", "a.b=1", "--set", "c=x y",
                                  "--data", "d", "-o", "json"});
  EXPECT_EQ(arguments.command, "submit");
  EXPECT_EQ(arguments.submit.file, "job.json");
  EXPECT_TRUE(arguments.submit.watch);
  EXPECT_EQ(arguments.submit.set, (std::vector<std::string>{"a.b=1", "c=x y"}));
  EXPECT_EQ(arguments.common.data, "d");
  EXPECT_TRUE(arguments.common.json);
  arguments = Accepted({"submit", "--set", "a=1", "job.json"});  // takes one value, not two
  EXPECT_EQ(arguments.submit.file, "job.json");
  arguments = Accepted({"cancel", "job-7", "--address=127.0.0.1:9", "--reason", "no"});
  EXPECT_EQ(arguments.job, "job-7");
  EXPECT_EQ(arguments.common.address, "127.0.0.1:9");
  EXPECT_EQ(arguments.reason, "no");
  EXPECT_FALSE(arguments.common.json);
  arguments = Accepted({"weights", "gc", "--keep", "3"});
  EXPECT_EQ(arguments.command, "weights gc");
  EXPECT_EQ(arguments.weights.keep, 3u);
  EXPECT_FALSE(arguments.weights.yes);  // only says what it would do
  EXPECT_TRUE(Accepted({"weights", "gc", "--keep", "0", "--yes"}).weights.yes);
  EXPECT_NE(Refused({"weights", "gc", "--yes"}).text.find("--keep is required"), std::string::npos);
  EXPECT_EQ(Refused({"weights", "gc", "--keep", "-1"}).exit_code, kExitUsage);
  arguments = Accepted({"weights", "diff", "job-1@0", "./tuned"});
  EXPECT_EQ(arguments.command, "weights diff");
  EXPECT_EQ(arguments.weights.name, "job-1@0");
  EXPECT_EQ(arguments.weights.other, "./tuned");
  EXPECT_EQ(Refused({"weights", "diff", "base"}).exit_code, kExitUsage);
}

TEST(CompletionTest, BashCompletesCommandsOptionsAndValues) {
  Arguments arguments;
  const auto parser = MakeParser(&arguments);
  char pattern[] = "/tmp/titan_completion_XXXXXX";
  const int fd = mkstemp(pattern);
  ASSERT_GE(fd, 0);
  close(fd);
  const auto complete = [&](const std::string& words) {
    std::ofstream(pattern) << CompletionScript(*parser, "bash") << "COMP_WORDS=(" << words
                           << ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_titanctl\n"
                           << "echo \"${COMPREPLY[@]}\"\n";
    FILE* pipe = popen(("bash " + std::string(pattern) + " 2>&1").c_str(), "r");
    std::string text;
    char buffer[4096];
    while (const size_t n = fread(buffer, 1, sizeof(buffer), pipe)) text.append(buffer, n);
    EXPECT_EQ(pclose(pipe), 0) << text;
    return text;
  };
  EXPECT_EQ(complete("titanctl su"), "submit\n");
  EXPECT_EQ(complete("titanctl submit --wa"), "--watch\n");
  EXPECT_EQ(complete("titanctl status -o j"), "json\n");
  EXPECT_EQ(complete("titanctl completion z"), "zsh\n");
  EXPECT_EQ(complete("titanctl weights di"), "diff\n");
  EXPECT_EQ(complete("titanctl weights gc --k"), "--keep\n");
  EXPECT_EQ(complete("titanctl superv"), "\n");  // hidden
  unlink(pattern);
  EXPECT_TRUE(CompletionScript(*parser, "zsh").starts_with("#compdef titanctl\n"));
}

}  // namespace
}  // namespace titan::cli
