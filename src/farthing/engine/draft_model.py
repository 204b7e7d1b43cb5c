"""A smaller model that guesses: it samples as the target will, with the same noise.

A token is the argmax of log-probability plus noise, and the noise is a function of seed, choice,
position and token id: a draft that is given the target's parameters, adjustments and masks draws
the very token that the target draws wherever their distributions are close enough. The share of
guesses that prove right is at least (1 - TV) / (1 + TV), with TV the total variation between the
two distributions.

It has a cache of its own, in which nothing is shared. What it has not read of a sequence it reads
in pieces, a few each time it is asked, so that nobody waits for a long prompt to be read twice.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import StepPlan
from farthing.engine.cost import StepCost, StepShape, attended
from farthing.engine.kv import BlockPool, blocks_for
from farthing.engine.probe import Probe
from farthing.engine.rows import FixedRows
from farthing.engine.sampler import probabilities, sample
from farthing.plan.memory import CATCH_UP_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence as ListOf

    from numpy.typing import NDArray

    from farthing.backends import Backend
    from farthing.core import SamplingRows, StepResult
    from farthing.engine.rows import View
    from farthing.engine.sequence import Sequence


class _Cache:
    """What the draft has read of one sequence: `fed` tokens, of which `known` were no guesses."""

    def __init__(self) -> None:
        self.fed: list[int] = []
        self.known = 0
        self.blocks: list[int] = []

    def rewind(self, tokens: list[int]) -> None:
        """Forgets the guesses that proved wrong, and the last token: its row is wanted anew."""
        most = min(len(self.fed), len(tokens) - 1)
        right = min(self.known, most)
        while right < most and self.fed[right] == tokens[right]:
            right += 1
        del self.fed[right:]
        self.known = right


class _Guessing:
    """A sequence that gets up to `most` guesses, and those that it has; `done`: no more."""

    def __init__(self, sequence: Sequence, cache: _Cache, most: int) -> None:
        self.sequence = sequence
        self.cache = cache
        self.most = most
        self.guesses: list[int] = []
        self.chances: list[NDArray[np.float64]] = []
        self.done = False

    @property
    def unread(self) -> list[int]:
        """What is to be fed before the next guess."""
        known, fed = self.sequence.tokens, len(self.cache.fed)
        return known[fed:] + self.guesses if fed < len(known) else self.guesses[fed - len(known) :]

    def mask(self) -> NDArray[np.uint32] | None:
        """The tokens that may come next; notes where none may."""
        matcher = self.sequence.matcher
        if matcher is None:
            return None
        if not self.guesses:
            return matcher.mask
        masks = matcher.masks_ahead(self.guesses)
        if len(masks) < len(self.guesses):
            self.done = True
            return None
        return masks[-1]

    def adjustments(self, vocabulary: int) -> View | None:
        """What changes the logits of the next guess, for the tokens of the draft's vocabulary."""
        adjusted = self.sequence.adjustments
        if adjusted is None:
            return None
        view = list(adjusted.views_ahead(self.guesses))[-1] if self.guesses else adjusted.view()
        own = view[0] < vocabulary
        return view if own.all() else (view[0][own], view[1][own], view[2][own], view[3][own])


class ModelDrafter:
    """A Drafter over a backend of its own, which it closes. See `CostlyDrafter`.

    The backend's token ids are the target's, of which it may lack the last ones: then it has no
    guesses for a text that holds one of those. Where `keeps_chances`, it knows the
    distributions that the guesses made last were drawn from.
    """

    def __init__(self, backend: Backend, *, keeps_chances: bool = False) -> None:
        self.spent = 0.0
        self.cost = StepCost()
        self.keeps_chances = keeps_chances
        self._chances: dict[Sequence, list[NDArray[np.float64]]] = {}
        self._backend = backend
        self._pool = BlockPool(backend.total_blocks)
        # The one used longest ago first.
        self._caches: OrderedDict[Sequence, _Cache] = OrderedDict()
        self._asked: set[Sequence] = set()

    def propose(self, sequences: ListOf[Sequence], most: ListOf[int]) -> list[list[int]]:
        """See `Drafter`. A sequence of which much is unread gets no guesses yet."""
        started = perf_counter()
        self._asked = set(sequences)
        guessing = [
            self._begin(sequence, length) for sequence, length in zip(sequences, most, strict=True)
        ]
        parts = self._first_parts(guessing)
        while parts:
            self._run(parts)
            parts = [
                (each, each.unread)
                for each, _ in parts
                if each.guesses and not each.done and len(each.guesses) < each.most
            ]
        self._chances = {each.sequence: each.chances for each in guessing}
        self.spent += perf_counter() - started
        return [each.guesses for each in guessing]

    def forget(self, sequence: Sequence) -> None:
        """See `Drafter`."""
        self._chances.pop(sequence, None)
        cache = self._caches.pop(sequence, None)
        if cache is not None:
            self._pool.give(cache.blocks)

    def close(self) -> None:
        """See `Drafter`."""
        self._backend.close()

    def matched(self, sequence: Sequence) -> int:
        """See `Drafter`."""
        return 0

    def chances(self, sequence: Sequence) -> list[NDArray[np.float64]]:
        """See `Drafter`."""
        return self._chances.get(sequence, [])

    def probe(self) -> Probe:
        """See `CostlyDrafter`."""
        return Probe(self._backend, self._pool, self.cost)

    def pass_seconds(self, count: int, context: int) -> float:
        """See `CostlyDrafter`."""
        return self.cost.seconds(StepShape(count, count, context, context))

    def missing(self, sequence: Sequence) -> int:
        """See `CostlyDrafter`."""
        cache = self._caches.get(sequence)
        return len(sequence.tokens) - (0 if cache is None else cache.known)

    def catch_up_seconds(self, missing: int) -> float:
        """See `CostlyDrafter`. Nothing for what a guess reads anyway."""
        if missing <= 2:
            return 0.0
        return self.cost.seconds(StepShape(missing, 0, attended(0, missing), missing))

    def _begin(self, sequence: Sequence, most: int) -> _Guessing:
        cache = self._caches.setdefault(sequence, _Cache())
        self._caches.move_to_end(sequence)
        cache.rewind(sequence.tokens)
        # The last guess is not fed.
        room = self._backend.context_length - len(sequence.tokens) + 1
        each = _Guessing(sequence, cache, min(most, room))
        each.done = each.most < 1 or max(each.unread) >= self._backend.vocabulary_size
        return each

    def _first_parts(self, guessing: list[_Guessing]) -> list[tuple[_Guessing, list[int]]]:
        """What each reads before its first guess: all, or as much as the bound lets it."""
        budget = min(self._backend.max_step_tokens, max(CATCH_UP_TOKENS, 2 * len(guessing)))
        parts: list[tuple[_Guessing, list[int]]] = []
        for each in sorted(guessing, key=lambda each: len(each.unread)):
            tokens = each.unread[:budget]
            if tokens and not each.done and len(parts) < self._backend.max_step_rows:
                budget -= len(tokens)
                parts.append((each, tokens))
        return parts

    def _run(self, parts: list[tuple[_Guessing, list[int]]]) -> None:
        """Each feeds its tokens, and gets a guess where no others are left to be fed.

        Whom there are no blocks for, or no token to choose, is done.
        """
        fed: list[tuple[_Guessing, list[int]]] = []
        wanted: list[_Guessing] = []
        rows: list[int] = []
        masks: list[NDArray[np.uint32] | None] = []
        tokens_before = 0
        for each, tokens in parts:
            wants = len(tokens) == len(each.unread)
            mask = each.mask() if wants else None
            if each.done or not self._make_room(each.cache, len(tokens)):
                each.done = True
                continue
            fed.append((each, tokens))
            tokens_before += len(tokens)
            if wants:
                wanted.append(each)
                rows.append(tokens_before - 1)
                masks.append(mask)
        if not fed:
            return
        sampling = self._sampling(wanted, masks) if wanted else None
        result = self._computed(_plan(fed, rows, sampling))
        for each, tokens in fed:
            each.cache.fed += tokens
            if not each.guesses:
                each.cache.known = len(each.cache.fed)
        for row, (each, token) in enumerate(zip(wanted, result.tokens.tolist(), strict=False)):
            if token < 0 or token in each.sequence.ending_ids:
                each.done = True
                continue
            each.guesses.append(token)
            if self.keeps_chances and sampling is not None and result.logits is not None:
                each.chances.append(probabilities(result.logits[row], sampling, row))

    def _make_room(self, cache: _Cache, count: int) -> bool:
        """Gives a cache the blocks for `count` tokens more, those of others where there is need."""
        missing = blocks_for(len(cache.fed) + count) - len(cache.blocks)
        while self._pool.available < missing:
            oldest = next(iter(self._caches))
            if oldest in self._asked:
                return False
            self.forget(oldest)
        cache.blocks += self._pool.take(max(0, missing))
        return True

    def _sampling(
        self, wanted: list[_Guessing], masks: list[NDArray[np.uint32] | None]
    ) -> SamplingRows:
        """As the target's next tokens will be sampled, over the draft's vocabulary."""
        vocabulary = self._backend.vocabulary_size
        sequences = [each.sequence for each in wanted]
        fixed = FixedRows([(s.request.sampling, s.seed, s.request.choice) for s in sequences])
        rows = fixed.at(
            [len(each.sequence.tokens) + len(each.guesses) for each in wanted],
            [each.adjustments(vocabulary) for each in wanted],
            [None if mask is None else mask[: -(-vocabulary // 32)] for mask in masks],
        )
        return replace(rows, logprobs=np.full(len(wanted), -1, np.int32))

    def _computed(self, plan: StepPlan) -> StepResult:
        backend = self._backend
        started = perf_counter()
        result = backend.run(plan, want_logits=self.keeps_chances)
        shape = StepShape(
            len(plan.token_ids),
            len(plan.rows),
            int(plan.positions.sum()) + len(plan.positions),
            int(plan.positions[plan.starts[1:] - 1].sum()) + len(plan.starts) - 1,
        )
        self.cost.observe(shape, perf_counter() - started)
        if not backend.samples and plan.sampling is not None and result.logits is not None:
            return replace(sample(result.logits, plan.sampling), logits=result.logits)
        return result


def _plan(
    parts: list[tuple[_Guessing, list[int]]], rows: list[int], sampling: SamplingRows | None
) -> StepPlan:
    token_ids: list[int] = []
    positions: list[int] = []
    starts = [0]
    for each, tokens in parts:
        first = len(each.cache.fed)
        token_ids += tokens
        positions += range(first, first + len(tokens))
        starts.append(len(token_ids))
    width = max(len(each.cache.blocks) for each, _ in parts)
    tables = [[*each.cache.blocks, *[-1] * (width - len(each.cache.blocks))] for each, _ in parts]
    return StepPlan(
        token_ids=np.array(token_ids, np.int32),
        positions=np.array(positions, np.int32),
        starts=np.array(starts, np.int32),
        block_tables=np.array(tables, np.int32),
        rows=np.array(rows, np.int32),
        sampling=sampling,
    )
