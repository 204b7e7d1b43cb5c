"""farthing chat: a conversation in the terminal."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from farthing.cli.options import (
    add_loading,
    add_model,
    add_sampling,
    checked_text,
    load_engine,
    sampling_of,
)
from farthing.cli.process import interrupts_call, say
from farthing.cli.terminal import write
from farthing.core import RequestError, UnsupportedModelError

if TYPE_CHECKING:
    import argparse

    from farthing.core import SamplingParams
    from farthing.engine.completion import Completion
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
    system = None if arguments.system is None else checked_text(arguments.system, "--system")
    with load_engine(arguments, slots=1) as engine:
        if engine.chat_template is None:
            raise UnsupportedModelError(
                f"{arguments.model} has no chat template, so it cannot hold a conversation: "
                "`farthing run` continues a text with it"
            )
        if not arguments.quiet:
            from farthing.cli.report import load_lines

            say("\n".join(load_lines(engine)))
            say("Ctrl-C ends an answer, /help lists commands, Ctrl-D leaves.")
        conversation = Conversation(engine, sampling, system, arguments.quiet)
        with interrupts_call(conversation.interrupt):
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
        self._stream: Stream | None = None
        self._interrupted = False

    def interrupt(self) -> None:
        """Ends the answer that is being made, if any, between two of its steps."""
        self._interrupted = True
        if self._stream is not None:
            self._stream.close()

    def take(self, line: str) -> bool:
        """Answers a message or obeys a command; False when the conversation is over."""
        command = line.strip()
        if command == "/exit":
            return False
        if command == "/reset":
            self._messages = list(self._beginning)
            say("the conversation is forgotten")
        elif command == "/help":
            say(_DESCRIPTION)
        elif command.startswith("/"):
            say(f"there is no command {command.split()[0]}: /help lists them")
        elif command:
            self._answer(line)
        return True

    def _answer(self, line: str) -> None:
        self._interrupted = False
        try:
            text = checked_text(line, "the message")
            asked = [*self._messages, {"role": "user", "content": text}]
            self._stream = stream = self._engine.stream(asked, self._sampling)
        except RequestError as error:
            # The message is dropped and what was said before stays, so that one can go on.
            say(f"farthing: {error}\n/reset starts afresh")
            return
        with stream:
            if self._interrupted:  # before there was a stream to close
                stream.close()
            for delta in stream:
                write(delta.text)
        self._stream = None
        self._messages = [*asked, {"role": "assistant", "content": stream.completion.text}]
        write("\n")
        self._tell(stream.completion)

    def _tell(self, completion: Completion) -> None:
        """Says how an answer ended, where it did not end by itself, and what it took."""
        if completion.finish_reason == "cancelled":
            say("(stopped)")
        elif completion.finish_reason == "length":
            full = completion.usage.total_tokens == self._engine.context_length
            why = "the context is full, /reset starts afresh" if full else "by --max-tokens"
            say(f"(cut off: {why})")
        if not self._quiet:
            from farthing.cli.report import figures

            say(figures(completion))


def _leave_line() -> None:
    raise KeyboardInterrupt


def _read_line() -> str | None:
    """The next line typed; None at the end of the input. Ctrl-C clears the line."""
    if sys.stdin.isatty():
        # Importing it is what gives `input` its editing keys and history.
        with suppress(ImportError):
            import readline  # noqa: F401
    while True:
        try:
            with interrupts_call(_leave_line):
                return input(_PROMPT if sys.stdin.isatty() else "")
        except EOFError:
            return None
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            say("\n(Ctrl-D or /exit leaves)")
