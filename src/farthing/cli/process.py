"""A command as a process: its three streams, and the signals that end it."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from farthing.cli.terminal import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def prepare_streams() -> None:
    """Makes the three streams safe to use, whatever the caller made of them.

    A closed one, which Python has as None, becomes an empty one; a character that the encoding of
    an output lacks is written as its number.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def silence_output() -> None:
    """Lets what is still to be written to stdout go nowhere: the interpreter flushes as it ends."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_output_error(error: OSError) -> bool:
    """Whether writing to a stream has failed: an error of a file would name the file."""
    return error.filename is None and error.errno in _NO_ROOM


def say(message: str) -> None:
    """Writes a message to stderr; one that cannot be written is lost."""
    with suppress(OSError):
        print(visible(message), file=sys.stderr)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """While the block runs, SIGTERM and SIGHUP raise `SystemExit`, so that cleaning up is done.

    A signal that the caller has set to be ignored (nohup does) stays so.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():  # may not set any
        yield
        return
    ending = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in ending:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ending:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """While the block runs, Ctrl-C waits: an extension module that it meets half loaded breaks."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def interrupts_call(handler: Callable[[], None]) -> Iterator[None]:
    """While the block runs, Ctrl-C calls `handler` and does nothing else."""
    if threading.current_thread() is not threading.main_thread():  # may not set any
        yield
        return
    before = signal.signal(signal.SIGINT, lambda _number, _frame: handler())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
