"""The levels that a matrix can take in a format once its scales are chosen, and codes put there.

The scales are those that `encode` chooses for the weights as they are ("static groups"). A method
that looks at more than one weight at a time then picks each code itself. Since codes are written
over the ones in `encode`'s own bytes, what is stored is in the format's layout whatever that is,
and reads back as the levels that were picked.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import StoredTensor, UnsupportedModelError
from farthing.quant.formats import decode, encode, format_named
from farthing.quant.iq4 import IQ4_NL_LEVELS
from farthing.quant.nf4 import NF4_LEVELS
from farthing.quant.packing import pack_fields, pack_nibbles, pack_pairs

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    WriteCodes = Callable[[NDArray[np.uint8], NDArray[np.uint8]], None]


@dataclass(frozen=True)
class _Codes:
    """How a format places a weight: at base + step * levels[code], base and step from its scales.

    `levels` ascend. Where there is a base they are 0, 1, 2, ...; where there is none, others.
    `write` puts codes (n, weights) over those in runs (n, bytes): blocks, or rows of farthing's own
    formats.
    """

    levels: NDArray[np.float32]
    write: WriteCodes
    has_base: bool = True


def _write_signed_bytes(first: int, runs: NDArray[np.uint8], codes: NDArray[np.uint8]) -> None:
    """int8 from byte `first` on; code 0 is -128."""
    runs[:, first : first + codes.shape[1]] = codes ^ np.uint8(0x80)


def _write_pairs(runs: NDArray[np.uint8], codes: NDArray[np.uint8]) -> None:
    packed = pack_pairs(codes)
    runs[:, : packed.shape[1]] = packed


def _write_nibbles(first: int, runs: NDArray[np.uint8], codes: NDArray[np.uint8]) -> None:
    runs[:, first:] = pack_nibbles(codes)


def _write_fifths(first: int, runs: NDArray[np.uint8], codes: NDArray[np.uint8]) -> None:
    """The codes' fifth bits in four bytes, then their nibbles."""
    runs[:, first : first + 4] = np.packbits(codes >> np.uint8(4), axis=1, bitorder="little")
    _write_nibbles(first + 4, runs, codes)


def _write_fields(
    places: tuple[tuple[int, int, int], ...], runs: NDArray[np.uint8], codes: NDArray[np.uint8]
) -> None:
    """Parts of codes, lowest bits first: each at its byte, in its group of bytes, of its bits."""
    shift = 0
    for first, group, bits in places:
        part = (codes >> np.uint8(shift)) & np.uint8((1 << bits) - 1)
        packed = pack_fields(part, group, bits)
        runs[:, first : first + packed.shape[1]] = packed
        shift += bits


def _whole(count: int, write: WriteCodes) -> _Codes:
    """`count` levels at equal distances."""
    return _Codes(np.arange(count, dtype=np.float32), write)


_INT8 = _whole(256, partial(_write_signed_bytes, 0))
_INT4 = _whole(16, _write_pairs)
_NF4 = _Codes(NF4_LEVELS, _write_pairs, has_base=False)

_CODES: dict[str, _Codes] = {
    **dict.fromkeys(("INT8_TENSOR", "INT8_ROW"), _INT8),
    **dict.fromkeys(
        (
            "INT4_TENSOR",
            "INT4_ROW",
            "INT4_G32",
            "INT4_G64",
            "INT4_G128",
            "INT4_G32_ASYM",
            "INT4_G64_ASYM",
            "INT4_G128_ASYM",
        ),
        _INT4,
    ),
    **dict.fromkeys(("NF4_B64", "NF4_B128", "NF4_B64_DOUBLE"), _NF4),
    "Q8_0": _whole(256, partial(_write_signed_bytes, 2)),
    "Q4_0": _whole(16, partial(_write_nibbles, 2)),
    "Q4_1": _whole(16, partial(_write_nibbles, 4)),
    "Q5_0": _whole(32, partial(_write_fifths, 2)),
    "Q5_1": _whole(32, partial(_write_fifths, 4)),
    "IQ4_NL": _Codes(IQ4_NL_LEVELS, partial(_write_nibbles, 2), has_base=False),
    "Q2_K": _whole(4, partial(_write_fields, ((16, 32, 2),))),
    "Q3_K": _whole(8, partial(_write_fields, ((32, 32, 2), (0, 32, 1)))),
    "Q4_K": _whole(16, partial(_write_fields, ((16, 32, 4),))),
    "Q5_K": _whole(32, partial(_write_fields, ((48, 32, 4), (16, 32, 1)))),
    "Q6_K": _whole(64, partial(_write_fields, ((0, 64, 4), (128, 32, 2)))),
}

ROUNDED_FORMATS = tuple(_CODES)
"""The formats in which codes can be chosen weight by weight."""


class Rounder:
    """A matrix (N, K) whose scales in a format are fixed, and whose codes are not.

    `largest` and `importance` are as in `encode`. Raises `UnsupportedModelError` for a format that
    is not one of `ROUNDED_FORMATS` or whose blocks do not divide a row, and `FileFormatError` for
    weights that it cannot store.
    """

    def __init__(
        self,
        weights: NDArray[np.float32],
        name: str,
        *,
        largest: float | None = None,
        importance: NDArray[np.float32] | None = None,
    ) -> None:
        found = _CODES.get(name)
        if found is None:
            raise UnsupportedModelError(
                f"codes of {name!r:.40} are not chosen one by one: a method that does so, such as "
                f"GPTQ, takes {', '.join(ROUNDED_FORMATS)}"
            )
        self._codes, self._name, self._shape = found, name, weights.shape
        length = format_named(name).storage.run_length(weights.shape[1])
        data = encode(weights, name, largest=largest, importance=importance)
        self._runs = data.reshape(weights.size // length, -1)
        last = self._decoded_with(len(found.levels) - 1)
        base = self._decoded_with(0) if found.has_base else np.zeros_like(last)
        step = (last - base) / found.levels[-1]
        # A column of the matrix is a row here, in one piece.
        self._base = np.ascontiguousarray(base.T)
        self._step = np.ascontiguousarray(step.T)
        self._inverse = np.divide(
            np.float32(1), self._step, out=np.zeros_like(self._step), where=self._step != 0
        )
        self._bounds = (found.levels[1:] + found.levels[:-1]) / np.float32(2)

    def nearest(
        self, column: NDArray[np.float32], index: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        """Codes (N,) of the levels nearest to `column`, the weights of input `index`; and these.

        The lower one of two equally near levels of NF4, the even one elsewhere.
        """
        base, step = self._base[index], self._step[index]
        scaled = (column - base) * self._inverse[index]
        if self._codes.has_base:
            highest = len(self._codes.levels) - 1
            level = np.minimum(np.maximum(np.rint(scaled), 0), highest)
            return level.astype(np.uint8), base + step * level
        codes = np.searchsorted(self._bounds, scaled).astype(np.uint8)
        return codes, step * self._codes.levels[codes]

    def pack(self, codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The bytes of the matrix with these codes (N, K), as `encode` lays them out."""
        runs = self._runs.copy()
        self._codes.write(runs, codes.reshape(len(runs), -1))
        return runs.reshape(-1)

    def _decoded_with(self, code: int) -> NDArray[np.float32]:
        """The matrix if all of its codes were this one."""
        data = self.pack(np.full(self._shape, code, np.uint8))
        return decode(StoredTensor("weights", self._name, self._shape, data))
