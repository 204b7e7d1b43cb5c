"""Tiny models quantised with calibration, and what their linear operations were given, by torch."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

import tiny
from farthing.backends.torch import TorchBackend
from farthing.core import ActivationMode, KVDtype
from farthing.files.checkpoint import open_checkpoint
from farthing.forge.calibrate import Calibration
from farthing.forge.methods import NEEDS_TEXT, parse_methods
from farthing.forge.patterns import parse_rule
from farthing.forge.quantize import quantize
from farthing.forge.wish import Wish
from native_steps import logits_of, model_at, native

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from farthing.forge.report import QuantizeReport

EXACT = {"activations": ActivationMode.FP32, "kv_dtype": KVDtype.FP32}
IDS = tiny.token_ids(100, seed=99)
WINDOWS = [tiny.token_ids(256, seed=seed) for seed in range(6)]
TEXT = Calibration("tiny", "0" * 64, WINDOWS)


def made(
    source: Path,
    out: Path,
    scheme: str,
    *methods: str,
    keep: Sequence[str] = (),
    text: Calibration | None = None,
    **settings: Any,
) -> QuantizeReport:
    """Quantises with TEXT where a method needs one."""
    chosen = parse_methods(methods)
    calibration = TEXT if NEEDS_TEXT & {*chosen} else text
    wish = Wish(scheme, tuple(map(parse_rule, keep)), chosen, calibration)
    with open_checkpoint(source) as checkpoint:
        return quantize(checkpoint, out, wish, **settings)


def logits(path: Path, **settings: Any) -> NDArray[np.float32]:
    """Of IDS, natively."""
    return logits_of(native(model_at(path), **settings), IDS)


@cache
def inputs_of(source: Path) -> dict[str, NDArray[np.float32]]:
    """What each matrix of a linear operation, or a head, was given on WINDOWS: (tokens, K)."""
    model = model_at(source)
    readers = {
        op.weights[0]: op.inputs[0] for op in model.program.ops if op.kind in ("linear", "logits")
    }
    backend = TorchBackend(model, taps=set(readers.values()))
    found: dict[str, list[NDArray[np.float32]]] = {name: [] for name in readers}
    for ids in WINDOWS:
        backend.forward(ids)
        for name, value in readers.items():
            found[name].append(backend.tapped[value].detach().numpy())
    return {name: np.concatenate(each) for name, each in found.items()}


def hessian(x: NDArray[np.float32]) -> NDArray[np.float64]:
    return x.astype(np.float64).T @ x / len(x)
