# SPDX-License-Identifier: Apache-2.0
"""Row checkpoint_stall: what a training step waits for its checkpoint, beside async_save of torch.distributed.checkpoint.

The same state (weights and both moments of a model of SmolLM2-135M's shape), to the same disk, in turns. Ours: taking
the snapshot, handing it over, and what the optimizer step after it takes longer, with the real titan-weightstore
writing meanwhile. The peer's: the time of the call. checkpoint_write: until it is durable, which a step does not wait for.
"""
import json
import shutil
import subprocess
import sys
import time

from common import BIN, OUT, ROOT, row, run

PEER = "torch DCP async_save"


def store(folder):
    """A weight store with its data in the folder: the process and its address."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = folder / "config.json"
    config.write_text(json.dumps({"daemon": {"data_folder": str(folder)}, "memory_limit_bytes": 64 << 20}))
    process = subprocess.Popen([BIN / "titan-weightstore", "--config", config], stderr=(folder / "log").open("w"))
    endpoint = folder / "weightstore.endpoint.json"
    for _ in range(200):
        if endpoint.exists():
            return process, json.loads(endpoint.read_text())["address"]
        time.sleep(0.05)
    process.kill()
    sys.exit(f"bench: titan-weightstore did not start, see {folder}/log")


def rows(rounds=3, quick=False):
    ours, peer = [], []
    for _ in range(rounds):
        peer.append(json.loads(run([sys.executable, ROOT / "bench/peers/torch_checkpoint.py", OUT / "dcp", 3])
                               .splitlines()[-1]))
        process, address = store(OUT / "checkpoint-store")
        try:
            ours.append(json.loads(run([BIN / "titan-bench-checkpoint", address, 5])))
        finally:
            process.terminate()
            process.wait()
            shutil.rmtree(OUT / "checkpoint-store", ignore_errors=True)

    def of(figures, key):
        return [figure[key] for figure in figures]
    return [row("checkpoint_stall", of(ours, "stall"), "ms", None if quick else "ratio <= 0.05", of(peer, "blocking"), PEER),
            row("checkpoint_stall/optimizer_step", of(ours, "step"), "ms"),
            row("checkpoint_write", of(ours, "write"), "ms", None, of(peer, "write"), PEER)]
