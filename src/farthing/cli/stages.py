"""A bar on the terminal for work in stages, each with the time that it has left."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from farthing.cli.terminal import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.progress import Progress, TaskID


class StageBar:
    """Told a stage, with what it is at, and the share of it that is done."""

    def __init__(self, bar: Progress | None) -> None:
        self._bar = bar
        self._stage = ""
        self._task: TaskID | None = None

    def __call__(self, stage: str, what: str, share: float) -> None:
        """Draws it, a new bar for a new stage."""
        if self._bar is None:
            return
        if self._task is None or stage != self._stage:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._stage = stage
            self._task = self._bar.add_task(stage, total=1.0, what="")
        self._bar.update(self._task, completed=share, what=visible(what))

    def refresh(self) -> None:
        """Draws it now, not when its turn comes."""
        if self._bar is not None:
            self._bar.refresh()


@contextmanager
def stage_bar(quiet: bool) -> Iterator[StageBar]:
    """A bar on stderr that is gone when the block ends; none where that is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield StageBar(None)
        return
    from rich.console import Console

    with bar_on(Console(stderr=True)) as bar:
        yield bar


@contextmanager
def bar_on(console: Console) -> Iterator[StageBar]:
    """A bar on that console, gone when the block ends."""
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Drawn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[what]}", markup=False),
    )
    with Drawn(*columns, console=console, transient=True) as bar:
        yield StageBar(bar)
