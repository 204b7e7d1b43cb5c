"""What is asked of a plan: the model or shape, the texts, the precisions; and what contradicts."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from farthing.cli.config import DEFAULT_SOURCE
from farthing.cli.plan_options import listed
from farthing.cli.plan_report import shown_count
from farthing.core import ActivationMode, KVDtype, RequestError
from farthing.engine.draft_copy import copy_in
from farthing.engine.drafting import (
    drafting_of,
    refuse_as_costly,
    refuse_larger,
    refuse_other_tokens,
)
from farthing.plan.memory import DRAFT_ROWS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from farthing.cli.plan_source import Described
    from farthing.engine.drafting import Drafting
    from farthing.files.receipt import Receipt
    from farthing.models.load import Model
    from farthing.plan.precision import Precision
    from farthing.plan.shapes import Shape
    from farthing.plan.traffic import Traffic
    from farthing.text.tokenizer import Tokenizer

_SHAPE_FLAGS = ("params", "layers", "kv_heads", "head_dim")
_FIRST_CONTEXT = 1024
_LAST_CONTEXT = 1 << 17
_EXAMPLES_ALLOW = {"examples", "json", "model", "config", "kv_dtype"}


@dataclass(frozen=True)
class Asked:
    """What the plan is about: a model read from its headers, or a shape. `path` is where it is.

    `draft` gives the model that guesses beside it, of its target in one precision; `receipt` is as
    in `Described`.
    """

    model: Model | None
    shape: Shape | None
    name: str
    path: str | None
    file_bytes: int
    reserve: int
    draft_rows: int = 0
    draft: Callable[[Model], Model] | None = None
    receipt: Receipt | str | None = None

    @property
    def context_length(self) -> int | None:
        """The longest context, None where it is not known."""
        return self.model.config.context_length if self.model else None

    @property
    def parameters(self) -> int:
        """Numbers in all weights."""
        if self.shape is not None:
            return self.shape.parameters
        assert self.model is not None, "a plan is about a model or a shape"
        return sum(prod(weight.shape) for weight in self.model.program.weights.values())


def refuse_contradictions(arguments: argparse.Namespace) -> None:
    """Raises `RequestError` for flags that ask for different things, and for a missing MODEL."""
    sources = arguments.sources
    typed_model = arguments.model is not None and sources.get("model") in (None, DEFAULT_SOURCE)
    given = [name for name in _SHAPE_FLAGS if getattr(arguments, name) is not None]
    flags = [f"--{name.replace('_', '-')}" for name in given]
    if arguments.examples:
        others = [
            f"--{name.replace('_', '-')}"
            for name, source in sources.items()
            if name not in _EXAMPLES_ALLOW and str(source).startswith("--")
        ]
        if typed_model or others:
            what = "MODEL" if typed_model else others[0]
            raise RequestError(f"--examples prints fixed tables, which {what} has no part in")
        return
    if typed_model and (given or arguments.heads):
        raise RequestError(
            f"MODEL says its own sizes: leave out {flags[0] if flags else '--heads'}, or MODEL"
        )
    if (given or arguments.heads) and len(given) < len(_SHAPE_FLAGS):
        missing = [f"--{n.replace('_', '-')}" for n in _SHAPE_FLAGS if n not in given]
        raise RequestError(f"a shape needs {', '.join(missing)} as well")
    speculated = str(sources.get("speculate")).startswith("--")
    if given and speculated and drafting_of(arguments.speculate).has_model:
        raise RequestError(
            "--speculate adds a second model to MODEL, and nothing to a shape: leave it out"
        )
    if not given and arguments.model is None:
        raise RequestError(
            "MODEL is missing: give it (farthing plan smollm2-135m), or --params, --layers, "
            "--kv-heads and --head-dim; farthing plan --examples shows tables"
        )
    if arguments.lengths is not None:
        for name in ("context", "answer"):
            if getattr(arguments, name) is not None:
                raise RequestError(f"--lengths says how long texts are: leave out --{name}")
    speeds = (("--slo", arguments.slo), ("--price-per-hour", arguments.price_per_hour))
    if arguments.ceilings == "none":
        for flag, value in speeds:
            if value is not None:
                raise RequestError(f"{flag} needs speeds, which --ceilings none leaves out")


def asked_of(arguments: argparse.Namespace) -> Asked:
    from farthing.plan.shapes import DEFAULT_RESERVE, Shape

    reserve = arguments.reserve
    if arguments.params is not None:
        name = f"a shape of {shown_count(arguments.params)} parameters"
        shape = Shape(
            name,
            arguments.params,
            arguments.layers,
            arguments.kv_heads,
            arguments.head_dim,
            arguments.heads,
        )
        if shape.parameters < shape.least_parameters:
            raise RequestError(
                f"--params {shape.parameters:,} is less than the {shape.least_parameters:,} that "
                f"make keys and values in {shape.layers:,} layers with --kv-heads {shape.kv_heads} "
                f"of --head-dim {shape.head_dim}: it counts single weights, as in 13e9"
            )
        return Asked(None, shape, name, None, 0, DEFAULT_RESERVE if reserve is None else reserve)
    from farthing.cli.plan_source import described

    drafting = drafting_of(arguments.speculate)
    rows = 0 if drafting.way == "off" else DRAFT_ROWS
    with described(arguments.model, quiet=arguments.json) as found:
        draft = _draft_of(drafting, arguments.activations, found, quiet=arguments.json)
        return Asked(
            *(found.model, None, arguments.model, found.where, found.bytes, reserve or 0),
            draft_rows=rows,
            draft=draft,
            receipt=found.receipt,
        )


def _draft_of(
    drafting: Drafting, asked: str | None, beside: Described, *, quiet: bool
) -> Callable[[Model], Model] | None:
    """What guesses beside a model, once its precision is known.

    Raises what `refuse_larger` raises, and `refuse_other_tokens` where both models are here.
    """
    from farthing.cli.plan_source import described

    activations = None if asked is None else ActivationMode(asked)
    if drafting.way == "self":
        return lambda target: copy_in(target, drafting.source, activations)
    if drafting.way != "draft":
        return None
    with described(drafting.source, quiet=quiet) as found:
        draft = found.model
        refuse_larger(draft, beside.model)
        if beside.path is not None and found.path is not None:
            refuse_other_tokens(_tokenizer(found.path), _tokenizer(beside.path))

    def fitting(target: Model) -> Model:
        refuse_as_costly(draft, target, activations)
        return draft

    return fitting


def _tokenizer(path: Path) -> Tokenizer:
    from farthing.files.checkpoint import open_checkpoint
    from farthing.text.load import load_tokenizer

    with open_checkpoint(path) as checkpoint:
        return load_tokenizer(checkpoint)


def traffics_of(arguments: argparse.Namespace, longest: int | None) -> tuple[Traffic, ...]:
    from farthing.plan.traffic import fixed_traffic, read_lengths, traffic_of

    shared = arguments.shared_prefix
    if arguments.lengths is not None:
        path = Path(arguments.lengths)
        lengths = read_lengths(path)
        too_long = next((each for each in lengths if longest and sum(each) > longest), None)
        if too_long:
            raise RequestError(
                f"{path} has a request of {sum(too_long):,} tokens, and the model's context is "
                f"{longest:,}: it would be refused, leave it out"
            )
        return (traffic_of(lengths, path.name, shared),)
    contexts = listed(arguments.context)
    if contexts is None:
        most = longest or _LAST_CONTEXT
        start = min(_FIRST_CONTEXT, most)
        usual = [start * 4**power for power in range(12) if start * 4**power < most]
        contexts = tuple(context for context in (*usual, most) if context > 2 * shared) or (most,)
    for context in contexts:
        if longest is not None and context > longest:
            raise RequestError(
                f"--context {context} is more than the {longest} positions that the model was "
                "made for"
            )
    return tuple(fixed_traffic(context, arguments.answer, shared) for context in contexts)


def precisions_of(arguments: argparse.Namespace) -> list[Precision]:
    from farthing.plan.precision import STORED, precision
    from farthing.plan.shapes import EXAMPLE_WEIGHTS

    usual = ",".join(EXAMPLE_WEIGHTS) if arguments.params is not None else STORED
    text: str = usual if arguments.weights is None else arguments.weights
    return list(dict.fromkeys(precision(name) for name in text.split(",")))


def kv_dtypes_of(arguments: argparse.Namespace) -> list[KVDtype]:
    found: dict[KVDtype, None] = {}
    for name in arguments.kv_dtype.split(","):
        if name not in list(KVDtype):
            raise RequestError(f"--kv-dtype {name!r:.40} is none of {', '.join(KVDtype)}")
        found[KVDtype(name)] = None
    return list(found)
