#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the virtual environment of the Python peers (build/bench/venv, about 1 GB) if it is missing or out of date, and
# prints its python. What builds, tests or runs TitanRL never needs it; benchmarks and the long suite compare with it.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=build/bench/venv
digest=$(sha256sum bench/peers/requirements.txt | cut -c1-12)
if [ ! -f "$venv/.complete-$digest" ]; then
  echo "peers: installing them into $venv (about 1 GB)" >&2
  rm -rf "$venv"
  mkdir -p build/bench
  python3 -m venv "$venv" >&2
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r bench/peers/requirements.txt >&2
  touch "$venv/.complete-$digest"
fi
echo "$venv/bin/python"
