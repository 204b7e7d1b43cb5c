"""The server's log: lines for people, or one JSON object a line.

It goes to stderr through a thread of its own, so that a reader that stalls holds up no request:
what finds the queue full is lost, and the next line that is written says how many were. The text of
a request is in it only where the settings say so.
"""

from __future__ import annotations

import json
import logging
import queue
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from farthing.engine.prefix import Miss
    from farthing.serve.state import RequestRecord

log = logging.getLogger("farthing.serve")

_MOST_WAITING = 10_000
_LAST_WORDS_SECONDS = 1.0
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "event"}
# What a client sends, such as an id, must neither begin a new line nor move the reader's cursor.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code != 10}


def tell(event: str, message: str, *, level: int = logging.INFO, **facts: object) -> None:
    """Logs a message for people, and the same as `facts` for programs. `event` names its kind."""
    log.log(level, "%s", message, extra={"event": event, "facts": facts})


class HumanLines(logging.Formatter):
    """`12:00:03 message`, with the level where it is a warning or worse."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, or more where there is a traceback."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = f" {record.levelname.lower()}:" if record.levelno >= logging.WARNING else ""
        text = record.getMessage().replace("\n", "\n  ")
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return f"{clock}{level} {text}".translate(_CONTROLS)


class JsonLines(logging.Formatter):
    """One object a line: time, level, event, message, and the facts."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{whole}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "event": getattr(record, "event", "message"),
            "message": record.getMessage(),
        }
        facts = getattr(record, "facts", None)
        if facts is None:
            facts = {name: value for name, value in vars(record).items() if name not in _OWN}
        line.update((name, value) for name, value in facts.items() if name not in line)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class QueuedHandler(logging.Handler):
    """Writes to a stream in a thread of its own, and waits for nobody."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(_MOST_WAITING)
        self._lost = 0
        self._thread = threading.Thread(target=self._write, name="farthing-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queues a line, or counts it as lost."""
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._lost += 1
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Writes what is queued, unless nobody reads it."""
        with suppress(queue.Full):
            self._lines.put(None, timeout=_LAST_WORDS_SECONDS)
        self._thread.join(_LAST_WORDS_SECONDS)
        super().close()

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            with suppress(OSError, ValueError):  # the reader has left
                self._stream.write(line + "\n")
                if self._lost:
                    lost, self._lost = self._lost, 0
                    self._stream.write(self._told_of(lost) + "\n")
                if self._lines.empty():
                    self._stream.flush()

    def _told_of(self, lost: int) -> str:
        text = f"{lost} lines of the log were lost: its reader stalls"
        place = {"name": log.name, "levelno": logging.WARNING, "levelname": "WARNING"}
        return self.format(logging.makeLogRecord({**place, "msg": text, "event": "lines_lost"}))


@contextmanager
def logging_to(stream: TextIO | None, log_format: str) -> Iterator[None]:
    """While the block runs, the log goes to `stream` (stderr unless given)."""
    handler = QueuedHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonLines() if log_format == "json" else HumanLines())
    loggers = {
        # The engine's own words, such as on a preemption, belong to the log too.
        logging.getLogger("farthing"): logging.INFO,
        logging.getLogger("uvicorn"): logging.WARNING,
        logging.getLogger("asyncio"): logging.WARNING,
    }
    before = {each: (each.level, each.propagate) for each in loggers}
    for each, level in loggers.items():
        each.setLevel(level)
        each.propagate = False
        each.addHandler(handler)
    try:
        yield
    finally:
        for each, (level, propagate) in before.items():
            each.removeHandler(handler)
            each.setLevel(level)
            each.propagate = propagate
        handler.close()


class RequestLog:
    """Tells of every request to a model in one line, without a word of its text.

    With `word`, which gives a token's text, it also tells why a prompt was not found in the cache
    where it might have been. That quotes the token: the requester's own, and nobody else's.
    """

    def __init__(self, word: Callable[[int], str] | None = None) -> None:
        self._word = word

    def finished(self, record: RequestRecord) -> None:
        """A request has ended."""
        key = record.key or "anonymous"
        ending = _counted(record.finish_reasons) or record.error_code or "left"
        tell(
            "request",
            f"{record.id} {key} {record.endpoint} {record.status}: {record.prompt_tokens} tokens "
            f"({record.cached_tokens} cached) + {record.completion_tokens}, "
            f"{record.seconds:.2f} s, {ending}",
            id=record.id,
            key=record.key,
            endpoint=record.endpoint,
            status=record.status,
            prompt_tokens=record.prompt_tokens,
            cached_tokens=record.cached_tokens,
            completion_tokens=record.completion_tokens,
            seconds=round(record.seconds, 4),
            first_token_seconds=_rounded(record.first_token_seconds),
            queue_seconds=_rounded(record.queue_seconds),
            finish_reasons=dict(Counter(record.finish_reasons)),
            error_code=record.error_code,
        )
        if self._word is not None:
            for miss in record.misses:
                if miss.reason != "new":
                    _tell_miss(record.id, miss, self._word(miss.token))


def _tell_miss(id_: str, miss: Miss, token: str) -> None:
    why = (
        "differs from an earlier prompt"
        if miss.reason == "differs"
        else "was known, and its place was needed for others"
    )
    tell(
        "prefix_miss",
        f"{id_} token {miss.position} of the prompt, {token!r}, {why}: {miss.recomputed} tokens "
        f"were computed, {miss.avoidable} of them for that alone",
        id=id_,
        reason=miss.reason,
        position=miss.position,
        token=token,
        reused=miss.reused,
        recomputed=miss.recomputed,
        avoidable=miss.avoidable,
    )


def _counted(reasons: Iterable[str]) -> str:
    """In words: a request may have hundreds of answers."""
    counts = Counter(reasons).items()
    return ", ".join(reason if count == 1 else f"{count} {reason}" for reason, count in counts)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
