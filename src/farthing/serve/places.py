"""Where a server is to keep files: refused before anything is loaded where it could not.

Nothing is made here, so that `farthing serve --check` can ask as well.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from farthing.core import RequestError

if TYPE_CHECKING:
    from farthing.serve.settings import Settings


def refuse_places(settings: Settings) -> None:
    """Raises `RequestError` where the prefix store or the usage could not be written."""
    if settings.prefix_store is not None:
        store = Path(settings.prefix_store).expanduser()
        if not store.parent.is_dir():
            raise RequestError(
                f"prefix_store is {store}, and there is no folder {store.parent}: make it first"
            )
        other = store.exists() and not store.is_file()
        if other or not os.access(store.parent, os.W_OK):
            raise RequestError(
                f"prefix_store is {store}, which cannot be written: name a file in a folder that "
                "you may write to"
            )
    if settings.usage_store is not None:
        store = Path(settings.usage_store).expanduser()
        if (problem := _problem(store)) is not None:
            raise unusable(store, problem)


def unusable(store: Path, problem: str) -> RequestError:
    """What is told of a place where usage cannot be kept."""
    return RequestError(
        f"usage_store is {store}, where usage cannot be kept ({problem}): name a file in a folder "
        "that you may write to, or count none with --usage-store off"
    )


def _problem(store: Path) -> str | None:
    """Why that file could not be written, nor made with its folders; None where it could."""
    try:
        if store.exists():
            if not store.is_file():
                return "it is no file"
            return None if os.access(store, os.R_OK | os.W_OK) else "it may not be written"
        folder = next(each for each in store.parents if each.exists())
        if not folder.is_dir():
            return f"{folder} is no folder"
        return None if os.access(folder, os.W_OK | os.X_OK) else f"{folder} may not be written"
    except OSError as error:
        return error.strerror or str(error)
