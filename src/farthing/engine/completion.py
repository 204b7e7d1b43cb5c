"""What the engine hands to a caller: deltas while a text grows, and the completion it became."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farthing.engine.sequence import FinishReason, TokenLogprob


@dataclass(frozen=True)
class Usage:
    """Tokens read and tokens written; an ending token counts as written."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        """Both together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Timing:
    """Seconds on the wall clock.

    `prefill_seconds` is from the request to its first token, waiting included; `decode_seconds`
    from there to its last. `native_seconds` is the part of both in which the backend was computing,
    for this request or for others in the same steps.
    """

    prefill_seconds: float
    decode_seconds: float
    native_seconds: float

    @property
    def python_share(self) -> float:
        """The part of the whole time that the backend was not computing, from 0 to 1."""
        seconds = self.prefill_seconds + self.decode_seconds
        return max(0.0, 1.0 - self.native_seconds / seconds) if seconds else 0.0


@dataclass(frozen=True)
class Delta:
    """What one step added to a text: often one token, and no text while a character is half there.

    `finish_reason` is set on the last delta only.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True)
class Completion:
    """A text that a prompt was continued by.

    `token_ids` has an ending token where there was one, `text` has not, nor a stop string.
    `finish_reason` is "stop" (ending token or stop string), "length" (`max_tokens` or the context),
    or "cancelled" when its stream was closed early. `seed` repeats the text, drawn or given.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    logprobs: tuple[TokenLogprob, ...] | None
    usage: Usage
    seed: int
    timing: Timing
