"""The projection matrices of a model: what quantisation is mostly about."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import TYPE_CHECKING

from farthing.files.formats import stored_bytes

if TYPE_CHECKING:
    from farthing.models.load import Model
    from farthing.models.program import Program

FLOAT_BITS = 16


def projections(program: Program) -> dict[str, tuple[int, int]]:
    """Shapes (outputs, inputs) by weight name: the matrices of all linear operations.

    The embedding and the head are none: they are one to a token of the vocabulary.
    """
    found: dict[str, tuple[int, int]] = {}
    for op in program.ops:
        if op.kind == "linear":
            outputs, inputs = program.weights[op.weights[0]].shape
            found[op.weights[0]] = (outputs, inputs)
    return found


def native_precision(model: Model) -> str:
    """What the projections are stored in, for people: "Q4_1, 5 bits a weight"."""
    formats = Counter(model.formats[name] for name in projections(model.program))
    return f"{' and '.join(sorted(formats))}, {native_bits(model):.4g} bits a weight"


def native_bits(model: Model) -> float:
    """Bits of a projection's weight as the file has it, on average."""
    shapes = projections(model.program)
    size = sum(stored_bytes(model.formats[name], shape) for name, shape in shapes.items())
    return 8 * size / sum(prod(shape) for shape in shapes.values())


def precision_warning(model: Model) -> tuple[str, ...]:
    """A note where the weights were quantised before: what is measured against them says less."""
    if native_bits(model) >= FLOAT_BITS:
        return ()
    return (
        (
            f"the reference is not full precision: these weights are stored as "
            f"{native_precision(model)}, and lie on that format's grid already; what level "
            "placement and block sizes do to float weights is told by the model `float`"
        ),
    )
