"""The flags of `farthing tune`, and how each is read."""

from __future__ import annotations

import argparse

from farthing.cli.config import FILE_NAME
from farthing.cli.options import add_activations, add_model, positive, seed
from farthing.cli.plan_options import add_price, counts, names
from farthing.core import KVDtype
from farthing.lab.tune_gate import USUAL_GATE
from farthing.lab.tune_points import MOST_USERS

_DESCRIPTION = """\
Find the settings with which farthing serve keeps an objective for so many users on this machine.
Steps are measured over batches, contexts and chunks of prompts, in rounds over every kind of cache,
number of threads and precision that may be chosen; the server's own scheduler is then simulated
over these times. The fastest settings that keep the objective go into farthing.toml, which
farthing serve reads, with what was measured; the measurements become this machine's profiles, which
farthing plan and farthing serve predict from."""

_EPILOG = """\
Every user asks again as soon as there is an answer. Of all requests 99 in 100 must keep to --slo,
and even if everything took longer by --margin. --slo is ttft=2s,tpot=100ms (to the first token;
from token to token, in the mean over an answer; in s or ms), one of these, MLPerf's server or
interactive, or patient (ttft=30s,tpot=100ms). --lengths has a request a line: tokens of prompt and
answer, as in 512 128.

--candidates are other precisions of MODEL, made by farthing quantize. One may be chosen where its
receipt, by the worse end of its intervals, is within --quality: perplexity=1.02 (a ratio), kl=0.01
(nats), agreement=95%. Kinds of cache of fewer than 16 bits are chosen among only where --kv-dtype
names them.

Ends with 1 where no settings keep the objective: what is reachable is told, and none are written. A
run that is stopped goes on where it was when it is started again within a day.

examples:
  farthing tune smollm2-135m --slo ttft=2s,tpot=100ms --users 16
  farthing tune model.gguf --slo interactive --users 4 --prompt-tokens 2000 --output-tokens 300
  farthing tune model.gguf --slo tpot=80ms --users 32 --lengths lengths.txt --price-per-hour 0.4
  farthing tune model --slo server --users 8 --candidates model-int8 --candidates model-int4
  farthing tune smollm2-135m --slo server --users 16 --kv-dtype bf16,int8 --threads 2 --dry-run
"""

PROMPT_TOKENS, OUTPUT_TOKENS = 512, 128
"""Of a request where nobody says, less where the model's context is short."""

_MOST_SECONDS = 86_400.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    add_model(parser)
    group = parser.add_argument_group("what is wanted")
    group.add_argument("--slo", required=True, metavar="LIMITS", help="how soon and how fast")
    group.add_argument("--users", type=_users, required=True, metavar="N", help="texts at once")
    group.add_argument(
        "--prompt-tokens",
        type=positive,
        metavar="N",
        help=f"tokens of a prompt (default {PROMPT_TOKENS})",
    )
    group.add_argument(
        "--output-tokens",
        type=positive,
        metavar="N",
        help=f"tokens of an answer (default {OUTPUT_TOKENS})",
    )
    group.add_argument("--lengths", metavar="FILE", help="lengths of real requests instead")
    group.add_argument(
        "--margin",
        type=_share,
        default=10.0,
        metavar="PERCENT",
        help="by how much everything may take longer (default 10)",
    )
    _add_choices(parser.add_argument_group("what may be chosen"))
    _add_output(parser.add_argument_group("measuring and output"))


def _add_choices(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--kv-dtype",
        type=names,
        default="bf16,fp16",
        metavar="LIST",
        help=f"kinds of cache: {', '.join(KVDtype)} (default bf16,fp16)",
    )
    group.add_argument(
        "--threads",
        type=counts,
        metavar="LIST",
        help="numbers of threads (default: the cores this process may use, and half of them)",
    )
    add_activations(group)
    group.add_argument(
        "--candidates",
        action="append",
        default=[],
        metavar="MODEL",
        help="another precision of the model; may be given several times",
    )
    group.add_argument(
        "--quality",
        metavar="LIMITS",
        help=f"what a candidate may lose by its receipt (default {USUAL_GATE})",
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--seconds",
        type=_seconds,
        default=150.0,
        metavar="N",
        help="measure for so long at most, or three times each where that takes longer "
        "(default 150)",
    )
    add_price(group)
    group.add_argument(
        "--output", metavar="FILE", help=f"write the settings there (default {FILE_NAME})"
    )
    group.add_argument(
        "--force", action="store_true", help="make comments of settings that stand in the way"
    )
    group.add_argument("--dry-run", action="store_true", help="write no settings and no profiles")
    group.add_argument(
        "--seed", type=seed, default=0, metavar="N", help="of the random tokens (default 0)"
    )
    group.add_argument("--json", action="store_true", help="everything as one JSON object")


def _users(text: str) -> int:
    number = positive(text)
    if number > MOST_USERS:
        raise argparse.ArgumentTypeError(
            f"must be at most {MOST_USERS}, which is what a step holds, not {number}"
        )
    return number


def _seconds(text: str) -> float:
    number = _number(text)
    if not 0 < number <= _MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most a day, not {text!r:.40}")
    return number


def _share(text: str) -> float:
    number = _number(text)
    if not 0 <= number <= 1000:
        raise argparse.ArgumentTypeError(f"must be from 0 to 1000, not {text!r:.40}")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r:.40}") from None
