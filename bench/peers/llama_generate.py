#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""llama_generate.py MODEL.gguf BATCHES PROMPT NEW: llama.cpp's batch interface, greedy, float32 weights and cache.

Prints what torch_generate.py prints: {"id": "decode/<batch>" or "prefill/512", "tokens_per_s": ...}, decode without
the prompt. All sequences of a batch are decoded in one call a step.
"""
import ctypes
import json
import os
import statistics
import sys
import time

import llama_cpp as llama
import numpy as np

RUNS, THREADS, F32 = 3, int(os.environ.get("THREADS", "2")), 0


class Run:
    """One context and its batch."""

    def __init__(self, model, sequences, tokens_each):
        parameters = llama.llama_context_default_params()
        parameters.n_ctx, parameters.n_seq_max = sequences * tokens_each, sequences
        parameters.n_batch = max(2048, sequences * tokens_each)
        parameters.n_ubatch = 512
        parameters.n_threads = parameters.n_threads_batch = THREADS
        parameters.type_k = parameters.type_v = F32
        self.context = llama.llama_init_from_model(model, parameters)
        self.batch = llama.llama_batch_init(parameters.n_batch, 0, 1)
        self.vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))

    def close(self):
        llama.llama_batch_free(self.batch)
        llama.llama_free(self.context)

    def decode(self, entries):
        """entries: (token, position, sequence, wanted); the next tokens of those wanted."""
        for i, (token, position, sequence, wanted) in enumerate(entries):
            self.batch.token[i], self.batch.pos[i] = int(token), position
            self.batch.n_seq_id[i], self.batch.seq_id[i][0], self.batch.logits[i] = 1, sequence, wanted
        self.batch.n_tokens = len(entries)
        if llama.llama_decode(self.context, self.batch) != 0:
            sys.exit("llama_decode failed")
        return [int(np.ctypeslib.as_array(llama.llama_get_logits_ith(self.context, i), shape=(self.vocabulary,)).argmax())
                for i, entry in enumerate(entries) if entry[3]]

    def seconds(self, prompts, new):
        """Of the prompts, and of the new - 1 steps after them."""
        llama.llama_memory_clear(llama.llama_get_memory(self.context), True)
        length = prompts.shape[1]
        start = time.perf_counter()
        tokens = self.decode([(token, at, s, at == length - 1) for s, prompt in enumerate(prompts)
                              for at, token in enumerate(prompt)])
        middle = time.perf_counter()
        for step in range(new - 1):
            tokens = self.decode([(token, length + step, s, True) for s, token in enumerate(tokens)])
        return middle - start, time.perf_counter() - middle


def main():
    path, batches = sys.argv[1], [int(b) for b in sys.argv[2].split(",")]
    prompt, new = int(sys.argv[3]), int(sys.argv[4])
    llama.llama_backend_init()
    silent = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(silent, ctypes.c_void_p(0))
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    if not model:
        sys.exit(f"llama.cpp cannot load {path}")
    numbers = np.random.default_rng(0)

    def report(name, rates):
        print(json.dumps({"id": name, "tokens_per_s": statistics.median(rates)}), flush=True)
    run = Run(model, 1, 1024)
    ids = numbers.integers(1000, 40000, (1, 512))
    run.seconds(ids, 1)
    report("prefill/512", [512 / run.seconds(ids, 1)[0] for _ in range(RUNS)])
    run.close()
    for batch in batches:
        run = Run(model, batch, prompt + new)
        ids = numbers.integers(1000, 40000, (batch, prompt))
        run.seconds(ids, 2)
        report(f"decode/{batch}", [batch * (new - 1) / run.seconds(ids, new)[1] for _ in range(RUNS)])
        run.close()


main()
