#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GGUF files with float32 weights, for llama.cpp as a peer.

usage: gguf_f32.py MODEL.gguf OUT.gguf           the same model, every tensor dequantised
       gguf_f32.py --random qwen3-0.6b OUT_FOLDER  random weights of that size: OUT_FOLDER/model.gguf, and the same
                                                   architecture as an HF folder for transformers
"""
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import gguf  # noqa: E402
import numpy as np  # noqa: E402

# As published; the context is cut to what the rows need.
SHAPES = {"qwen3-0.6b": dict(hidden_size=1024, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
                             head_dim=128, intermediate_size=3072, vocab_size=151936, rope_theta=1e6,
                             rms_norm_eps=1e-6, max_position_embeddings=4096, tie_word_embeddings=True)}


def dequantise(source, target):
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, inner)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, values.reshape([int(n) for n in reversed(tensor.shape)]))
    finish(writer)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def random_model(name, folder):
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    shape = SHAPES[name]
    model = Qwen3ForCausalLM(Qwen3Config(**shape)).float()
    model.save_pretrained(folder)
    writer = gguf.GGUFWriter(os.path.join(folder, "model.gguf"), "qwen3")
    writer.add_block_count(shape["num_hidden_layers"])
    writer.add_context_length(shape["max_position_embeddings"])
    writer.add_embedding_length(shape["hidden_size"])
    writer.add_feed_forward_length(shape["intermediate_size"])
    writer.add_head_count(shape["num_attention_heads"])
    writer.add_head_count_kv(shape["num_key_value_heads"])
    writer.add_key_length(shape["head_dim"])
    writer.add_value_length(shape["head_dim"])
    writer.add_rope_freq_base(shape["rope_theta"])
    writer.add_layer_norm_rms_eps(shape["rms_norm_eps"])
    writer.add_vocab_size(shape["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, shape["num_hidden_layers"])
    for key, value in model.state_dict().items():
        if key == "lm_head.weight":  # tied
            continue
        writer.add_tensor(names.get_name(key, try_suffixes=(".weight",)), value.numpy())
    finish(writer)


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--random":
        random_model(*sys.argv[2:])
    elif len(sys.argv) == 3:
        dequantise(*sys.argv[1:])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
