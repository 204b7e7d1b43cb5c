"""What a request asks of the engine, and its way in: admitted, encoded, submitted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from farthing.core import FarthingError
from farthing.serve.errors import api_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from farthing.core import SamplingParams
    from farthing.engine.completion import Completion
    from farthing.engine.engine import Engine
    from farthing.engine.prefix import Miss
    from farthing.engine.stream import Stream
    from farthing.serve.state import Caller, ServerState, Ticket
    from farthing.serve.wire.common import PrefixMiss

_QUICK_BYTES = 2048
"""A text of so many bytes is encoded sooner than another thread is woken."""

_AT_ONCE = 16
"""So many prompts of thousands of tokens are submitted in a few milliseconds."""


@dataclass(frozen=True)
class Asked:
    """What a request asks of the engine: `n` answers to each of `prompts` prompts.

    They came in `body`, in the field `param`, and have `prompt_bytes` of text, or `prompt_tokens`
    where ids were sent. `prepare` gives their token ids and how to sample, or None to embed them:
    it is called once the request is admitted, and where `slow` in another thread. `explain`, where
    the client wants to know, tells why the cache had no more of the one prompt.
    `reasoning_tokens` counts those of an answer, where it may have some.
    """

    param: str
    prompts: int
    body: bytes
    prompt_bytes: int
    prompt_tokens: int | None
    max_tokens: int | None
    n: int
    priority: int
    seconds: float
    slow: bool
    prepare: Callable[[], tuple[list[list[int]], SamplingParams | None]]
    explain: Callable[[Miss], PrefixMiss] | None = None
    reasoning_tokens: Callable[[Completion], int] | None = None


def is_slow(prompt_bytes: int) -> bool:
    """Whether encoding so much text would keep others waiting."""
    return prompt_bytes > _QUICK_BYTES


def admit(state: ServerState, caller: Caller, asked: Asked) -> Ticket | None:
    """A ticket where requests need one; raises `ApiError` when it is refused."""
    if state.admission is None:
        return None
    return state.admission.admit(
        caller,
        prompt_bytes=asked.prompt_bytes,
        prompt_tokens=asked.prompt_tokens,
        max_tokens=asked.max_tokens,
        n=asked.prompts * asked.n,
        priority=asked.priority,
        body_digest=blake2b(asked.body, digest_size=16).digest(),
    )


async def prepared(asked: Asked) -> tuple[list[list[int]], SamplingParams | None]:
    """The token ids of its prompts, and how to sample; raises `ApiError` when it is wrong."""
    try:
        if asked.slow:
            return await asyncio.to_thread(asked.prepare)
        return asked.prepare()
    except FarthingError as error:
        raise api_error(error, asked.param) from error


async def submit(
    state: ServerState,
    engine: Engine,
    key: str,
    asked: Asked,
    prompts: list[list[int]],
    sampling: SamplingParams | None,
    streams: list[Stream],
) -> None:
    """Adds to `streams` as they are accepted; raises `ApiError` when one is not.

    Others have their turn between many.
    """
    for number, prompt in enumerate(prompts):
        if number and number % _AT_ONCE == 0:
            await asyncio.sleep(0)
        try:
            streams += engine.submit(
                prompt,
                sampling,
                n=asked.n,
                key=key,
                priority=asked.priority,
                timeout=asked.seconds,
                embed=sampling is None,
            )
        except FarthingError as error:
            state.ready()  # an engine that was closed meanwhile refuses for that reason
            raise api_error(error, asked.param) from error
