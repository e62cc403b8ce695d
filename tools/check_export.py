#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads an exported SmolLM2 folder in transformers and compares its greedy continuations with golden ones.

  python3 tools/check_export.py <folder>      for example build/export/smollm2 (smollm2_export_long_test)

Needs torch and transformers in a virtual environment of their own. For exports of SmolLM2: the golden
files were made from the original GGUF by another route. Greedy tokens count up to the first step where
the best two logits are less than 1e-3 apart. The exported tokenizer must give the golden ids too.
"""
import json
import pathlib
import sys

import torch
import transformers


GOLDEN = pathlib.Path(__file__).parents[1] / "tests/golden"


def check_tokenizer(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    print(tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False,
                                        add_generation_prompt=True))
    cases = json.loads((GOLDEN / "tokenizer/smollm2.json").read_text())["cases"]
    wrong = [c["name"] for c in cases
             if tokenizer(c["text"], add_special_tokens=False)["input_ids"] != c["ids"]]
    print(f"tokenizer: {len(cases) - len(wrong)} of {len(cases)} texts have the golden ids", *wrong[:5])
    return not wrong


def check_model(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager")
    print("stop ids:", model.generation_config.eos_token_id)
    good = True
    for case in json.loads((GOLDEN / "model/smollm2_135m.json").read_text())["cases"]:
        prompt, want = case["prompt_ids"], case["greedy24_ids"]
        model.generation_config.eos_token_id = None
        got = model.generate(torch.tensor([prompt]), max_new_tokens=len(want), do_sample=False,
                             pad_token_id=0)[0, len(prompt):].tolist()
        clear = [i for i, gap in enumerate(case["greedy24_top1_minus_top2_f32"]) if gap <= 1e-3]
        count = clear[0] if clear else len(want)
        equal = got[:count] == want[:count]
        print(case["name"], f"{count} greedy tokens", "equal" if equal else f"differ: {got} {want}")
        good = good and equal
    return good


def main():
    folder = sys.argv[1]
    good = check_tokenizer(folder)
    sys.exit(0 if check_model(folder) and good else 1)


main()
