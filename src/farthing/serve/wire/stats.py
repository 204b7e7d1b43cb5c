"""The structure of /stats."""

from __future__ import annotations

import msgspec


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """What a server is doing at one moment, and what it did since its start; no text of anybody's.

    `started` is in seconds of the epoch and tells one process from another. `clock_seconds` is when
    all this was read, by a clock that only goes forward from anywhere: what grew, divided by the
    time that it took, is a rate. Of the cache's blocks, which have `block_tokens` positions each,
    the free, the cached and the held ones are all there are.

    Only growing: `prompt_tokens` of prompts that were begun, of which `reused_tokens` came from the
    cache; `generated_tokens`; `preemptions`, and the `recomputed_tokens` that they cost;
    `steps`, of which `draft_steps` tested guesses, in `drafts` runs of them one sequence each, with
    `drafted_tokens` in all, of which `accepted_tokens` proved right;
    `first_tokens`, the requests of which a token came and that have ended, and the sum of the times
    that these waited for it.
    """

    started: float
    clock_seconds: float
    slots: int
    running: int
    waiting: int
    queued_tokens: int
    block_tokens: int
    free_blocks: int
    cached_blocks: int
    held_blocks: int
    prompt_tokens: int
    reused_tokens: int
    generated_tokens: int
    preemptions: int
    recomputed_tokens: int
    steps: int
    draft_steps: int
    drafts: int
    drafted_tokens: int
    accepted_tokens: int
    first_tokens: int
    first_token_seconds: float
