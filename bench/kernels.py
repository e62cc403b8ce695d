# SPDX-License-Identifier: Apache-2.0
"""make bench-kernels: matrix products, training and the demo's step against their peers, and the decoder's speed.

peers: yes. Rounds are interleaved (peer, ours, peer, ours); the first step of each run is left out; medians are quoted.
Rows: {id, ours, peer, peer_name, ratio, unit, bound}; ratio = ours / peer in the row's unit.
"""
import json
import os
import statistics
import sys

from common import BIN, GGUF, OUT, ROOT, finish, row, run
from rows import gemm, generation, training

HF = OUT / "smollm2-hf"
ROUNDS = int(os.environ.get("ROUNDS", "2"))
STEPS = 9  # of the demo on both sides: as the model learns, more groups are trained
PEER = "PyTorch eager loop"
PARTS = os.environ.get("PARTS", "gemm,model,train,demo").split(",")


def peer_round(seed):
    lines = run([sys.executable, ROOT / "bench/peers/torch_grpo_loop.py", HF, STEPS, seed]).splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")][1:]


def our_round(seed):
    folder = OUT / "demo"
    run([BIN / "titan-demo", "--steps", STEPS, "--seed", seed, "--output", folder])
    return json.loads((folder / "result.json").read_text())


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    if not (HF / "model.safetensors").exists():
        run([sys.executable, ROOT / "bench/peers/gguf_to_hf.py", GGUF, HF])
    rows = []

    def part(name, measure):
        if name not in PARTS:
            return
        rows.extend(measure())
        # What is measured stays when a later part is cut short.
        (OUT / "kernels.partial.json").write_text(json.dumps(rows, indent=1) + "\n")
        print(f"bench: {name} measured, {len(rows)} rows", file=sys.stderr, flush=True)

    def bound(name):
        return next((r["ours"] for r in rows if r["id"] == name), None)
    part("gemm", lambda: gemm.rows(rounds=ROUNDS))
    part("model", lambda: generation.rows(ROUNDS))
    part("train", lambda: training.rows(ROUNDS, bound("machine/fma")))
    part("demo", demo_rows)
    finish("kernels", rows)


def demo_rows():
    peer, ours, result = [], [], None
    for seed in range(1, ROUNDS + 1):
        peer += peer_round(seed)
        result = our_round(seed)
        ours += result["step_reports"][1:]
        print(f"bench: round {seed}: peer {statistics.median(s['seconds'] for s in peer):.2f} s a step, "
              f"ours {statistics.median(s['wall_seconds'] for s in ours):.2f} s", flush=True)

    def of(keys, steps):
        return [sum(step[key] for key in keys) for step in steps]
    update = ("forward_seconds", "backward_seconds", "optimizer_seconds")
    rows = [
        row("demo/step", of(["wall_seconds"], ours), "s/step", "ratio <= 0.5", of(["seconds"], peer), PEER),
        row("demo/step/generate", of(["generate_seconds"], ours), "s/step", None, of(["generate_seconds"], peer), PEER),
        row("demo/step/train", of(update, ours), "s/step", None, of(["train_seconds"], peer), PEER),
        row("demo/step/tokens_trained", of(["tokens_trained"], ours), "tokens", None, of(["tokens_trained"], peer), PEER),
    ]
    for phase in ("wall", "generate", "score", "wait_for_samples", "parity_forward", "forward", "backward",
                  "optimizer", "publish"):
        rows.append(row(f"demo/phase/{phase}", of([f"{phase}_seconds"], ours), "s/step"))
    for name, key in (("generated", "tokens_generated"), ("trained", "tokens_trained")):
        rows.append(row(f"demo/{name}", [s[key] / s["wall_seconds"] for s in ours], "tokens/s"))
    for process in result["processes"]:
        rows.append(row(f"demo/peak_memory/{process['name']}", process.get("peak_memory_mib"), "MiB"))
    return rows


main()
