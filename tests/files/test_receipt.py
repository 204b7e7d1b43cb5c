"""Receipts: read back as written, held against the weights, refused where they are not sound."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

import tiny
from farthing.core import FarthingError
from farthing.files.checkpoint import DESCRIPTION, RECEIPT_FILE, RECEIPT_KEY, open_checkpoint
from farthing.files.checkpoint import has_receipt as carries_one
from farthing.files.receipt import (
    MOST_CHARACTERS,
    ReceiptError,
    from_json,
    printable,
    read_receipt,
    stored_receipt,
    tensors_digest,
    to_json,
)
from files.gguf_bytes import STRING, UINT32, Model, pair, string
from receipts import RECEIPT, folder_with_receipt

if TYPE_CHECKING:
    from pathlib import Path


def gguf(path: Path, *pairs: bytes, **fields: Any) -> Path:
    model = Model(**fields)
    model.pairs += pairs
    path.write_bytes(model.encoded())
    return path


def changed(**fields: Any) -> str:
    return json.dumps({**json.loads(to_json(RECEIPT)), **fields})


def test_a_receipt_is_read_back_as_it_was_written() -> None:
    assert from_json(to_json(RECEIPT), "here") == RECEIPT
    without = replace(RECEIPT, battery=None, calibration_sha256=None, methods=(), warnings=())
    assert from_json(to_json(without), "here") == without


def test_a_gguf_file_holds_it_in_its_metadata_with_spaces_behind(tmp_path: Path) -> None:
    plain = gguf(tmp_path / "plain.gguf")
    with open_checkpoint(plain) as checkpoint:
        assert not carries_one(checkpoint)
        assert read_receipt(checkpoint) is None
        receipt = replace(RECEIPT, tensors=tensors_digest(checkpoint))
    text = to_json(receipt) + " " * 500
    told = gguf(tmp_path / "told.gguf", pair(RECEIPT_KEY, STRING, string(text)))
    with open_checkpoint(told) as checkpoint:
        assert carries_one(checkpoint)
        assert read_receipt(checkpoint) == receipt


def test_a_folder_holds_it_beside_its_tensors(tmp_path: Path) -> None:
    with open_checkpoint(tiny.shared("llama", "safetensors", "BF16")) as checkpoint:
        assert not carries_one(checkpoint)
        assert read_receipt(checkpoint) is None
    with open_checkpoint(folder_with_receipt(tmp_path / "model")) as checkpoint:
        assert carries_one(checkpoint)
        receipt = read_receipt(checkpoint)
    assert receipt is not None
    assert receipt.scheme == "int4-g128"


def test_a_described_folder_has_its_own_and_not_that_of_the_file_it_was_made_from(
    tmp_path: Path,
) -> None:
    stale = pair(RECEIPT_KEY, STRING, string(to_json(RECEIPT)))
    gguf(tmp_path / DESCRIPTION, stale, tensors=[])
    save_file({"a": np.zeros((2, 32), np.float32)}, tmp_path / "model.safetensors")
    with open_checkpoint(tmp_path) as checkpoint:
        assert not carries_one(checkpoint)
        assert read_receipt(checkpoint) is None
        own = replace(RECEIPT, tensors=tensors_digest(checkpoint))
        (tmp_path / RECEIPT_FILE).write_text(to_json(own))
        assert carries_one(checkpoint)
        assert read_receipt(checkpoint) == own


def test_a_receipt_for_other_weights_is_refused_with_both_digests(tmp_path: Path) -> None:
    folder = folder_with_receipt(tmp_path / "model", tensors="c" * 32)
    with open_checkpoint(folder) as checkpoint:
        assert stored_receipt(checkpoint) is not None
        with pytest.raises(ReceiptError, match=f"other weights.*{'c' * 32}.*measure the model"):
            read_receipt(checkpoint)


def test_one_changed_bit_of_one_weight_is_noticed(tmp_path: Path) -> None:
    folder = folder_with_receipt(tmp_path / "model")
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with open_checkpoint(folder) as checkpoint, pytest.raises(ReceiptError, match="other weights"):
        read_receipt(checkpoint)


def test_the_digest_depends_on_names_formats_and_shapes_and_not_on_the_container(
    tmp_path: Path,
) -> None:
    def digest(**tensors: Any) -> str:
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text("{}")
        save_file(tensors, folder / "model.safetensors")
        with open_checkpoint(folder) as checkpoint:
            return tensors_digest(checkpoint)

    ones, zeros = np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)
    digests = [
        digest(a=ones, b=zeros),
        digest(a=zeros, b=ones),
        digest(a=ones.T.copy(), b=zeros),
        digest(a=ones.view(np.int32), b=zeros),
        digest(a=ones, c=zeros),
    ]
    assert len(set(digests)) == len(digests)
    whole = tiny.shared("llama", "safetensors", "BF16")
    described = tmp_path / "moved"
    shutil.copytree(whole, described)
    with open_checkpoint(whole) as one, open_checkpoint(described) as other:
        assert tensors_digest(one) == tensors_digest(other)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[1]",
        "{",
        "{}",
        '{"version": 1}',
        '{"version": "1"}',
        '{"version": 1.5}',
        '{"version": NaN}',
        '{"version": 1e999}',
        '{"version": ' + "9" * 5000 + "}",
        '{"version": 1, "scheme": ' + "[" * 20000 + "}",
        changed(perplexity=None),
        changed(perplexity="low"),
        changed(perplexity={"value": 1.0}),
        changed(bits_per_weight=-4),
        changed(bits_per_weight=0),
        changed(level=1.5),
        changed(agreement={"value": 1e301, "low": 0, "high": 1}),
        changed(tensors="not a digest at all, but of that length"),
        changed(scheme="a" * 201),
        changed(scheme="\x1b[2J"),
        changed(scheme="two\nlines"),
        changed(methods=["x"] * 33),
        changed(methods="gptq"),
        changed(warnings=["a" * 1001]),
        changed(precision={}),
        changed(battery={"questions": -1}),
        to_json(RECEIPT).replace("24.5", "NaN"),
        to_json(RECEIPT).replace("24.5", "1e999"),
        to_json(RECEIPT).replace("24.5", "-Infinity"),
    ],
)
def test_what_is_no_receipt_is_refused(text: str) -> None:
    with pytest.raises(ReceiptError, match="here is not a receipt .*measure the model again"):
        from_json(text, "here")


@pytest.mark.parametrize("version", [0, 2, -1, 2**40])
def test_a_receipt_of_another_version_is_refused_as_such(version: int) -> None:
    with pytest.raises(ReceiptError, match=f"version {version}, and this farthing reads version 1"):
        from_json(json.dumps({"version": version, "anything": [1, 2]}), "here")


def test_a_huge_text_is_refused_before_it_is_read() -> None:
    with pytest.raises(ReceiptError, match="longer than any receipt"):
        from_json(to_json(RECEIPT) + " " * MOST_CHARACTERS, "here")


def test_metadata_that_is_no_text_and_files_that_are_none_are_refused(tmp_path: Path) -> None:
    path = gguf(tmp_path / "a.gguf", pair(RECEIPT_KEY, UINT32, b"\1\0\0\0"))
    with open_checkpoint(path) as checkpoint, pytest.raises(ReceiptError, match="not a text"):
        read_receipt(checkpoint)
    folder = folder_with_receipt(tmp_path / "model")
    (folder / RECEIPT_FILE).write_bytes(b"\xff\xfe")
    with open_checkpoint(folder) as checkpoint, pytest.raises(FarthingError, match="not UTF-8"):
        read_receipt(checkpoint)
    (folder / RECEIPT_FILE).unlink()
    (folder / RECEIPT_FILE).mkdir()
    with open_checkpoint(folder) as checkpoint, pytest.raises(FarthingError, match="not a file"):
        read_receipt(checkpoint)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.sampled_from(sorted(json.loads(to_json(RECEIPT)))), _JSON)
def test_whatever_stands_in_a_field_it_is_a_receipt_or_refused(field: str, value: object) -> None:
    try:
        receipt = from_json(changed(**{field: value}), "here")
    except ReceiptError:
        return
    assert from_json(to_json(receipt), "here") == receipt
    assert "\x1b" not in receipt.summary()


@given(st.text())
def test_any_name_can_be_put_in_a_receipt(name: str) -> None:
    receipt = replace(RECEIPT, scheme=printable(name))
    assert from_json(to_json(receipt), "here") == receipt


def test_a_file_name_that_is_not_unicode_can_be_put_in_a_receipt() -> None:
    assert printable("a\udcff\x07b") == "a??b"


def test_the_summary_says_what_it_cost_and_against_what() -> None:
    summary = RECEIPT.summary()
    for words in (
        "int4-g128 gptq, 4.125 bits a weight",
        "against a-model (16 bits)",
        "perplexity x 1.065 (1.051 to 1.079)",
        "KL 0.05 (0.045 to 0.055)",
        "agreement 92.0% (90.0% to 94.0%)",
        "battery 101 of 200 (reference 106)",
    ):
        assert words in summary
    assert "battery" not in replace(RECEIPT, battery=None).summary()
