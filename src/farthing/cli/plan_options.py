"""The flags of `farthing plan`, and how each is read."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from farthing.cli.options import add_activations, add_guessing, positive
from farthing.cli.plan_machine import ceilings
from farthing.core import KVDtype

if TYPE_CHECKING:
    from collections.abc import Iterable

_DESCRIPTION = """\
What fits, before anything is loaded: how much context for how many users at once, in which
precision, how fast, at what price, and what limits it. Of a hub's model only the headers are read.
A plan of a model is what farthing serve allocates, to the byte."""

_EPILOG = """\
Lists are separated by commas. SIZE is like 8GiB, 1.5GiB, 512MiB, 8GB or a number of bytes.
WEIGHTS are stored (as the file has them), fp32, fp16, bf16, int8, int4 (groups of 128), nf4, or a
format such as q4_k (typed Q4_K or q4-k it is the same); what is not stored so would be written by
farthing quantize, with the same format in place of one that does not divide a matrix's rows.
--slo is ttft=2s,tpot=100ms (to the first token, and from token to token, in s or ms), MLPerf's
server or interactive, or patient (ttft=30s,tpot=100ms). --lengths has a request a line: tokens of
prompt and answer, as in 512 128.

Ends with 1 where nothing of what was asked for fits (and keeps to the --slo): the nearest that does
is told. Speeds are predicted: from the profile that farthing bench stored of this model on this
machine, else from a quick measurement of what the machine can do at most; which one is said.

examples:
  farthing plan smollm2-135m
  farthing plan model.gguf --context 8192 --users 16 --kv-dtype int8
  farthing plan folder --speculate draft=smaller.gguf
  farthing plan owner/name --memory 16GiB --weights bf16,int8,int4 --plot frontier.svg
  farthing plan --params 13e9 --layers 40 --kv-heads 40 --head-dim 128 --memory 8GiB --weights int4
  farthing plan model.gguf --slo ttft=2s,tpot=100ms --price-per-hour 0.40 --lengths lengths.txt
  farthing plan --examples
"""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?b)?", re.IGNORECASE)
_UNITS = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", 1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}
_MOST_BYTES = 1 << 60
_MOST_ENTRIES = 32
_MOST_MONEY = 10**9


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a .gguf file, a folder of safetensors, a hub id or a catalog name",
    )
    shape = parser.add_argument_group("instead of MODEL", "a model of which only sizes are known")
    shape.add_argument("--params", type=_parameters, metavar="N", help="parameters, as in 13e9")
    shape.add_argument("--layers", type=positive, metavar="N", help="layers with attention")
    shape.add_argument("--kv-heads", type=positive, metavar="N", help="key-value heads of a layer")
    shape.add_argument("--head-dim", type=positive, metavar="N", help="dimensions of a head")
    shape.add_argument(
        "--heads", type=positive, metavar="N", help="query heads (default: as many as --kv-heads)"
    )
    _add_memory(parser.add_argument_group("memory"))
    _add_traffic(parser.add_argument_group("users"))
    _add_speed(parser.add_argument_group("speed and price"))
    parser.add_argument("--json", action="store_true", help="everything as one JSON object")
    parser.add_argument(
        "--plot", metavar="FILE.svg", help="draw how many users fit at each context"
    )
    parser.add_argument(
        "--examples",
        action="store_true",
        help="tables of 7B, 13B and 70B models in 8, 16 and 24 GiB",
    )


def _add_memory(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--memory", type=size, metavar="SIZE", help="what there is (default: free here, now)"
    )
    group.add_argument(
        "--reserve",
        type=size,
        metavar="SIZE",
        help="kept free of it (default: none; 1.5GiB with --params, for all that is not weights "
        "and cache)",
    )
    group.add_argument(
        "--weights",
        type=names,
        metavar="LIST",
        help="precisions (default stored; fp16, int8, int4 with --params)",
    )
    group.add_argument(
        "--kv-dtype",
        type=names,
        metavar="LIST",
        default=KVDtype.BF16.value,
        help=f"how keys and values are stored: {', '.join(KVDtype)} (default bf16)",
    )
    add_guessing(group)


def _add_traffic(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--context",
        type=counts,
        metavar="LIST",
        help="tokens of prompt and answer together (default 1024 to the model's own)",
    )
    group.add_argument(
        "--users",
        type=counts,
        metavar="LIST",
        help="texts at once (default: one, and the most that fit)",
    )
    group.add_argument(
        "--answer",
        type=positive,
        metavar="N",
        help="tokens of an answer (default 256, at most a quarter of the context)",
    )
    group.add_argument(
        "--shared-prefix",
        type=positive,
        default=0,
        metavar="N",
        help="first tokens that all prompts share: kept and computed once (default none)",
    )
    group.add_argument(
        "--lengths", metavar="FILE", help="lengths of real requests, instead of --context"
    )


def _add_speed(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--slo", metavar="LIMITS", help="how soon and how fast answers must come")
    add_price(group)
    group.add_argument(
        "--threads", type=positive, metavar="N", help="default: the cores this process may use"
    )
    add_activations(group)
    group.add_argument(
        "--ceilings",
        type=ceilings,
        metavar="RATES",
        help="of another machine, in bytes and multiply-accumulates a second: "
        "read=40e9,int8=1e12,bf16=5e11,fp32=2e11; none predicts no speeds",
    )


def size(text: str) -> int:
    """An argparse type: bytes, with or without a unit."""
    match = _SIZE.fullmatch(text.strip())
    unit = (match[2] or "").lower() if match else ""
    if match is None or unit not in _UNITS:
        raise argparse.ArgumentTypeError(f"must be a size such as 8GiB, not {text!r:.40}")
    number: int = round(float(match[1]) * _UNITS[unit])
    if number > _MOST_BYTES:
        raise argparse.ArgumentTypeError(f"must be at most {_MOST_BYTES >> 60} EiB, not {text:.40}")
    return number


def counts(text: str) -> int | tuple[int, ...]:
    """An argparse type: one whole number from 1, or several between commas."""
    found = tuple(positive(part) for part in _entries(text))
    # A configuration file holds a single one as a number.
    return found[0] if len(found) == 1 else found


def names(text: str) -> str:
    """An argparse type: names between commas, in lower case."""
    return ",".join(_entries(text.lower()))


def listed(value: int | tuple[int, ...] | None) -> tuple[int, ...] | None:
    """What `counts` read, each once, as a list; None for none."""
    return tuple(dict.fromkeys((value,) if isinstance(value, int) else value)) if value else None


def _entries(text: str) -> Iterable[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts) or len(parts) > _MOST_ENTRIES:
        raise argparse.ArgumentTypeError(
            f"must be up to {_MOST_ENTRIES} values between commas, not {text!r:.40}"
        )
    return parts


def _parameters(text: str) -> int:
    try:
        number = float(text)
        if number < 1 or number != int(number):
            raise ValueError
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"must be a whole number such as 13e9, not {text!r:.40}"
        ) from None
    return int(number)


def add_price(group: argparse._ActionsContainer) -> None:
    """`--price-per-hour`."""
    group.add_argument(
        "--price-per-hour",
        type=_price,
        metavar="X",
        help="of the machine, in any money: prices for a million tokens are told in it",
    )


def _price(text: str) -> float:
    """An argparse type: a number from 0, in any money."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= _MOST_MONEY:
        raise argparse.ArgumentTypeError(
            f"must be a price from 0 to {_MOST_MONEY:,}, not {text!r:.40}"
        )
    return number
