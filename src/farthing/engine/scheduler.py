"""Which tokens run in the next step. One rule: what is computed catches up with what is known.

A sequence knows its prompt and what has been sampled; a step computes some of the difference. A
prompt, a chunk of one and a decoded token differ in length alone. A step whose chunk reaches the
last known token wants that token's row, and `commit` appends what was sampled from it.

    submit --> waiting --admitted--> running --> ended
                  ^                     |
                  +------preempted------+     its blocks are needed by an older one

What is computed once is not computed again while its blocks last: a sequence takes from the prefix
index what begins like it, and waits for what another is about to compute. Imports no backend.
"""

from __future__ import annotations

import logging
from bisect import insort
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from farthing.core import BLOCK_TOKENS
from farthing.engine.budget import share_out
from farthing.engine.cost import StepCost, StepShape
from farthing.engine.kv import BlockPool, blocks_for
from farthing.engine.leviathan import leviathan_rows
from farthing.engine.limits import Policy, refuse_impossible
from farthing.engine.reuse import Reuse
from farthing.engine.sequence import Sequence
from farthing.engine.step import Step, StepWriter
from farthing.engine.verification import DraftCounts, take_drafted
from farthing.engine.waiting import WaitingLine

if TYPE_CHECKING:
    from collections.abc import Sequence as ListOf

    from farthing.core import FarthingError, Request, StepPlan, StepResult
    from farthing.engine.constraints import Matcher
    from farthing.engine.limits import Limits
    from farthing.engine.prefix import PrefixIndex
    from farthing.engine.sequence import FinishReason
    from farthing.engine.speculate import Speculation

_log = logging.getLogger(__name__)


@dataclass
class Counters:
    """Tokens and events since the start; they only grow.

    `prompt_tokens` are those of admitted prompts, of which `reused_tokens` came from the cache.
    `recomputed_tokens` were computed before, and lost when their sequence was preempted.
    `drafts` are the guesses and how they fared.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    drafts: DraftCounts = field(default_factory=DraftCounts)

    def copy(self) -> Counters:
        """As they are now."""
        return replace(self, drafts=self.drafts.copy())


class Scheduler:
    """Requests in, step plans out; a step's result moves the state forward.

    Used by one thread at a time. `schedule` may be called again before `commit`: a plan that was
    never run is planned anew. Whoever runs the steps tells `cost` how long each took.
    """

    def __init__(
        self,
        limits: Limits,
        eos_ids: frozenset[int] = frozenset(),
        policy: Policy | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        policy = Policy() if policy is None else policy
        self.limits = limits
        self.policy = policy
        self.pool = BlockPool(limits.total_blocks)
        self.cost = StepCost(self.policy.windows)
        self.counters = Counters()
        self.speculation = speculation
        self._eos_ids = eos_ids
        # Every running sequence can then have one token and one row of any step.
        self.slots = min(limits.step_rows, limits.step_tokens, policy.slots or limits.step_rows)
        self._reuse = Reuse(self.pool, self.counters, sharing=policy.sharing)
        self._line = WaitingLine(policy.weights)
        # By falling priority, then by arrival: the last is preempted first, the first never is.
        self._running: list[Sequence] = []
        self._arrivals = 0
        self._held_back = 0
        self._step = Step()
        self._kept: list[tuple[int, Sequence]] = []
        self._writer = StepWriter()

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        """The sequences not admitted, or preempted."""
        return tuple(self._line)

    @property
    def running(self) -> tuple[Sequence, ...]:
        """The sequences that hold blocks or may take them, the one preempted last first."""
        return tuple(self._running)

    @property
    def held_back(self) -> int:
        """How many waited when a step was planned last: for them was no slot or no room."""
        return self._held_back

    @property
    def planned(self) -> ListOf[tuple[Sequence, int]]:
        """The sequences of the plan made last, and how many tokens each feeds."""
        return self._step.fed

    @property
    def kept(self) -> ListOf[tuple[int, Sequence]]:
        """The rows of the result taken in last whose token a sequence gained."""
        return self._kept

    @property
    def index(self) -> PrefixIndex | None:
        """What the cache holds of known texts; None where nothing is shared."""
        return self._reuse.index

    @property
    def shape(self) -> StepShape:
        """What the plan made last costs by."""
        return self._step.shape

    @property
    def drafted(self) -> int:
        """How many sequences of the plan made last feed guesses."""
        return len(self._step.drafts)

    @property
    def wants_logits(self) -> bool:
        """Whether the plan made last is to give logits, for `decided`."""
        return bool(self._step.drafts) and self.speculation is not None and self.speculation.decides

    def decided(self, plan: StepPlan, result: StepResult) -> StepResult:
        """The result of the plan made last with the tokens that its guesses' rule chooses."""
        if plan.sampling is None or result.logits is None:
            raise ValueError("which guesses are taken is decided by logits, and there are none")
        return leviathan_rows(self._step, plan.sampling, result, result.logits)

    def submit(
        self,
        request: Request,
        fork_of: Sequence | None = None,
        matcher: Matcher | None = None,
    ) -> Sequence:
        """Queues a request. Raises `RequestError` for one that could never be served as asked.

        `fork_of` is another choice of the same prompt, submitted before: its cache is shared.
        `matcher` is at the beginning of the request's constraint.
        """
        refuse_impossible(request, self.limits)
        sequence = Sequence(
            request, self.limits.room, self._eos_ids, self._arrivals, fork_of, matcher
        )
        self._arrivals += 1
        self._reuse.prepare(sequence)
        self._line.push(sequence)
        return sequence

    def schedule(self, step_tokens: int | None = None) -> StepPlan | None:
        """The next step over everything that is admitted, or None when nothing waits or runs.

        `step_tokens` makes this step smaller than the limits allow.
        """
        budget = min(self.limits.step_tokens, step_tokens or self.limits.step_tokens)
        while self._line or self._running:
            before = self.counters.preemptions
            self._admit()
            self._plan(budget)
            if self._step.parts:
                return self._writer.write(self._step)
            # The one that was to run was preempted itself. Then another can.
            if self.counters.preemptions == before:
                raise RuntimeError("sequences wait for each other: this is a fault of the engine")
        return None

    def commit(self, result: StepResult) -> list[Sequence]:
        """Takes in the result of the plan made last; returns the sequences that gained a token.

        And those that end without one, since only their prompt was to be read. A sequence that
        ended has given its blocks back by then, and its `finish_reason` is set: "error" for one
        whose request leaves no token to choose, or cannot be followed further, and for one that the
        model gives no numbers for.
        """
        step, self._step, self._kept = self._step, Step(), []
        for sequence, count in step.parts:
            end = sequence.computed + count
            again = max(0, min(end, sequence.furthest) - sequence.computed)
            self.counters.recomputed_tokens += again
            self._line.serve(sequence.request.key, count - again)
            sequence.computed = end
            sequence.furthest = max(sequence.furthest, end)
            self._reuse.offer(sequence)
        tokens = result.tokens.tolist() if step.wanted else []
        failed = self._take_prompt_rows(step, result, tokens) if step.scoring or step.pooled else []
        if step.drafts:
            gained = self._take_drafted(step, result, tokens)
        else:
            gained = []
            for row, (sequence, token, target) in enumerate(
                zip(step.wanted, tokens, step.targets, strict=True)
            ):
                if target < 0 and sequence.finish_reason is None:
                    self._append(sequence, result, row, token)
                    gained.append(sequence)
        read = [sequence for sequence in step.read if sequence.finish_reason is None]
        for sequence in read:
            sequence.finish_reason = "length"
            self._stop(sequence)
        return [*failed, *gained, *read]

    def _append(self, sequence: Sequence, result: StepResult, row: int, token: int) -> None:
        """A sequence gains the token that its row has given."""
        self.counters.generated_tokens += 1
        self._kept.append((row, sequence))
        sequence.record(result, row)
        sequence.append(token)
        if sequence.finish_reason is not None:
            self._stop(sequence)

    def _take_drafted(self, step: Step, result: StepResult, tokens: ListOf[int]) -> list[Sequence]:
        """As `commit`, of a step with drafts."""
        gained, fared = take_drafted(
            step,
            tokens,
            lambda sequence, row, token: self._append(sequence, result, row, token),
            self._confirm,
        )
        counts = self.counters.drafts
        counts.steps += 1
        for sequence, draft in step.drafts.items():
            tested, right = fared[sequence]
            counts.proposed += len(draft.tokens)
            counts.add(tested, right)
            sequence.drafted += len(draft.tokens)
            sequence.accepted += right
            if self.speculation is not None:
                self.speculation.learn(sequence, tested, right, draft.matched)
        return gained

    def _confirm(self, sequence: Sequence) -> None:
        """The guess that follows what is computed was right."""
        self._line.serve(sequence.request.key, 1)
        sequence.computed += 1
        sequence.furthest = max(sequence.furthest, sequence.computed)
        self._reuse.offer(sequence)

    def end(self, sequence: Sequence, reason: FinishReason, length: int | None = None) -> None:
        """Ends a sequence between two steps: a stop string was met, or nobody waits for it.

        One that has ended already stays as it is, except that a stop string counts before anything
        that the last token, or one behind the string, ended it by. `length` is how many of its
        tokens there are then: of several that a step gave, the last may stand behind the string.
        """
        if length is not None and length < len(sequence.tokens):
            cut = len(sequence.tokens) - length
            self.counters.generated_tokens -= cut
            sequence.cut(length)
            # The last of a step's tokens was sampled behind its last right guess.
            sequence.accepted -= cut - 1
        if sequence.finish_reason is not None:
            if reason == "stop" and sequence.finish_reason in ("length", "stop", "error"):
                sequence.finish_reason = reason
                sequence.error = None
            return
        sequence.finish_reason = reason
        if sequence.running:
            self._stop(sequence)
        else:
            self._line.remove(sequence)

    def fail(self, error: FarthingError) -> list[Sequence]:
        """Ends the sequences of the plan made last, whose step could not be run; returns them.

        What was computed for them in earlier steps stays known.
        """
        failed = [sequence for sequence, _ in self._step.parts]
        self._step = Step()
        for sequence in failed:
            sequence.error = error
            self.end(sequence, "error")
        return failed

    def check(self) -> None:
        """Raises `ValueError` unless every reference to a block is a running sequence's."""
        self.pool.check()
        self._reuse.check(self._running)
        references = [0] * self.pool.total
        for sequence in self._running:
            for block in sequence.blocks:
                references[block] += 1
        wrong = [
            block for block, count in enumerate(references) if count != self.pool.references(block)
        ]
        if wrong:
            raise ValueError(f"the tables list block {wrong[0]} {references[wrong[0]]} times")

    def _take_prompt_rows(
        self, step: Step, result: StepResult, tokens: ListOf[int]
    ) -> list[Sequence]:
        """What sequences wanted of their prompts; gives those that there are no numbers for."""
        failed: list[Sequence] = []
        for row, (sequence, token, target) in enumerate(
            zip(step.wanted, tokens, step.targets, strict=True)
        ):
            if target >= 0 and sequence.scores is not None:
                sequence.scores.take(result, row)
                if token < 0 and sequence.finish_reason is None:
                    sequence.lack_numbers()
                    self._stop(sequence)
                    failed.append(sequence)
        at = 0
        for sequence, _, count in step.pooled:
            if sequence.mean is not None and result.hidden is not None:
                sequence.mean.take(result.hidden[at : at + count])
            at += count
        return failed

    def _admit(self) -> None:
        """First in line, first in, while there are slots and room for all that is known.

        Whoever runs may need a block more soon, so a newcomer leaves one for each: otherwise it
        would be preempted at once.
        """
        while len(self._running) < self.slots and (sequence := self._line.next()) is not None:
            if self._running:
                promised = sum(
                    max(0, blocks_for(len(each.tokens)) - len(each.blocks))
                    for each in self._running
                )
                spare = self.pool.available - promised - len(self._running)
                if self._reuse.wanted_blocks(sequence) > spare:
                    break
            self._line.admit(sequence)
            insort(self._running, sequence, key=_seniority)
            sequence.running = True
            if sequence.preemptions == 0:
                self.counters.prompt_tokens += len(sequence.request.prompt)
        self._held_back = len(self._line)

    def _plan(self, budget: int) -> None:
        # What a plan that was never run was to copy is still to be copied.
        step = self._step = Step(self._step.copies)
        ready = [sequence for sequence in self._running if self._reuse.resume(sequence)]
        rows = self.limits.step_rows
        counts = share_out(ready, budget, rows, self.policy.latency_target, self.cost)
        drafts = {}
        # Nothing is guessed while a prompt is in the step.
        if self.speculation is not None and max(counts, default=0) == 1:
            spare = min(budget - sum(counts), rows - len(ready))
            decoding = [
                sequence
                for sequence, count in zip(ready, counts, strict=True)
                if count and len(sequence.tokens) - sequence.computed == 1
            ]
            drafts = self.speculation.drafts(decoding, spare, self.cost)
        # The oldest first: whom they preempt has not been planned.
        for sequence, count in zip(ready, counts, strict=True):
            if not (count and sequence.running):
                continue
            draft = drafts.get(sequence)
            if draft is not None and self._make_room_aside(sequence, count + len(draft.tokens)):
                step.add_drafted(sequence, draft)
            elif self._make_room(sequence, count):
                step.add(sequence, count)

    def _make_room_aside(self, sequence: Sequence, count: int) -> bool:
        """As `_make_room`, but takes no block that a running sequence may need soon."""
        missing = blocks_for(sequence.computed + count) - len(sequence.blocks)
        spare = self.pool.available - len(self._running)
        return missing + 1 <= spare and self._make_room(sequence, count)

    def _make_room(self, sequence: Sequence, count: int) -> bool:
        """Gives a sequence the blocks that its next `count` tokens are written to, all its own.

        False when it was preempted itself, as the youngest.
        """
        pool, blocks = self.pool, sequence.blocks
        missing = blocks_for(sequence.computed + count) - len(blocks)
        first = sequence.computed // BLOCK_TOKENS
        shared = first < len(blocks) and not pool.is_private(blocks[first])
        if not (missing or shared):
            return True
        while pool.available < missing + shared:
            if shared and pool.available == missing and pool.references(blocks[first]) == 1:
                break
            victim = self._running[-1]
            self.preempt(victim)
            if victim is sequence:
                return False
        blocks += pool.take(missing)
        if shared:
            self._own(sequence, first)
        return True

    def _own(self, sequence: Sequence, at: int) -> None:
        """Copies a block that others read, or may read later, before it is written to."""
        block = sequence.blocks[at]
        if not self.pool.available:
            # Nobody else holds it, and what continued it has been evicted.
            self._reuse.forget(block)
            return
        [copy] = self.pool.take(1)
        self._step.copies.append((block, copy))
        sequence.blocks[at] = copy
        self.pool.give([block])

    def preempt(self, victim: Sequence) -> None:
        """Sends a running sequence back to wait, between two steps; its blocks are given up."""
        _log.info(
            "request %s (choice %d) is preempted: the cache is full; %d tokens are to be computed "
            "again unless their blocks survive",
            victim.request.id,
            victim.request.choice,
            victim.computed,
        )
        self.counters.preemptions += 1
        victim.preemptions += 1
        self._line.push(victim, first=True)
        self._stop(victim)
        victim.computed = victim.indexed = 0
        victim.searched = False

    def _stop(self, sequence: Sequence) -> None:
        """A running sequence gives back its blocks and its slot."""
        sequence.running = False
        self._running.remove(sequence)
        self._line.release(sequence)
        if self.speculation is not None:
            self.speculation.forget(sequence)
        self._reuse.withdraw(sequence)
        self.pool.give(sequence.blocks)
        sequence.blocks = []


def _seniority(sequence: Sequence) -> tuple[int, int]:
    return -sequence.request.priority, sequence.arrival
