"""Speculation: a sequence feeds guesses at its next tokens, and keeps those that prove right.

A step of several tokens costs hardly more than a step of one while memory is what it waits for. So
a Drafter guesses, the step computes the guesses with the token they follow, and every row is
sampled as it would be without them: a guess is right where it is the very token that is sampled.
What a request gets is therefore the same to the bit, greedy or sampled; since noise is a function
of position and token (see `sampler.py`), that is drafter-invariant speculation (Daliri, Musco and
Suresh 2024, "Coupling without communication and drafter-invariant speculative decoding").

Whether guesses pay is measured, never assumed: `Speculation` follows how often each sequence's
guesses prove right and what steps cost, and takes a guess along only where that raises the tokens
a second of the whole step. Where none does, the plan is the plain one.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farthing.core import SPECULATION_RULES, RequestError
from farthing.engine.acceptance import LONGEST_REST, MOST_DRAFTS, Acceptance, Record
from farthing.engine.cost import StepShape
from farthing.engine.drafter import Draft

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as ListOf
    from contextlib import AbstractContextManager

    import numpy as np
    from numpy.typing import NDArray

    from farthing.engine.cost import StepCost
    from farthing.engine.drafter import CostlyDrafter, Drafter
    from farthing.engine.sequence import Sequence

_log = logging.getLogger(__name__)

_TRIALS = 0.01
"""The part of the time of steps that is for trying what does not seem to pay."""

_GOOD_RATE = 0.8
"""Where guesses would have to be right more often to pay, nobody looks for any: that costs, too."""

_MOST_TRIALS = 1.0
"""Seconds of it that are kept at most."""


@dataclass
class _Candidate:
    """A sequence that may get up to `most` guesses, and gets `length`."""

    sequence: Sequence
    record: Record
    most: int
    draft: Draft | None = None
    length: int = 0


class Speculation:
    """Chooses each step's drafts, and learns from what became of them.

    `longest` is the most guesses of one sequence in one step. `aside` is entered while a costly
    drafter works, which may take as long as a step. `decides`: by the rule, the distributions of
    guess and target say which guesses are taken, and so a step with guesses is to give logits.
    """

    def __init__(
        self,
        drafter: Drafter,
        longest: int = 8,
        *,
        costly: CostlyDrafter | None = None,
        rule: str = SPECULATION_RULES[0],
        always: bool = False,
    ) -> None:
        """`costly` is the drafter again where its guesses take time; `rule` one of
        `SPECULATION_RULES`.

        With `always`, every guess is taken along, whether that pays or not. Raises `RequestError`
        for a length that is none.
        """
        if type(longest) is not int or not 1 <= longest <= MOST_DRAFTS:
            raise RequestError(f"a draft has from 1 to {MOST_DRAFTS} tokens, not {longest!r:.40}")
        self.longest = longest
        self.usual = Acceptance()
        self.aside: Callable[[], AbstractContextManager[object]] = nullcontext
        self.decides = rule == "leviathan"
        self._drafter: Drafter | None = drafter
        self._costly = costly
        self._always = always
        self._records: dict[Sequence, Record] = {}
        # Seconds for trying, and the steps whose share is not among them yet.
        self._trials = 0.0
        self._steps = 0

    @property
    def spent(self) -> float:
        """Seconds that guessing took so far, where it takes any."""
        return 0.0 if self._costly is None else self._costly.spent

    def drafts(
        self, decoding: ListOf[Sequence], spare: int, cost: StepCost
    ) -> dict[Sequence, Draft]:
        """The drafts of a step in which each of `decoding` feeds the one token it lacks.

        It can take `spare` tokens more.
        """
        if self._drafter is None or not decoding:
            return {}
        self._steps += 1
        candidates = self._candidates(decoding, spare)
        if not candidates:
            return {}
        context = sum(map(_known, decoding))
        shape = StepShape(len(decoding), len(decoding), context, context)
        if self._costly is None:
            if not self._always and _hopeless(shape, cost):
                return {}
            candidates = self._guess(candidates)
            if not candidates:
                return {}
        if self._always:
            room = spare
            for each in candidates:
                each.length = min(each.most, room)
                room -= each.length
        else:
            self._choose(candidates, shape, spare, cost)
        chosen = [each for each in candidates if each.length]
        if self._costly is not None and chosen:
            chosen = self._guess_at_cost(self._costly, chosen)
        return {
            each.sequence: each.draft.cut(each.length) for each in chosen if each.draft is not None
        }

    def learn(self, sequence: Sequence, proposed: int, accepted: int) -> None:
        """Of a sequence's `proposed` guesses that were put to the test, so many were right."""
        record = self._records.get(sequence)  # none of one that has just ended
        if record is None:
            self.usual.learn(proposed, accepted)
        else:
            record.trying = False
            record.acceptance.learn(proposed, accepted)

    def forget(self, sequence: Sequence) -> None:
        """A sequence runs no longer."""
        self._records.pop(sequence, None)
        if self._drafter is not None:
            try:
                self._drafter.forget(sequence)
            except Exception as error:
                self._give_up(error)

    def close(self) -> None:
        """Guesses no more, and gives back what guessing needed."""
        drafter, self._drafter = self._drafter, None
        if drafter is not None:
            drafter.close()

    def _candidates(self, decoding: ListOf[Sequence], spare: int) -> list[_Candidate]:
        """The sequences that do not rest, and may have guesses."""
        found = []
        for sequence in decoding:
            known = len(sequence.tokens)
            record = self._records.get(sequence)
            if record is None:
                record = self._records[sequence] = Record(self.usual)
            if known < record.rests_until:
                continue
            most = min(self.longest, spare, sequence.most_tokens - known - 1)
            asked = sequence.request.sampling.max_draft_tokens
            if asked is not None:
                most = min(most, asked)
            if most > 0:
                found.append(_Candidate(sequence, record, most))
        return found

    def _guess(self, candidates: list[_Candidate]) -> list[_Candidate]:
        """Those that a draft was made for; a drafter that fails guesses no more."""
        drafter = self._drafter
        if drafter is None:
            return []
        try:
            sequences = [each.sequence for each in candidates]
            most = [each.most for each in candidates]
            if self._costly is None:
                proposed = drafter.propose(sequences, most)
            else:
                with self.aside():
                    proposed = drafter.propose(sequences, most)
        except Exception as error:
            self._give_up(error)
            return []
        guessed = []
        for each, tokens in zip(candidates, proposed, strict=True):
            each.draft = _draft(each.sequence, tokens[: each.most], drafter.chances(each.sequence))
            if each.draft is not None:
                each.most = len(each.draft.tokens)
                guessed.append(each)
        return guessed

    def _guess_at_cost(self, costly: CostlyDrafter, chosen: list[_Candidate]) -> list[_Candidate]:
        """As `_guess`, of as many as were chosen; lets those rest that there is no way to."""
        before = [costly.missing(each.sequence) for each in chosen]
        for each in chosen:
            each.most = each.length
        guessed = self._guess(chosen)
        for each, missing in zip(chosen, before, strict=True):
            if each.draft is None and costly.missing(each.sequence) >= missing:
                each.record.trying = False
                each.record.loses(_known(each.sequence))
        return guessed

    def _give_up(self, error: Exception) -> None:
        """No request fails because of what guesses: they go on without."""
        _log.error(
            "guessing tokens ahead failed and is switched off, nothing else changes (%s: %s)",
            type(error).__name__,
            error,
        )
        self._drafter = None
        self._records.clear()

    def _choose(
        self, candidates: list[_Candidate], shape: StepShape, spare: int, cost: StepCost
    ) -> None:
        """Gives each candidate the length that raises the step's expected tokens a second."""
        plain = cost.seconds(shape)
        if plain <= 0:
            return
        self._trials = min(self._trials + _TRIALS * plain * self._steps, _MOST_TRIALS)
        self._steps = 0
        gains = sorted(
            (
                (gain, at, place)
                for at, each in enumerate(candidates)
                for place, gain in enumerate(each.record.acceptance.gains(each.most))
            ),
            key=lambda each: (-each[0], each[2], each[1]),
        )[:spare]
        passes = _Passes(self._costly)
        expected, best, taken = float(shape.rows), plain / shape.rows, 0
        for count, (gain, at, place) in enumerate(gains, 1):
            expected += gain
            length = _known(candidates[at].sequence)
            passes.add(place, length)
            seconds = cost.seconds(_longer(shape, count, length)) + passes.seconds
            if seconds / expected < best:
                best, taken = seconds / expected, count
        for _, at, place in gains[:taken]:
            candidates[at].length = max(candidates[at].length, place + 1)
        saved = plain / shape.rows - best
        for each in candidates:
            if self._costly is not None and each.length:
                # Who is far behind is not caught up with for the few tokens that are left.
                seconds = self._costly.catch_up_seconds(self._costly.missing(each.sequence))
                if seconds > saved * (each.sequence.most_tokens - _known(each.sequence)):
                    each.length = 0
        self._rest(candidates, shape, spare - sum(each.length for each in candidates), cost)

    def _rest(
        self, candidates: list[_Candidate], shape: StepShape, spare: int, cost: StepCost
    ) -> None:
        """Lets those rest that get no guess, unless it is time to try one."""
        for each in candidates:
            if each.length:
                each.record.pays()
                continue
            record = each.record
            if record.rest == LONGEST_REST and not record.trying and spare > 0:
                seconds = self._trial_seconds(each.sequence, shape, cost)
                if seconds <= self._trials:
                    self._trials -= seconds
                    record.trying = True
            if record.trying and spare > 0:
                each.length = 1
                spare -= 1
                if self._costly is not None:
                    continue  # it may have to be caught up with first, over several steps
            record.loses(_known(each.sequence))

    def _trial_seconds(self, sequence: Sequence, shape: StepShape, cost: StepCost) -> float:
        """What one guess costs."""
        length = _known(sequence)
        seconds = cost.seconds(_longer(shape, 1, length)) - cost.seconds(shape)
        if self._costly is not None:
            seconds += self._costly.pass_seconds(1, length)
            seconds += self._costly.catch_up_seconds(self._costly.missing(sequence))
        return seconds


class _Passes:
    """What the passes of a costly drafter take: each makes one guess for several sequences."""

    def __init__(self, drafter: CostlyDrafter | None) -> None:
        self.seconds = 0.0
        self._drafter = drafter
        self._passes: list[tuple[int, int, float]] = []

    def add(self, place: int, length: int) -> None:
        """A sequence of so many tokens has a guess at this place, too."""
        if self._drafter is None:
            return
        if place == len(self._passes):
            self._passes.append((0, 0, 0.0))
        count, context, before = self._passes[place]
        count, context = count + 1, context + length
        seconds = self._drafter.pass_seconds(count, context)
        self._passes[place] = count, context, seconds
        self.seconds += seconds - before


def _hopeless(shape: StepShape, cost: StepCost) -> bool:
    """Whether even a good guess would cost more than it gains, as in a large batch."""
    longer = cost.seconds(_longer(shape, 1, shape.context // shape.rows))
    return longer * shape.rows >= cost.seconds(shape) * (shape.rows + _GOOD_RATE)


def _known(sequence: Sequence) -> int:
    return len(sequence.tokens)


def _draft(
    sequence: Sequence, tokens: list[int], chances: list[NDArray[np.float64]]
) -> Draft | None:
    # What follows an end is never fed, and neither is the end: its row says nothing of use.
    for at, token in enumerate(tokens):
        if token in sequence.ending_ids:
            tokens = tokens[:at]
            break
    if tokens and sequence.matcher is not None:
        masks = sequence.matcher.masks_ahead(tokens)
        tokens = tokens[: len(masks)]
    else:
        masks = []
    return Draft(tokens, masks, chances[: len(tokens)]) if tokens else None


def _longer(shape: StepShape, count: int, length: int) -> StepShape:
    """With `count` guesses more, each of which attends to about `length` positions."""
    return StepShape(
        shape.tokens + count,
        shape.rows + count,
        shape.context + count * length,
        shape.reads + count,
    )
