// SPDX-License-Identifier: Apache-2.0
//
// The house rules that a compiler does not check, as pure functions from files to findings. A
// finding says what to write instead. tests/unit/tidy runs them over the source tree, and each over
// a small sample that breaks it. Test code, one thread.
#ifndef TITAN_TESTS_SUPPORT_TIDY_RULES_H_
#define TITAN_TESTS_SUPPORT_TIDY_RULES_H_

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace titan::tidy {

struct SourceFile {
  std::string path;  // from the root of the repository, with slashes
  std::string text;
};

// "path:line: what is wrong and what to do"
using Findings = std::vector<std::string>;

inline constexpr size_t kMaxLines = 800;
inline constexpr size_t kMaxContractLines = 300;  // of docs/numerics.md, which is to be read whole
inline constexpr size_t kMaxTorchFiles = 25;

inline bool InFolder(std::string_view path, std::string_view folder) {
  return path.starts_with(folder) && path.size() > folder.size() && path[folder.size()] == '/';
}

inline bool HasExtension(std::string_view path, std::initializer_list<std::string_view> ends) {
  return std::any_of(ends.begin(), ends.end(), [&](auto end) { return path.ends_with(end); });
}

inline bool IsCpp(std::string_view path) { return HasExtension(path, {".cc", ".h", ".inc"}); }

inline bool IsSource(std::string_view path) {
  return IsCpp(path) || HasExtension(path, {".proto", ".cmake", "CMakeLists.txt", ".py", ".sh"});
}

inline std::string At(const std::string& path, size_t line) {
  return path + ":" + std::to_string(line) + ": ";
}

// The same text with comments and the insides of literals blanked; line ends stay. Directives lose
// their "..." file names too, so look at includes in the text itself.
inline std::string CodeOf(const std::string& text) {
  std::string code = text;
  const auto blank = [&code](size_t begin, size_t end) {
    for (size_t i = begin; i < end && i < code.size(); ++i) {
      if (code[i] != '\n') code[i] = ' ';
    }
  };
  for (size_t i = 0; i < text.size();) {
    if (text.compare(i, 2, "//") == 0) {
      const size_t end = std::min(text.find('\n', i), text.size());
      blank(i, end);
      i = end;
    } else if (text.compare(i, 2, "/*") == 0) {
      const size_t close = text.find("*/", i + 2);
      const size_t end = close == std::string::npos ? text.size() : close + 2;
      blank(i, end);
      i = end;
    } else if (text.compare(i, 2, "R\"") == 0 &&
               (i == 0 || (std::isalnum(static_cast<unsigned char>(text[i - 1])) == 0 &&
                           text[i - 1] != '_'))) {
      const size_t open = text.find('(', i);
      if (open == std::string::npos) return code;
      const std::string closer = ")" + text.substr(i + 2, open - i - 2) + "\"";
      const size_t close = text.find(closer, open);
      const size_t end = close == std::string::npos ? text.size() : close + closer.size();
      blank(i, end);
      i = end;
    } else if (text[i] == '"' ||
               // Not the separator of digits, as in 1'000.
               (text[i] == '\'' &&
                (i == 0 || std::isalnum(static_cast<unsigned char>(text[i - 1])) == 0))) {
      const char quote = text[i];
      size_t end = i + 1;
      while (end < text.size() && text[end] != quote && text[end] != '\n') {
        end += text[end] == '\\' ? 2 : 1;
      }
      blank(i + 1, end);
      i = std::min(end + 1, text.size());
    } else {
      ++i;
    }
  }
  return code;
}

// Calls see(line number from 1, line).
template <typename See>
void EachLine(const std::string& text, See see) {
  std::istringstream in(text);
  std::string line;
  for (size_t number = 1; std::getline(in, line); ++number) see(number, line);
}

// The file name of an include directive, or "".
inline std::string IncludeOf(std::string_view line) {
  size_t i = line.find_first_not_of(" \t");
  if (i == std::string_view::npos || line[i] != '#') return "";
  i = line.find_first_not_of(" \t", i + 1);
  if (i == std::string_view::npos || line.compare(i, 7, "include") != 0) return "";
  i = line.find_first_of("<\"", i);
  if (i == std::string_view::npos) return "";
  const size_t end = line.find(line[i] == '<' ? '>' : '"', i + 1);
  return std::string(line.substr(i + 1, end == std::string_view::npos ? end : end - i - 1));
}

inline bool IsTorchInclude(std::string_view include) {
  return include.starts_with("torch/") || include.starts_with("ATen/") ||
         include.starts_with("c10/");
}

// ---- g++ 12 destroys a temporary closure inside a co_await expression twice

// A lambda, or a value made by Name{...}, among the arguments of what is awaited, before the
// statement's end.
inline Findings CheckAwaitedClosures(const SourceFile& file) {
  Findings findings;
  if (!IsCpp(file.path)) return findings;
  const std::string code = CodeOf(file.text);
  for (size_t at = code.find("co_await "); at != std::string::npos;
       at = code.find("co_await ", at + 1)) {
    const size_t end = code.find_first_of(";{", at);
    for (size_t i = code.find('[', at); i < end; i = code.find('[', i + 1)) {
      const size_t before = code.find_last_not_of(" \t\n", i - 1);
      if (code[before] != '(' && code[before] != ',') continue;  // an index
      const auto line = 1 + static_cast<size_t>(std::count(
                                code.begin(), code.begin() + static_cast<std::ptrdiff_t>(i), '\n'));
      findings.push_back(At(file.path, line) +
                         "a lambda inside a co_await expression; give it a name before (g++ 12 "
                         "destroys such a temporary twice)");
    }
    int depth = 0;
    for (size_t i = at; i < code.size() && code[i] != ';' && depth >= 0; ++i) {
      if (code[i] == '(') ++depth;
      if (code[i] == ')') --depth;
      if (code[i] != '{') continue;
      const auto before = static_cast<unsigned char>(code[i - 1]);
      if (depth == 0) break;
      if (std::isalnum(before) == 0 && before != '_' && before != '>') continue;
      const auto line = 1 + static_cast<size_t>(std::count(
                                code.begin(), code.begin() + static_cast<std::ptrdiff_t>(i), '\n'));
      findings.push_back(At(file.path, line) +
                         "an aggregate made inside a co_await expression; give it a name before "
                         "(g++ 12 destroys such a temporary twice)");
      break;
    }
  }
  return findings;
}

// ---- third-party headers stay in the folders that own them (ARCHITECTURE.md)

struct Library {
  std::string_view name;
  std::vector<std::string_view> prefixes;
  std::vector<std::string_view> folders;
};

inline const std::vector<Library>& Libraries() {
  static const std::vector<Library> kLibraries = {
      {"gRPC", {"grpcpp/", "grpc/", "grpc++/"}, {"services", "clients"}},
      {"Protobuf", {"google/protobuf/"}, {"proto", "services", "clients"}},
      {"LibTorch", {"torch/", "ATen/", "c10/"}, {"core/model/torch", "trainer"}},
      {"UCX or NCCL", {"ucp/", "uct/", "ucs/", "nccl"}, {"core/transport"}},
      {"RocksDB", {"rocksdb/"}, {"core/storage"}},
      {"Highway", {"hwy/"}, {"core/kernels"}},
      {"Boost", {"boost/"}, {"core/runtime", "weightstore/transport", "services", "clients"}},
      {"prometheus-cpp", {"prometheus/"}, {"core/runtime"}},
  };
  return kLibraries;
}

// Files that persist may use Protobuf: the journal and the index of the weight store.
inline bool MayPersist(std::string_view path) {
  const std::string_view leaf = path.substr(path.rfind('/') + 1);
  return leaf.starts_with("journal") ||
         (InFolder(path, "weightstore") && leaf.find("index") != std::string_view::npos);
}

inline Findings CheckThirdParty(const SourceFile& file) {
  Findings findings;
  if (!IsCpp(file.path)) return findings;
  EachLine(file.text, [&](size_t number, const std::string& line) {
    const std::string include = IncludeOf(line);
    if (include.empty()) return;
    for (const Library& library : Libraries()) {
      const bool its = std::any_of(library.prefixes.begin(), library.prefixes.end(),
                                   [&](auto prefix) { return include.starts_with(prefix); }) ||
                       (library.name == "Protobuf" && include.ends_with(".pb.h") &&
                        !include.ends_with(".grpc.pb.h")) ||
                       (library.name == "gRPC" && include.ends_with(".grpc.pb.h"));
      if (!its) continue;
      bool allowed = std::any_of(library.folders.begin(), library.folders.end(),
                                 [&](auto folder) { return InFolder(file.path, folder); });
      allowed |= library.name == "Protobuf" && MayPersist(file.path);
      if (InFolder(file.path, "tests") || InFolder(file.path, "bench")) {
        // Tests may look behind every door but this one: each such file costs 7 to 13 s to compile.
        allowed |= library.name != "LibTorch" ||
                   file.path.find("/core/model/torch/") != std::string::npos ||
                   file.path.find("/trainer/") != std::string::npos;
      }
      if (!allowed) {
        std::string folders;
        for (auto folder : library.folders)
          folders += (folders.empty() ? "" : ", ") + std::string(folder);
        findings.push_back(At(file.path, number) + include + ": " + std::string(library.name) +
                           " headers stay in " + folders + "; use that module's interface");
      }
    }
  });
  return findings;
}

inline Findings CheckTorchFiles(const std::vector<SourceFile>& files) {
  std::vector<std::string> users;
  for (const SourceFile& file : files) {
    bool uses = false;
    if (IsCpp(file.path)) {
      EachLine(file.text,
               [&](size_t, const std::string& line) { uses |= IsTorchInclude(IncludeOf(line)); });
    }
    if (uses) users.push_back(file.path);
  }
  if (users.size() <= kMaxTorchFiles) return {};
  std::string all;
  for (const std::string& user : users) all += " " + user;
  return {std::to_string(users.size()) + " files include LibTorch headers, at most " +
          std::to_string(kMaxTorchFiles) + " may; wrap them in core/model/torch:" + all};
}

inline Findings CheckRelativeIncludes(const SourceFile& file) {
  Findings findings;
  if (!IsCpp(file.path)) return findings;
  EachLine(file.text, [&](size_t number, const std::string& line) {
    const std::string include = IncludeOf(line);
    if (include.starts_with("../") || include.starts_with("./")) {
      findings.push_back(At(file.path, number) +
                         "includes are paths from the root of the repository");
    }
  });
  return findings;
}

// ---- every test runs

inline Findings CheckTestsAreListed(const std::vector<SourceFile>& files) {
  std::string lists;
  for (const SourceFile& file : files) {
    if (InFolder(file.path, "tests/cmake") && file.path.ends_with(".cmake"))
      lists += "\n" + file.text + "\n";
  }
  const auto part = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '/' || c == '.' ||
           c == '-';
  };
  Findings findings;
  for (const SourceFile& file : files) {
    if (!InFolder(file.path, "tests") || !file.path.ends_with("_test.cc")) continue;
    const std::string name = file.path.substr(6);
    bool listed = false;
    for (size_t at = lists.find(name); at != std::string::npos && !listed;
         at = lists.find(name, at + 1)) {
      const char before = at == 0 ? ' ' : lists[at - 1];
      listed = !part(before) && !part(lists[at + name.size()]);
    }
    if (!listed)
      findings.push_back(file.path + ": no tests/cmake/*.cmake names " + name +
                         ", so it never runs");
  }
  return findings;
}

// ---- pages name tests that exist

// "Suite.Test" with a suite that is called like one; "Suite.*" and "Suite.Begin*" name several.
inline Findings CheckNamedTests(const std::vector<SourceFile>& files) {
  const auto word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  };
  const auto word_at = [&](const std::string& text, size_t at) {
    size_t end = at;
    while (end < text.size() && word(text[end])) ++end;
    return text.substr(at, end - at);
  };
  std::vector<std::string> tests;
  for (const SourceFile& file : files) {
    if (!InFolder(file.path, "tests") || !IsCpp(file.path)) continue;
    for (size_t at = file.text.find("\nTEST"); at != std::string::npos;
         at = file.text.find("\nTEST", at + 1)) {
      const size_t open = file.text.find('(', at), comma = file.text.find(',', at);
      if (open == std::string::npos || comma == std::string::npos || comma < open) continue;
      const size_t suite = file.text.find_first_not_of(" \n", open + 1);
      const size_t name = file.text.find_first_not_of(" \n", comma + 1);
      if (suite == std::string::npos || name == std::string::npos) continue;
      tests.push_back(word_at(file.text, suite) + "." + word_at(file.text, name));
    }
  }
  Findings findings;
  for (const SourceFile& file : files) {
    if (!file.path.ends_with(".md")) continue;
    EachLine(file.text, [&](size_t number, const std::string& line) {
      for (size_t dot = line.find('.'); dot != std::string::npos; dot = line.find('.', dot + 1)) {
        size_t begin = dot;
        while (begin > 0 && word(line[begin - 1])) --begin;
        const std::string suite = line.substr(begin, dot - begin);
        std::string name = word_at(line, dot + 1);
        const bool several =
            dot + 1 + name.size() < line.size() && line[dot + 1 + name.size()] == '*';
        const bool is_suite = HasExtension(suite, {"Test", "Golden", "Tree", "Rule"});
        if (!is_suite || (name.empty() && !several)) continue;
        const std::string wanted = suite + "." + name;
        const bool exists = std::any_of(tests.begin(), tests.end(), [&](const std::string& test) {
          return several ? test.starts_with(wanted) : test == wanted;
        });
        if (!exists) {
          findings.push_back(At(file.path, number) + "there is no test " + wanted +
                             (several ? "*" : "") + "; name the one that proves it");
        }
      }
    });
  }
  return findings;
}

// ---- the file itself

inline Findings CheckLicence(const SourceFile& file) {
  if (!IsSource(file.path)) return {};
  std::istringstream in(file.text);
  std::string line;
  std::getline(in, line);
  if (line.starts_with("#!")) std::getline(in, line);
  const bool slashes = IsCpp(file.path) || file.path.ends_with(".proto");
  const std::string wanted =
      std::string(slashes ? "//" : "#") + " SPDX-License-Identifier: Apache-2.0";
  if (line == wanted) return {};
  return {At(file.path, 1) + "starts with \"" + wanted + "\""};
}

inline Findings CheckLength(const SourceFile& file) {
  const bool contract = file.path == "docs/numerics.md";
  if (!IsSource(file.path) && !contract) return {};
  const auto lines = static_cast<size_t>(std::count(file.text.begin(), file.text.end(), '\n'));
  const size_t most = contract ? kMaxContractLines : kMaxLines;
  if (lines <= most) return {};
  return {file.path + ": " + std::to_string(lines) + " lines, at most " + std::to_string(most) +
          (contract ? "; say it shorter" : "; split it by what it does")};
}

// ---- determinism

// Calls see(line, position, identifier) for each identifier of the code.
template <typename See>
void EachIdentifier(const std::string& code, See see) {
  size_t line = 1;
  for (size_t i = 0; i < code.size();) {
    const auto c = static_cast<unsigned char>(code[i]);
    if (std::isalpha(c) == 0 && c != '_') {
      line += c == '\n';
      // A number's letters (0x1f, 1e5) are no identifier.
      if (std::isdigit(c) != 0) {
        while (i < code.size() &&
               (std::isalnum(static_cast<unsigned char>(code[i])) != 0 || code[i] == '.'))
          ++i;
      } else {
        ++i;
      }
      continue;
    }
    size_t end = i;
    while (end < code.size() &&
           (std::isalnum(static_cast<unsigned char>(code[end])) != 0 || code[end] == '_'))
      ++end;
    see(line, i, code.substr(i, end - i));
    i = end;
  }
}

inline Findings CheckContainers(const SourceFile& file) {
  static const std::vector<std::string_view> kFolders = {"orchestrator", "generator", "trainer",
                                                         "weightstore"};
  static const std::vector<std::string_view> kBanned = {
      "unordered_map", "unordered_set", "unordered_multimap", "unordered_multiset",
      "flat_hash_map", "flat_hash_set", "node_hash_map",      "node_hash_set"};
  Findings findings;
  const bool deterministic = std::any_of(kFolders.begin(), kFolders.end(),
                                         [&](auto folder) { return InFolder(file.path, folder); });
  if (!IsCpp(file.path) || !deterministic) return findings;
  EachIdentifier(CodeOf(file.text), [&](size_t line, size_t, const std::string& name) {
    if (std::find(kBanned.begin(), kBanned.end(), name) != kBanned.end()) {
      findings.push_back(At(file.path, line) + name +
                         " has an order of its own in each run; use std::map or a sorted vector");
    }
  });
  return findings;
}

// A use of libm that cannot reach a log-prob, a loss or a gradient.
struct MathException {
  std::string_view path;
  std::string_view function;
  std::string_view reason;
};

// Functions of libm differ in their last bits between versions and machines, so that equal versions
// would no longer mean equal log-probs. core/kernels has its own (dexp, dlog, ...). sqrt, fma,
// fabs, floor, ceil, trunc, rint and ldexp are exactly defined by IEEE 754 and stay allowed.
inline Findings CheckMath(const SourceFile& file, const std::vector<MathException>& exceptions) {
  static const std::vector<std::string_view> kFolders = {"core/kernels", "core/model", "trainer"};
  static const std::vector<std::string_view> kFunctions = {
      "exp",    "exp2",   "exp10",   "expm1",       "log",       "log2",   "log10", "log1p", "pow",
      "cbrt",   "hypot",  "sin",     "cos",         "tan",       "sincos", "asin",  "acos",  "atan",
      "atan2",  "sinh",   "cosh",    "tanh",        "asinh",     "acosh",  "atanh", "erf",   "erfc",
      "tgamma", "lgamma", "softmax", "log_softmax", "logsumexp", "sigmoid"};
  Findings findings;
  const bool watched = std::any_of(kFolders.begin(), kFolders.end(),
                                   [&](auto folder) { return InFolder(file.path, folder); });
  if (!IsCpp(file.path) || !watched) return findings;
  const std::string code = CodeOf(file.text);
  EachIdentifier(code, [&](size_t line, size_t at, const std::string& name) {
    std::string base = name;
    const auto known = [&] {
      return std::find(kFunctions.begin(), kFunctions.end(), base) != kFunctions.end();
    };
    if (!known() && (base.ends_with('f') || base.ends_with('l'))) base.pop_back();
    if (!known()) return;
    const size_t next = code.find_first_not_of(" \t\n", at + name.size());
    if (next == std::string::npos || code[next] != '(') return;
    // Of this project's namespaces and classes is fine, of std, at, torch or the global one is not.
    // A member call of a tensor (x.exp()) is not either.
    if (at >= 2 && code.compare(at - 2, 2, "::") == 0) {
      size_t begin = at - 2;
      while (begin > 0 && (std::isalnum(static_cast<unsigned char>(code[begin - 1])) != 0 ||
                           code[begin - 1] == '_'))
        --begin;
      const std::string scope = code.substr(begin, at - 2 - begin);
      if (!scope.empty() && scope != "std" && scope != "at" && scope != "torch") return;
    }
    const bool excepted = std::any_of(
        exceptions.begin(), exceptions.end(),
        [&](const MathException& e) { return e.path == file.path && e.function == base; });
    if (!excepted) {
      findings.push_back(At(file.path, line) + name +
                         "() has no defined bits; use core/kernels' own");
    }
  });
  return findings;
}

// ---- the tree

// Every file of the repository but what is built, fetched or hidden.
inline std::vector<SourceFile> ReadTree(const std::filesystem::path& root) {
  namespace fs = std::filesystem;
  std::vector<SourceFile> files;
  for (auto it = fs::recursive_directory_iterator(root); it != fs::recursive_directory_iterator();
       ++it) {
    const std::string leaf = it->path().filename().string();
    if (it->is_directory()) {
      const bool top = it.depth() == 0;
      if (leaf.starts_with('.') || leaf == "__pycache__" || leaf == "node_modules" ||
          (top && (leaf.starts_with("build") || leaf == "third_party" || leaf == "data"))) {
        it.disable_recursion_pending();
      }
      continue;
    }
    if (!it->is_regular_file() || !(IsSource(leaf) || leaf.ends_with(".md"))) continue;
    std::ifstream in(it->path(), std::ios::binary);
    std::ostringstream bytes;
    bytes << in.rdbuf();
    files.push_back({fs::relative(it->path(), root).generic_string(), bytes.str()});
  }
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return a.path < b.path; });
  return files;
}

}  // namespace titan::tidy

#endif  // TITAN_TESTS_SUPPORT_TIDY_RULES_H_
