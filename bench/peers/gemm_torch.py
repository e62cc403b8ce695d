# SPDX-License-Identifier: Apache-2.0
"""gemm_torch.py f32|bf16 MxNxK...: what titan-bench-gemm measures, by the oneDNN inside PyTorch, which is newer than the
last release with OpenMP: a linear layer with its weight packed beforehand. One JSON object a line."""
import json
import os
import sys
import time

import torch

WEIGHT_BYTES = 128 << 20
RUNS, RUN_SECONDS = 7, 0.08
LEAST_RUNS, MOST_SECONDS = 3, 2.0  # as titan-bench-gemm


def call(mode, m, n, k):
    """A function that computes with the next copy of the weights."""
    kind = {"f32": torch.float32, "bf16": torch.bfloat16}[mode]
    x = torch.rand(m, k).to(kind)
    plain = torch.rand(n, k).to(kind)
    copies = max(1, WEIGHT_BYTES // (plain.numel() * plain.element_size()))
    weights = [torch.ops.mkldnn._reorder_linear_weight(plain, m) for _ in range(copies)]
    linear = torch.ops.mkldnn._linear_pointwise
    at = 0

    def one():
        nonlocal at
        linear(x, weights[at], None, "none", [], "")
        at = (at + 1) % copies
    return one


def rates(one, flops):
    begin, result = time.perf_counter(), []
    for run in range(RUNS + 1):
        start = end = time.perf_counter()
        if run > LEAST_RUNS and start - begin > MOST_SECONDS:
            break
        calls = 0
        while calls == 0 or end - start < RUN_SECONDS:
            one()
            calls += 1
            end = time.perf_counter()
        if run > 0:
            result.append(flops * calls / (end - start) * 1e-9)
    return sorted(result)


def main():
    mode, *shapes = sys.argv[1:]
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    with torch.inference_mode():
        for shape in shapes:
            m, n, k = map(int, shape.split("x"))
            figures = rates(call(mode, m, n, k), 2.0 * m * n * k)
            print(json.dumps({"id": shape, "median": figures[len(figures) // 2], "best": figures[-1]}), flush=True)


main()
