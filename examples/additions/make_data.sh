#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Writes additions.jsonl beside this script: the 441 questions "What is {a} + {b}?", a and b from 0 to 20.
set -euo pipefail
cd "$(dirname "$0")"
awk 'BEGIN {
  for (a = 0; a <= 20; ++a)
    for (b = 0; b <= 20; ++b)
      printf "{\"id\":\"add-%02d-%02d\",\"prompt\":[{\"role\":\"user\",\"content\":\"What is %d + %d?\"}],\"answer\":\"%d\"}\n",
             a, b, a, b, a + b
}' > additions.jsonl
echo "wrote $(wc -l < additions.jsonl) rows to $PWD/additions.jsonl"
