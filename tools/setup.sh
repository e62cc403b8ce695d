#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what the build needs and is missing: Debian packages (tools/debian-packages.txt, needs root
# or sudo) and the hash-pinned wheels: tools/wheels.txt into third_party/wheels-<hash of that file>, and what
# only tests read (real vocabularies and chat templates), tools/test-wheels.txt, likewise.
# Doing it again costs well under a second. Called by every target of the Makefile and by .ci/run.
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
while read -r package; do
  case "$package" in ''|'#'*) continue ;; esac
  if ! dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed; then
    missing+=("$package")
  fi
done < tools/debian-packages.txt

if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" -eq 0 ]; then as_root=(); else as_root=(sudo); fi
  if ! command -v apt-get >/dev/null; then
    echo "setup: apt-get not found. TitanRL is built on Debian 12; install by hand: ${missing[*]}" >&2
    exit 1
  fi
  echo "setup: installing ${#missing[@]} Debian packages: ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

# unpack <list> <folder name> <size to say>: into third_party/<folder name>-<hash of the list>, with a
# link third_party/<folder name>.
unpack() {
  local digest target
  digest=$(sha256sum "$1" | cut -c1-12)
  target="third_party/$2-$digest"
  if [ ! -f "$target/.complete" ]; then
    echo "setup: unpacking the pinned wheels of $1 into $target (about $3 to download)"
    rm -rf "$target"
    mkdir -p "$target"
    python3 -m pip install --quiet --no-deps --require-hashes --only-binary=:all: --no-compile \
      --disable-pip-version-check --target "$target" -r "$1"
    touch "$target/.complete"
    for old in third_party/"$2"-*; do [ "$old" = "$target" ] || rm -rf "$old"; done
  fi
  ln -sfn "$2-$digest" "third_party/$2"
}

unpack tools/wheels.txt wheels "650 MB"
unpack tools/test-wheels.txt test-wheels "8 MB"
