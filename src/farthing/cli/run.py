"""farthing run: stream one completion, or answer a file of requests."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from farthing.cli.options import (
    add_constraint,
    add_loading,
    add_model,
    add_output,
    add_sampling,
    add_sharing,
    checked_text,
    constraint_of,
    load_engine,
    sampling_of,
)
from farthing.cli.process import say
from farthing.cli.terminal import write
from farthing.core import SPECULATION_RULES, RequestError

if TYPE_CHECKING:
    import argparse

    from farthing.core import SamplingParams
    from farthing.engine.completion import Completion
    from farthing.engine.engine import Engine

_DESCRIPTION = """\
Continue a prompt. Where the model has a chat template, the prompt is one message of a user and the
text is the answer; with --raw, or without a template, the text goes on where the prompt ends.

With --file, answer every line of a file, many at once: a line is a JSON object with a "prompt" (a
string, which is what PROMPT is, or token ids) or "messages" (a chat), and may have an "id" and
fields of sampling: max_tokens, temperature, top_k, top_p, min_p, seed, stop, stop_token_ids,
ignore_eos, min_tokens, repetition_penalty, presence_penalty, frequency_penalty, logit_bias,
logprobs, prompt_logprobs, max_draft_tokens (guessed ahead in a step, 0 for none), constraint
({"kind": "json_schema", "regex" or "choice", "source": its text}). With max_tokens 0 a prompt is
scored only. Flags stand in for fields that a line does not have. Every line is checked first."""

_EPILOG = """\
A line is written to --out when its answer has ended, whichever does first: an object with index
(the request's, from 0), id, text, finish_reason, usage, seed; token_ids with --token-ids, logprobs
and prompt_logprobs where asked for; and digests of request and settings. After a kill, the same
command keeps the answers that are there and makes the others, none twice. The disk is waited for
once a second: a power cut costs the answers of the last one, which are then made again.

examples:
  farthing run smollm2-135m "Why is the sky blue?"
  farthing run smollm2-135m --raw --max-tokens 16 "The capital of France is"
  farthing run model.gguf --temperature 0.8 --top-p 0.95 --seed 7 < question.txt
  farthing run smollm2-135m --json "Hello" | python -m json.tool
  farthing run smollm2-135m --choice yes --choice no "Is the sky blue?"
  farthing run smollm2-135m --json-schema person.json "Invent a person."
  farthing run smollm2-135m --file prompts.jsonl --out answers.jsonl --max-tokens 200
  echo '{"id": "a", "prompt": "Name a colour.", "max_tokens": 5}' > one.jsonl
  farthing run smollm2-135m --file one.jsonl --out answers.jsonl --slots 64 --cache-tokens 32768
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    add_model(parser)
    parser.add_argument(
        "prompt",
        nargs="?",
        metavar="PROMPT",
        help="the prompt; read from stdin where it is - or not given",
    )
    parser.add_argument("--raw", action="store_true", help="apply no chat template")
    parser.add_argument("--system", metavar="TEXT", help="a system message before the prompt")
    group = parser.add_argument_group("a file of requests")
    group.add_argument("--file", metavar="REQUESTS", help="answer each line of this file")
    group.add_argument("--out", metavar="ANSWERS", help="where to; answers that are there are kept")
    group.add_argument("--token-ids", action="store_true", help="write the ids of tokens too")
    add_sharing(group)
    add_sampling(parser)
    add_constraint(parser)
    add_loading(parser)
    add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    # What needs no model is checked before one is loaded.
    sampling = sampling_of(arguments, constraint_of(arguments))
    _refuse_contradictions(arguments)
    system = None if arguments.system is None else checked_text(arguments.system, "--system")
    if arguments.file is not None:
        from farthing.cli.batch import run_batch
        from farthing.cli.batch_requests import Defaults

        loose = arguments.speculate_rule != SPECULATION_RULES[0]
        return run_batch(arguments, Defaults(sampling, arguments.raw, system, loose))
    return _run_one(arguments, sampling, system)


def _refuse_contradictions(arguments: argparse.Namespace) -> None:
    if arguments.raw and arguments.system is not None:
        raise RequestError("--system needs the chat template that --raw leaves out: drop one")
    if arguments.file is None:
        for flag, given in (
            ("--out", arguments.out is not None),
            ("--token-ids", arguments.token_ids),
            ("--slots", arguments.slots is not None),
            ("--cache-tokens", arguments.cache_tokens is not None),
        ):
            if given:
                raise RequestError(f"{flag} is for the requests of a --file: give one, or drop it")
    elif arguments.out is None:
        raise RequestError("--file needs --out, the file for its answers")
    elif arguments.prompt is not None:
        raise RequestError("PROMPT and --file are two ways to ask: drop one")


def _run_one(arguments: argparse.Namespace, sampling: SamplingParams, system: str | None) -> int:
    asked = "-" if arguments.prompt is None else arguments.prompt
    given = None if asked == "-" else checked_text(asked, "the prompt")
    with load_engine(arguments, slots=1) as engine:
        text = _read_prompt() if given is None else given
        prompt = as_asked(engine, text, system, raw=arguments.raw)
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


def as_asked(
    engine: Engine, text: str, system: str | None, *, raw: bool
) -> str | list[dict[str, str]]:
    """A text as the engine is given it: as it is, or as a user's message after a system's."""
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

    from farthing.cli.report import completion_facts, engine_facts

    print(json.dumps({**engine_facts(engine), **completion_facts(completion)}, indent=2))
