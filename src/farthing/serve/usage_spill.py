"""Usage that could not be written when a server ended: a file beside, which the next start takes.

A disk that is full has room for a few hundred bytes more often than for a page of a database and
its log. What is in such a file is added once: the database notes its id together with what it adds.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from contextlib import suppress
from dataclasses import astuple, dataclass
from datetime import date
from glob import escape
from math import isfinite
from typing import TYPE_CHECKING

from farthing.serve.usage_file import Row, Used

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

log = logging.getLogger("farthing.serve")

_VERSION = 1
_MOST_FILES, _MOST_BYTES = 64, 16 << 20


@dataclass(frozen=True)
class Spill:
    """What a file of unwritten usage holds."""

    path: Path
    id: str
    rows: Mapping[Row, Used]


def spill(store: Path, rows: Mapping[Row, Used]) -> Path:
    """Writes usage into a file of its own beside the store, for its owner alone, and names it.

    Raises `OSError`, and leaves nothing then.
    """
    id_ = secrets.token_hex(8)
    path = store.with_name(f"{store.name}.unwritten-{id_}.json")
    entries = [[*row, *astuple(used)] for row, used in rows.items()]
    text = json.dumps({"version": _VERSION, "id": id_, "usage": entries})
    store.parent.mkdir(0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            path.unlink()
        raise
    return path


def spills_beside(store: Path) -> list[Spill]:
    """What earlier servers could not write. A file that is not as it was written is left alone."""
    found: list[Spill] = []
    for path in sorted(store.parent.glob(f"{escape(store.name)}.unwritten-*.json"))[:_MOST_FILES]:
        try:
            found.append(_read(path))
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            log.error("%s is not as unwritten usage was left (%s): it is not added", path, error)
    return found


def _read(path: Path) -> Spill:
    with path.open("rb") as file:
        text = file.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES} bytes")
    whole = json.loads(text)
    if whole["version"] != _VERSION or not isinstance(whole["id"], str):
        raise ValueError("it is of another version")
    rows: dict[Row, Used] = {}
    for day, key, model, *numbers in whole["usage"]:
        if not (isinstance(key, str) and isinstance(model, str)):
            raise ValueError("a key or a model is no text")
        used = Used(*map(int, numbers[:4]), *map(float, numbers[4:]))
        if not all(0 <= each < 1 << 62 and isfinite(each) for each in astuple(used)):
            raise ValueError("a number is out of bounds")
        rows[(date.fromisoformat(day).isoformat(), key, model)] = used
    return Spill(path, whole["id"], rows)
