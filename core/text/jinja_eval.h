// SPDX-License-Identifier: Apache-2.0
//
// Runs a parsed chat template. One Render per call; deterministic: the same tree and variables give
// the same text. Not thread-safe itself, but many renders may share one tree.
#ifndef TITAN_CORE_TEXT_JINJA_EVAL_H_
#define TITAN_CORE_TEXT_JINJA_EVAL_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/text/jinja_ast.h"

namespace titan::text::jinja {

struct RenderLimits {
  uint64_t max_steps = 20'000'000;  // see WorkBudget
  uint64_t max_output_bytes = uint64_t{16} << 20;
  int max_depth = 600;  // nested expressions, blocks and macro calls
};

struct Rendered {
  std::string text;
  // [start, end) in code points of text: what stands inside {% generation %}.
  std::vector<std::pair<int64_t, int64_t>> generation_spans;
};

// Throws Raise with "line N: ..." on failure.
Rendered RenderBlock(const Block& root, std::vector<std::pair<std::string, Value>> variables,
                     std::optional<std::chrono::sys_seconds> now, const RenderLimits& limits);

}  // namespace titan::text::jinja

#endif  // TITAN_CORE_TEXT_JINJA_EVAL_H_
