"""Small vocabularies and awkward strings, on which our tokenizers are compared with llama.cpp.

One byte-level BPE vocabulary, whose merges reach across every place where some pre-tokenizer cuts,
serves all pre-tokenizers; three scored vocabularies, with many equal scores, serve SentencePiece.
Everything comes from one seed.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

from gguf import GGUFWriter
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

FRAGMENTS = [
    *(" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\u00a0", "\u3000", "\u2028", "\x0b"),
    *("the", " the", "word", " word", "Word", " WORD", "CamelCase", "snake_case", "x", " a", "I"),
    *("'s", "'S", "'ll", "'LL", "'Ve", "n't", "'d", "'", "''", "\u2019s", "'\u017f", "it's"),
    *("1", "12", "123", "1234", " 7", " 2024", "3.14", "\u00bd", "\u0665\u0666", "\u2167"),
    *(".", ",", "!", "?!", "...", " (", ")", "[", "]", "{", "}", "/", "//", "\\", "_", "-", "--"),
    *(
        "$",
        "+",
        "<",
        "=",
        ">",
        "^",
        "~",
        "|",
        "`",
        "\u20ac",
        "\u00a9",
        "\u2026",
        "\u3002",
        "\uff0c",
    ),
    *(
        "\u00e9",
        "e\u0301",
        "\u00c9COLE",
        "\u00e9cole",
        "stra\u00dfe",
        "\u01c5",
        "\u0414\u043e\u043c",
    ),
    *(
        "\u4e2d\u6587",
        "\u6f22\u5b57",
        "\u304b\u306a",
        "\u30ab\u30ca",
        "\ud55c\uad6d",
        "\u0e44\u0e17\u0e22",
    ),
    *("\u05e2\u05d1", "\u0639\u0631", "\u0939\u093f", "\u0915\u094d\u0937", "\u02b0", "\u1d43"),
    *("\U0001f600", "\U0001f469\u200d\U0001f4bb", "\u2764\ufe0f", "\U0001d518", "\u200b", "\ufeff"),
]
SPECIAL = {"<s>": 3, "</s>": 3, "<|im_end|>": 3, "<|im_start|>": 3, "</think>": 4, "\n\n\n": 4}
"""Text and token type (3 control, 4 user-defined)."""
UNMERGED = ["\u0120unmerged", "unmerged", "\u0120the\u0120word"]
"""Byte-level tokens that no merge forms: only a rule that ignores merges finds them."""
PLAIN_STRINGS = [
    *("", " ", "  ", "\n", "a", "unmerged unmerged", " the word", "we'LL I'd it\u017fs '\u017f"),
    *("1234567890 12 345", "x=1;y<=2", "</s>", "<|im_end|>", "a<|im_start|>b</think>c"),
    *(
        "\n\n\n\n\n",
        "<s>a<s> b",
        "<|im_start|> <|im_end|>\n",
        "fo\u0301\u0300o",
        "\u00c9\u00c9\u00e9a",
    ),
    *("100000000.000", "\u4e2d1\u6587 2", "a\u2028b", "\u00a0\u00a0a", "\t\tif x:\n\t\t\treturn\n"),
]
STRING_COUNT = 120


def strings() -> list[str]:
    random_state = random.Random(1)
    mixed = [
        "".join(random_state.choices(FRAGMENTS, k=random_state.randint(2, 14)))
        for _ in range(STRING_COUNT - len(PLAIN_STRINGS))
    ]
    return PLAIN_STRINGS + mixed


def _lines() -> list[str]:
    random_state = random.Random(2)
    return ["".join(random_state.choices(FRAGMENTS, k=6)) for _ in range(6000)]


def byte_level_metadata() -> dict[str, Any]:
    """A byte-level vocabulary, less the name of its pre-tokenizer."""
    machine = Tokenizer(models.BPE())
    machine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=3000,
        min_frequency=4,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    machine.train_from_iterator(_lines(), trainer)
    machine_ids = machine.get_vocab()
    tokens = [*sorted(machine_ids, key=machine_ids.__getitem__)]
    merged = machine.model.__getstate__()  # the library shows its merges nowhere else
    merges = [" ".join(pair) for pair in json.loads(merged)["merges"]]
    tokens += [text for text in UNMERGED if text not in machine_ids]
    first_special = len(tokens)
    types = [1] * first_special + list(SPECIAL.values())
    tokens += SPECIAL
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": first_special,
        "tokenizer.ggml.eos_token_id": first_special + 1,
    }


def scored_metadata(seed: int, adds_space: bool) -> dict[str, Any]:
    """A scored vocabulary of frequent substrings, in which every score stands many times."""
    random_state = random.Random(seed)
    counts: Counter[str] = Counter()
    for line in _lines()[:1500]:
        text = line.replace(" ", "\u2581")
        for start in range(len(text)):
            for length in range(1, 7):
                counts[text[start : start + length]] += 1
    # Half of the frequent ones only, so that much can be formed in several ways and much cannot.
    pieces = [piece for piece, _ in counts.most_common(3000) if piece not in SPECIAL]
    pieces = sorted(set(random_state.sample(pieces, 1500)) | {"\u2581", "a", "t", "h", "e"})
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *byte_tokens, *pieces]
    types = [2, 3, 3, *[6] * 256, *[1] * len(pieces)]
    added = {text: kind for text, kind in SPECIAL.items() if text not in tokens}
    scores = [0.0] * 259 + [-float(random_state.randrange(12)) for _ in pieces]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens + list(added),
        "tokenizer.ggml.token_type": types + list(added.values()),
        "tokenizer.ggml.scores": scores + [-1000.0] * len(added),
        "tokenizer.ggml.add_space_prefix": adds_space,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def write_gguf(path: Path, metadata: dict[str, Any]) -> None:
    """A GGUF file that holds this vocabulary and no tensors."""
    writer = GGUFWriter(path, "llama")
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
