# SPDX-License-Identifier: Apache-2.0
"""torch_generate.py HF_DIR BATCHES PROMPT NEW: transformers' greedy generate() with its key-value cache, float32.

Prints one JSON object a line: {"id": "decode/<batch>" or "prefill/512", "tokens_per_s": ...}. Decode leaves the prompt
out: the time of NEW tokens less the time of one.
"""
import json
import os
import statistics
import sys
import time

import torch
from transformers import AutoModelForCausalLM

RUNS = 3


def main():
    folder, batches, prompt, new = sys.argv[1], [int(b) for b in sys.argv[2].split(",")], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(int(os.environ.get("THREADS", "2")))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0

    def seconds(ids, tokens):
        start = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens,
                                 do_sample=False, use_cache=True)
        assert out.shape[1] == ids.shape[1] + tokens
        return time.perf_counter() - start

    ids = torch.randint(1000, 40000, (1, 512))
    seconds(ids, 1)
    rate = statistics.median(512 / seconds(ids, 1) for _ in range(RUNS))
    print(json.dumps({"id": "prefill/512", "tokens_per_s": rate}), flush=True)
    for batch in batches:
        ids = torch.randint(1000, 40000, (batch, prompt))
        seconds(ids, 2)
        rates = [batch * (new - 1) / (seconds(ids, new) - seconds(ids, 1)) for _ in range(RUNS)]
        print(json.dumps({"id": f"decode/{batch}", "tokens_per_s": statistics.median(rates)}), flush=True)


main()
