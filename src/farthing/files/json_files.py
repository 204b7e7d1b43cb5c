"""Small text files that describe a model, read with a bound on their size."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from farthing.core import FileFormatError
from farthing.files import text_files

if TYPE_CHECKING:
    from pathlib import Path

_MAX_BYTES = 4 << 20
"""Parsed JSON takes up to 25 times its own size in memory; the largest known file has 2 MB."""


def read_text(path: Path) -> str:
    """The file's text. Raises `FileFormatError` when it is too large, or is not UTF-8."""
    if not path.is_file():
        raise FileFormatError(f"{path} is not a file")
    return text_files.read_text(path, _MAX_BYTES, error=FileFormatError)


_ADVICE = ": fetch it again"


def read_json_object(path: Path, advice: str = _ADVICE) -> dict[str, object]:
    """The file's JSON object. Raises `FileFormatError` for anything else; `advice` ends it."""
    return parse_json_object(read_text(path), str(path), advice)


def parse_json_object(text: str, where: str, advice: str = _ADVICE) -> dict[str, object]:
    """The JSON object that `text` is; `where` names its place in messages, `advice` ends them.

    Raises `FileFormatError` for anything else, and for more text than any description needs.
    """
    if len(text) > _MAX_BYTES:
        raise FileFormatError(f"{where} is larger than {_MAX_BYTES} bytes: it describes no model")
    try:
        value = json.loads(text, parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{where} is not sound JSON ({error!s:.120}){advice}") from None
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise FileFormatError(f"{where} holds a {kind} where an object is needed{advice}")
    return value


def _constant(name: str) -> float:
    if name == "NaN":
        raise ValueError("it holds a NaN")
    return float(name)
