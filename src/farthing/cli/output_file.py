"""A file that a flag names for a result, looked at before the work for it begins."""

from __future__ import annotations

import os
from pathlib import Path

from farthing.core import RequestError


def output_file(name: str, flag: str) -> Path:
    """Where the result goes. Raises `RequestError` where nothing could be written there."""
    path = Path(name)
    if path.exists() and not path.is_file():
        raise RequestError(f"{flag} {name} is no file: name one")
    if not path.parent.is_dir():
        raise RequestError(f"{flag} {name}: there is no folder {path.parent}: make it first")
    if not os.access(path.parent, os.W_OK | os.X_OK) or (
        path.exists() and not os.access(path, os.W_OK)
    ):
        raise RequestError(f"{flag} {name} cannot be written to: choose another place")
    return path
