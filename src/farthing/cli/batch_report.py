"""What a batch tells while it runs and when it has ended."""

from __future__ import annotations

import sys
from collections import Counter
from time import monotonic
from typing import TYPE_CHECKING, Any

from farthing.cli.process import say
from farthing.cli.progress import LINE_SECONDS

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from farthing.engine.completion import Completion
    from farthing.engine.scheduler import Counters as EngineCounters


class Tally:
    """Counts of a run: answers by how they ended, and their tokens.

    `total` requests are in the file, of which `kept` had their answers before.
    """

    def __init__(self, total: int, kept: int) -> None:
        self.total = total
        self.kept = kept
        self.answered = 0
        self.failed = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.reasons: Counter[str] = Counter()
        # Of answers that have not ended, too.
        self._generated = 0
        self.preemptions = 0
        self.recomputed_tokens = 0
        self._started = monotonic()
        self._ended: float | None = None

    @property
    def seconds(self) -> float:
        """From the start of answering until now, or to its end."""
        return (monotonic() if self._ended is None else self._ended) - self._started

    def add(self, completion: Completion) -> None:
        """Counts an answer."""
        self.answered += 1
        self.reasons[str(completion.finish_reason)] += 1
        self.prompt_tokens += completion.usage.prompt_tokens
        self.cached_tokens += completion.usage.cached_tokens
        self.completion_tokens += completion.usage.completion_tokens

    def see(self, counters: EngineCounters) -> None:
        """Takes in what the engine has done by now."""
        self._generated = counters.generated_tokens
        self.preemptions = counters.preemptions
        self.recomputed_tokens = counters.recomputed_tokens

    def start(self) -> None:
        """Starts the clock anew: loading and checking took their time."""
        self._started = monotonic()

    def stop(self) -> None:
        """Stops the clock."""
        self._ended = monotonic()

    def state(self) -> str:
        """Where the run stands, in one line."""
        done = self.kept + self.answered
        rate = self._generated / self.seconds
        line = f"{done:,} of {self.total:,} answered, {rate:,.0f} tokens/s"
        ended = self.answered + self.failed
        if ended:
            left = int((self.total - self.kept - ended) * self.seconds / ended)
            line += f", {left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"
        return line

    def summary(self) -> str:
        """What was done, in one line."""
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.reasons.most_common())
        parts = [
            f"{self.answered:,} answers in {self.seconds:.1f} s"
            + (f" ({reasons})" if reasons else ""),
            f"{self.prompt_tokens:,} prompt tokens, {self.cached_tokens:,} of them from the cache",
            f"{self.completion_tokens:,} tokens ({self._rate():,.0f} tokens/s)",
        ]
        if self.preemptions:
            parts.append(
                f"the cache was full {self.preemptions:,} times, {self.recomputed_tokens:,} tokens "
                "computed again (--cache-tokens makes it larger)"
            )
        if self.kept:
            parts.insert(0, f"{self.kept:,} answers were there")
        return "; ".join(parts)

    def facts(self) -> dict[str, Any]:
        """The same as JSON has it."""
        return {
            "requests": self.total,
            "kept": self.kept,
            "answered": self.answered,
            "failed": self.failed,
            "seconds": self.seconds,
            "finish_reasons": dict(self.reasons),
            "usage": {
                "prompt_tokens": self.prompt_tokens,
                "cached_tokens": self.cached_tokens,
                "completion_tokens": self.completion_tokens,
                "total_tokens": self.prompt_tokens + self.completion_tokens,
            },
            "tokens_per_second": self._rate(),
            "preemptions": self.preemptions,
            "recomputed_tokens": self.recomputed_tokens,
        }

    def _rate(self) -> float:
        """Tokens of answers a second."""
        return self.completion_tokens / self.seconds


class BatchProgress:
    """Shows a run's state on stderr: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, tally: Tally, *, quiet: bool) -> None:
        self._tally = tally
        self._quiet = quiet
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._told = monotonic()

    def __enter__(self) -> BatchProgress:
        if self._quiet or not sys.stderr.isatty():
            return self
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._bar = Progress(
            BarColumn(),
            TextColumn("{task.description}"),
            console=Console(stderr=True),
            refresh_per_second=2,
            transient=True,
        )
        self._task = self._bar.add_task(self._tally.state(), total=self._tally.total)
        self._bar.start()
        return self

    def update(self) -> None:
        """Shows the state that the tally has by now."""
        tally = self._tally
        if self._bar is not None and self._task is not None:
            done = tally.kept + tally.answered
            self._bar.update(self._task, completed=done, description=tally.state())
        elif not self._quiet and monotonic() - self._told >= LINE_SECONDS:
            self._told = monotonic()
            say(tally.state())

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
