#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what the build needs and is missing: Debian packages (tools/debian-packages.txt, needs root
# or sudo) and the hash-pinned wheels: tools/wheels.txt into third_party/wheels-<hash of that file>, and what
# only tests read (real vocabularies and chat templates), tools/test-wheels.txt, likewise.
# Doing it again costs well under a second. Called by every target of the Makefile and by .ci/run.
set -euo pipefail
cd "$(dirname "$0")/.."

case "$PWD" in
  *[[:space:]]*)
    echo "setup: the path of this clone has a space ($PWD); the compiler's flags do not bear it. Move the clone." >&2
    exit 1 ;;
esac

for folder in . third_party; do
  if [ -e "$folder" ] && [ ! -w "$folder" ]; then
    echo "setup: $(id -un) may not write to $(realpath "$folder"), which belongs to $(stat -c %U "$folder"): build as that" \
      "user, or in a clone of your own" >&2
    exit 1
  fi
done

missing=()
while read -r package; do
  case "$package" in ''|'#'*) continue ;; esac
  if ! dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed; then
    missing+=("$package")
  fi
done < tools/debian-packages.txt

if [ ${#missing[@]} -gt 0 ]; then
  if ! command -v apt-get >/dev/null; then
    echo "setup: apt-get not found. TitanRL is built on Debian 12; install by hand: ${missing[*]}" >&2
    exit 1
  fi
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "setup: not root, and there is no sudo. As root: apt-get install ${missing[*]}" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  mkdir -p third_party
  log=third_party/apt.log
  echo "setup: installing ${#missing[@]} Debian packages (minutes; what apt says is in $log): ${missing[*]}"
  if ! { "${as_root[@]}" apt-get update &&
         "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"
       } >"$log" 2>&1; then
    tail -5 "$log" >&2
    echo "setup: apt-get failed; the whole of what it said is in $log. It needs the network (or a proxy)." >&2
    exit 1
  fi
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
    if ! PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --no-deps --require-hashes \
      --only-binary=:all: --no-compile --disable-pip-version-check --target "$target" -r "$1"; then
      echo "setup: pip could not fetch the wheels of $1. It needs a Python package index (network, or a proxy)" \
        "and x86-64 Linux with Python 3." >&2
      exit 1
    fi
    touch "$target/.complete"
    for old in third_party/"$2"-*; do [ "$old" = "$target" ] || rm -rf "$old"; done
  fi
  ln -sfn "$2-$digest" "third_party/$2"
}

unpack tools/wheels.txt wheels "650 MB"
unpack tools/test-wheels.txt test-wheels "8 MB"
