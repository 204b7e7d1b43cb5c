"""Every way in which requests can come, run, fork, be preempted and end, in any order.

The machine keeps a cache of its own, in which each position holds its token: so a block that is
written while another reads it, or reused too early, shows as a wrong prefix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.driving import Guesser
from farthing.core import FarthingError, Request, SamplingParams, StepResult
from farthing.engine.limits import Limits, Policy
from farthing.engine.prompt_rows import PromptMean
from farthing.engine.scheduler import Scheduler
from farthing.engine.speculate import Speculation

if TYPE_CHECKING:
    from farthing.core import StepPlan
    from farthing.engine.sequence import Sequence

EOS = 7
LIMITS = Limits(total_blocks=7, context_length=150, step_tokens=40, step_rows=5, vocabulary_size=50)
KEYS = ("", "a", "b")
EXAMPLES, STEPS = 180, 60
"""Together more than the 10,000 steps that the engine is held to."""


def _score(prefix: tuple[int, ...]) -> float:
    """What the machine says of the token after a prefix."""
    return -float(hash(prefix) % 1000)


def _state(prefix: tuple[int, ...]) -> tuple[float, float]:
    return 1 / prefix[-1], float(hash(prefix) % 1000)


def check_prompt_rows(sequence: Sequence) -> None:
    """A prompt's scores and its mean are those of each of its positions, in order and once."""
    prompt = sequence.request.prompt
    if sequence.scores is not None:
        first, *others = sequence.scores.entries
        assert first is None
        found = [each and (each.token_id, each.logprob) for each in others]
        assert found == [(prompt[i], _score(prompt[:i])) for i in range(1, len(prompt))]
    if sequence.mean is not None:
        alone = PromptMean(len(prompt))
        states = [_state(prompt[: i + 1]) for i in range(len(prompt))]
        alone.take(np.array(states, np.float32))
        assert sequence.mean.vector().tobytes() == alone.vector().tobytes()


class Guesses(Guesser):
    """A drafter that is right now and then, and may guess an end."""

    def guess(self, sequence: Sequence, most: int) -> list[int]:
        known = len(sequence.tokens)
        return [20 + (known + i) % 4 if (known + i) % 11 else EOS for i in range(most)]


class SchedulerMachine(RuleBasedStateMachine):
    longest = 0

    def __init__(self) -> None:
        super().__init__()
        speculation = Speculation(Guesses(), self.longest, always=True) if self.longest else None
        self.scheduler = Scheduler(
            LIMITS, frozenset({EOS}), Policy(weights={"a": 2.0}), speculation
        )
        self.cache = np.full((LIMITS.total_blocks, 32), -1, np.int32)
        self.alive: list[Sequence] = []
        self.ended: dict[Sequence, str] = {}
        self.saved: list[tuple[bytes, tuple[int, ...], np.ndarray]] = []
        self.prefixes: list[tuple[int, ...]] = []

    @rule(
        start=st.integers(0, 2),
        length=st.integers(1, 120),
        change=st.integers(0, 130),
        more=st.integers(1, 30),
        key=st.sampled_from(KEYS),
        priority=st.integers(0, 1),
        wanted=st.sampled_from(("text", "text", "text", "scores", "scores and text", "mean")),
    )
    def submit(
        self,
        start: int,
        length: int,
        change: int,
        more: int,
        key: str,
        priority: int,
        wanted: str,
    ) -> None:
        """One of three texts, which differ from their first token on, with one token changed."""
        prompt = [10 + (start * 7 + i * i) % 13 for i in range(length)]
        if change < length:
            prompt[change] = 30
        sampling = SamplingParams(
            max_tokens=more if "text" in wanted else 0,
            prompt_logprobs=0 if "scores" in wanted else None,
        )
        request = Request(
            "text", tuple(prompt), sampling, key=key, priority=priority, embed=wanted == "mean"
        )
        self.alive.append(self.scheduler.submit(request))

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), choice=st.integers(1, 3))
    def fork(self, data: st.DataObject, choice: int) -> None:
        parent = data.draw(st.sampled_from(self.alive))
        request = Request(
            "text",
            parent.request.prompt,
            parent.request.sampling,
            choice,
            parent.request.key,
            parent.request.priority,
            parent.request.embed,
        )
        child = self.scheduler.submit(request, fork_of=parent)
        assert child.seed == parent.seed
        self.alive.append(child)

    @precondition(lambda self: self.alive)
    @rule(
        tokens=st.lists(st.sampled_from([20, 21, 22, 23, EOS]), min_size=1, max_size=4),
        most=st.one_of(st.none(), st.integers(1, 40)),
        plans=st.integers(1, 2),
    )
    def step(self, tokens: list[int], most: int | None, plans: int) -> None:
        self.collect()
        if not self.alive:
            return
        for _ in range(plans):
            plan = self.scheduler.schedule(most)
            assert plan is not None
        self.compute(plan, most)
        before = {sequence: len(sequence.tokens) for sequence in self.alive}
        drafted = sum(len(draft.tokens) for draft in self.scheduler._step.drafts.values())
        gained = self.scheduler.commit(self.answer(plan, tokens))
        targets = [] if plan.sampling is None else plan.sampling.target.tolist()
        sampled = [each for each in gained if each.most_tokens > len(each.request.prompt)]
        assert len(sampled) == targets.count(-1) - drafted
        assert all(
            1 <= len(sequence.tokens) - before[sequence] <= 1 + self.longest for sequence in sampled
        )
        for sequence in gained:
            assert sequence in sampled or sequence.finish_reason == "length"
        self.collect()

    @precondition(lambda self: self.alive)
    @rule()
    def fail(self) -> None:
        """A step that could not be run ends its own sequences and no other."""
        plan = self.scheduler.schedule()
        assert plan is not None
        error = FarthingError("out of order")
        failed = self.scheduler.fail(error)
        assert len(failed) == len(plan.starts) - 1
        for sequence in failed:
            assert sequence.finish_reason == "error"
            assert sequence.error is error
        self.collect()

    def compute(self, plan: StepPlan, most: int | None) -> None:
        """Runs a plan on the machine's cache, and holds it against what a plan must be."""
        assert 1 <= len(plan.token_ids) <= min(LIMITS.step_tokens, most or LIMITS.step_tokens)
        assert len(plan.rows) <= LIMITS.step_rows
        parts = self.scheduler._step.fed
        drafts = self.scheduler._step.drafts
        texts = [
            sequence.tokens + (drafts[sequence].tokens if sequence in drafts else [])
            for sequence, _ in parts
        ]
        self.prefixes = [
            tuple(text[: position + 1])
            for text, (sequence, count) in zip(texts, parts, strict=True)
            for position in range(sequence.computed, sequence.computed + count)
        ]
        for source, target in plan.copies.tolist():
            self.cache[target] = self.cache[source]
        assert len(parts) == len(plan.starts) - 1
        written: set[int] = set()
        for index, (sequence, count) in enumerate(parts):
            start, end = plan.starts[index : index + 2].tolist()
            positions = plan.positions[start:end]
            assert positions.tolist() == list(range(sequence.computed, sequence.computed + count))
            table = plan.block_tables[index]
            blocks = table[positions // 32]
            for block in set(blocks.tolist()):
                assert self.scheduler.pool.is_private(block), "a block is written while shared"
                assert block not in written
                written.add(block)
            self.cache[blocks, positions % 32] = plan.token_ids[start:end]
        for index, (sequence, count) in enumerate(parts):
            known = sequence.computed + count
            held = self.cache[plan.block_tables[index][: -(-known // 32)]].reshape(-1)[:known]
            assert held.tolist() == texts[index][:known]

    def answer(self, plan: StepPlan, tokens: list[int]) -> StepResult:
        count = len(plan.rows)
        targets = [] if plan.sampling is None else plan.sampling.target.tolist()
        chosen = [tokens[row % len(tokens)] for row in range(count)]
        hidden = [_state(self.prefixes[row]) for row in plan.hidden_rows.tolist()]
        return StepResult(
            np.array([c if t < 0 else t for c, t in zip(chosen, targets, strict=True)], np.int32),
            np.array([_score(self.prefixes[row]) for row in plan.rows.tolist()], np.float32),
            np.empty((count, 0), np.int32),
            np.empty((count, 0), np.float32),
            hidden=np.array(hidden, np.float32).reshape(-1, 2),
        )

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.scheduler.end(data.draw(st.sampled_from(self.alive)), "cancelled")
        self.collect()

    @precondition(lambda self: self.scheduler.running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        victim = data.draw(st.sampled_from(self.scheduler.running))
        self.scheduler.preempt(victim)
        assert victim in self.scheduler.waiting
        assert victim.blocks == []

    @precondition(lambda self: self.scheduler.pool.available)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        """Somebody takes blocks and gives them back: what was cached in them is gone."""
        pool = self.scheduler.pool
        blocks = pool.take(data.draw(st.integers(1, pool.available)))
        self.cache[blocks] = -1
        pool.give(blocks)

    @rule()
    def save(self) -> None:
        assert self.scheduler.index is not None
        entries = list(self.scheduler.index.entries())
        seen: set[bytes] = set()
        known = {entry.hash for entry in entries}
        for entry in entries:
            assert entry.parent in seen or entry.parent not in known, "a parent comes first"
            seen.add(entry.hash)
            assert self.cache[entry.block].tolist() == list(entry.tokens)
        self.saved = [(e.parent, e.tokens, self.cache[e.block].copy()) for e in entries]

    @precondition(lambda self: self.saved)
    @rule()
    def restore(self) -> None:
        index, pool = self.scheduler.index, self.scheduler.pool
        assert index is not None
        for parent, tokens, content in reversed(self.saved[: pool.free]):
            block = index.restore(parent, tokens)
            if block is not None:
                self.cache[block] = content

    def collect(self) -> None:
        for sequence in [s for s in self.alive if s.finish_reason is not None]:
            assert sequence not in self.ended
            self.ended[sequence] = str(sequence.finish_reason)
            self.alive.remove(sequence)
            if sequence.finish_reason in ("stop", "length"):
                check_prompt_rows(sequence)

    @invariant()
    def the_books_balance(self) -> None:
        scheduler, pool = self.scheduler, self.scheduler.pool
        scheduler.check()
        assert pool.free + pool.cached + pool.held == pool.total
        assert {*scheduler.running, *scheduler.waiting} == set(self.alive)
        assert len(scheduler.running) + len(scheduler.waiting) == len(self.alive)
        for sequence, reason in self.ended.items():
            assert sequence.finish_reason == reason
            assert sequence.blocks == []

    def teardown(self) -> None:
        """Nobody starves: what is left ends within the steps that its tokens can take."""
        lacking = sum(s.most_tokens for s in self.alive)
        for _ in range(2 * lacking):
            plan = self.scheduler.schedule()
            if plan is None:
                break
            self.compute(plan, None)
            self.scheduler.commit(self.answer(plan, [20]))
            self.the_books_balance_at_the_end()
        self.collect()
        assert not self.alive
        assert self.scheduler.pool.held == 0

    def the_books_balance_at_the_end(self) -> None:
        self.collect()
        self.scheduler.check()


class SpeculatingMachine(SchedulerMachine):
    longest = 3


TestSchedulerMachine = SchedulerMachine.TestCase
TestSpeculatingMachine = SpeculatingMachine.TestCase
TestSpeculatingMachine.settings = settings(
    max_examples=EXAMPLES // 2,
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestSchedulerMachine.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
