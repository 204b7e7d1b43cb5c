"""GET /stats: the figures that the page shows, from one moment."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from farthing.core import BLOCK_TOKENS
from farthing.serve.wire.common import json_response
from farthing.serve.wire.stats import Stats

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from farthing.serve.state import ServerState


async def stats(state: ServerState, request: Request) -> Response:
    """What the server is doing now, and has done since its start."""
    engine, _ = state.ready()
    now = engine.stats()
    counters, waits = now.counters, state.first_tokens
    answer = Stats(
        started=state.started,
        clock_seconds=time.monotonic(),
        slots=engine.slots,
        running=now.running,
        waiting=now.waiting,
        queued_tokens=now.queued_tokens,
        block_tokens=BLOCK_TOKENS,
        free_blocks=now.free_blocks,
        cached_blocks=now.cached_blocks,
        held_blocks=now.held_blocks,
        prompt_tokens=counters.prompt_tokens,
        reused_tokens=counters.reused_tokens,
        generated_tokens=counters.generated_tokens,
        preemptions=counters.preemptions,
        recomputed_tokens=counters.recomputed_tokens,
        steps=now.steps,
        draft_steps=counters.drafts.steps,
        drafts=counters.drafts.drafts,
        drafted_tokens=counters.drafts.proposed,
        accepted_tokens=counters.drafts.accepted,
        first_tokens=waits.requests,
        first_token_seconds=waits.seconds,
    )
    return json_response(answer, headers={"cache-control": "no-store"})
