"""One request on its way: its tokens, how far they are computed, and how it ends."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from farthing.engine.kv import blocks_for
from farthing.engine.rows import Adjustments

if TYPE_CHECKING:
    from farthing.core import Request, StepResult

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class TokenLogprob:
    """The log-probability of a chosen token, and of the likeliest ones as (id, log-probability)."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Sequence:
    """One request on its way: what is known, how much of it is computed, the blocks it holds."""

    def __init__(self, request: Request, context_length: int, eos_ids: frozenset[int]) -> None:
        sampling = request.sampling
        self.request = request
        self.tokens = list(request.prompt)
        self.computed = 0
        self.blocks: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.logprobs: list[TokenLogprob] | None = None if sampling.logprobs is None else []
        self.seed = draw_seed() if sampling.seed is None else sampling.seed
        room = context_length - len(request.prompt)
        self.most_tokens = len(request.prompt) + (sampling.max_tokens or room)
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


def draw_seed() -> int:
    """A fresh seed. 48 bits, so that every reader of JSON can hold it exactly."""
    return int.from_bytes(os.urandom(6), "little")
