"""What admission learns while it runs: how long texts and answers are, and how wrong it is."""

from __future__ import annotations

_LATEST = 1 / 16
"""What the latest observation counts, when many were made before."""

_FIRST_ANSWER = 256.0
"""Tokens that an answer is expected to have before any has ended, where it may have more."""

_FIRST_RATIO = 0.3
"""Tokens of a byte of text, before any text was read: between English and code."""

_SHORTEST_LESSON = 0.1
"""Seconds: a shorter time teaches nothing, for the step that runs is most of it."""

_LEAST_CORRECTION, _MOST_CORRECTION = 0.25, 4.0


class Average:
    """A running mean: of all values while they are few, then of the latest."""

    def __init__(self, first: float) -> None:
        """`first` stands for the mean until there is a value."""
        self.value = first
        self._count = 0

    def take(self, value: float) -> None:
        """One more value."""
        self._count += 1
        self.value += (value - self.value) * max(1 / self._count, _LATEST)


class AnswerLengths:
    """How long answers become, by how long they may: most end before they have to."""

    def __init__(self) -> None:
        self._shares: dict[int, tuple[Average, Average]] = {}

    def expected(self, allowed: int) -> tuple[float, float]:
        """The tokens of an answer that may have `allowed`, and the mean of their square."""
        if (shares := self._shares.get(allowed.bit_length())) is None:
            length = min(allowed, _FIRST_ANSWER)
            return length, length**2
        share, square = shares
        length = max(1.0, allowed * share.value)
        return length, max(length**2, allowed**2 * square.value)

    def observe(self, allowed: int, made: float) -> None:
        """An answer that might have had `allowed` tokens has ended with `made`."""
        first = Average(1.0), Average(1.0)
        share, square = self._shares.setdefault(allowed.bit_length(), first)
        share.take(min(1.0, made / allowed))
        square.take(min(1.0, made / allowed) ** 2)


class TokensOfBytes:
    """How many tokens a text of so many bytes has: the most it can, and what is likely."""

    FRAME = 512
    """Tokens that a chat template may add of its own: a system prompt, and marks around messages
    that are longer than the JSON around them."""

    def __init__(self) -> None:
        self._read = Average(_FIRST_RATIO)

    def most(self, text_bytes: int) -> int:
        """Each token stands for one byte at least, or was put there by the model's template.

        A vocabulary that rewrites texts before it reads them (NFC can make three bytes of one) may
        exceed this, and a template that repeats what it is given: settling corrects it.
        """
        return text_bytes + self.FRAME

    def likely(self, text_bytes: int) -> float:
        """By the texts that were read so far."""
        return max(1.0, text_bytes * self._read.value)

    def observe(self, text_bytes: int, tokens: int) -> None:
        """A text has been read."""
        if text_bytes:
            self._read.take(tokens / text_bytes)


class Correction:
    """By how much times that are foretold have to be multiplied, to be what they turn out to be.

    The ratio of sums, which fade: so a long time teaches more than a short one.
    """

    def __init__(self) -> None:
        self._foretold = self._actual = 0.0

    @property
    def factor(self) -> float:
        """1 before anything was observed."""
        if not self._foretold:
            return 1.0
        return min(max(self._actual / self._foretold, _LEAST_CORRECTION), _MOST_CORRECTION)

    def observe(self, foretold: float, actual: float) -> None:
        """So much was foretold, without any factor, and it was so much."""
        if foretold >= _SHORTEST_LESSON:
            self._foretold += foretold - self._foretold * _LATEST
            self._actual += actual - self._actual * _LATEST
