"""The calibration methods, and which of them go together with which schemes."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from farthing.core import FarthingError
from farthing.files.formats import spelling
from farthing.forge.schemes import KEEP
from farthing.quant.formats import format_named

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


class Method(StrEnum):
    """What calibration is used for. Each changes how weights are rounded, or what is multiplied."""

    GPTQ = "gptq"
    """Errors of earlier columns are made good by later ones."""
    AWQ = "awq"
    """Inputs that matter are scaled up before rounding, and ranges are clipped."""
    SMOOTHQUANT = "smoothquant"
    """Part of the activations' range is moved into the weights."""
    LLM_INT8 = "llm.int8"
    """Inputs with large activations stay out of the codes, in bf16."""
    ROTATE = "rotate"
    """The residual stream is rotated, which spreads its large dimensions over all."""
    STATIC_INPUTS = "static-inputs"
    """Each matrix product's input is quantised to int8 with one scale for the whole tensor."""


NEEDS_TEXT = frozenset(Method) - {Method.ROTATE}

_APART = {
    frozenset((Method.AWQ, Method.SMOOTHQUANT)): "both choose one scale for each input",
    frozenset((Method.AWQ, Method.ROTATE)): "once rotated, no input matters more than the others",
    frozenset((Method.SMOOTHQUANT, Method.ROTATE)): "a rotation leaves nothing to be smoothed",
    frozenset((Method.LLM_INT8, Method.ROTATE)): "a rotation leaves no columns that stand out",
    frozenset((Method.LLM_INT8, Method.SMOOTHQUANT)): "smoothing leaves few columns that stand out",
    frozenset((Method.LLM_INT8, Method.AWQ)): "awq weighs the columns that llm.int8 takes out",
}
SPLIT_FORMATS = ("INT8_ROW", "INT8_TENSOR")
"""The formats beside which columns may be kept."""


def parse_methods(names: Iterable[str]) -> tuple[Method, ...]:
    """Methods as a person names them, in the order in which they are applied.

    Raises `FarthingError` for a name that is none, and for two that do not go together.
    """
    found = set()
    for name in names:
        try:
            found.add(Method(name.lower()))
        except ValueError:
            raise FarthingError(
                f"no method is called {name!r:.40}; there are {', '.join(Method)}"
            ) from None
    for pair, reason in _APART.items():
        if pair <= found:
            first, second = sorted(pair)
            raise FarthingError(f"{first} and {second} do not go together: {reason}")
    return tuple(method for method in Method if method in found)


def check_methods(methods: Collection[Method], scheme: str) -> None:
    """Raises `FarthingError` where a method has nothing to do with the format `scheme`."""
    if scheme == KEEP or not format_named(scheme).scaled:
        for method in (Method.GPTQ, Method.AWQ, Method.LLM_INT8, Method.STATIC_INPUTS):
            if method in methods:
                raise FarthingError(
                    f"{method} makes rounding to codes cheaper, and {spelling(scheme)} has none: "
                    "choose a scheme of 8 bits or fewer, or leave the method out"
                )
    if Method.LLM_INT8 in methods and scheme not in SPLIT_FORMATS:
        raise FarthingError(
            f"llm.int8 keeps columns beside int8 weights, and not beside {spelling(scheme)}: "
            f"choose {' or '.join(map(spelling, SPLIT_FORMATS))}"
        )


def weighs_search(scheme: str) -> bool:
    """Whether a format's scales can be searched for, which calibration weighs."""
    return scheme != KEEP and format_named(scheme).weighed
