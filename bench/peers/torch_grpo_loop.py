#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The demo's job as a plain PyTorch loop: the peer of the row demo/step.

Same model, f32 weights, data split size, sampling and loss settings as `make demo`, on-policy, one process,
all cores. Prints one JSON line a step: {step, seconds, generate_seconds, train_seconds, reward, tokens, tokens_trained}.

usage: torch_grpo_loop.py HF_FOLDER STEPS [SEED]
"""
import json
import os
import random
import re
import sys
import time

for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
    os.environ.pop(name, None)
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

PROMPTS, SAMPLES, NEW_TOKENS, MAX_OPERAND, HELD_OUT = 8, 8, 20, 20, 200


def main():
    folder, steps = sys.argv[1], int(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    torch.manual_seed(seed)
    torch.set_num_threads(os.cpu_count())
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, fused=True)

    pairs = [(a, b) for a in range(MAX_OPERAND + 1) for b in range(MAX_OPERAND + 1)]
    rng = random.Random(seed)
    rng.shuffle(pairs)
    train = pairs[HELD_OUT:]
    eos = tokenizer.eos_token_id

    for step in range(steps):
        start = time.perf_counter()
        batch = [rng.choice(train) for _ in range(PROMPTS)]
        texts = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": f"What is {a} + {b}?"}], tokenize=False, add_generation_prompt=True
            )
            for a, b in batch
        ]
        encoded = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        prompt_length = encoded.input_ids.shape[1]
        with torch.no_grad():
            output = model.generate(
                **encoded, max_new_tokens=NEW_TOKENS, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                num_return_sequences=SAMPLES, pad_token_id=tokenizer.pad_token_id,
            )
        generated = time.perf_counter()

        replies = output[:, prompt_length:]
        rewards = torch.zeros(PROMPTS * SAMPLES)
        for i in range(PROMPTS * SAMPLES):
            numbers = re.findall(r"-?\d+", tokenizer.decode(replies[i], skip_special_tokens=True))
            a, b = batch[i // SAMPLES]
            rewards[i] = 1.0 if numbers and int(numbers[-1]) == a + b else 0.0
        grouped = rewards.view(PROMPTS, SAMPLES)
        centred = grouped - grouped.mean(1, keepdim=True)
        advantages = (centred / (grouped.std(1, keepdim=True, unbiased=False) + 1e-6)).view(-1)

        mask = torch.ones_like(replies, dtype=torch.float)
        for i in range(replies.shape[0]):
            ends = (replies[i] == eos).nonzero()
            if len(ends):
                mask[i, ends[0, 0] + 1:] = 0
        attention = torch.cat([encoded.attention_mask.repeat_interleave(SAMPLES, 0), mask.long()], 1)
        positions = (attention.cumsum(1) - 1).clamp(min=0)
        trained = (advantages.abs() > 0).nonzero().view(-1)
        tokens = mask[trained].sum()
        if len(trained):
            optimizer.zero_grad()
            for chunk in trained.split(16):
                logits = model(
                    input_ids=output[chunk], attention_mask=attention[chunk], position_ids=positions[chunk],
                    logits_to_keep=replies.shape[1] + 1,
                ).logits[:, :-1]
                log_probs = torch.log_softmax(logits, -1).gather(-1, replies[chunk].unsqueeze(-1)).squeeze(-1)
                ratio = (log_probs - log_probs.detach()).exp()
                (-(ratio * advantages[chunk, None] * mask[chunk]).sum() / tokens).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        end = time.perf_counter()
        print(json.dumps({
            "step": step, "seconds": end - start, "generate_seconds": generated - start,
            "train_seconds": end - generated, "reward": float(rewards.mean()), "tokens": int(mask.sum()),
            "tokens_trained": int(tokens),
            "groups_trained": int((grouped.std(1) > 0).sum()),
        }), flush=True)


if __name__ == "__main__":
    main()
