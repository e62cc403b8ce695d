#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/bench.sh AREA: runs the benchmarks of an area against their peers and writes build/bench/AREA.json,
# then makes docs/benchmarks.md from every file there. The Python peers live in build/bench/venv.
set -euo pipefail
cd "$(dirname "$0")/.."
area=${1:?usage: tools/bench.sh AREA (kernels)}
[ -f "bench/$area.py" ] || { echo "bench: no area '$area'; there is: $(cd bench && ls ./*.py | sed 's/^..//; s/\.py$//' | grep -v report | tr '\n' ' ')" >&2; exit 2; }

venv=build/bench/venv
digest=$(sha256sum bench/peers/requirements.txt | cut -c1-12)
if [ ! -f "$venv/.complete-$digest" ]; then
  echo "bench: installing the peers into $venv (about 1 GB)"
  rm -rf "$venv"
  mkdir -p build/bench
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r bench/peers/requirements.txt
  touch "$venv/.complete-$digest"
fi
env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE "$venv/bin/python" "bench/$area.py"
"$venv/bin/python" bench/report.py
