# SPDX-License-Identifier: Apache-2.0
"""make bench-weightstore: how fast a version of the weights comes out of a host's slot, and from the trainer to its
readers, beside what bounds it and beside others.

peers: yes. Every figure of ours is taken in turns with its yardstick in one run; 5 GB of memory. Yardsticks that nothing
else needs: Debian's ucx-utils (ucx_perftest) and etcd-server, to be installed by hand, and three Python packages,
installed at the first run (8 GB of disk). A row whose yardstick is not there has no ratio and says so. QUICK=1 for a
smaller run, whose buffers fit a large cache and whose bars are not held; PARTS=slots,ucx,checkpoint,sync,commit,peers
for some.
"""
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from common import BIN, GGUF, OUT, ROOT, finish, row, run
from rows import checkpoint

QUICK = bool(os.environ.get("QUICK"))
PARTS = os.environ.get("PARTS", "slots,ucx,checkpoint,sync,commit,peers").split(",")
# A map is as fast for the largest slot as for the smallest; a private copy costs a memcpy; one-sided reads leave to
# UCX what it can do.
BARS = {} if QUICK else {"map/4GB": "ratio <= 1.5", "copy": "ratio >= 0.9"}
GET_BAR = None if QUICK else "ratio >= 0.95"
GET_BYTES = (16 if QUICK else 128) << 20  # more than a last-level cache
GET_ROUNDS = 20
PORT = 13337
ETCD_PORT = 13339
PEERS = {"torchstore": "torchstore", "nixl": "NIXL (UCX)", "mooncake": "Mooncake transfer engine (TCP)"}
SYNC_NOTE = (
    "SmolLM2-135M in f32, 538 MB, from the trainer's weights to two reader processes that are told by WatchVersions and "
    "have lease, map and checked header; through the daemon, gRPC and its disk. The peer is a count: one pass over the "
    "bytes to write and pack (the master has the kernels' layout, so it is one), one for the publisher's hash, one for "
    "the daemon's, each at the speed of a memcpy of as many bytes by as many threads, which counts a copied byte once.")
COMMIT_NOTE = (
    "CommitVersion through the daemon and a put into a single etcd, in turns, by the same gRPC library over loopback, "
    "requests of as many bytes, folders on one disk; both answer when the disk has the record.")
PEER_NOTE = (
    "the same tensors as a state dict, from the start of put until another process can use every byte: a peer's when it "
    "has them in its memory, ours when both of two readers have them mapped, which is where they run from; /copied is until "
    "one of them has also copied them out. Ours hashes twice and commits to disk, the peer does neither; memory of the peer "
    "is registered before. Ours and the peer run one after the other.")


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


@contextlib.contextmanager
def started(command, address_of, what):
    """A daemon in a folder of its own on the disk of build/bench, and its address once it serves."""
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="store", dir=OUT) as folder:
        with open(f"{folder}/log", "w") as log:
            process = subprocess.Popen(command(folder), stdout=log, stderr=log)
        try:
            for _ in range(300):
                time.sleep(0.1)
                address = address_of(folder)
                if address or process.poll() is not None:
                    break
            if not address:
                sys.exit(f"bench: {what} did not start\n{pathlib.Path(folder, 'log').read_text()[-1000:]}")
            yield address
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def store():
    """(address, socket) of a running titan-weightstore."""
    with tempfile.TemporaryDirectory() as short:  # a socket's path is at most 107 bytes
        socket = f"{short}/ws.sock"

        def command(folder):
            config = {"daemon": {"data_folder": folder}, "socket_path": socket, "memory_limit_bytes": 4 << 30}
            pathlib.Path(folder, "config.json").write_text(json.dumps(config))
            return [BIN / "titan-weightstore", "--config", f"{folder}/config.json"]

        def address_of(folder):
            file = pathlib.Path(folder, "weightstore.endpoint.json")
            return json.loads(file.read_text())["address"] if file.exists() else None

        with started(command, address_of, "titan-weightstore") as address:
            yield address, socket


def etcd():
    def command(folder):
        client, peers = f"http://127.0.0.1:{ETCD_PORT}", f"http://127.0.0.1:{ETCD_PORT + 1}"
        return ["etcd", "--data-dir", f"{folder}/data", "--listen-client-urls", client, "--advertise-client-urls", client,
                "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}"]

    def address_of(folder):
        ready = "ready to serve client requests" in pathlib.Path(folder, "log").read_text()
        return f"127.0.0.1:{ETCD_PORT}" if ready else None

    return started(command, address_of, "etcd")


def lines(*command):
    return {r["id"]: r for r in map(json.loads, run(command).splitlines())}


def slots():
    rows = []
    for r in lines(BIN / "titan-bench-weightstore", *(["--quick"] if QUICK else [])).values():
        rows.append(row(r["id"], r["ours"], r["unit"], BARS.get(r["id"]), r.get("peer"), r.get("peer_name")))
    return rows


def transfers():
    """Figures of titan-bench-sync."""
    with store() as (address, socket):
        return lines(BIN / "titan-bench-sync", GGUF, address, socket, 3 if QUICK else 15)


def sync():
    measured = transfers()
    r = measured["sync"]
    rows = [row("sync/540MB/2", r["ours"], "s", "ratio <= 1.25", r["peer"], r["peer_name"], SYNC_NOTE)]
    for part in ("write", "finish", "flip"):
        rows.append(row(f"sync/540MB/2/{part}", measured[f"sync/{part}"]["ours"], "s"))
    return rows


def commit():
    with store() as (address, socket), contextlib.ExitStack() as stack:
        command = [BIN / "titan-bench-commit", address, socket, 200 if QUICK else 2000]
        peer = shutil.which("etcd")
        measured = lines(*command, *([stack.enter_context(etcd())] if peer else []))
    rows = []
    for name, bound in (("commit_p50", None), ("commit_p99", None if QUICK else "ratio <= 1.5")):
        r = measured[name]
        rows.append(row(name, r["ours"], r["unit"], bound if peer else None, r.get("peer"), r.get("peer_name"),
                        COMMIT_NOTE if peer else "etcd was not run: it is not installed (Debian's etcd-server)"))
    return rows


def cuda_for_peers(venv):
    """Where the loader finds CUDA's libraries, with which two peers are linked; without a driver, one that says so."""
    folders = [str(folder) for folder in venv.glob("lib/python3*/site-packages/nvidia/*/lib")]
    if "libcuda.so.1" not in run(["/sbin/ldconfig", "-p"]):
        (OUT / "no_cuda").mkdir(exist_ok=True)
        run(["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", ROOT / "bench/peers/no_cuda.c",
             "-o", OUT / "no_cuda/libcuda.so.1"])
        folders.append(str(OUT / "no_cuda"))
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(folders)}


def peers():
    rows = []
    for name, package in PEERS.items():
        python = subprocess.run([ROOT / "tools/peers.sh", name], stdout=subprocess.PIPE, text=True)
        result = subprocess.CompletedProcess([], 1, "", "its packages could not be installed")
        if python.returncode == 0:
            python = ROOT / python.stdout.strip()
            command = [python, ROOT / "bench/peers/state_dict.py", name, "2" if QUICK else "5"]
            result = subprocess.run(command, env=cuda_for_peers(python.parent.parent), stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE, text=True, timeout=600)
        ours = transfers()
        if result.returncode != 0 or not result.stdout:
            reason = (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1]
            rows.append(row(f"peer/{name}", ours["sync"]["ours"], "s", note=f"{package} was not run here: {reason}"))
            continue
        theirs = json.loads(result.stdout)
        bound = None if QUICK else "ratio <= 1"
        rows.append(row(f"peer/{name}", ours["sync"]["ours"], "s", bound, theirs["put_get"], package, PEER_NOTE))
        rows.append(row(f"peer/{name}/copied", ours["put_get"]["ours"], "s", None, theirs["put_get"], package))
        for part in ("put", "get"):
            rows.append(row(f"peer/{name}/{part}", ours[part]["ours"], "s", None, theirs[part], package))
    return rows


def main():
    rows = []
    for name, measure in (("slots", slots), ("ucx", lambda: [gets()]),
                          ("checkpoint", lambda: checkpoint.rows(1 if QUICK else 3, QUICK)), ("sync", sync),
                          ("commit", commit), ("peers", peers)):
        if name in PARTS:
            rows.extend(measure())
            print(f"bench: {name} measured, {len(rows)} rows", file=sys.stderr, flush=True)
    finish("weightstore", rows)


main()
