"""One request on its way: its tokens, how far they are computed, and how it ends."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from farthing.engine.kv import blocks_for
from farthing.engine.prefix import root_hash
from farthing.engine.rows import Adjustments

if TYPE_CHECKING:
    from farthing.core import FarthingError, Request, StepResult
    from farthing.engine.prefix import Miss

FinishReason = Literal["stop", "length", "cancelled", "timeout", "error"]


@dataclass(frozen=True)
class TokenLogprob:
    """The log-probability of a chosen token, and of the likeliest ones as (id, log-probability)."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Sequence:
    """One request on its way: what is known, how much of it is computed, the blocks it holds.

    `chain` has the prefix hash of each full block that is known, of which the first `indexed` are
    in the prefix index; `searched` says whether the end of what the index has was looked for.
    `reused` tokens of the prompt came from the cache, and `miss` says why not more. `furthest` is
    the most that was ever computed: after a preemption, `computed` catches up with it again.
    `began` is when the first step that holds some of it did, by `time.perf_counter`;
    `machine_seconds` are its share of the time that steps took.
    """

    def __init__(
        self,
        request: Request,
        room: int,
        eos_ids: frozenset[int],
        arrival: int = 0,
        fork_of: Sequence | None = None,
    ) -> None:
        """`room` is the most tokens that prompt and output may have together."""
        sampling = request.sampling
        self.request = request
        self.arrival = arrival
        self.fork_of = fork_of
        self.running = False
        self.tokens = list(request.prompt)
        self.computed = 0
        self.furthest = 0
        self.blocks: list[int] = []
        self.root = root_hash(request.key)
        self.chain: list[bytes] = []
        self.indexed = 0
        self.searched = False
        self.reused = 0
        self.miss: Miss | None = None
        self.preemptions = 0
        self.began: float | None = None
        self.machine_seconds = 0.0
        self.finish_reason: FinishReason | None = None
        self.error: FarthingError | None = None
        self.logprobs: list[TokenLogprob] | None = None if sampling.logprobs is None else []
        self.seed = sampling.seed if sampling.seed is not None else _seed_of(fork_of)
        self.most_tokens = len(request.prompt) + (sampling.max_tokens or room - len(request.prompt))
        # The last token is sampled but never fed, so it needs no place in the cache.
        self.needed_blocks = blocks_for(self.most_tokens - 1)
        ending = frozenset(sampling.stop_token_ids)
        self.ending_ids = ending if sampling.ignore_eos else ending | eos_ids
        self.adjustments = self._adjustments()

    @property
    def output(self) -> list[int]:
        """The tokens sampled so far, an ending token included."""
        return self.tokens[len(self.request.prompt) :]

    def append(self, token: int) -> None:
        """Takes in a sampled token, and notices whether it was the last."""
        self.tokens.append(token)
        made = len(self.tokens) - len(self.request.prompt)
        if self.adjustments is not None:
            self.adjustments.add_output(token)
            if made == self.request.sampling.min_tokens:
                self.adjustments.lift_ban()
        if token in self.ending_ids:
            self.finish_reason = "stop"
        elif len(self.tokens) == self.most_tokens:
            self.finish_reason = "length"

    def record(self, result: StepResult, row: int) -> None:
        """Keeps the log-probabilities of a row, where the request asks for any."""
        if self.logprobs is None:
            return
        count = self.request.sampling.logprobs
        ids = result.top_ids[row, :count].tolist()
        values = result.top_logprobs[row, :count].tolist()
        top = tuple(pair for pair in zip(ids, values, strict=True) if pair[0] >= 0)
        entry = TokenLogprob(int(result.tokens[row]), float(result.logprob[row]), top)
        self.logprobs.append(entry)

    def _adjustments(self) -> Adjustments | None:
        sampling = self.request.sampling
        banned = self.ending_ids if sampling.min_tokens else frozenset[int]()
        penalised = (
            sampling.repetition_penalty,
            sampling.presence_penalty,
            sampling.frequency_penalty,
        ) != (1.0, 0.0, 0.0)
        if not (penalised or banned or sampling.logit_bias):
            return None
        return Adjustments(sampling, self.request.prompt, banned)


def _seed_of(fork_of: Sequence | None) -> int:
    """The choices of one prompt share their seed."""
    return draw_seed() if fork_of is None else fork_of.seed


def draw_seed() -> int:
    """A fresh seed. 48 bits, so that every reader of JSON can hold it exactly."""
    return int.from_bytes(os.urandom(6), "little")
