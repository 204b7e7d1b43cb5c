"""What a step and a sequence may hold, how the scheduler is to choose, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from farthing.core import BLOCK_TOKENS, ContextLengthError, RequestError

if TYPE_CHECKING:
    from farthing.core import Request
    from farthing.engine.cost import Windows


@dataclass(frozen=True)
class Limits:
    """What a step and a sequence may hold; a backend states most of it.

    `context_length` counts a sequence's prompt and output together.
    """

    total_blocks: int
    context_length: int
    step_tokens: int
    step_rows: int
    vocabulary_size: int

    @property
    def room(self) -> int:
        """The most tokens of prompt and output together: the context's, or what the cache holds.

        The last token is sampled but never fed, so it needs no place in the cache.
        """
        return min(self.context_length, self.total_blocks * BLOCK_TOKENS + 1)


@dataclass(frozen=True)
class Policy:
    """How the scheduler chooses.

    A prompt joins a step in which others decode with as many tokens as keep the step within
    `latency_target` seconds, by the cost of steps so far, and one block at least; None sets no
    such bound. `sharing` keeps what was computed for texts that begin alike. `weights` are by
    key (1 where a key is not named): a key gets tokens in proportion. At most `slots` sequences
    run at once (None: as many as a step has rows for). `windows` are the model's (`cost.py`).
    """

    latency_target: float | None = 0.1
    sharing: bool = True
    weights: Mapping[str, float] = field(default_factory=dict)
    slots: int | None = None
    windows: Windows = ()

    def __post_init__(self) -> None:
        by_key = isinstance(self.weights, Mapping)
        for name, ok in (
            ("latency_target", self.latency_target is None or _positive(self.latency_target)),
            ("weights", by_key and all(map(_positive, self.weights.values()))),
            ("slots", self.slots is None or (_positive(self.slots) and self.slots % 1 == 0)),
        ):
            if not ok:
                wanted = "numbers above 0, by key" if name == "weights" else "above 0"
                raise RequestError(f"{name} must be {wanted}, not {getattr(self, name)!r:.100}")
        if not isinstance(self.sharing, bool):
            raise RequestError(f"sharing must be True or False, not {self.sharing!r:.100}")


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def refuse_impossible(request: Request, limits: Limits) -> None:
    """Raises `RequestError` for a request that could never be served as asked."""
    sampling, prompt = request.sampling, request.prompt
    if not prompt:
        raise RequestError("the prompt is empty: it must have at least one token")
    answer = 1 if sampling.max_tokens is None else sampling.max_tokens
    if len(prompt) + min(answer, 1) > limits.context_length:
        also = " with at least one for the answer" if answer else ""
        raise ContextLengthError(
            f"the prompt has {len(prompt)} tokens, and the context holds "
            f"{limits.context_length}{also}; shorten the prompt or load with a longer context"
        )
    most = len(prompt) + answer
    if most > limits.context_length:
        raise ContextLengthError(
            f"the prompt has {len(prompt)} tokens and max_tokens is {sampling.max_tokens}, "
            f"together more than the context of {limits.context_length}; lower max_tokens to "
            f"{limits.context_length - len(prompt)} or load with a longer context"
        )
    # The last of the answer needs no place.
    fed = len(prompt) + max(answer, 1) - 1
    places = limits.total_blocks * BLOCK_TOKENS
    if fed > places:
        raise ContextLengthError(
            f"a prompt of {len(prompt)} tokens and up to {answer} more need {fed} places in the "
            f"cache, and it has {places} ({limits.total_blocks} blocks); ask for fewer tokens or "
            "load with a larger cache"
        )
    for what, ids in (
        ("the prompt", prompt),
        ("stop_token_ids", sampling.stop_token_ids),
        ("logit_bias", sampling.logit_bias),
    ):
        outside = [token for token in ids if not 0 <= token < limits.vocabulary_size]
        if outside:
            raise RequestError(
                f"{what} names token {outside[0]}, and the model's vocabulary has "
                f"{limits.vocabulary_size} tokens, numbered from 0"
            )
