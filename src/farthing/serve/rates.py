"""So much a minute: a bucket that fills evenly, holds a minute's worth, and is drawn from."""

from __future__ import annotations

_MINUTE = 60.0


class Bucket:
    """Holds `capacity` at most, and gains that much a minute. Full at first.

    What is drawn may turn out to be more than was thought: then it owes the difference.
    """

    def __init__(self, capacity: int, now: float) -> None:
        self.capacity = capacity
        self._level = float(capacity)
        self._at = now

    def wait(self, amount: float, now: float, before: float = 0.0) -> float:
        """Seconds until `amount` can be drawn, once `before` has been by others; 0 where it can.

        More than the capacity can be drawn when it is full.
        """
        self._fill(now)
        missing = min(amount, self.capacity) + before - self._level
        return max(0.0, missing * _MINUTE / self.capacity)

    def draw(self, amount: float, now: float) -> None:
        """Takes out; a negative amount is put back."""
        self._fill(now)
        self._level = min(self._level - amount, float(self.capacity))

    def _fill(self, now: float) -> None:
        gained = (now - self._at) * self.capacity / _MINUTE
        self._level = min(self._level + gained, float(self.capacity))
        self._at = now
