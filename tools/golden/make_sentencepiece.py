#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/tokenizer/sentencepiece.json: two small SentencePiece BPE vocabularies as the keys
that a GGUF file has for them, and what the reference library makes of the texts of tiny_bpe.json.

Run by hand with sentencepiece 0.2.3:  python3 tools/golden/make_sentencepiece.py
Vocabulary "bytes" is of Llama's kind: byte tokens, a space before each text, digits alone, no
normalization. "plain" has neither byte tokens nor the space: what it has no piece for becomes <unk>.
Both are trained here on those lines that have Latin letters only, so most scripts have no pieces.
"""
import importlib.metadata
import io
import json
import pathlib

import sentencepiece

FOLDER = pathlib.Path(__file__).parents[2] / "tests/golden/tokenizer"


def train(texts, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, model_type="bpe",
        normalization_rule_name="identity", remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True, split_digits=True, num_threads=1,
        minloglevel=2, **options)
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def kind(model, i):
    if model.is_unknown(i):
        return 2
    if model.is_control(i):
        return 3
    if model.is_byte(i):
        return 6
    assert not model.is_unused(i)
    return 1


def keys(model, prefix):
    ids = range(model.get_piece_size())
    return {"model": "llama", "tokens": [model.id_to_piece(i) for i in ids],
            "scores": [model.get_score(i) for i in ids], "token_types": [kind(model, i) for i in ids],
            "bos_id": model.bos_id(), "eos_id": model.eos_id(), "unk_id": model.unk_id(),
            "add_space_prefix": prefix}


def main():
    texts = [c["text"] for c in json.loads((FOLDER / "tiny_bpe.json").read_text())["cases"]]
    lines = [line for text in texts for line in text.split("\n") if 0 < len(line) < 4000 and max(map(ord, line)) < 0x250]
    models = {
        "bytes": train(lines, vocab_size=700, character_coverage=0.995, byte_fallback=True,
                       add_dummy_prefix=True),
        "plain": train(lines, vocab_size=420, character_coverage=0.995, byte_fallback=False,
                       add_dummy_prefix=False),
    }
    cases = []
    for name, model in models.items():
        for i, text in enumerate(texts):
            if "\0" in text:  # the library ends a text there
                continue
            ids = model.encode(text)
            case = {"name": f"{name}/{i}", "model": name, "text": text, "ids": ids}
            if name == "bytes" and model.decode(ids) != text:
                case["decoded"] = model.decode(ids)
            cases.append(case)
    root = {"what": "SentencePiece BPE vocabularies as GGUF keys; ids of texts, and (vocabulary bytes) "
                    "the decoded text where it differs",
            "oracle": "sentencepiece " + importlib.metadata.version("sentencepiece"),
            "made_by": "tools/golden/make_sentencepiece.py",
            "vocabularies": {name: keys(model, name == "bytes") for name, model in models.items()},
            "cases": cases}
    (FOLDER / "sentencepiece.json").write_text(json.dumps(root, ensure_ascii=False, indent=0) + "\n")


main()
