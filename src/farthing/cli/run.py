"""farthing run: stream one completion."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from farthing.cli.options import (
    add_loading,
    add_model,
    add_output,
    add_sampling,
    load_engine,
    sampling_of,
)
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
    with load_engine(arguments) as engine:
        prompt = _as_asked(engine, _prompt(arguments.prompt), arguments)
        if arguments.json:
            _print_json(engine, engine.generate(prompt, sampling))
            return 0
        from farthing.cli.report import figures, load_lines

        if not arguments.quiet:
            print("\n".join(load_lines(engine)), file=sys.stderr)
        with engine.stream(prompt, sampling) as stream:
            for delta in stream:
                write(delta.text)
        write("\n")
        if not arguments.quiet:
            print(figures(stream.completion), file=sys.stderr)
    return 0


def _prompt(argument: str) -> str:
    if argument != "-":
        return argument
    if sys.stdin.isatty():
        print("reading the prompt from stdin; end it with Ctrl-D", file=sys.stderr)
    try:
        # The line break that ends the last line is the shell's, not the prompt's.
        return sys.stdin.read().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise RequestError(f"the prompt on stdin is not {error.encoding} text: {error}") from None


def _as_asked(
    engine: Engine, text: str, arguments: argparse.Namespace
) -> str | list[dict[str, str]]:
    if arguments.raw or engine.chat_template is None:
        if arguments.system is not None:
            raise RequestError("--system needs a chat template, and this model has none: drop it")
        return text
    chat = [{"role": "user", "content": text}]
    if arguments.system is not None:
        chat.insert(0, {"role": "system", "content": arguments.system})
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
    print(json.dumps(everything, ensure_ascii=False, indent=2))
