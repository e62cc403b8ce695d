#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/op_gradients/*.json: every operation of core/kernels in float64, forward and
backward by torch autograd, from its textbook definition.

Run by hand with torch 2.11.0 and numpy when an operation is added:
  python3 tools/golden/op_gradients.py
Inputs are not stored: both sides draw them. Number i (from 0) of a tensor drawn with (seed, low, high,
bits) is low + (high - low) * (mix(seed + (i + 1) * 0x9e3779b97f4a7c15 mod 2^64) >> (64 - bits)) / 2^bits,
mix the finisher of SplitMix64; all are binary32 exactly (checked here). The loss is the sum over all
outputs of cotangent * output, cotangents are inputs named d_<output>.
Of a tensor of more than LARGEST numbers only SAMPLES are stored, those at mix(i + 1) mod size, together
with its Euclidean norm and its products with SIGNS vectors of signs, in which every element takes part:
sign i of vector s is the lowest bit of mix((s + 1) * 2^32 + i).
"""
import json
import math
import pathlib

import numpy as np
import torch
from torch.nn import functional as F

OUT = pathlib.Path(__file__).parents[2] / "tests/golden/op_gradients"
LARGEST, SAMPLES, SIGNS = 300, 200, 3
torch.set_default_dtype(torch.float64)


def mix(x):
    x = np.asarray(x, dtype=np.uint64)
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
        return x ^ (x >> np.uint64(31))


def drawn(shape, seed, low, high, bits):
    count = math.prod(shape)
    with np.errstate(over="ignore"):
        words = mix(np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9e3779b97f4a7c15))
    values = low + (high - low) * (words >> np.uint64(64 - bits)).astype(np.float64) / 2.0**bits
    assert (values == values.astype(np.float32)).all()
    return torch.from_numpy(values.reshape(shape))


def stored(tensor):
    flat = tensor.detach().reshape(-1).numpy()
    entry = {"size": flat.size, "l2": float(np.linalg.norm(flat))}
    where = np.arange(flat.size, dtype=np.uint64)
    if flat.size > LARGEST:
        entry["signs"] = [float((flat * (1 - 2 * (mix((s + 1) * 2**32 + where) & np.uint64(1)).astype(np.float64))).sum())
                          for s in range(SIGNS)]
        flat = flat[(mix(np.arange(1, SAMPLES + 1)) % np.uint64(flat.size)).astype(np.int64)]
    entry["values"] = [float(f"{v:.10g}") for v in flat]
    return entry


class Case:
    """One case: draws inputs, then `done` runs the backward pass and stores outputs and gradients."""

    def __init__(self, op, name, **config):
        self.entry = {"name": f"{op}/{name}", "op": op, "config": config, "inputs": {}, "expected": {}}
        self.leaves = {}
        self.seed = sum(ord(c) * 31**i for i, c in enumerate(self.entry["name"])) % 2**40

    def draw(self, name, *shape, low=-1.0, high=1.0, bits=22, constant=False):
        self.seed += 1
        self.entry["inputs"][name] = {"shape": list(shape), "draw": [self.seed, low, high, bits]}
        leaf = drawn(shape, self.seed, low, high, bits)
        if not constant:
            self.leaves[name] = leaf.requires_grad_()
        return leaf

    def done(self, forward_only=None, **outputs):
        loss = 0.0
        for name, value in outputs.items():
            loss = loss + (value * self.draw("d_" + name, *value.shape, constant=True)).sum()
            self.entry["expected"][name] = stored(value)
        for name, value in (forward_only or {}).items():
            self.entry["expected"][name] = stored(value)
        gradients = torch.autograd.grad(loss, list(self.leaves.values()))
        for name, gradient in zip(self.leaves, gradients):
            self.entry["expected"]["d" + name] = stored(gradient)
        return self.entry


def write(area, what, cases):
    root = {"what": what, "oracle": f"torch {torch.__version__} float64 autograd",
            "made_by": "tools/golden/op_gradients.py"}
    body = ",\n  ".join(json.dumps(c, separators=(",", ":")) for c in cases)
    text = json.dumps(root, indent=1)[:-2] + ',\n "cases": [\n  ' + body + "\n ]\n}\n"
    (OUT / f"{area}.json").write_text(text)


def through_bf16(x):
    """Rounded to bfloat16, with the gradient straight through."""
    return x + (x.detach().to(torch.bfloat16).to(torch.float64) - x.detach())


# ---- linears, head, embedding ----------------------------------------------------------------

def linear(name, rows, n, k, units, mode="f32", bias=True):
    c = Case("linear", name, rows=rows, n=n, k=k, units=units, mode=mode, bias=bias)
    x = c.draw("x", rows, k)
    w = c.draw("w", n, k, bits=22 if mode == "f32" else 8)
    b = c.draw("b", n) if bias else None
    return c.done(y=F.linear(through_bf16(x) if mode == "bf16" else x, w, b))


def head(name, rows, vocab, hidden, inverse, units, mode="f32"):
    c = Case("head", name, rows=rows, vocab=vocab, hidden=hidden, inverse_temperature=inverse,
             units=units, mode=mode, targets=[(97 * r * r + 11 * r + 3) % vocab for r in range(rows)])
    x = c.draw("hidden", rows, hidden)
    w = c.draw("w", vocab, hidden, bits=22 if mode == "f32" else 8)
    z = F.linear(through_bf16(x) if mode == "bf16" else x, w) * inverse
    lp = F.log_softmax(z, dim=-1)
    chosen = lp.gather(1, torch.tensor(c.entry["config"]["targets"])[:, None])[:, 0]
    return c.done(forward_only={"entropy": -(lp.exp() * lp).sum(-1)}, log_prob=chosen)


def embedding(name, vocab, hidden, tokens, units):
    c = Case("embedding", name, vocab=vocab, hidden=hidden, tokens=tokens, units=units)
    return c.done(y=F.embedding(torch.tensor(tokens), c.draw("table", vocab, hidden)))


# ---- norms, rotations, gates -----------------------------------------------------------------

def norm(kind, name, rows, heads, width, eps, units):
    c = Case("norm", f"{kind}_{name}", kind=kind, rows=rows, heads=heads, width=width, eps=eps, units=units)
    x = c.draw("x", rows, heads, width, low=-2.0, high=2.0)
    if kind == "plain":
        return c.done(y=F.rms_norm(x, (width,), eps=eps))
    w = c.draw("w", width, low=0.5, high=1.5) if kind == "gain" else c.draw("w", width, low=-0.5, high=0.5)
    if kind == "gain":
        y = F.rms_norm(x, (width,), w, eps)
    elif kind == "centred_gain":
        y = F.rms_norm(x, (width,), 1 + w, eps)
    else:  # gain_first
        y = F.rms_norm(x * (1 + w), (width,), eps=eps)
    return c.done(y=y)


def frequencies(rotary, theta, scaling):
    """Published frequencies: kept in binary32 before and after scaling, as the reference code of the
    families keeps them; and the factor on sine and cosine."""
    i = torch.arange(0, rotary, 2)
    f = (theta ** (-i / rotary)).float().double()
    if not scaling:
        return f, 1.0
    kind, s = scaling["kind"], scaling["factor"]
    if kind == "linear":
        return (f / s).float().double(), 1.0
    old = scaling["original_max_positions"]
    if kind == "llama3":
        wave = 2 * math.pi / f
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        smooth = (old / wave - low) / (high - low)
        blended = (1 - smooth) * f / s + smooth * f
        f = torch.where(wave > old / low, f / s, torch.where(wave < old / high, f, blended))
        return f.float().double(), 1.0

    def dim_of(rotations):
        return rotary * math.log(old / (rotations * 2 * math.pi)) / (2 * math.log(theta))
    low = max(math.floor(dim_of(scaling["beta_fast"])), 0)
    high = min(math.ceil(dim_of(scaling["beta_slow"])), rotary - 1)
    extrapolate = 1 - ((torch.arange(rotary // 2) - low) / (high - low)).clamp(0, 1)
    return (f / s * (1 - extrapolate) + f * extrapolate).float().double(), 0.1 * math.log(s) + 1


def rope(name, heads, head_dim, rotary, theta, pairs, scaling, positions):
    c = Case("rope", name, heads=heads, head_dim=head_dim, rotary_dim=rotary, theta=theta, pairs=pairs,
             scaling=scaling, positions=positions)
    x = c.draw("x", len(positions), heads, head_dim)
    f, factor = frequencies(rotary, theta, scaling)
    angle = torch.tensor(positions, dtype=torch.float64)[:, None] * f
    turn = torch.polar(torch.full_like(angle, factor), angle)[:, None, :]  # a pair is one complex number
    half = rotary // 2
    if pairs == "half":
        z = torch.complex(x[..., :half], x[..., half:rotary]) * turn
    else:
        z = torch.complex(x[..., 0:rotary:2], x[..., 1:rotary:2]) * turn
    return c.done(y=torch.cat([z.real, z.imag, x[..., rotary:]], dim=-1))


def gate(name, act, n, **bounds):
    c = Case("gate", name, act=act, n=n, **bounds)
    span = 10.0 if act == "bounded" else 8.0
    g, u = c.draw("gate", n, low=-span, high=span, bits=20), c.draw("up", n, low=-span, high=span, bits=20)
    if act == "silu":
        return c.done(y=F.silu(g) * u)
    if act == "gelu_tanh":
        return c.done(y=F.gelu(g, approximate="tanh") * u)
    g, u = g.clamp(max=bounds["limit"]), u.clamp(-bounds["limit"], bounds["limit"])
    return c.done(y=(u + bounds["offset"]) * g * torch.sigmoid(bounds["alpha"] * g))


def softplus(name, n, span):
    c = Case("softplus", name, n=n)
    x = c.draw("x", n, low=-span, high=span, bits=20)
    return c.done(y=F.softplus(x, threshold=100.0))


# ---- attention -------------------------------------------------------------------------------

def visible(rows, window):
    t, j = torch.arange(rows)[:, None], torch.arange(rows)[None, :]
    return (j <= t) & ((t - j < window) if window else torch.ones(rows, rows, dtype=torch.bool))


def attend(q, k, v, scale, window, sinks):
    """One sequence: q [T, H, d], k and v [T, KV, d]."""
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    mask = visible(q.shape[1], window)
    if sinks is None:
        return F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask, scale=scale,
                                              enable_gqa=True)[0].transpose(0, 1)
    ratio = q.shape[0] // k.shape[0]
    k, v = k.repeat_interleave(ratio, 0), v.repeat_interleave(ratio, 0)
    scores = (q @ k.transpose(1, 2) * scale).masked_fill(~mask, -math.inf)
    beside = sinks[:, None, None].expand(-1, q.shape[1], 1)
    return (torch.softmax(torch.cat([scores, beside], -1), -1)[..., :-1] @ v).transpose(0, 1)


def attention(name, lengths, heads, kv_heads, dim, scale, window=0, sinks=False, prefix=0):
    """Sequences of these lengths; with a prefix they all continue it, and its rows come last."""
    c = Case("attention", name, lengths=lengths, heads=heads, kv_heads=kv_heads, head_dim=dim,
             scale=scale, window=window, sinks=sinks, prefix=prefix)
    rows = sum(lengths) + prefix
    q = c.draw("q", rows, heads, dim, low=-2.0, high=2.0)
    k = c.draw("k", rows, kv_heads, dim)
    v = c.draw("v", rows, kv_heads, dim)
    s = c.draw("sinks", heads, low=-1.0, high=2.0, bits=20) if sinks else None
    out, at, start = [], 0, rows - prefix
    for n in lengths:
        def whole(x):
            return torch.cat([x[start:], x[at:at + n]])
        out.append(attend(whole(q), whole(k), whole(v), scale, window, s)[prefix:])
        at += n
    if prefix:
        out.append(attend(q[start:], k[start:], v[start:], scale, window, s))
    return c.done(y=torch.cat(out))


def latent_attention(name, rows, heads, nope, rope_dim, latent, value, scale, units=None, mode="f32"):
    """DeepSeek's layer between its projections: keys and values are expanded from the latent. In mode
    bf16 what kv_b multiplies is rounded: the query's first part, and the latent that attention gives."""
    c = Case("latent_attention", name, rows=rows, heads=heads, nope=nope, rope=rope_dim, latent=latent,
             value=value, scale=scale, units=units or [0, rows], mode=mode)
    q = c.draw("q", rows, heads, nope + rope_dim)
    cached = c.draw("cache", rows, latent + rope_dim)
    kv_b = c.draw("kv_b", heads, nope + value, latent, bits=22 if mode == "f32" else 8)
    expanded = torch.einsum("tl,hol->hto", cached[:, :latent], kv_b)
    keys = torch.cat([expanded[..., :nope], cached[None, :, latent:].expand(heads, -1, -1)], -1)
    values = expanded[..., nope:]
    if mode == "bf16":
        q = torch.cat([through_bf16(q[..., :nope]), q[..., nope:]], -1)
        values = cached[None, :, :latent].expand(heads, -1, -1)
    y = F.scaled_dot_product_attention(q.transpose(0, 1)[None], keys[None], values[None],
                                       attn_mask=visible(rows, 0), scale=scale)[0]
    if mode == "bf16":
        y = torch.einsum("htl,hol->hto", through_bf16(y), kv_b[:, nope:])
    return c.done(y=y.transpose(0, 1))


def gated_delta(name, lengths, key_heads, value_heads, key_dim, value_dim, size, decay):
    c = Case("gated_delta", name, lengths=lengths, key_heads=key_heads, value_heads=value_heads,
             key_dim=key_dim, value_dim=value_dim)
    rows = sum(lengths)
    q = c.draw("q", rows, key_heads, key_dim, low=-size, high=size)
    k = c.draw("k", rows, key_heads, key_dim, low=-size, high=size)
    v = c.draw("v", rows, value_heads, value_dim)
    g = c.draw("g", rows, value_heads, low=-decay, high=0.0)
    beta = c.draw("beta", rows, value_heads, low=0.0, high=1.0)
    ratio, out, at = value_heads // key_heads, [], 0
    qs, ks = q.repeat_interleave(ratio, 1), k.repeat_interleave(ratio, 1)
    for n in lengths:
        state = torch.zeros(value_heads, key_dim, value_dim)
        for t in range(at, at + n):
            state = state * g[t].exp()[:, None, None]
            read = torch.einsum("hkv,hk->hv", state, ks[t])
            state = state + torch.einsum("hk,hv->hkv", ks[t], beta[t][:, None] * (v[t] - read))
            out.append(torch.einsum("hkv,hk->hv", state, qs[t]))
        at += n
    return c.done(y=torch.stack(out))


# ---- mixture of experts ----------------------------------------------------------------------

def route(z, score, chosen, normalise, eps, scaling, groups, chosen_groups, bias):
    if score == "softmax_of_chosen":
        top, ids = z.topk(chosen, -1)
        return ids, torch.softmax(top, -1) * scaling
    s = torch.softmax(z, -1) if score == "softmax" else torch.sigmoid(z)
    rank = s if bias is None else s + bias
    if groups > 1:
        grouped = rank.unflatten(-1, (groups, -1))
        best = grouped.topk(2, -1).values.sum(-1).topk(chosen_groups, -1).indices
        keep = torch.zeros(grouped.shape[:-1]).scatter(-1, best, 1.0)
        rank = grouped.masked_fill(keep[..., None] == 0, -math.inf).flatten(-2)
    ids = rank.topk(chosen, -1).indices
    w = s.gather(-1, ids)
    return ids, (w / (w.sum(-1, keepdim=True) + eps) if normalise else w) * scaling


def router(name, rows, experts, chosen, score="softmax", normalise=True, eps=0.0, scaling=1.0, groups=1,
           chosen_groups=1, bias=False):
    c = Case("router", name, rows=rows, experts=experts, chosen=chosen, score=score, normalise=normalise,
             eps=eps, scaling=scaling, groups=groups, chosen_groups=chosen_groups, bias=bias)
    z = c.draw("logits", rows, experts, low=-4.0, high=4.0)
    b = c.draw("bias", experts, low=-0.25, high=0.25, constant=True) if bias else None
    ids, w = route(z, score, chosen, normalise, eps, scaling, groups, chosen_groups, b)
    ids, order = ids.sort(-1)
    c.entry["config"]["ids"] = ids.flatten().tolist()
    return c.done(weights=w.gather(-1, order))


def experts(name, rows, hidden, width, count, chosen, units, shared=False, score="softmax", mode="f32"):
    """The whole layer: router, gate, up, SwiGLU, down with bias, weighted sum, a shared branch."""
    c = Case("experts", name, rows=rows, hidden=hidden, width=width, experts=count, chosen=chosen,
             units=units, shared=shared, score=score, mode=mode)
    bits = 22 if mode == "f32" else 8
    rounded = through_bf16 if mode == "bf16" else lambda v: v
    x = c.draw("x", rows, hidden)
    wr = c.draw("router", count, hidden, low=-0.5, high=0.5)
    wg = c.draw("gate", count, width, hidden, low=-0.5, high=0.5, bits=bits)
    wu = c.draw("up", count, width, hidden, low=-0.5, high=0.5, bits=bits)
    wd = c.draw("down", count, hidden, width, low=-0.5, high=0.5, bits=bits)
    bd = c.draw("down_bias", count, hidden)
    ids, w = route(F.linear(x, wr), score, chosen, True, 0.0, 1.0, 1, 1, None)
    y = torch.zeros_like(x)
    for t in range(rows):
        for e, weight in zip(ids[t].tolist(), w[t]):
            h = rounded(x[t])
            a = rounded(F.silu(F.linear(h, wg[e])) * F.linear(h, wu[e]))
            y[t] = y[t] + weight * F.linear(a, wd[e], bd[e])
    if shared:
        y = y + c.draw("shared", rows, hidden)
    return c.done(y=y)


def main():
    inverse = float(np.float32(1 / 0.7))
    write("linear", "linears, head with log-prob, embedding", [
        linear("one_row", 1, 33, 48, [0, 1]),
        linear("odd_sizes_three_units", 37, 70, 45, [0, 20, 21, 37]),
        linear("two_leaves", 5, 20, 512, [0, 5]),
        linear("eight_leaves_no_bias", 3, 16, 2048, [0, 3], bias=False),
        linear("leaves_of_the_input_gradient", 3, 1024, 16, [0, 3]),
        linear("many_rows", 300, 12, 24, [0, 150, 300]),
        linear("w16", 19, 40, 50, [0, 7, 19], mode="w16"),
        linear("bf16", 19, 40, 51, [0, 7, 19], mode="bf16"),
        head("small", 5, 40, 24, 1.0, [0, 5]),
        head("chunks_units_temperature", 12, 2500, 32, inverse, [0, 5, 6, 12]),
        head("two_leaves", 3, 70, 512, 1.0, [0, 3]),
        head("w16", 6, 1100, 32, 1.0, [0, 4, 6], mode="w16"),
        head("bf16", 6, 1100, 33, 1.0, [0, 4, 6], mode="bf16"),
        embedding("repeated", 50, 24, [3, 49, 3, 0, 7, 3, 49, 1, 3, 0, 0, 17], [0, 5, 12]),
        embedding("one_token", 33, 40, [32] * 9, [0, 9]),
    ])
    llama3 = {"kind": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_positions": 64}
    yarn = {"kind": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_positions": 4096}
    positions = [0, 1, 2, 3, 7, 15, 31, 64, 63, 5]
    write("elementwise", "norms of rows and of heads, rotations, gates", [
        *(norm(kind, "rows", 23, 1, 70, 1e-5, [0, 10, 11, 23]) for kind in
          ("gain", "centred_gain", "plain", "gain_first")),
        *(norm(kind, "heads", 9, 4, 32, 1e-6, [0, 4, 9]) for kind in
          ("gain", "centred_gain", "plain", "gain_first")),
        norm("gain", "wide", 3, 1, 2100, 1e-6, [0, 3]),
        norm("gain", "large_eps", 5, 1, 16, 0.5, [0, 5]),
        rope("plain", 2, 32, 32, 1e4, "half", None, positions),
        rope("linear", 2, 32, 32, 1e4, "half", {"kind": "linear", "factor": 8.0}, positions),
        rope("llama3", 2, 64, 64, 5e5, "half", llama3, positions),
        rope("yarn", 2, 64, 64, 1.5e5, "half", yarn, positions),
        rope("partial", 3, 40, 16, 1e4, "half", None, positions),
        rope("interleaved", 2, 32, 32, 1e4, "interleaved", None, positions),
        rope("interleaved_partial_yarn", 2, 48, 32, 1e4, "interleaved", yarn, positions),
        gate("swiglu", "silu", 300), gate("swiglu_long", "silu", 2000),
        gate("gelu", "gelu_tanh", 300), gate("gelu_long", "gelu_tanh", 2000),
        gate("bounded_gpt_oss", "bounded", 300, limit=7.0, alpha=float(np.float32(1.702)), offset=1.0),
        gate("bounded_no_offset", "bounded", 300, limit=5.0, alpha=1.0, offset=0.0),
        softplus("around_zero", 2000, 4.0), softplus("both_tails", 300, 64.0),
    ])
    write("attention", "attention: head sizes, ratios, windows, sinks, shared prefixes", [
        attention("head_32_ratio_2", [20, 3], 4, 2, 32, 0.25),
        attention("head_64_ratio_3", [70], 3, 1, 64, 0.125),
        attention("head_80_ratio_4_window_sinks", [75, 1], 8, 2, 80, 0.125, window=20, sinks=True),
        attention("head_96_ratio_1", [33], 2, 2, 96, 0.125),
        attention("head_128_window_4", [17, 9], 4, 2, 128, 0.0625, window=4),
        attention("head_256_sinks", [21], 4, 2, 256, 0.0625, sinks=True),
        attention("head_256_ratio_8", [66], 8, 1, 256, 0.0625),
        attention("window_1", [6], 2, 1, 16, 0.25, window=1),
        attention("window_64_of_200", [200], 2, 1, 32, 0.25, window=64),
        attention("two_segments", [600], 2, 1, 32, 0.25),
        attention("two_segments_window_530_sinks", [700], 2, 2, 16, 0.5, window=530, sinks=True),
        attention("shared_prefix", [40, 1, 30], 4, 2, 32, 0.25, prefix=37),
        attention("shared_prefix_window_sinks", [40, 1, 30], 4, 2, 32, 0.25, prefix=37, window=25, sinks=True),
    ])
    write("recurrent_latent", "gated delta rule by its recurrence, latent attention in expanded form", [
        gated_delta("one_token", [1], 1, 1, 16, 16, 0.5, 0.25),
        gated_delta("within_a_chunk", [40], 2, 4, 24, 20, 0.25, 0.25),
        gated_delta("three_chunks", [150], 1, 2, 16, 12, 0.5, 0.25),
        gated_delta("edge_of_a_chunk", [64, 65, 128], 1, 1, 8, 8, 0.5, 0.125),
        gated_delta("strong_decay", [100], 1, 1, 16, 16, 0.5, 16.0),
        gated_delta("head_128", [70], 1, 2, 128, 128, 0.125, 0.125),
        latent_attention("one_row", 1, 2, 6, 4, 10, 5, 0.25),
        latent_attention("blocks", 130, 2, 16, 8, 32, 12, 0.25),
        latent_attention("no_rope", 30, 3, 16, 0, 24, 16, 0.25),
        latent_attention("wide", 20, 2, 128, 64, 512, 128, 0.0625),
        latent_attention("two_segments", 560, 1, 8, 4, 16, 8, 0.25),
        latent_attention("w16", 19, 2, 14, 4, 20, 9, 0.25, units=[0, 7, 19], mode="w16"),
        latent_attention("bf16", 19, 2, 13, 4, 21, 9, 0.25, units=[0, 7, 19], mode="bf16"),
    ])
    write("experts", "routers, and whole layers of experts", [
        router("softmax", 20, 16, 4),
        router("softmax_plain", 20, 24, 3, normalise=False),
        router("softmax_of_chosen", 20, 32, 4, score="softmax_of_chosen"),
        router("sigmoid", 20, 16, 4, score="sigmoid", normalise=False, bias=True),
        router("sigmoid_groups_bias", 20, 64, 6, score="sigmoid", eps=1e-20, scaling=2.5, groups=8,
               chosen_groups=3, bias=True),
        router("all_chosen", 7, 6, 6),
        router("one", 4, 1, 1),
        experts("two_of_six", 23, 24, 20, 6, 2, [0, 9, 10, 23]),
        experts("shared_of_chosen", 14, 32, 12, 8, 3, [0, 14], shared=True, score="softmax_of_chosen"),
        experts("leaves", 4, 512, 8, 4, 2, [0, 4]),
        experts("w16", 12, 24, 16, 5, 2, [0, 5, 12], mode="w16"),
        experts("bf16", 12, 24, 16, 5, 2, [0, 5, 12], mode="bf16"),
    ])


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    main()
