"""What a fetch tells whoever asked for it."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Fetch:
    """What is about to be fetched, from where, and under which terms. `bytes` crosses the wire."""

    name: str
    source: str
    licence: str
    bytes: int


class Progress:
    """Told how a fetch goes. This one stays silent; the command line overrides it to draw a bar.

    `begin` comes once, before the first byte, then `advance` with the bytes fetched so far, from a
    thread of its own and never falling, then `end`, whether or not the fetch succeeded. `waiting`
    comes instead when another process is fetching the same model, which this one then uses.
    """

    def begin(self, fetch: Fetch) -> None:
        """A fetch starts: the place to show its licence."""

    def advance(self, done: int) -> None:
        """`done` bytes of `Fetch.bytes` are here."""

    def waiting(self, name: str) -> None:
        """Another process is fetching `name`."""

    def end(self) -> None:
        """The fetch is over."""


SILENT = Progress()


@contextmanager
def watching(folder: Path, progress: Progress, before: int, most: int) -> Iterator[None]:
    """Reports a growing folder as progress: `before` bytes plus its size, up to `most` more.

    Neither pip nor every transport of the hub says how far it is, but each writes files.
    """
    stopped = threading.Event()

    def poll() -> None:
        highest = 0
        while not stopped.wait(_POLL_SECONDS):
            # Files move and vanish while they are counted.
            highest = max(highest, min(most, _folder_bytes(folder)))
            progress.advance(before + highest)

    thread = threading.Thread(target=poll, name="farthing-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
    progress.advance(before + most)


def _folder_bytes(folder: Path) -> int:
    """Bytes in a folder that somebody else is changing: what vanishes meanwhile is not counted."""
    total = 0
    for parent, _, names in os.walk(folder):  # unlike rglob, it passes over a folder that is gone
        for name in names:
            with suppress(OSError):
                total += (Path(parent) / name).stat().st_size
    return total
