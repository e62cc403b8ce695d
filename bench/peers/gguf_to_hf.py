#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A GGUF file as a plain HF folder with f32 weights, for the PyTorch peers.

usage: gguf_to_hf.py MODEL.gguf OUT_FOLDER
"""
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import torch  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402


def main():
    source, target = os.path.abspath(sys.argv[1]), sys.argv[2]
    folder, name = os.path.dirname(source), os.path.basename(source)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    # The loader marks the model as quantised and then refuses to save it: rebuild a plain one.
    config = loaded.config.to_dict()
    for key in ("quantization_config", "_name_or_path"):
        config.pop(key, None)
    config["rms_norm_eps"] = 1e-5  # GGUF holds the f32 neighbour of it
    plain = type(loaded)(type(loaded.config).from_dict(config)).float()
    plain.load_state_dict({key: value.float().clone() for key, value in loaded.state_dict().items()})
    plain.tie_weights()
    plain.save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    main()
