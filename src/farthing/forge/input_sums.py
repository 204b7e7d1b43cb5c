"""What a linear operation's inputs were over many tokens, summed up as they are computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import FarthingError
from farthing.quant.formats import decode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from farthing.models.load import Model
    from farthing.plan.stages import Source


@dataclass(frozen=True)
class InputStatistics:
    """What a linear operation's K inputs were over the calibration's tokens.

    `largest` are the largest magnitudes, `magnitude` the mean ones, `square` the mean squares, each
    (K,); `hessian` is the mean of x x^T, (K, K), where it was asked for.
    """

    tokens: int
    largest: NDArray[np.float32]
    magnitude: NDArray[np.float32]
    square: NDArray[np.float32]
    hessian: NDArray[np.float32] | None = None


class InputSums:
    """What has been seen of one source's values."""

    def __init__(self, model: Model, source: Source, with_hessian: bool) -> None:
        self._source = source
        width = model.program.values[source.value].width
        self._gain = None if source.gain is None else decode(model.tensors[source.gain])
        self._tokens = 0
        self._largest = np.zeros(width, np.float32)
        self._magnitude = np.zeros(width, np.float64)
        self._square = np.zeros(width, np.float64)
        self._hessian = np.zeros((width, width), np.float32) if with_hessian else None

    @property
    def hessian_bytes(self) -> int:
        """What is allocated for the Hessian."""
        return 0 if self._hessian is None else self._hessian.nbytes

    def add(self, values: NDArray[np.float32]) -> None:
        """Adds the values (T, width) of T tokens."""
        # What overflows is found in the end.
        with np.errstate(over="ignore", invalid="ignore"):
            x = self._normalised(values)
            magnitudes = np.abs(x)
            self._tokens += len(x)
            np.maximum(self._largest, magnitudes.max(axis=0), out=self._largest)
            self._magnitude += magnitudes.sum(axis=0, dtype=np.float64)
            if self._hessian is None:
                self._square += np.square(x).sum(axis=0, dtype=np.float64)
            else:
                self._hessian += x.T @ x

    def statistics(self) -> InputStatistics:
        """Of all tokens so far. Raises `FarthingError` when an input was not finite."""
        tokens = self._tokens
        square = self._square
        if self._hessian is not None:
            square = self._hessian.diagonal().astype(np.float64)
            self._hessian /= np.float32(tokens)
        # Written so that a NaN is refused as well.
        if not (square / tokens < np.finfo(np.float32).max).all():
            raise FarthingError(
                f"the value {self._source.value} overflows on the calibration text: the model's "
                "file is damaged, or the text is none that it can read"
            )
        return InputStatistics(
            tokens,
            self._largest,
            (self._magnitude / tokens).astype(np.float32),
            (square / tokens).astype(np.float32),
            self._hessian,
        )

    def _normalised(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """What the linear operation is given, (T, K)."""
        if self._gain is None:
            return values
        mean = np.einsum("tk,tk->t", values, values, dtype=np.float64)[:, None] / values.shape[1]
        scales = 1 / np.sqrt(mean + self._source.epsilon)
        normed: NDArray[np.float32] = values * scales.astype(np.float32) * self._gain
        return normed
