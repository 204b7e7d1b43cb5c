"""Requests through the scheduler and a backend, step by step, with nothing in between."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from farthing.core import Request, SamplingParams
from farthing.engine.limits import Limits, Policy
from farthing.engine.sampler import sample
from farthing.engine.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence as ListOf

    import numpy as np
    from numpy.typing import NDArray

    from farthing.backends import Backend
    from farthing.engine.prefix import PrefixIndex
    from farthing.engine.sequence import Sequence
    from farthing.engine.speculate import Speculation


class Guesser:
    """A Drafter that guesses for each sequence by itself."""

    def guess(self, sequence: Sequence, most: int) -> list[int]:
        raise NotImplementedError

    def propose(self, sequences: ListOf[Sequence], most: ListOf[int]) -> list[list[int]]:
        return [self.guess(*each) for each in zip(sequences, most, strict=True)]

    def matched(self, sequence: Sequence) -> int:
        return 0

    def chances(self, sequence: Sequence) -> list[NDArray[np.float64]]:
        return []

    def forget(self, sequence: Sequence) -> None:
        pass

    def close(self) -> None:
        pass


def request(name: str, prompt: Iterable[int], more: int, **settings: Any) -> Request:
    """A request for exactly `more` tokens; `settings` are SamplingParams', `choice` and `key`."""
    own = {field: settings.pop(field) for field in ("choice", "key") if field in settings}
    sampling = SamplingParams(max_tokens=more, ignore_eos=True, **settings)
    return Request(name, tuple(prompt), sampling, **own)


class Driver:
    """A scheduler and its backend. `logits` are digests of each sampled token's, by request.

    `blocks` of the backend's are used, all unless given. With `preempt_every`, a running sequence
    is preempted after every so many steps, another one each time.
    """

    def __init__(
        self,
        backend: Backend,
        blocks: int | None = None,
        speculation: Speculation | None = None,
        **policy: Any,
    ) -> None:
        self.backend = backend
        limits = Limits(
            blocks or backend.total_blocks,
            backend.context_length,
            backend.max_step_tokens,
            backend.max_step_rows,
            backend.vocabulary_size,
        )
        self.scheduler = Scheduler(
            limits,
            policy=Policy(**{"latency_target": None, **policy}),
            speculation=speculation,
        )
        self.logits: dict[tuple[str, int], list[str]] = {}
        self.submitted: list[Sequence] = []
        self.widest = 0
        self.steps = 0

    @property
    def index(self) -> PrefixIndex:
        assert self.scheduler.index is not None
        return self.scheduler.index

    def submit(self, requests: ListOf[Request]) -> list[Sequence]:
        """Choices from the second on are forks of the first."""
        first: dict[str, Sequence] = {}
        sequences = []
        for each in requests:
            sequence = self.scheduler.submit(each, fork_of=first.get(each.id))
            first.setdefault(each.id, sequence)
            sequences.append(sequence)
        self.submitted += sequences
        return sequences

    def step(self, step_tokens: int | None = None) -> bool:
        plan = self.scheduler.schedule(step_tokens)
        if plan is None:
            return False
        result = self.backend.run(plan, want_logits=True)
        logits = result.logits
        assert logits is not None
        if not self.backend.samples and plan.sampling is not None:
            result = sample(logits, plan.sampling)
        self.scheduler.commit(result)
        for row, sequence in self.scheduler.kept:
            digest = blake2b(logits[row], digest_size=16).hexdigest()
            name = sequence.request.id, sequence.request.choice
            self.logits.setdefault(name, []).append(digest)
        self.widest = max(self.widest, len(plan.starts) - 1)
        self.steps += 1
        self.scheduler.check()
        return True

    def finish(
        self,
        requests: ListOf[Request],
        step_tokens: int | None = None,
        preempt_every: int | None = None,
    ) -> list[Sequence]:
        sequences = self.submit(requests)
        while self.step(step_tokens):
            running = self.scheduler.running
            if preempt_every and running and self.steps % preempt_every == 0:
                self.scheduler.preempt(running[self.steps // preempt_every % len(running)])
        return sequences
