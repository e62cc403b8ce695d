# SPDX-License-Identifier: Apache-2.0
"""Rows train/<model>/<shape>, train_rl/<model>: updates of the trainer against PyTorch eager with fused AdamW.

Both sides read one batch file. <B>x<T> is B unrelated sequences of T tokens, all trained; rl is 8 groups of 8 samples
with prompts of 200 tokens and replies of 20 to 120, which the peer pads and we pack, prompts shared. The row's unit is
trained tokens a second; /memory is the peak of the process. Loss and gradient norm of both sides must agree.
"""
import json
import os
import random
import statistics
import sys

from common import BIN, GGUF, OUT, ROOT, row, run

MODEL = "SmolLM2-135M"
PEER = "PyTorch eager"
# shape: (ratio of speed, of memory) that the row must reach; None: no bar.
PLAIN = {"8x128": (">= 1.2", "<= 0.75"), "4x512": (">= 1.3", "<= 0.6")}
RECOMPUTED = (">= 0.9", "<= 0.55")


def batch_file(shape, folder):
    numbers = random.Random(7)

    def tokens(n):
        return [numbers.randrange(1000, 40000) for _ in range(n)]
    samples = []
    if shape == "rl":
        for group in range(8):
            prompt = tokens(200)
            for _ in range(8):
                samples.append({"group": group, "prompt": prompt, "reply": tokens(numbers.randrange(20, 121)),
                                "advantage": numbers.choice([-1.0, 1.0])})
    else:
        batch, length = map(int, shape.split("x"))
        for group in range(batch):
            ids = tokens(length)
            samples.append({"group": group, "prompt": ids[:1], "reply": ids[1:], "advantage": 1.0})
    path = folder / f"batch-{shape}.json"
    path.write_text(json.dumps({"samples": [dict(s, log_probs=[0.0] * len(s["reply"])) for s in samples]}))
    # Old log-probs near the policy's own, so that the ratios are neither 1 nor all clipped.
    lines = run([sys.executable, ROOT / "bench/peers/torch_train.py", OUT / "smollm2-hf", path, "--log_probs"])
    policy = [json.loads(line) for line in lines.splitlines() if line.startswith("[")]
    for sample, log_probs in zip(samples, policy):
        sample["log_probs"] = [p + numbers.uniform(-0.1, 0.1) for p in log_probs]
    path.write_text(json.dumps({"samples": samples}))
    return path, sum(len(s["reply"]) for s in samples)


def ours(path, *options):
    return json.loads(run([BIN / "titan-bench-train", GGUF, path, *options]))


def theirs(path, updates, microbatch):
    environment = dict(os.environ, THREADS="2", OMP_NUM_THREADS="2")
    lines = run([sys.executable, ROOT / "bench/peers/torch_train.py", OUT / "smollm2-hf", path, updates, microbatch],
                env=environment)
    return json.loads(lines.splitlines()[-1])


def agree(shape, a, b):
    for key in ("loss", "gradient_norm"):
        if abs(a[key] - b[key]) > 1e-3 * abs(b[key]) + 1e-5:
            sys.exit(f"bench: {shape}: {key} is {a[key]} here and {b[key]} in the peer")


def compared(name, tokens, a, b, bars):
    speed, memory = bars
    return [
        row(name, [tokens / s for r in a for s in r["seconds"]], "tokens/s", speed and f"ratio {speed}",
            [tokens / s for r in b for s in r["seconds"]], PEER),
        row(f"{name}/memory", [r["peak_mib"] for r in a], "MiB", memory and f"ratio {memory}",
            [r["peak_mib"] for r in b], PEER)]


def rows(rounds=2, fma_gflops=None):
    result = []
    for shape, bars in PLAIN.items():
        path, tokens = batch_file(shape, OUT)
        plain, again, peer = [], [], []
        for _ in range(rounds):
            plain.append(ours(path, "--updates=2"))
            peer.append(theirs(path, 2, 8))
            again.append(ours(path, "--updates=2", "--recompute=full"))
        agree(shape, plain[0], peer[0])
        agree(shape, again[0], peer[0])
        name = f"train/{MODEL}/{shape}"
        result += compared(name, tokens, plain, peer, bars) + compared(f"{name}/recompute", tokens, again, peer, RECOMPUTED)
        if fma_gflops:
            batch, length = map(int, shape.split("x"))
            seconds = statistics.median(s for r in plain for s in r["seconds"])
            result.append(row(f"{name}/of_fma_peak", flops(batch, length) / seconds / fma_gflops * 1e-9, "of peak",
                              "ours >= 0.72"))
    path, tokens = batch_file("rl", OUT)
    shared, peer = [], []
    for _ in range(rounds):
        shared.append(ours(path, "--updates=2", "--shared_group_tokens=2048", "--max_pack_tokens=3072"))
        peer.append(theirs(path, 1, 8))
    agree("rl", shared[0], peer[0])
    return result + compared(f"train_rl/{MODEL}", tokens, shared, peer, (">= 3.5", None))


def flops(batch, length):
    """Forward and backward of SmolLM2-135M: its matrices three times, attention's two products and their gradients."""
    hidden, layers, matrices, vocabulary = 576, 30, 576 * (576 * 2 + 192 * 2 + 1536 * 3), 49152
    rows_of_matrices = batch * length * layers * matrices + batch * (length - 1) * vocabulary * hidden
    attention = layers * batch * hidden * length * (length + 1) // 2
    return 6 * rows_of_matrices + 2 * attention * (2 + 5)
