# SPDX-License-Identifier: Apache-2.0
"""make bench-weightstore: how fast a version of the weights comes out of a host's slot, beside what bounds it.

Every figure of ours is taken in turns with its yardstick in one run; 5 GB of memory. QUICK=1 for a smaller run, whose
buffers fit a large cache.
"""
import json
import os

from common import BIN, finish, row, run

# A map is as fast for the largest slot as for the smallest; a private copy costs a memcpy.
BARS = {"map/4GB": "ratio <= 1.5", "copy": "ratio >= 0.9"}


def main():
    command = [BIN / "titan-bench-weightstore"] + (["--quick"] if os.environ.get("QUICK") else [])
    rows = []
    for line in run(command).splitlines():
        r = json.loads(line)
        rows.append(row(r["id"], r["ours"], r["unit"], BARS.get(r["id"]), r.get("peer"), r.get("peer_name")))
    finish("weightstore", rows)


main()
