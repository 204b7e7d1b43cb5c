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
from time import perf_counter
from typing import TYPE_CHECKING

from farthing.core import SPECULATION_RULES, RequestError
from farthing.engine.acceptance import MOST_DRAFTS, Acceptance, Record
from farthing.engine.balance import Balance
from farthing.engine.choice import Candidate, Chooser
from farthing.engine.cost import StepShape
from farthing.engine.drafter import Draft
from farthing.engine.host_time import HostTime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from collections.abc import Sequence as ListOf
    from contextlib import AbstractContextManager

    from farthing.engine.cost import StepCost
    from farthing.engine.drafter import CostlyDrafter, Drafter
    from farthing.engine.host_time import Decoded
    from farthing.engine.probe import Probe
    from farthing.engine.sequence import Sequence
    from farthing.engine.verification import DraftCounts

_log = logging.getLogger(__name__)

_FRUITLESS = 8
"""After so many steps in which guesses were looked for in vain they are looked for in every second
step, after four times as many in every fourth."""


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
        self.host = HostTime()
        self.aside: Callable[[], AbstractContextManager[object]] = nullcontext
        self.decides = rule == "leviathan"
        self._drafter: Drafter | None = drafter
        self._costly = costly
        self._always = always
        self._records: dict[Sequence, Record] = {}
        self._chooser = Chooser(costly, self.host)
        self._balance = Balance()
        # Seconds that guesses were looked for in the step planned last, and whether what it takes
        # is to be accounted for. What no cache holds is dear, even a few lines of Python.
        self._looked = 0.0
        self.watches = True
        # Steps in which they were looked for in vain, since the last in which there were some, and
        # those in which they were not looked for because of that.
        self._fruitless = self._passed = 0
        # Whose text was the only one when one was written alone last.
        self._alone: Sequence | None = None

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
        self._looked = 0.0
        self.watches = False
        if self._drafter is None or not any(map(_wants_drafts, decoding)):
            return {}
        allowed = self._always or self._allowed(decoding)
        looks = allowed and self._looks()
        self.watches = looks or self._balance.curious
        if allowed:
            self._chooser.begin()
        if not looks:
            return {}
        started, spent = perf_counter(), self.spent
        candidates = self._candidates(decoding, spare)
        chosen = self._drafts(candidates, decoding, spare, cost) if candidates else {}
        self._looked = perf_counter() - started - (self.spent - spent)
        self._fruitless = 0 if chosen else self._fruitless + 1
        return chosen

    def _looks(self) -> bool:
        """Whether guesses are looked for now, as they are in fewer steps while none are found."""
        if self._always or self._fruitless < _FRUITLESS:
            return True
        self._passed += 1
        return self._passed % (2 if self._fruitless < 4 * _FRUITLESS else 4) == 0

    def _drafts(
        self, candidates: list[Candidate], decoding: ListOf[Sequence], spare: int, cost: StepCost
    ) -> dict[Sequence, Draft]:
        context = sum(len(sequence.tokens) for sequence in decoding)
        shape = StepShape(len(decoding), len(decoding), context, context)
        if self._costly is None:
            if not self._always and self._chooser.hopeless(shape, cost):
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
            self._chooser.choose(candidates, shape, spare, cost)
        chosen = [each for each in candidates if each.length]
        if self._costly is not None and chosen:
            chosen = self._guess_at_cost(self._costly, chosen)
        return {
            each.sequence: each.draft.cut(each.length) for each in chosen if each.draft is not None
        }

    def learn(self, sequence: Sequence, proposed: int, accepted: int, matched: int = 0) -> None:
        """Of a sequence's `proposed` guesses that were put to the test, so many were right.

        `matched` is the draft's.
        """
        record = self._records.get(sequence)  # none of one that has just ended
        if record is None:
            self.usual.learn(proposed, accepted, matched)
        else:
            record.trying = False
            record.acceptance.learn(proposed, accepted, matched)

    def account(self, step: Decoded, cost: StepCost, counts: DraftCounts) -> None:
        """Learns what a step that only decoded took, and adds to `counts` what it saved."""
        self.host.observe(step.texts, step.drafts > 0, step.host)
        saved = self._balance.account(step, self._looked, cost)
        if step.drafts:
            counts.seconds_with += step.total
        else:
            counts.seconds_without += step.total
        counts.saved_seconds += saved

    def pass_by(self, seconds: float, counts: DraftCounts) -> None:
        """As `account`, of a step that it does not watch."""
        self._balance.pass_by(seconds)
        counts.seconds_without += seconds

    def expect(self, steps: Iterable[tuple[StepShape, float]]) -> None:
        """Takes in what a drafter's steps should take, in seconds, as if they had run."""
        if self._costly is not None:
            for shape, seconds in steps:
                self._costly.cost.observe(shape, seconds)

    def probes(self) -> list[Probe]:
        """The steps of a drafter's that show what its guesses take."""
        return [] if self._costly is None else [self._costly.probe()]

    def forget(self, sequence: Sequence) -> None:
        """A sequence runs no longer."""
        self._records.pop(sequence, None)
        if self._alone is sequence:
            self._alone = None
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

    def _allowed(self, decoding: ListOf[Sequence]) -> bool:
        """Whether guesses may be looked for now; a text that is alone is judged for itself."""
        if len(decoding) == 1 and decoding[0] is not self._alone:
            self._alone = decoding[0]
            self._balance.begins(1)
        return self._balance.allows(decoding)

    def _candidates(self, decoding: ListOf[Sequence], spare: int) -> list[Candidate]:
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
                found.append(Candidate(sequence, record, most))
        return found

    def _guess(self, candidates: list[Candidate]) -> list[Candidate]:
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
            each.draft = _draft(drafter, each.sequence, tokens[: each.most])
            if each.draft is not None:
                each.most = len(each.draft.tokens)
                guessed.append(each)
        return guessed

    def _guess_at_cost(self, costly: CostlyDrafter, chosen: list[Candidate]) -> list[Candidate]:
        """As `_guess`, of as many as were chosen; lets those rest that there is no way to."""
        before = [costly.missing(each.sequence) for each in chosen]
        for each in chosen:
            each.most = each.length
        guessed = self._guess(chosen)
        for each, missing in zip(chosen, before, strict=True):
            if each.draft is None and costly.missing(each.sequence) >= missing:
                each.record.trying = False
                each.record.loses(each.known)
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


def _wants_drafts(sequence: Sequence) -> bool:
    return sequence.request.sampling.max_draft_tokens != 0


def _draft(drafter: Drafter, sequence: Sequence, tokens: list[int]) -> Draft | None:
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
    if not tokens:
        return None
    chances = drafter.chances(sequence)[: len(tokens)]
    return Draft(tokens, masks, chances, drafter.matched(sequence))
