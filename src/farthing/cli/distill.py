"""farthing distill: make a draft model or a small student of a teacher."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

# Between its parts a step has one thread; the others give their core to whoever needs it meanwhile.
# Read when torch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from farthing.forge.distill_wish import DistillWish
    from farthing.models.load import Model

_DESCRIPTION = """\
Make a small model that says what its teacher says. A draft has a few of the teacher's layers and a
head over the tokens that the teacher writes most, and guesses ahead for it (serve --speculate
draft=OUT): nothing that the teacher writes changes. A student is a model to be used by itself.
The teacher writes the text to learn from, by the engine, in batches. The result is a folder that
all commands take as MODEL, with its loss curve and a receipt inside: teacher, text, how often
guesses are right, and what they gain on this machine. Needs PyTorch: pip install
'farthing[distill]'.

A run that is ended, by Ctrl-C or otherwise, goes on when the same command is given again: until the
model is whole, all of it lies beside OUT in the hidden folder .OUT.distilling, which may be removed
to give it up."""

_EPILOG = """\
examples:
  farthing distill smollm2-135m draft --draft
  farthing distill smollm2-135m draft --draft --layers 0,1,29 --hours 3
  farthing serve smollm2-135m --speculate draft=draft
  farthing distill folder small --student --layers 8 --hours 10 --temperature 2 --hard-share 0.1
"""

_FOR_STUDENTS = ("temperature", "hard_share", "reverse_kl")


def configure(parser: argparse.ArgumentParser) -> None:
    from farthing.cli.options import add_model, positive, seed
    from farthing.forge.distill_wish import DRAFT_LAYERS, HEAD_TOKENS, PASSES

    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    add_model(parser)
    parser.add_argument("out", metavar="OUT", help="the folder to write")
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--draft", action="store_true", help="to guess ahead for the teacher")
    kind.add_argument("--student", action="store_true", help="to be used by itself")
    parser.add_argument(
        "--layers",
        metavar="N|0,15,..",
        help="how many of the teacher's layers, evenly spread, or which, with commas: 2 takes two, "
        "2,15 these, and 2, that one alone "
        f"(default: {DRAFT_LAYERS} for a draft, half of them for a student)",
    )
    parser.add_argument(
        "--head-tokens",
        type=positive,
        metavar="N",
        help=f"the draft's head has the N tokens written most (default {HEAD_TOKENS:,})",
    )
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--hours", type=float, metavar="H", help="how long it takes (default 1)")
    amount.add_argument("--tokens", type=positive, metavar="N", help="tokens the teacher writes")
    parser.add_argument(
        "--passes",
        type=positive,
        default=PASSES,
        metavar="N",
        help=f"how often they are read with --tokens (default {PASSES})",
    )
    parser.add_argument(
        "--prompts",
        nargs="+",
        metavar="FILE",
        help="what the teacher is asked, a line each (default: openings that come with farthing)",
    )
    student = parser.add_argument_group("students")
    student.add_argument(
        "--temperature", type=float, metavar="T", help="softens both distributions (default 1)"
    )
    student.add_argument(
        "--hard-share",
        type=float,
        metavar="S",
        help="share of the loss that is on the written tokens themselves (default 0)",
    )
    student.add_argument(
        "--reverse-kl", action="store_true", help="let the student leave out, rather than cover"
    )
    parser.add_argument(
        "--scheme",
        default="int8",
        metavar="SCHEME",
        help="how matrices are stored, as in farthing quantize (default int8: int8-row)",
    )
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="(default 0)")
    parser.add_argument("--threads", type=positive, metavar="N", help="(default: all cores)")
    parser.add_argument("--force", action="store_true", help="replace a model that is at OUT")
    parser.add_argument(
        "--restart", action="store_true", help="throw away what an earlier run has left"
    )
    parser.add_argument("--json", action="store_true", help="the receipt as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    from farthing.cli.distill_report import print_report
    from farthing.cli.process import interrupts_call, say
    from farthing.cli.progress import terminal_progress
    from farthing.cli.stages import stage_bar
    from farthing.cli.threads import warn_of_threads
    from farthing.core import FarthingError
    from farthing.files.catalog import resolve
    from farthing.files.checkpoint import open_checkpoint
    from farthing.models.load import load_model

    if find_spec("torch") is None:
        raise FarthingError("distilling needs PyTorch: pip install 'farthing[distill]'")
    from farthing.forge.distill import distill
    from farthing.forge.workplace import folder_of

    warn_of_threads(arguments.threads)
    with terminal_progress() as progress:
        source = resolve(arguments.model, progress)
    interrupted: list[bool] = []

    def interrupt() -> None:
        if interrupted:
            raise KeyboardInterrupt
        interrupted.append(True)
        say("stopping at the next step; Ctrl-C again stops at once")

    out = Path(arguments.out)
    with open_checkpoint(source) as checkpoint:
        wish = _wish(arguments, load_model(checkpoint))
        with stage_bar() as bar, interrupts_call(interrupt):
            made = distill(
                checkpoint,
                out,
                wish,
                force=arguments.force,
                restart=arguments.restart,
                told=bar,
                stop=lambda: bool(interrupted),
            )
    if made is None:
        say(f"stopped; what is done lies in {folder_of(out)}; to go on: {_command_again()}")
        return 130
    if arguments.json:
        print(made.to_json(), end="")
    else:
        print_report(made)
    return 0


def _wish(arguments: argparse.Namespace, teacher: Model) -> DistillWish:
    from farthing.core import RequestError
    from farthing.forge.distill_wish import HEAD_TOKENS, DistillWish
    from farthing.forge.schemes import format_of
    from farthing.plan.machine import usable_cores
    from farthing.quality.texts import read_text

    if arguments.draft:
        for name in _FOR_STUDENTS:
            if getattr(arguments, name):
                raise RequestError(
                    f"--{name.replace('_', '-')} is for students: a draft is taught to guess what "
                    "its teacher says, by divergence and total variation at temperature 1"
                )
    elif arguments.head_tokens is not None:
        raise RequestError("--head-tokens is for drafts: a student has its teacher's whole head")
    hours = arguments.hours
    if hours is None and arguments.tokens is None:
        hours = 1.0
    head_tokens = arguments.head_tokens
    if arguments.draft and head_tokens is None:
        head_tokens = min(HEAD_TOKENS, teacher.program.vocabulary_size)
    return DistillWish(
        kind="draft" if arguments.draft else "student",
        layers=_layers(arguments, teacher.config.layers),
        head_tokens=head_tokens,
        tokens=arguments.tokens,
        hours=hours,
        passes=arguments.passes,
        prompts=tuple(map(read_text, arguments.prompts or ())),
        temperature=1.0 if arguments.temperature is None else arguments.temperature,
        hard_share=arguments.hard_share or 0.0,
        reverse=arguments.reverse_kl,
        scheme=format_of(arguments.scheme),
        seed=arguments.seed,
        threads=min(arguments.threads or usable_cores(), usable_cores()),
    )


def _layers(arguments: argparse.Namespace, total: int) -> tuple[int, ...]:
    from farthing.core import RequestError
    from farthing.forge.distill_wish import DRAFT_LAYERS
    from farthing.forge.student import spread_layers

    text = arguments.layers
    if text is None:
        usual = DRAFT_LAYERS if arguments.draft else -(-total // 2)
        return spread_layers(min(usual, total), total)
    named, comma, _ = text.rpartition(",") if text.endswith(",") else (text, "", "")
    try:
        numbers = [int(each) for each in named.split(",")]
    except ValueError:
        raise RequestError(
            "--layers is a number of layers, or their numbers with commas (2,15 or 2, for one), "
            f"not {text!r:.60}"
        ) from None
    if comma or len(numbers) > 1:
        return tuple(numbers)
    if not 1 <= numbers[0] <= total:
        raise RequestError(
            f"the teacher has {total} layers: --layers is from 1 to {total} of them, or their "
            f"numbers with commas (0, for the first alone), not {text!r:.60}"
        )
    return spread_layers(numbers[0], total)


def _command_again() -> str:
    return shlex.join(["farthing", *sys.argv[1:]])
