#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/bench.sh [--check] AREA...: runs the benchmarks of each area (all: every area), adds a line a run to bench/history
# and makes docs/benchmarks.md; with --check it only looks whether there are such areas. Exit code 1 when an area failed or
# missed a bar, after all have run. An area that measures against Python peers says so in its first lines; they live in
# build/bench/venv.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONDONTWRITEBYTECODE=1
areas() { (cd bench && ls ./*.py) | sed 's/^..//; s/\.py$//' | grep -vx 'common\|report'; }
[ $# -gt 0 ] || { echo "usage: tools/bench.sh AREA... (all, $(areas | paste -sd' '))" >&2; exit 2; }
check=0
[ "$1" != --check ] || { check=1; shift; }
[ "$*" != all ] || set -- $(areas)
for area in "$@"; do
  areas | grep -qx -- "$area" || { echo "bench: no area '$area'; there is: $(areas | paste -sd' ')" >&2; exit 2; }
done
[ $check = 0 ] || exit 0

status=0
for area in "$@"; do
  python=python3
  if head -8 "bench/$area.py" | grep -q 'peers: yes'; then python=$(tools/peers.sh); fi
  echo "bench: $area"
  rm -f "build/bench/$area.json"
  env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE "$python" "bench/$area.py" || status=1
  if [ -f "build/bench/$area.json" ]; then python3 bench/report.py "$area"; fi
done
exit $status
