"""Values of the Program as a text runs through it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from farthing.backends.native import NativeBackend
from farthing.core import ActivationMode, KVDtype, StepPlan
from farthing.engine.kv import blocks_for
from farthing.plan.memory import plan_memory

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from farthing.lab.subject import Subject
    from farthing.models.load import Model
    from farthing.models.program import Program


def residual_values(program: Program) -> list[str]:
    """The residual stream, by its values' names: the embedding, then each sum that goes on."""
    names: list[str] = []
    for op in program.ops:
        if op.kind == "embed":
            names = [op.output]
        elif op.kind in ("add", "scale") and names and names[-1] in op.inputs:
            names.append(op.output)
    if names[1:] and any(op.kind == "scale" and op.output == names[1] for op in program.ops):
        names.pop(0)  # an embedding that is scaled is not yet the stream
    return names


def tapped(
    subject: Subject, names: Collection[str], ids: Sequence[int], model: Model | None = None
) -> dict[str, NDArray[np.float32]]:
    """What values are, (tokens, width), while `ids` are read in one step, in full precision.

    `model` is the subject's unless given: another form of it.
    """
    model = subject.model if model is None else model
    plan = plan_memory(
        model,
        context_length=len(ids),
        slots=1,
        kv_dtype=KVDtype.FP32,
        activations=ActivationMode.FP32,
        threads=subject.threads,
        step_tokens=len(ids),
        step_rows=1,
        taps=names,
    )
    backend = NativeBackend(model, plan)
    subject.isa = backend.tier
    try:
        length = len(ids)
        backend.run(
            StepPlan(
                np.asarray(ids, np.int32),
                np.arange(length, dtype=np.int32),
                np.array([0, length], np.int32),
                np.arange(blocks_for(length), dtype=np.int32)[None, :],
                np.array([length - 1], np.int32),
            )
        )
        return {name: backend.value(name)[:length].copy() for name in names}
    finally:
        backend.close()
