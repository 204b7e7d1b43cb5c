"""farthing chat: a conversation in the terminal."""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from farthing.cli.options import (
    add_loading,
    add_model,
    add_sampling,
    load_engine,
    sampling_of,
)
from farthing.cli.terminal import write
from farthing.core import RequestError, UnsupportedModelError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from types import FrameType

    from farthing.core import SamplingParams
    from farthing.engine.engine import Engine
    from farthing.engine.stream import Stream

_DESCRIPTION = """\
Talk with a model. Ctrl-C ends an answer, not the program; Ctrl-D or /exit leaves.

  /reset   forget the conversation, keep the system message
  /help    show this
  /exit    leave"""

_EPILOG = """\
examples:
  farthing chat smollm2-135m
  farthing chat smollm2-135m --system "You answer in one sentence." --temperature 0.7 --top-p 0.9
"""

_PROMPT = "> "


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    add_model(parser)
    parser.add_argument("--system", metavar="TEXT", help="a system message before the conversation")
    parser.add_argument("--quiet", action="store_true", help="no load report and no figures")
    add_sampling(parser)
    add_loading(parser)


def run(arguments: argparse.Namespace) -> int:
    sampling = sampling_of(arguments)
    with load_engine(arguments) as engine:
        if engine.chat_template is None:
            raise UnsupportedModelError(
                f"{arguments.model} has no chat template, so it cannot hold a conversation: "
                "`farthing run` continues a text with it"
            )
        if not arguments.quiet:
            from farthing.cli.report import load_lines

            print("\n".join(load_lines(engine)), file=sys.stderr)
            print("Ctrl-C ends an answer, /help lists commands, Ctrl-D leaves.", file=sys.stderr)
        conversation = Conversation(engine, sampling, arguments.system, arguments.quiet)
        while (line := _read_line()) is not None:
            if not conversation.take(line):
                break
    return 0


class Conversation:
    """The messages so far, and what a line that was typed does to them."""

    def __init__(
        self, engine: Engine, sampling: SamplingParams, system: str | None, quiet: bool
    ) -> None:
        self._engine = engine
        self._sampling = sampling
        self._quiet = quiet
        self._beginning = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._beginning)

    def take(self, line: str) -> bool:
        """Answers a message or obeys a command; False when the conversation is over."""
        command = line.strip()
        if command == "/exit":
            return False
        if command == "/reset":
            self._messages = list(self._beginning)
            print("the conversation is forgotten", file=sys.stderr)
        elif command == "/help":
            print(_DESCRIPTION, file=sys.stderr)
        elif command.startswith("/"):
            print(f"there is no command {command.split()[0]}: /help lists them", file=sys.stderr)
        elif command:
            self._answer(line)
        return True

    def _answer(self, line: str) -> None:
        asked = [*self._messages, {"role": "user", "content": line}]
        try:
            stream = self._engine.stream(asked, self._sampling)
        except RequestError as error:
            # The message is dropped and what was said before stays, so that one can go on.
            print(f"farthing: {error}\n/reset starts afresh", file=sys.stderr)
            return
        with stream, _ended_by_interrupt(stream):
            for delta in stream:
                write(delta.text)
        write("\n")
        completion = stream.completion
        self._messages = [*asked, {"role": "assistant", "content": completion.text}]
        if completion.finish_reason == "cancelled":
            print("(stopped)", file=sys.stderr)
        elif completion.finish_reason == "length":
            print("(cut off: --max-tokens or the context was reached)", file=sys.stderr)
        if not self._quiet:
            from farthing.cli.report import figures

            print(figures(completion), file=sys.stderr)


@contextmanager
def _ended_by_interrupt(stream: Stream) -> Iterator[None]:
    """While the block runs, Ctrl-C closes the stream, so that no step is torn in the middle."""

    def end(_number: int, _frame: FrameType | None) -> None:
        stream.close()

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _read_line() -> str | None:
    """The next line typed; None at the end of the input. Ctrl-C clears the line."""
    if sys.stdin.isatty():
        # Importing it is what gives `input` its editing keys and history.
        with suppress(ImportError):
            import readline  # noqa: F401
    while True:
        try:
            return input(_PROMPT if sys.stdin.isatty() else "")
        except EOFError:
            return None
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            print("\n(Ctrl-D or /exit leaves)", file=sys.stderr)
