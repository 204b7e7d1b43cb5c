"""The flags that several subcommands share, and what becomes of them."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from farthing.core import (
    SPECULATION_RULES,
    SPECULATIONS,
    ActivationMode,
    Constraint,
    KVDtype,
    RequestError,
    SamplingParams,
)
from farthing.files.text_files import read_text

if TYPE_CHECKING:
    from farthing.engine.engine import Engine

MOST_SCHEMA_BYTES = 1 << 20


def positive(text: str) -> int:
    """An argparse type: a whole number from 1."""
    number = whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def whole(text: str) -> int:
    """An argparse type: a whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r:.40}") from None


def seed(text: str) -> int:
    """An argparse type: a whole number from 0."""
    number = whole(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, not {number}")
    return number


def checked_text(text: str, what: str) -> str:
    """What a person typed or piped, unless it is not text in the encoding that was promised.

    `what` names it. Raises `RequestError` at bytes that the encoding does not have, which Python
    hands on as halves of surrogate pairs.
    """
    wrong = next((at for at, each in enumerate(text) if "\ud800" <= each <= "\udfff"), None)
    if wrong is None:
        return text
    raise RequestError(
        f"{what} is not {sys.getfilesystemencoding().upper()} text: character {wrong + 1} is the "
        f"byte 0x{ord(text[wrong]) & 0xFF:02X}; convert it first (iconv does)"
    )


def add_model(parser: argparse.ArgumentParser) -> None:
    """MODEL, as every command takes it."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a .gguf file, a folder of safetensors, a hub id or a catalog name (smollm2-135m)",
    )


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """How tokens are chosen."""
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "--max-tokens",
        type=positive,
        metavar="N",
        help="most tokens of an answer (default: up to the end of the context)",
    )
    group.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default)"
    )
    group.add_argument(
        "--top-k", type=whole, default=0, metavar="K", help="keep the K likeliest (default 0: all)"
    )
    group.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        metavar="P",
        help="keep the likeliest that make up probability P (default 1: all)",
    )
    group.add_argument(
        "--min-p",
        type=float,
        default=0.0,
        metavar="P",
        help="keep what is at least P times as likely as the likeliest (default 0: all)",
    )
    group.add_argument(
        "--repetition-penalty",
        type=float,
        default=1.0,
        metavar="R",
        help="above 1 disfavours what stands in the text already (default 1: off)",
    )
    group.add_argument(
        "--seed", type=whole, metavar="N", help="makes sampling repeatable (default: drawn, told)"
    )
    group.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end before this text; may be given several times",
    )


def add_constraint(parser: argparse.ArgumentParser) -> None:
    """What form an answer has."""
    group = parser.add_argument_group(
        "form of the answer", "at most one of these; the answer ends when its form is complete"
    )
    group.add_argument(
        "--json-schema", metavar="FILE", help="a JSON document that follows this JSON schema"
    )
    group.add_argument(
        "--regex", metavar="PATTERN", help="a text that matches this expression as a whole"
    )
    group.add_argument(
        "--choice",
        action="append",
        default=[],
        metavar="TEXT",
        help="this text, or one of several where it is given several times",
    )


def add_backend_options(parser: argparse._ActionsContainer) -> None:
    """Flags that say how the backend computes, the same for every command."""
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="default: the cores this process may use"
    )
    parser.add_argument(
        "--kv-dtype",
        choices=[each.value for each in KVDtype],
        default=KVDtype.BF16.value,
        help="how keys and values are stored in the cache (default bf16)",
    )
    add_activations(parser)


def add_activations(parser: argparse._ActionsContainer) -> None:
    """`--activations`, for commands that choose the rest themselves, too."""
    parser.add_argument(
        "--activations",
        choices=[each.value for each in ActivationMode],
        help="what a product's input is rounded to (default: int8 for quantised weights, the "
        "weights' own width for 16 and 32 bits)",
    )


def add_loading(parser: argparse.ArgumentParser) -> None:
    """How the model is loaded."""
    group = parser.add_argument_group("loading")
    group.add_argument(
        "--context",
        type=positive,
        metavar="N",
        help="most tokens of prompt and answer together (default: the model's own)",
    )
    add_backend_options(group)
    add_speculation(group)


def add_speculation(parser: argparse._ActionsContainer) -> None:
    """Whether tokens are guessed ahead, and which guesses are taken."""
    add_guessing(parser)
    parser.add_argument(
        "--speculate-rule",
        choices=SPECULATION_RULES,
        default=SPECULATION_RULES[0],
        help="take the guesses that are what would be written without them (exact, default); or as "
        "many as keep the distribution of sampled texts, but not each text (leviathan)",
    )
    parser.add_argument(
        "--lookup-traffic",
        type=whole,
        default=0,
        metavar="TOKENS",
        help="look guesses up in so many tokens of texts that ended, too, those of the same key "
        "alone (default 0: in the text itself)",
    )


def add_guessing(parser: argparse._ActionsContainer) -> None:
    """Whether tokens are guessed ahead."""
    parser.add_argument(
        "--speculate",
        metavar="WAY",
        default=SPECULATIONS[0],
        help="guess tokens ahead where that pays, which changes no answer: by looking up what "
        "followed before (auto, ngram), by a smaller model of the same tokenizer (draft=MODEL), by "
        "a copy of this one that is quantised when it is loaded (self=SCHEME; for weights of 16 "
        "bits), or not (off; default auto)",
    )


def add_sharing(parser: argparse._ActionsContainer) -> None:
    """What texts that run at once share."""
    parser.add_argument(
        "--slots", type=positive, metavar="N", help="most texts that run at once (default 32)"
    )
    parser.add_argument(
        "--cache-tokens",
        type=positive,
        metavar="N",
        help="tokens in the cache, all texts together (default: as many as the context)",
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    """What is told besides the answer."""
    group = parser.add_argument_group("output")
    group.add_argument("--quiet", action="store_true", help="no load report, progress or figures")
    group.add_argument(
        "--json",
        action="store_true",
        help="one JSON object with every figure and the answer, if it is one",
    )


def constraint_of(arguments: argparse.Namespace) -> Constraint | None:
    """The flag of `add_constraint` that was given; None for none.

    Raises `RequestError` for several, and for a file that cannot be read.
    """
    given: list[Constraint] = []
    if arguments.json_schema is not None:
        path = arguments.json_schema
        text = read_text(Path(path), MOST_SCHEMA_BYTES, f"--json-schema {path}")
        given.append(Constraint("json_schema", text))
    if arguments.regex is not None:
        given.append(Constraint("regex", checked_text(arguments.regex, "--regex")))
    if arguments.choice:
        texts = [checked_text(text, "--choice") for text in arguments.choice]
        given.append(Constraint("choice", json.dumps(texts)))
    if len(given) > 1:
        raise RequestError("--json-schema, --regex and --choice ask for different forms: keep one")
    return given[0] if given else None


def sampling_of(
    arguments: argparse.Namespace, constraint: Constraint | None = None
) -> SamplingParams:
    """The flags of `add_sampling` as parameters; raises `RequestError` for one out of range."""
    return SamplingParams(
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        min_p=arguments.min_p,
        repetition_penalty=arguments.repetition_penalty,
        seed=arguments.seed,
        stop=tuple(checked_text(text, "--stop") for text in arguments.stop),
        constraint=constraint,
    )


def load_engine(
    arguments: argparse.Namespace, *, slots: int | None, cache_tokens: int | None = None
) -> Engine:
    """Loads the model that the flags of `add_model` and `add_loading` describe, with progress.

    It knows at once what steps take where a profile says so.

    `slots` and `cache_tokens` are as in `Engine.load`.
    """
    from farthing.cli.progress import terminal_progress
    from farthing.engine.foretold import load_foretold

    with terminal_progress(quiet=arguments.quiet) as progress:
        engine, _, _ = load_foretold(
            arguments.model,
            threads=arguments.threads,
            kv_dtype=arguments.kv_dtype,
            activations=arguments.activations,
            context_length=arguments.context,
            slots=slots,
            cache_tokens=cache_tokens,
            speculate=arguments.speculate,
            speculate_rule=arguments.speculate_rule,
            lookup_traffic=arguments.lookup_traffic,
            progress=progress,
        )
    return engine
