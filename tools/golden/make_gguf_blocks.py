#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/formats/gguf_blocks.json: blocks of every quantised GGUF type that core/formats
converts, with the f32 values that the reference package makes of them, as bits.

Run by hand when a type is added, with gguf 0.19.0 and numpy:
  python3 tools/golden/make_gguf_blocks.py
The blocks are random bytes from a fixed seed with the f16 fields set to finite values (ordinary ones,
zero, the smallest denormal, the largest, negative ones); one case per type has all bits set in what is
not an f16 field, one has none.
"""
import importlib.metadata
import json
import pathlib

import gguf
import numpy as np

# type -> (offsets of the f16 fields in a block)
F16_FIELDS = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q4_K": [0, 2], "Q6_K": [208],
}
SPECIAL = [0.0, 6e-8, 65504.0, -0.25, -65504.0, 1.0]


def make_case(name, kind, blocks, fields, rng, ordinary):
    for block in blocks:
        for at in fields:
            value = rng.normal(scale=0.02) if ordinary else rng.choice(SPECIAL)
            block[at:at + 2] = np.array([value], dtype="<f2").view(np.uint8)
    values = gguf.quants.dequantize(blocks, getattr(gguf.GGMLQuantizationType, kind))
    values = np.ascontiguousarray(values.reshape(-1), dtype="<f4")
    assert np.isfinite(values).all()
    return {"name": f"{kind}/{name}", "type": kind, "bytes_hex": blocks.tobytes().hex(),
            "values_f32_hex": values.tobytes().hex()}


def main():
    rng = np.random.default_rng(20261129)
    cases = []
    for kind, fields in F16_FIELDS.items():
        size = gguf.GGML_QUANT_SIZES[getattr(gguf.GGMLQuantizationType, kind)][1]
        def random(count):
            return rng.integers(0, 256, (count, size), dtype=np.uint8)
        cases.append(make_case("random", kind, random(3), fields, rng, True))
        cases.append(make_case("special_scales", kind, random(4), fields, rng, False))
        cases.append(make_case("all_ones", kind, np.full((1, size), 255, np.uint8), fields, rng, True))
        cases.append(make_case("all_zeros", kind, np.zeros((1, size), np.uint8), fields, rng, True))
    root = {"what": "blocks of quantised GGUF types and the f32 bits they stand for",
            "oracle": "gguf " + importlib.metadata.version("gguf") + " quants.dequantize",
            "made_by": "tools/golden/make_gguf_blocks.py", "cases": cases}
    path = pathlib.Path(__file__).parents[2] / "tests/golden/formats/gguf_blocks.json"
    path.write_text(json.dumps(root, indent=1) + "\n")


main()
