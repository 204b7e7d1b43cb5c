"""Whether guessing pays as a whole, counted in seconds that were taken, all that it takes included.

What a single guess costs is estimated before it is made, and estimates that seem good are too good
more often than too bad. So it is counted what came of them: a step with guesses against what its
tokens take without, and for every other step the time that was spent on looking for any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farthing.engine.host_time import Decoded

_WINDOW = 64
"""Steps after which it is judged."""

_SHORTEST_REST, _LONGEST_REST = 128, 1024
"""Steps without a guess after a window that lost: twice as many after each, until one wins."""

_WORST = 0.01
"""A window that has lost this part of its time ends at once."""

_MEMORY = 32
"""About how many plain steps are remembered."""

_ANEW = 8
"""So many of them are looked at again after each window."""


@dataclass
class _State:
    """Of steps of about so many texts.

    A plain step took `factor` of what its estimate said, by `seen` steps.
    """

    factor: float = 1.0
    seen: int = 0
    steps: int = 0
    saved: float = 0.0
    taken: float = 0.0
    rest: int = 0
    rests: int = 0


class Balance:
    """Counts, by about how many texts a step has, and says when to rest."""

    def __init__(self) -> None:
        self._states: dict[int, _State] = {}

    def resting(self, texts: int) -> bool:
        """Whether this step of so many texts is to have no guesses; asked once a step.

        Never of one alone, whose own record says as much, and sooner.
        """
        state = self._states.get(texts.bit_length())
        if texts == 1 or state is None or state.rests == 0:
            return False
        state.rests -= 1
        return True

    def knows(self, texts: int) -> bool:
        """Whether there is nothing to learn from how long another plain step of so many takes."""
        state = self._states.get(texts.bit_length())
        return state is not None and state.seen >= _MEMORY

    def saved(self, step: Decoded, estimate: float, looked: float) -> float:
        """Takes in a step, and gives the seconds that guesses saved in it.

        `estimate` is what the backend should take for it without guesses, 0 where the step has none
        and is not to be learned from; `looked` how long guesses were looked for, 0 where it rested.
        """
        state = self._states.setdefault(step.texts.bit_length(), _State())
        if step.drafts:
            saved = estimate * state.factor * step.gained / step.texts - step.total
        else:
            saved = -looked
            if estimate > 0:
                state.seen += 1
                share = (step.total - looked) / estimate
                state.factor += (share - state.factor) / min(state.seen, _MEMORY)
        if looked > 0 and state.seen:
            state.steps += 1
            state.saved += saved
            state.taken += step.total
            lost = state.saved < -_WORST * max(state.taken, _WINDOW * step.total)
            if state.steps == _WINDOW or lost:
                self._judge(state)
        return saved

    def _judge(self, state: _State) -> None:
        if state.saved < 0:
            state.rest = min(max(2 * state.rest, _SHORTEST_REST), _LONGEST_REST)
            state.rests = state.rest
        else:
            state.rest = 0
        state.steps, state.saved, state.taken = 0, 0.0, 0.0
        state.seen = min(state.seen, _MEMORY - _ANEW)
