"""How long a step takes, learned from the steps that ran.

A step reads the weights once, whatever it holds: few tokens cost what one does. From some number
on, which depends on the machine, arithmetic takes longer than reading, and each further token adds
its share. That is the larger of a constant and a line; here it is a sum of bends, because a sum can
be learned with one set of equations, and its bends lie wherever the measurements put them:

    seconds = base + token * tokens + sum over k of bend_k * max(0, tokens - k)
              + row * rows + attend * context + read * reads

Layers that attend to a window see of a text no more than that: `context` and `reads` count as what
the layers see on average, each token as if it stood where they all do in the mean, and each text.

All coefficients are at least 0, so the estimate rises with every argument, and more steeply the
longer the step. `attend` and `read` are apart since a chunk of a prompt reads its earlier positions
once for all its tokens, and sequences that decode read each their own.

The equations are those of least squares of the relative error, kept as an information matrix that
forgets in the direction of what is observed and in no other (Cao and Schwartz, "A directional
forgetting algorithm based on the decomposition of the information matrix", Automatica 36, 2000): an
hour of decoding does not wear away what prompts cost. Where nothing is known, coefficients keep the
proportions of `_TYPICAL`. A step further from the estimate than is usual weighs less by as much
(Huber's weights), and what is usual is a running median by size: so single outliers pass, and a
machine that has become slower is believed after some dozens of steps.
"""

from __future__ import annotations

from operator import mul
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from farthing.models.program import CacheLayer

    Windows = tuple[tuple[int, float], ...]
    """Latest positions that are attended to, and by which share of all heads; the others attend to
    all."""

NO_LIMIT = 2**30
"""Tokens of a step that nothing is known of."""

_BENDS = (4, 16, 64)

_TYPICAL = (8.0, 0.25, 0.25, 0.25, 0.25, 0.25, 1 / 800, 1 / 400)
"""base, token, bends, row, attend, read, in tokens' worth of arithmetic: reading the weights takes
as long as multiplying by them for eight tokens. A first guess, which steps soon replace."""

_TERMS = len(_TYPICAL)

_FORGOTTEN = 1 / 16
"""Of what is known in the direction of a step, at each such step."""

_LEARNING_STEPS = 256
"""Up to here everything fades, as 2 / steps: the first steps are the least usual ones (pages are
touched for the first time, clocks rise), and count the less the more others there are."""

_TIE = 0.02
"""Weight of the typical proportions, in steps."""

_USUAL_FIRST, _USUAL_LEAST, _USUAL_RATE = 0.5, 0.02, 0.1
"""Relative error that is usual: before any is known, at least, and how fast its median moves."""

_OUTLYING = 3.0
"""A relative error of so many times the usual weighs less than one step."""

_ALIKE, _LONG_ALIKE = 4, 16
"""Of steps in a row with as many tokens and rows, one in so many is taken in, and of more than
`_LONG_ALIKE`, one in that many: the others would teach the same, and while texts are written every
step is like the last."""


class StepShape(NamedTuple):
    """What of a step its time depends on.

    `tokens` are fed and `rows` wanted; `context` sums over the fed tokens the positions that each
    attends to, itself included; `reads` sums over the sequences the positions that each has then.
    """

    tokens: int
    rows: int
    context: int
    reads: int

    def joined(self, position: int, tokens: int, rows: int) -> StepShape:
        """With `tokens` more of a sequence that stands at `position`."""
        if tokens == 0:
            return self
        return StepShape(
            self.tokens + tokens,
            self.rows + rows,
            self.context + attended(position, tokens),
            self.reads + position + tokens,
        )


def attended(position: int, count: int) -> int:
    """How many positions `count` tokens from `position` on attend to, all together."""
    return count * position + count * (count + 1) // 2


def windows_of(layers: Iterable[CacheLayer]) -> Windows:
    """The windows of a model's layers; each layer counts as what a position of it takes."""
    sizes: dict[int, int] = {}
    for layer in layers:
        sizes[layer.window] = sizes.get(layer.window, 0) + layer.kv_heads * layer.head_dim
    whole = sum(sizes.values())
    return tuple((window, size / whole) for window, size in sorted(sizes.items()) if window)


class StepCost:
    """Learns from each step what a step costs; knows nothing before the first.

    `windows` are the model's, by `windows_of`.
    """

    def __init__(self, windows: Windows = ()) -> None:
        self._windows = windows
        self._observed = 0
        self._last = (0, 0)
        self._alike = 0
        # Coefficients as multiples of the typical ones, in seconds per token's worth; each observed
        # step is an equation over them whose factors sum to 1.
        self._multiples = [0.0] * _TERMS
        self._information = [[0.0] * _TERMS for _ in range(_TERMS)]
        self._target = [0.0] * _TERMS
        self._usual: dict[int, float] = {}
        self._coefficients = [0.0] * _TERMS

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Takes in a step that ran. Raises `ValueError` for a time that is not above 0."""
        if not 0 < seconds < float("inf"):
            raise ValueError(f"a step cannot take {seconds} seconds")
        self._observed += 1
        like_last = self._last == shape[:2]
        self._alike = self._alike + 1 if like_last else 0
        self._last = shape[:2]
        if self._alike % (_ALIKE if self._alike <= _LONG_ALIKE else _LONG_ALIKE):
            return
        worths = list(map(mul, _TYPICAL, self._terms(shape)))
        worth = sum(worths)
        factors = [each / worth for each in worths]
        value = seconds / worth
        if self._observed == 1:
            self._multiples = [value] * _TERMS
        self._add(factors, value, self._weight(shape.tokens, value, factors))
        self._solve()
        self._coefficients = list(map(mul, self._multiples, _TYPICAL))

    def seconds(self, shape: StepShape) -> float:
        """What such a step should take; 0 before anything was observed."""
        return _dot(self._coefficients, self._terms(shape))

    def seen(self, tokens: int) -> bool:
        """Whether a step of about so many tokens was observed."""
        return tokens.bit_length() in self._usual

    def affordable(self, shape: StepShape, position: int, seconds: float) -> int:
        """How many tokens of a prompt that stands at `position` may join a step of `shape`, with a
        row for the last, so that it takes at most `seconds`.

        `NO_LIMIT` before anything was observed; 0 where the step takes longer than that already.
        """
        most = 1
        while self.seconds(shape.joined(position, most, 1)) <= seconds:
            if most == NO_LIMIT:
                return NO_LIMIT
            most *= 2
        least = most // 2
        while most - least > 1:
            middle = (least + most) // 2
            if self.seconds(shape.joined(position, middle, 1)) <= seconds:
                least = middle
            else:
                most = middle
        return least

    def _terms(self, shape: StepShape) -> tuple[float, ...]:
        """What the coefficients multiply."""
        tokens, rows, context, reads = shape
        seen, read = float(context), float(reads)
        for window, share in self._windows:
            seen -= share * max(0, context - window * tokens)
            read -= share * max(0, reads - window * max(1, rows))
        return (1, tokens, *(max(0, tokens - bend) for bend in _BENDS), rows, seen, read)

    def _weight(self, tokens: int, value: float, factors: list[float]) -> float:
        """Less than 1 for an outlier; moves the usual error of steps of about so many tokens."""
        estimate = _dot(self._multiples, factors)
        error = abs(value / estimate - 1) if estimate > 0 else _USUAL_FIRST
        size = tokens.bit_length()
        usual = self._usual.get(size, _USUAL_FIRST)
        moved = usual * (1 + _USUAL_RATE) if error > usual else usual / (1 + _USUAL_RATE)
        self._usual[size] = min(max(moved, _USUAL_LEAST), _USUAL_FIRST)
        return min(1.0, _OUTLYING * usual / error) if error > 0 else 1.0

    def _add(self, factors: list[float], value: float, weight: float) -> None:
        """Forgets in the direction of `factors`, then adds the equation."""
        kept = 1 - weight * 2 / (self._observed + 2) if self._observed < _LEARNING_STEPS else 1.0
        along = [_dot(row, factors) for row in self._information]
        known = _dot(along, factors)
        forgotten = weight * _FORGOTTEN / known if known > 0 else 0.0
        forgotten_target = forgotten * _dot(self._target, factors)
        for index, row in enumerate(self._information):
            less, more = forgotten * along[index], weight * factors[index]
            self._information[index] = [
                kept * entry - less * other + more * factor
                for entry, other, factor in zip(row, along, factors, strict=True)
            ]
            self._target[index] = (
                kept * self._target[index] - forgotten_target * along[index] + more * value
            )

    def _solve(self) -> None:
        """One round of Gauss-Seidel, no multiple below 0, from where the last one ended.

        Factors sum to 1, so all entries together are the weight of all equations, and all targets
        the weighted sum of their values: the ratio is their mean, which every multiple is tied to.
        """
        mean = sum(self._target) / sum(map(sum, self._information))
        multiples = self._multiples
        for index, row in enumerate(self._information):
            missing = self._target[index] - _dot(row, multiples)
            missing += _TIE * (mean - multiples[index])
            multiples[index] = max(0.0, multiples[index] + missing / (row[index] + _TIE))


def _dot(left: Iterable[float], right: Iterable[float]) -> float:
    total: float = sum(map(mul, left, right))
    return total
