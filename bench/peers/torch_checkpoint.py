# SPDX-License-Identifier: Apache-2.0
"""How long torch.distributed.checkpoint's async_save holds up its caller: weights and AdamW's moments of a model of
SmolLM2-135M's shape, f32, to a folder on disk.

usage: torch_checkpoint.py FOLDER [ROUNDS]; prints a JSON line: bytes, and medians in ms of `blocking` (the call) and
`write` (until its future is done). A first save, which sets the machinery up, is left out.
"""
import json
import pathlib
import shutil
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

HIDDEN, WIDE, LAYERS, VOCABULARY, KV = 576, 1536, 30, 49152, 192


def shapes():
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        for name, shape in (("self_attn.q_proj", (HIDDEN, HIDDEN)), ("self_attn.k_proj", (KV, HIDDEN)),
                            ("self_attn.v_proj", (KV, HIDDEN)), ("self_attn.o_proj", (HIDDEN, HIDDEN)),
                            ("mlp.gate_proj", (WIDE, HIDDEN)), ("mlp.up_proj", (WIDE, HIDDEN)),
                            ("mlp.down_proj", (HIDDEN, WIDE)), ("input_layernorm", (HIDDEN,)),
                            ("post_attention_layernorm", (HIDDEN,))):
            yield f"{layer}{name}.weight", shape
    yield "model.norm.weight", (HIDDEN,)


def main():
    folder = pathlib.Path(sys.argv[1])
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
    state = {prefix + name: torch.randn(shape) for prefix in ("", "exp_avg.", "exp_avg_sq.") for name, shape in shapes()}
    blocking, write = [], []
    for i in range(rounds + 1):
        start = time.perf_counter()
        future = dcp.async_save(state, checkpoint_id=str(folder / "checkpoint"))
        called = time.perf_counter()
        future.result()
        blocking.append((called - start) * 1e3)
        write.append((time.perf_counter() - start) * 1e3)
        shutil.rmtree(folder / "checkpoint")
    print(json.dumps({"bytes": sum(t.numel() * 4 for t in state.values()),
                      "blocking": statistics.median(blocking[1:]), "write": statistics.median(write[1:])}))
    dist.destroy_process_group()
    shutil.rmtree(folder, ignore_errors=True)


main()
