"""What this machine can do at most: bytes read and products multiplied in a second, measured.

Done by the same instructions and as many threads as the native backend's, without a model.
"""

from __future__ import annotations

import os
from types import MappingProxyType
from typing import TYPE_CHECKING

from farthing import _native
from farthing.core import ActivationMode, FarthingError

if TYPE_CHECKING:
    from collections.abc import Mapping

# Huge pages or ordinary ones, and how many bytes ahead of its loads a thread fetches.
_READS: Mapping[str, tuple[bool, int]] = MappingProxyType(
    {
        "plain": (False, 0),
        "prefetched": (False, 2048),
        "huge_pages": (True, 0),
        "huge_pages_prefetched": (True, 2048),
    }
)
# The order is native/kernels.h's `Mode`.
_MODES = (ActivationMode.FP32, ActivationMode.BF16, ActivationMode.INT8)
_MULTIPLY_SECONDS = 0.01
_LITTLE_BYTES = 4096


class Ceilings:
    """Measures the ceilings with `threads` threads. Not for several threads at once.

    Holds two buffers of `buffer_bytes` (about: whole pages for each thread) until it is closed.
    `tier` is the instruction set, chosen as the native backend's is, and `kernels` the version of
    its arithmetic. Raises `FarthingError` when
    FARTHING_ISA names a tier that cannot run here.
    """

    def __init__(self, threads: int, buffer_bytes: int) -> None:
        try:
            self._native = _native.Ceilings(os.environ.get("FARTHING_ISA"), threads, buffer_bytes)
        except ValueError as error:
            raise FarthingError(str(error)) from None
        self.tier: str = self._native.tier
        self.kernels: str = _native.kernel_version
        self.buffer_bytes: int = self._native.bytes

    def read(self) -> dict[str, float]:
        """Bytes a second of one pass through a buffer, by the way of reading."""
        return {name: self._native.read(*way) for name, way in _READS.items()}

    def multiply(self) -> dict[ActivationMode, float]:
        """Multiply-accumulates a second of each mode's product, over 0.01 s each."""
        return {
            mode: self._native.multiply(index, _MULTIPLY_SECONDS)
            for index, mode in enumerate(_MODES)
        }

    def close(self) -> None:
        """Gives back buffers and threads."""
        del self._native


def tier_and_kernels() -> tuple[str, str]:
    """The instruction set that the native backend chooses here, and the version of its arithmetic.

    Raises as `Ceilings` does.
    """
    ceilings = Ceilings(1, _LITTLE_BYTES)
    try:
        return ceilings.tier, ceilings.kernels
    finally:
        ceilings.close()
