"""Texts that models are measured and calibrated with: two that come with the package, or a file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from farthing.core import RequestError
from farthing.files.receipt import printable
from farthing.files.text_files import decoded, read_bounded

MOST_BYTES = 64 << 20
"""More text than any measurement reads."""

_DATA = "farthing.quality"


@dataclass(frozen=True)
class Text:
    """A text, what it is called in reports, and the sha256 of the bytes it was read from."""

    name: str
    content: str
    sha256: str


def held_out_text() -> Text:
    """Volume one of Jane Austen's Persuasion: what quality is measured on."""
    return _shipped("persuasion.txt")


def calibration_text() -> Text:
    """Book one of Newton's Opticks: what methods that need activations are calibrated with."""
    return _shipped("opticks.txt")


def read_text(path: Path | str) -> Text:
    """The text of a file.

    A byte-order mark is no part of it. Raises `RequestError` for what is no file, cannot be read,
    is empty, is not UTF-8, or is larger than `MOST_BYTES`.
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise RequestError(f"{path} is a folder: give a text file")
        if not path.exists():
            raise RequestError(f"there is no text file {path}: look at the path")
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error
    return _text(path.name, read_bounded(path, MOST_BYTES), str(path))


def _shipped(name: str) -> Text:
    content = files(_DATA).joinpath("data", name).read_bytes()
    return _text(name.removesuffix(".txt"), content, name)


def _text(name: str, content: bytes, where: str) -> Text:
    text = decoded(content, where, encoding="utf-8-sig")
    if not text.strip():
        raise RequestError(f"{where} is empty: give a file with text in it")
    return Text(printable(name), text, hashlib.sha256(content).hexdigest())
