#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/peers.sh [NAME]: makes the virtual environment of the Python peers (build/bench/venv, about 1 GB; with a name
# build/bench/venv-NAME out of bench/peers/NAME.txt) if it is missing or out of date, and prints its python. What builds,
# tests or runs TitanRL never needs it; benchmarks and the long suite compare with it.
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:-requirements}
list=bench/peers/$name.txt
[ -f "$list" ] || { echo "usage: tools/peers.sh [NAME], with a list bench/peers/NAME.txt" >&2; exit 2; }
venv=build/bench/venv${1:+-$1}
digest=$(sha256sum "$list" | cut -c1-12)
if [ ! -f "$venv/.complete-$digest" ]; then
  echo "peers: installing $list into $venv" >&2
  rm -rf "$venv"
  mkdir -p build/bench
  python3 -m venv "$venv" >&2
  # A list of its own is whole: every package and its hash.
  "$venv/bin/pip" install --quiet --disable-pip-version-check ${1:+--no-deps --require-hashes} -r "$list" >&2
  touch "$venv/.complete-$digest"
fi
echo "$venv/bin/python"
