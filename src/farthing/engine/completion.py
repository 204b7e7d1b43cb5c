"""What the engine hands to a caller: deltas, the completion they became, and what it is doing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from farthing.engine.prefix import Miss
    from farthing.engine.prompt_rows import TokenLogprob
    from farthing.engine.scheduler import Counters
    from farthing.engine.sequence import FinishReason


@dataclass(frozen=True)
class Usage:
    """Tokens read and tokens written; an ending token counts as written.

    `cached_tokens` of the prompt needed no computing: the cache had them. `drafted_tokens` were
    guessed ahead and computed, of which `accepted_tokens` proved right and were written.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Both together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Timing:
    """Seconds on the wall clock.

    `prefill_seconds` is from the request to its first token, waiting included; `decode_seconds`
    from there to its last. `native_seconds` is the part of both in which the backend was computing,
    for this request or for others in the same steps; `machine_seconds` is this request's share of
    those steps (see `charge.py`), `queue_seconds` what passed before the first of them.
    """

    prefill_seconds: float
    decode_seconds: float
    native_seconds: float
    queue_seconds: float = 0.0
    machine_seconds: float = 0.0

    @property
    def python_share(self) -> float:
        """The part of the whole time that the backend was not computing, from 0 to 1."""
        seconds = self.prefill_seconds + self.decode_seconds
        return max(0.0, 1.0 - self.native_seconds / seconds) if seconds else 0.0


@dataclass(frozen=True)
class Delta:
    """What has been added to a text since the delta before: for a reader who keeps up, one token.

    `text` is empty while a character or a stop string is half there. `finish_reason` is set on the
    last delta only, which may have no token.
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
    "cancelled" when its stream or its engine was closed early, "timeout", "error", or None while
    the text grows. `seed` repeats the text, drawn or given. `miss` says where the cache ended for
    the prompt, and why; None before the prompt was looked up, and where nothing is shared.
    `prompt_logprobs` has an entry for each token of the prompt, None for the first; it is None
    where they were not asked for. `embedding` is the prompt's, where that was asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    logprobs: tuple[TokenLogprob, ...] | None
    usage: Usage
    seed: int
    timing: Timing
    miss: Miss | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    embedding: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Embedding:
    """A text as a point: `vector` (hidden size,) float32 of length 1, as `Engine.embed` says."""

    vector: NDArray[np.float32]
    usage: Usage


@dataclass(frozen=True)
class EngineStats:
    """What an engine is doing, all at one moment between two steps.

    `running` texts hold blocks or may take them, `waiting` ones were preempted or have not begun;
    `held_back` of these found no slot or no room when the last step was planned. `queued_tokens`
    are those of prompts whose answers have not begun. Free, cached and held blocks are all there
    are. `native_seconds` were spent computing `steps` steps.
    """

    running: int
    waiting: int
    held_back: int
    queued_tokens: int
    free_blocks: int
    cached_blocks: int
    held_blocks: int
    steps: int
    native_seconds: float
    counters: Counters
