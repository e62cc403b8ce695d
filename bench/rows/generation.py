# SPDX-License-Identifier: Apache-2.0
"""Rows decode/<model>/<batch>, prefill/<model>/512: the generator's engine against transformers, and the machine's bounds.

Weights and cache are float32 on both sides. Decode at batch 1 reads every weight once a token: its bound is the read
bandwidth measured in the same run; prefill's is the FMA rate.
"""
import json
import os
import statistics
import sys

from common import BIN, GGUF, OUT, ROOT, row, run

MODEL = "SmolLM2-135M"
PEER = "transformers"
WEIGHT_GBYTES = 134515008 * 4e-9
PREFILL_GFLOP_A_TOKEN = 2e-9 * (134515008 - 49152 * 576) + 2e-9 * 30 * 2 * 576 * 256.5


def rows(rounds=2, fma_gflops=None, read_gbytes=None):
    ours, peer, plain = {}, {}, []
    for _ in range(rounds):
        lines = run([sys.executable, ROOT / "bench/peers/torch_generate.py", OUT / "smollm2-hf", "1,8,32", 32, 40],
                    env=dict(os.environ, THREADS="2", OMP_NUM_THREADS="2")).splitlines()
        for figure in (json.loads(line) for line in lines if line.startswith("{")):
            peer.setdefault(figure["id"], []).append(figure["tokens_per_s"])
        for figure in map(json.loads, run([BIN / "titan-bench-model", GGUF]).splitlines()):
            ours.setdefault(figure["id"], []).append(figure["ours"])
    for name, figures in ours.items():
        part, _, size = name.partition("/")
        bar = {"decode/8": "ratio >= 2", "decode/32": "ratio >= 2", "prefill/512": "ratio >= 1.2"}.get(name)
        if part in ("decode", "prefill"):
            plain.append(row(f"{part}/{MODEL}/{size}", figures, "tokens/s", bar, peer.get(name), PEER if name in peer else None))
        else:
            plain.append(row(f"model/{name}", figures, "tokens/s"))
    if read_gbytes:
        plain.append(row(f"decode/{MODEL}/1/of_read", statistics.median(ours["decode/1"]) * WEIGHT_GBYTES / read_gbytes,
                         "of read", "ours >= 0.9"))
    if fma_gflops:
        plain.append(row(f"prefill/{MODEL}/512/of_fma_peak",
                         statistics.median(ours["prefill/512"]) * PREFILL_GFLOP_A_TOKEN / fma_gflops, "of peak",
                         "ours >= 0.7"))
    return plain
