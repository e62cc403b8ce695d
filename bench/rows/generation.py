# SPDX-License-Identifier: Apache-2.0
"""Rows decode/<model>/<batch>, prefill/<model>/512: the generator's engine against transformers and llama.cpp.

Weights and cache are float32 on all sides; the row's peer is the faster one. Decode at batch 1 reads every weight once
a token: its bound is the time of reading them, measured in turns with it; prefill's is the FMA rate, measured before and
after every run of ours.
"""
import json
import os
import statistics
import sys

from common import BIN, GGUF, OUT, ROOT, row, run
from rows.gemm import bounds

BARS = {"decode/8": "ratio >= 2", "decode/32": "ratio >= 2", "prefill/512": "ratio >= 1.2"}
BATCHES = "1,8,32"


class Model:
    """What a model's rows need: files of the peers, arguments of ours, its layers' sizes."""

    def __init__(self, name, hf, gguf, ours, new_tokens, parameters, embedding, layers, attention):
        self.name, self.hf, self.gguf, self.ours, self.new_tokens = name, hf, gguf, ours, new_tokens
        # A prompt token: its matrices once, and the two products of attention over 256.5 keys on average.
        self.prefill_gflop = 2e-9 * (parameters - embedding) + 4e-9 * layers * attention * 256.5


def models():
    wanted = os.environ.get("MODELS", "SmolLM2-135M,Qwen3-0.6B").split(",")
    if "SmolLM2-135M" in wanted:
        gguf = OUT / "smollm2-f32.gguf"
        if not gguf.exists():
            run([sys.executable, ROOT / "bench/peers/gguf_f32.py", GGUF, gguf])
        yield Model("SmolLM2-135M", OUT / "smollm2-hf", gguf, [GGUF], 40, 134515008, 49152 * 576, 30, 576)
    if "Qwen3-0.6B" in wanted:
        folder = OUT / "qwen3-0.6b-random"
        if not (folder / "model.gguf").exists():
            print("bench: making a random model of the size of Qwen3-0.6B, 4.8 GB", file=sys.stderr, flush=True)
            run([sys.executable, ROOT / "bench/peers/gguf_f32.py", "--random", "qwen3-0.6b", folder])
        yield Model("Qwen3-0.6B", folder, folder / "model.gguf", ["--shape", "qwen3-0.6b", "--quick"], 16, 596049920,
                    151936 * 1024, 28, 2048)


def figures(command):
    lines = run(command, env=dict(os.environ, THREADS="2", OMP_NUM_THREADS="2")).splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def rows(rounds=2):
    return [r for model in models() for r in rows_of(model, rounds)]


def rows_of(model, rounds):
    ours, peers, machine = {}, {"transformers": {}, "llama.cpp": {}}, []
    for _ in range(rounds):
        for peer, script, path in (("transformers", "torch_generate.py", model.hf),
                                   ("llama.cpp", "llama_generate.py", model.gguf)):
            for figure in figures([sys.executable, ROOT / "bench/peers" / script, path, BATCHES, 32, model.new_tokens]):
                peers[peer].setdefault(figure["id"], []).append(figure["tokens_per_s"])
        machine.append(bounds())
        for figure in figures([BIN / "titan-bench-model", *model.ours]):
            ours.setdefault(figure["id"].removesuffix("/" + model.name.lower()), []).append(figure["ours"])
        machine.append(bounds())
    result = []
    of_read, read = ours.pop("decode/1/of_read"), ours.pop("read")
    for name, rates in ours.items():
        part, _, size = name.partition("/")
        if part not in ("decode", "prefill"):
            result.append(row(f"model/{model.name}/{name}", rates, "tokens/s"))
            continue
        peer = max(peers, key=lambda p: statistics.median(peers[p].get(name, [0])))
        measured = peers[peer].get(name)
        result.append(row(f"{part}/{model.name}/{size}", rates, "tokens/s", BARS.get(name), measured,
                          peer if measured else None))

    rate = statistics.median(ours["prefill/512"]) * model.prefill_gflop / statistics.median(m["gflops"] for m in machine)
    result.append(row(f"decode/{model.name}/1/of_read", of_read, "of read", "ours >= 0.9"))
    result.append(row(f"decode/{model.name}/1/read", read, "GB/s"))
    result.append(row(f"prefill/{model.name}/512/of_fma_peak", rate, "of peak", "ours >= 0.7"))
    return result
