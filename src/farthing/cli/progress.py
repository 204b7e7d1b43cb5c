"""Progress on the terminal: a bar for a fetch, and a line for work that takes over two seconds.

Everything goes to stderr. Where that is no terminal, a fetch is announced in two plain lines, and
whatever takes long is told a line of every half minute.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING

from farthing.cli.process import say
from farthing.engine.load import LoadProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Progress as Bar
    from rich.progress import TaskID
    from rich.status import Status

    from farthing.files.progress import Fetch

_PATIENCE_SECONDS = 2.0

LINE_SECONDS = 30.0
"""Between two lines of progress where there is no terminal."""


class TerminalProgress(LoadProgress):
    """Shows a fetch from its start, and other work from its third second on.

    rich is imported when there is something to show: a quick load would feel it.
    """

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._status: Status | None = None
        self._phase = ""
        self._fetch: Fetch | None = None
        self._began = monotonic()
        # Guards the status line, which a timer's thread starts.
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def begin(self, fetch: Fetch) -> None:
        """Tells what is fetched, from where and under which licence, and starts the bar."""
        self._stop_status()
        megabytes = f"{fetch.bytes / 1e6:,.0f} MB"
        what = f"fetching {fetch.name} from {fetch.source}, {megabytes}\nlicence: {fetch.licence}"
        say(what)
        if not sys.stderr.isatty():
            with self._lock:
                self._fetch, self._phase = fetch, f"fetching {fetch.name}"
                self._wait(LINE_SECONDS, self._say_phase)
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self._bar = Progress(
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("", total=fetch.bytes)
        self._bar.start()

    def advance(self, done: int) -> None:
        """Moves the bar; or what the next line tells."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done)
        elif self._fetch is not None:
            megabytes = f"{done / 1e6:,.0f} of {self._fetch.bytes / 1e6:,.0f} MB"
            self._phase = f"fetching {self._fetch.name}: {megabytes}"

    def waiting(self, name: str) -> None:
        """Tells that another process is ahead."""
        say(f"another process is fetching {name}: waiting for it")

    def end(self) -> None:
        """Takes the bar away; a fetch that has ended is told no further."""
        if self._fetch is not None:
            self._fetch = None
            self._stop_status()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def phase(self, name: str) -> None:
        """Shows the phase, once the load has taken too long to go without a word."""
        with self._lock:
            self._phase = name
            if self._status is not None:
                self._status.update(name)
            elif self._timer is None and not self._quiet:
                if sys.stderr.isatty():
                    self._wait(_PATIENCE_SECONDS, self._start_status)
                else:
                    self._wait(LINE_SECONDS, self._say_phase)

    def close(self) -> None:
        """Leaves the terminal as it was."""
        self.end()
        self._stop_status()

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        """Has `then` called later, unless the work is over. The caller holds the lock."""
        self._timer = threading.Timer(seconds, then)
        self._timer.daemon = True
        self._timer.start()

    def _say_phase(self) -> None:
        with self._lock:
            if self._timer is None or threading.current_thread() is not self._timer:
                return
            so_far = timedelta(seconds=round(monotonic() - self._began))
            say(f"{self._phase}, {so_far} so far")
            self._wait(LINE_SECONDS, self._say_phase)

    def _start_status(self) -> None:
        from rich.console import Console

        with self._lock:
            if self._timer is not None:
                self._status = Console(stderr=True).status(self._phase)
                self._status.start()

    def _stop_status(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._status is not None:
                self._status.stop()
                self._status = None


@contextmanager
def terminal_progress(quiet: bool = False) -> Iterator[LoadProgress]:
    """Progress that is gone when the block ends, however it ends.

    `quiet` shows fetches only: a person must see a licence. Results on stdout are no reason to be.
    """
    progress = TerminalProgress(quiet)
    try:
        yield progress
    finally:
        progress.close()
