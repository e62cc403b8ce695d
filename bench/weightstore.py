# SPDX-License-Identifier: Apache-2.0
"""make bench-weightstore: how fast a version of the weights comes out of a host's slot, beside what bounds it.

peers: yes. Every figure of ours is taken in turns with its yardstick in one run; 5 GB of memory. The yardstick of one-sided reads is
ucx_perftest (Debian's ucx-utils); without it their row has no peer. QUICK=1 for a smaller run, whose buffers fit a
large cache and whose bars are not held.
"""
import json
import os
import shutil
import subprocess
import sys
import time

from common import BIN, finish, row, run
from rows import checkpoint

QUICK = bool(os.environ.get("QUICK"))
# A map is as fast for the largest slot as for the smallest; a private copy costs a memcpy; one-sided reads leave to
# UCX what it can do.
BARS = {} if QUICK else {"map/4GB": "ratio <= 1.5", "copy": "ratio >= 0.9"}
GET_BAR = None if QUICK else "ratio >= 0.95"
GET_BYTES = (16 if QUICK else 128) << 20  # more than a last-level cache
GET_ROUNDS = 20
PORT = 13337


def perftest(lane):
    """GB/s of ucx_perftest's get on the lane, with the error handling that we ask for."""
    environment = {**os.environ, "UCX_TLS": "posix" if lane == "shm-test" else "rc,dc,ud", "UCX_MM_ERROR_HANDLING": "y"}
    command = ["ucx_perftest", "-p", str(PORT)]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(50):
            time.sleep(0.1)
            client = subprocess.run([*command, "127.0.0.1", "-t", "ucp_get", "-s", str(GET_BYTES), "-n", str(GET_ROUNDS),
                                     "-w", "4", "-f", "-e"], env=environment, stdout=subprocess.PIPE,
                                    stderr=subprocess.STDOUT, text=True, timeout=120)
            if client.returncode == 0:
                # iterations, three latencies in us, average and overall bandwidth in MiB/s, two message rates
                return float(client.stdout.split()[-3]) * (1 << 20) / 1e9
    finally:
        server.kill()
        server.wait()
    sys.exit(f"bench: ucx_perftest failed\n{client.stdout[-1000:]}")


def gets():
    ours, peer, lane = [], [], ""
    for _ in range(1 if QUICK else 5):
        result = json.loads(run([BIN / "titan-bench-rma", GET_BYTES, GET_ROUNDS]))
        lane = result["lane"]
        ours.append(result["ours"])
        if shutil.which("ucx_perftest"):
            peer.append(perftest(lane))
    return row(f"ucx_get/{lane}", ours, "GB/s", GET_BAR if peer else None, peer or None, "ucx_perftest" if peer else None)


def main():
    rows = []
    for line in run([BIN / "titan-bench-weightstore"] + (["--quick"] if QUICK else [])).splitlines():
        r = json.loads(line)
        rows.append(row(r["id"], r["ours"], r["unit"], BARS.get(r["id"]), r.get("peer"), r.get("peer_name")))
    rows.append(gets())
    rows += checkpoint.rows(1 if QUICK else 3, QUICK)
    finish("weightstore", rows)


main()
