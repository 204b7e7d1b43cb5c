"""Where a server is to keep files: refused before anything is loaded where it could not.

Nothing is made here, so that `farthing serve --check` can ask as well.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from farthing.core import RequestError
from farthing.serve.settings import USUAL_USAGE_STORE

if TYPE_CHECKING:
    from farthing.serve.settings import Settings


def refuse_places(settings: Settings) -> None:
    """Raises `RequestError` where the prefix store or the usage could not be written.

    Nobody asked for the usual place of usage: `usage_in_memory` tells whether it can be.
    """
    if settings.prefix_store is not None:
        store = file_at("prefix_store", settings.prefix_store)
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
        _refuse_foreign(store)
    if settings.usage_store not in (None, USUAL_USAGE_STORE):
        store = file_at("usage_store", settings.usage_store)
        if (problem := _problem(store)) is not None:
            raise unusable(store, problem)


def _refuse_foreign(store: Path) -> None:
    """The cache is saved over the file that is named: only a file of its own may be lost."""
    from farthing.engine.store import may_replace

    try:
        if not store.exists() or may_replace(store):
            return
        problem = "holds something else, and would be overwritten"
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    raise RequestError(f"prefix_store is {store}, which {problem}: name another file, or remove it")


def file_at(setting: str, path: str) -> Path:
    """The file that a setting names. Raises `RequestError` for one in a home that is not there."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise RequestError(
            f"{setting} is {path}, and there is no home folder ({error}): name a file from the "
            "root, or set HOME"
        ) from None


def usage_in_memory(settings: Settings) -> str | None:
    """Why usage is kept in memory only, for people; None where it is not.

    Whoever named a file is refused where it cannot be written. Nobody named the usual one.
    """
    if settings.usage_store != USUAL_USAGE_STORE:
        return None
    try:
        home = Path.home()
    except RuntimeError as error:
        return kept_in_memory(str(error))
    if not home.is_dir():  # no program makes its user a home
        return kept_in_memory(f"there is no home folder {home}")
    store = Path(USUAL_USAGE_STORE).expanduser()
    problem = _problem(store)
    return None if problem is None else kept_in_memory(f"{store}: {problem}")


def kept_in_memory(problem: str) -> str:
    """What is told where usage cannot be kept in its usual place."""
    return (
        f"usage is kept in memory only, and lost when the server ends ({problem}): name a file "
        "with --usage-store, or count none with --usage-store off"
    )


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
