"""One request on its way: its tokens, how far they are computed, and how it ends."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Literal

from farthing.core import FarthingError, RequestError
from farthing.engine.prefix import root_hash
from farthing.engine.prompt_rows import PromptMean, PromptScores, TokenLogprob, token_logprob
from farthing.engine.rows import Adjustments

if TYPE_CHECKING:
    from farthing.core import Request, StepResult
    from farthing.engine.constraints import Matcher
    from farthing.engine.prefix import Miss

FinishReason = Literal["stop", "length", "cancelled", "timeout", "error"]


class Sequence:
    """One request on its way: what is known, how much of it is computed, the blocks it holds.

    `chain` has the prefix hash of each full block that is known, of which the first `indexed` are
    in the prefix index; `searched` says whether the end of what the index has was looked for.
    `reused` tokens of the prompt came from the cache, and `miss` says why not more. `furthest` is
    the most that was ever computed: after a preemption, `computed` catches up with it again.
    `scores` or `mean` gathers what the request wants of its own prompt.
    `matcher` follows a constrained text, token by token as they are appended. `ends_with_token`:
    it ended by an ending token, which is no part of the text.
    Of its next tokens `drafted` were guessed and computed, of which `accepted` proved right.
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
        matcher: Matcher | None = None,
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
        self.drafted = self.accepted = 0
        self.began: float | None = None
        self.machine_seconds = 0.0
        self.finish_reason: FinishReason | None = None
        self.error: FarthingError | None = None
        self.matcher = matcher
        self.ends_with_token = False
        self.logprobs: list[TokenLogprob] | None = None if sampling.logprobs is None else []
        self.seed = sampling.seed if sampling.seed is not None else _seed_of(fork_of)
        prompt = len(request.prompt)
        most = room - prompt if sampling.max_tokens is None else sampling.max_tokens
        self.most_tokens = prompt + most
        self.mean = PromptMean(prompt) if request.embed else None
        self.scores: PromptScores | None = None
        if sampling.prompt_logprobs is not None:
            self.scores = PromptScores(prompt, sampling.prompt_logprobs)
        ending = frozenset(sampling.stop_token_ids)
        # A form that is complete ends the text, whatever would be ignored elsewhere.
        ignores_eos = sampling.ignore_eos and matcher is None
        self.ending_ids = ending if ignores_eos else ending | eos_ids
        self.adjustments = self._adjustments()

    @property
    def output(self) -> list[int]:
        """The tokens sampled so far, an ending token included."""
        return self.tokens[len(self.request.prompt) :]

    @property
    def samples(self) -> bool:
        """Whether the row of the last known token is to be sampled from."""
        return len(self.tokens) < self.most_tokens

    @property
    def reusable(self) -> int:
        """How many of the first tokens need not be computed where the cache has them."""
        last = len(self.tokens) - 1
        for wanted in (self.scores, self.mean):
            if wanted is not None and wanted.taken < wanted.end:
                last = min(last, wanted.taken)
        return last

    def rows_of(self, count: int) -> int:
        """For how many of its next `count` tokens the head is computed."""
        end = self.computed + count
        rows = int(end == len(self.tokens) and self.samples)
        if self.scores is not None:
            rows += max(0, min(end, self.scores.end) - max(self.computed, self.scores.taken))
        return rows

    def append(self, token: int) -> None:
        """Takes in a sampled token, and notices whether it was the last.

        A token of -1 says that none could be chosen.
        """
        if token < 0:
            if self.is_restricted:
                self._fail(_no_token())
            else:
                self.lack_numbers()
            return
        self.tokens.append(token)
        if self.adjustments is not None:
            self.adjustments.add_output(token)
        if token in self.ending_ids:
            self.finish_reason = "stop"
            self.ends_with_token = True
        elif self.matcher is not None and self._completes(self.matcher, token):
            self.finish_reason = "stop"
        elif self.finish_reason is None and len(self.tokens) == self.most_tokens:
            self.finish_reason = "length"

    def cut(self, length: int) -> None:
        """Takes back all tokens but the first `length`: a stop string came before them."""
        del self.tokens[length:]
        if self.logprobs is not None:
            del self.logprobs[length - len(self.request.prompt) :]
        self.ends_with_token = False

    def record(self, result: StepResult, row: int) -> None:
        """Keeps the log-probabilities of a row, where the request asks for any."""
        alternatives = self.request.sampling.logprobs
        if self.logprobs is not None and alternatives is not None:
            self.logprobs.append(token_logprob(result, row, alternatives))

    @property
    def is_restricted(self) -> bool:
        """Whether the request itself may leave no token to choose."""
        return self.matcher is not None or -math.inf in self.request.sampling.logit_bias.values()

    def lack_numbers(self) -> None:
        """It ends: the model's logits are no numbers for it."""
        self._fail(
            FarthingError(
                "no token can be chosen: the model's logits are not numbers; the weights are "
                "damaged or the prompt overflows them. Fetch the model again, or try --activations "
                "fp32 and --kv-dtype fp32"
            )
        )

    def _completes(self, matcher: Matcher, token: int) -> bool:
        try:
            matcher.advance(token)
        except RequestError as error:
            self._fail(error)
        return matcher.finished

    def _fail(self, error: FarthingError) -> None:
        self.finish_reason = "error"
        self.error = error

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


def _no_token() -> RequestError:
    return RequestError(
        "no token can be chosen: what the constraint allows is forbidden by logit_bias, min_tokens "
        "or stop_token_ids, or the vocabulary cannot write it; loosen one of them"
    )


def draw_seed() -> int:
    """A fresh seed. 48 bits, so that every reader of JSON can hold it exactly."""
    return int.from_bytes(os.urandom(6), "little")
