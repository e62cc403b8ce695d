# SPDX-License-Identifier: Apache-2.0
"""torch_train.py HF_DIR BATCH.json UPDATES [MICROBATCH]: the update of titan-bench-train in PyTorch eager.

Padded rows, log-softmax and gather, the clipped policy loss with token mean, backward, fused AdamW; microbatches of
MICROBATCH sequences (all by default). Prints JSON: the first update's loss and gradient norm, seconds of each later
update and its parts, peak memory. With --log_probs it only prints the log-probs of the replies.
"""
import json
import os
import resource
import sys
import time

import torch
from transformers import AutoModelForCausalLM

THREADS = int(os.environ.get("THREADS", "2"))


def padded(samples):
    width = max(len(s["prompt"]) + len(s["reply"]) for s in samples)
    ids = torch.zeros(len(samples), width, dtype=torch.long)
    mask = torch.zeros(len(samples), width, dtype=torch.long)
    trained = torch.zeros(len(samples), width - 1)
    old = torch.zeros(len(samples), width - 1)
    for i, s in enumerate(samples):
        n, p = len(s["prompt"]) + len(s["reply"]), len(s["prompt"])
        ids[i, :n] = torch.tensor(s["prompt"] + s["reply"])
        mask[i, :n] = 1
        trained[i, p - 1:n - 1] = 1
        old[i, p - 1:n - 1] = torch.tensor(s["log_probs"])
    advantage = torch.tensor([s["advantage"] for s in samples])[:, None]
    return ids, mask, trained, old, advantage


def log_probs_of(model, ids, mask):
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
    return torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None]).squeeze(-1)


def main():
    folder, path = sys.argv[1], sys.argv[2]
    torch.set_num_threads(THREADS)
    samples = json.load(open(path))["samples"]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if sys.argv[3] == "--log_probs":
        with torch.inference_mode():
            for s in samples:
                ids, mask, trained, _, _ = padded([dict(s, log_probs=[0.0] * len(s["reply"]))])
                print(json.dumps(log_probs_of(model, ids, mask)[trained > 0].tolist()))
        return
    updates = int(sys.argv[3])
    size = int(sys.argv[4]) if len(sys.argv) > 4 else len(samples)
    parts = [padded(samples[i:i + size]) for i in range(0, len(samples), size)]
    tokens = sum(len(s["reply"]) for s in samples)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0, fused=True)
    out = {"seconds": [], "forward_seconds": [], "backward_seconds": [], "optimizer_seconds": []}
    for update in range(updates + 1):
        forward = backward = total = 0.0
        start = time.perf_counter()
        for ids, mask, trained, old, advantage in parts:
            t0 = time.perf_counter()
            ratio = torch.exp(log_probs_of(model, ids, mask) - old)
            surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            loss = -(surrogate * trained).sum() / tokens
            t1 = time.perf_counter()
            loss.backward()
            forward, backward, total = forward + t1 - t0, backward + time.perf_counter() - t1, total + loss.item()
            del loss, ratio, surrogate
        t0 = time.perf_counter()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        end = time.perf_counter()
        if update == 0:
            out.update(loss=total, gradient_norm=norm.item())
            continue
        out["seconds"].append(end - start)
        out["forward_seconds"].append(forward)
        out["backward_seconds"].append(backward)
        out["optimizer_seconds"].append(end - t0)
    out["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps(out))


main()
