"""What the float model begins as, and how its corpora are read: the parts that need no network."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest

from farthing.files.checkpoint import open_checkpoint
from farthing.models.load import load_model
from farthing.text.load import load_tokenizer
from float_model import corpus
from float_model import model as architecture

if TYPE_CHECKING:
    from pathlib import Path

TEXT = "It is a truth universally acknowledged, that a single man must be in want of a wife. "


def r_strings(*strings: str) -> bytes:
    """A vector of strings as R writes it."""
    parts = [struct.pack(">II", 0x10, len(strings))]
    for string in strings:
        data = string.encode()
        parts.append(struct.pack(">II", 0x0004_0009, len(data)) + data)
    return b"".join(parts)


def test_strings_that_r_wrote_are_read_back() -> None:
    stored = b"X\n\x00\x00\x00\x03" + r_strings("CHAPTER I", "", "£5 a year")
    assert corpus._strings(stored) == ["CHAPTER I", "", "£5 a year"]


def test_names_and_places_of_an_index_belong_together() -> None:
    places = b"".join(struct.pack(">IIII", 0x0D, 2, *place) for place in ((0, 10), (10, 7)))
    index = b"X\n\x00\x00\x00\x03" + places + r_strings("emma", "persuasion")
    assert corpus._lazy_load_index(index) == (["emma", "persuasion"], [(0, 10), (10, 7)])


def test_a_package_of_another_content_is_refused(tmp_path: Path) -> None:
    (tmp_path / corpus.AUSTEN).write_bytes(b"something else")
    with pytest.raises(SystemExit, match="has the sha256"):
        corpus.fetch(tmp_path)


def test_it_begins_as_a_model_folder_that_the_seed_alone_decides(tmp_path: Path) -> None:
    tokenizer = architecture.train_tokenizer([TEXT * 20])
    weights = architecture.initial_weights(7)
    architecture.write_folder(tmp_path, tokenizer, weights)
    with open_checkpoint(tmp_path) as checkpoint:
        model = load_model(checkpoint)
        assert load_tokenizer(checkpoint).decode(tokenizer.encode(TEXT).ids) == TEXT
    assert model.unused == ()
    assert set(model.formats.values()) == {"F32"}
    again, other = architecture.initial_weights(7), architecture.initial_weights(8)
    assert all(np.array_equal(weights[name], again[name]) for name in weights)
    assert not np.array_equal(
        weights["model.embed_tokens.weight"], other["model.embed_tokens.weight"]
    )
