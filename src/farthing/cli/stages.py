"""A bar on the terminal for work in stages, each with the time that it has left; or lines of it."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from farthing.cli.process import say
from farthing.cli.progress import LINE_SECONDS
from farthing.cli.terminal import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.progress import Progress, TaskID


class StageBar:
    """Told a stage, with what it is at, and the share of it that is done.

    Without a bar to draw it is told in a line of every half minute.
    """

    def __init__(self, bar: Progress | None) -> None:
        self._bar = bar
        self._stage = ""
        self._task: TaskID | None = None
        self._told = monotonic()

    def __call__(self, stage: str, what: str, share: float) -> None:
        """Draws it, a new bar for a new stage; or says it, where it is time."""
        if self._bar is None:
            if monotonic() - self._told >= LINE_SECONDS:
                self._told = monotonic()
                say(f"{stage} {share:4.0%}  {what}".rstrip())
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
def stage_bar() -> Iterator[StageBar]:
    """A bar on stderr that is gone when the block ends; lines where that is no terminal."""
    if not sys.stderr.isatty():
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
