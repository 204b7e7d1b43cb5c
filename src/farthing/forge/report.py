"""What was written, and what it takes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from farthing.files.receipt import Receipt
    from farthing.forge.calibrate import Calibration
    from farthing.forge.methods import Method
    from farthing.forge.outline import Outline
    from farthing.forge.patterns import Rule


@dataclass(frozen=True)
class Share:
    """Tensors of one format: how many, their weights, and the bytes these take."""

    tensors: int
    weights: int
    bytes: int

    @property
    def bits_per_weight(self) -> float:
        """Stored bits for one weight, scales and zeros included."""
        return 8 * self.bytes / self.weights


@dataclass(frozen=True)
class QuantizeReport:
    """What was written.

    `container` is "gguf" or "safetensors". `source_matrices` and `matrices` are the model's
    matrices by format, before and after, `others` what was kept besides them, and `beside_bytes`
    what stands beside matrices: scales of their inputs, columns kept apart. `source_bytes` and
    `bytes` count all tensors. `rules` are those of mixed precision with the matrices they matched,
    `fallbacks` the matrices whose rows are no whole blocks of their scheme. `resumed` counts the
    tensors that a killed run had written. `remarks` are sentences on what the file cannot say.
    `receipt` is what was measured, where that was wished.
    """

    model: str
    path: Path
    container: str
    source_matrices: Mapping[str, Share]
    matrices: Mapping[str, Share]
    others: Mapping[str, Share]
    beside_bytes: int
    source_bytes: int
    bytes: int
    methods: tuple[Method, ...]
    calibration: Calibration | None
    rules: tuple[tuple[Rule, tuple[str, ...]], ...]
    fallbacks: tuple[str, ...]
    resumed: int
    remarks: tuple[str, ...]
    receipt: Receipt | None

    @property
    def source_bits_per_weight(self) -> float:
        """Over all matrices of the source: its native precision."""
        return _bits_per_weight(self.source_matrices.values(), 0)

    @property
    def bits_per_weight(self) -> float:
        """Over all matrices of the result, with all that stands beside them."""
        return _bits_per_weight(self.matrices.values(), self.beside_bytes)

    @property
    def source_was_rounded(self) -> bool:
        """Whether the source holds a matrix in fewer than 16 bits a weight."""
        return any(share.bits_per_weight < 16 for share in self.source_matrices.values())


def shares(stored: Iterable[tuple[str, tuple[int, ...], int]]) -> dict[str, Share]:
    """Tensors, each (format, shape, bytes), by format, the commonest first."""
    found: dict[str, Share] = {}
    for format_name, shape, size in stored:
        share = found.get(format_name, Share(0, 0, 0))
        found[format_name] = Share(
            share.tensors + 1, share.weights + prod(shape), share.bytes + size
        )
    return dict(sorted(found.items(), key=lambda item: -item[1].weights))


def shares_of(
    planned: Outline, formats: Mapping[str, str]
) -> tuple[dict[str, Share], dict[str, Share], int]:
    """Of an outline: the matrices, the other tensors, and the bytes of what is beside matrices."""
    whole = [job for job in planned.jobs if not job.part]
    matrices = [job.plan for job in whole if job.weight in formats]
    others = [job.plan for job in whole if job.weight not in formats]
    return (
        shares((plan.format, plan.shape, plan.bytes) for plan in matrices),
        shares((plan.format, plan.shape, plan.bytes) for plan in others),
        sum(job.plan.bytes for job in planned.jobs if job.part),
    )


def _bits_per_weight(everything: Iterable[Share], beside: int) -> float:
    found = list(everything)
    total = sum(share.bytes for share in found) + beside
    return 8 * total / sum(share.weights for share in found)
