"""The line of sequences that wait to be admitted: by priority, then fairly between keys.

Within a priority it is the turn of the key that has been served the fewest tokens for its weight,
and of its sequence that came first; with one key that is first come, first served. A key that comes
back after a pause starts level with the others: what it did not use is not saved up (start-time
fair queueing, Goyal et al. 1996, with tokens for packets).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from farthing.engine.sequence import Sequence


class WaitingLine:
    """Who is next. `weights` are by key, 1 where a key is not named."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        # By falling priority, then by key; none is empty.
        self._lines: dict[int, dict[str, deque[Sequence]]] = {}
        self._running: dict[str, int] = {}
        self._served: dict[str, float] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Sequence]:
        for keys in self._lines.values():
            for line in keys.values():
                yield from line

    def push(self, sequence: Sequence, *, first: bool = False) -> None:
        """Adds a sequence behind those of its priority and key, or before them."""
        request = sequence.request
        if request.key not in self._served:
            self._served[request.key] = min(self._served.values(), default=0.0)
        if request.priority not in self._lines:
            lines = {**self._lines, request.priority: {}}
            self._lines = dict(sorted(lines.items(), reverse=True))
        line = self._lines[request.priority].setdefault(request.key, deque())
        if first:
            line.appendleft(sequence)
        else:
            line.append(sequence)
        self._length += 1

    def next(self) -> Sequence | None:
        """Whose turn it is."""
        for keys in self._lines.values():
            key = min(keys, key=lambda key: (self._served[key], keys[key][0].arrival))
            return keys[key][0]
        return None

    def admit(self, sequence: Sequence) -> None:
        """Takes out a sequence that runs from now on, until `release`."""
        key = sequence.request.key
        self._running[key] = self._running.get(key, 0) + 1
        self.remove(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Takes out a sequence that waits."""
        priority, key = sequence.request.priority, sequence.request.key
        keys = self._lines[priority]
        keys[key].remove(sequence)
        self._length -= 1
        if not keys[key]:
            del keys[key]
        if not keys:
            del self._lines[priority]
        self._drop_idle(key)

    def release(self, sequence: Sequence) -> None:
        """A sequence that was admitted runs no longer."""
        key = sequence.request.key
        self._running[key] -= 1
        if not self._running[key]:
            del self._running[key]
        self._drop_idle(key)

    def serve(self, key: str, tokens: int) -> None:
        """Counts tokens that were computed for a key."""
        self._served[key] += tokens / self._weights.get(key, 1.0)

    def _drop_idle(self, key: str) -> None:
        if key not in self._running and not any(key in keys for keys in self._lines.values()):
            del self._served[key]
