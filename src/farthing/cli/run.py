"""farthing run: stream one completion."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from farthing.cli.options import (
    add_loading,
    add_model,
    add_output,
    add_sampling,
    checked_text,
    load_engine,
    sampling_of,
)
from farthing.cli.process import say
from farthing.cli.terminal import write
from farthing.core import RequestError

if TYPE_CHECKING:
    import argparse

    from farthing.engine.completion import Completion
    from farthing.engine.engine import Engine

_DESCRIPTION = """\
Continue a prompt. Where the model has a chat template, the prompt is one message of a user and the
text is the answer; with --raw, or without a template, the text goes on where the prompt ends."""

_EPILOG = """\
examples:
  farthing run smollm2-135m "Why is the sky blue?"
  farthing run smollm2-135m --raw --max-tokens 16 "The capital of France is"
  farthing run model.gguf --temperature 0.8 --top-p 0.95 --seed 7 < question.txt
  farthing run smollm2-135m --json "Hello" | python -m json.tool
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    add_model(parser)
    parser.add_argument(
        "prompt", nargs="?", default="-", metavar="PROMPT", help="the prompt; - reads it from stdin"
    )
    parser.add_argument("--raw", action="store_true", help="apply no chat template")
    parser.add_argument("--system", metavar="TEXT", help="a system message before the prompt")
    add_sampling(parser)
    add_loading(parser)
    add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    # What needs no model is checked before one is loaded.
    sampling = sampling_of(arguments)
    if arguments.raw and arguments.system is not None:
        raise RequestError("--system needs the chat template that --raw leaves out: drop one")
    system = None if arguments.system is None else checked_text(arguments.system, "--system")
    given = None if arguments.prompt == "-" else checked_text(arguments.prompt, "the prompt")
    with load_engine(arguments) as engine:
        text = _read_prompt() if given is None else given
        prompt = _as_asked(engine, text, system, raw=arguments.raw)
        if arguments.json:
            _print_json(engine, engine.generate(prompt, sampling))
            return 0
        from farthing.cli.report import figures, load_lines

        if not arguments.quiet:
            say("\n".join(load_lines(engine)))
        with engine.stream(prompt, sampling) as stream:
            for delta in stream:
                write(delta.text)
        write("\n")
        if not arguments.quiet:
            say(figures(stream.completion))
    return 0


def _read_prompt() -> str:
    if sys.stdin.isatty():
        say("reading the prompt from stdin; end it with Ctrl-D")
    try:
        text = sys.stdin.read()
    except UnicodeDecodeError as error:
        raise RequestError(f"the prompt on stdin is not {error.encoding} text: {error}") from None
    # The line break that ends the last line is the shell's, not the prompt's.
    return checked_text(text.removesuffix("\n"), "the prompt on stdin")


def _as_asked(
    engine: Engine, text: str, system: str | None, *, raw: bool
) -> str | list[dict[str, str]]:
    if raw or engine.chat_template is None:
        if system is not None:
            raise RequestError("--system needs a chat template, and this model has none: drop it")
        return text
    if not text:
        raise RequestError("the prompt is empty: give one as PROMPT or on stdin")
    chat = [{"role": "user", "content": text}]
    if system is not None:
        chat.insert(0, {"role": "system", "content": system})
    return chat


def _print_json(engine: Engine, completion: Completion) -> None:
    import json
    from dataclasses import asdict

    from farthing.cli.report import completion_facts
    from farthing.lab.facts import facts

    facts_known: dict[str, Any] = {}
    if (report := engine.report) is not None:
        facts_known = facts(report.model, report.path, report.threads, report.isa)
        facts_known["load"] = {**asdict(report), "path": str(report.path)}
    everything = {**facts_known, **completion_facts(completion)}
    print(json.dumps(everything, indent=2))
