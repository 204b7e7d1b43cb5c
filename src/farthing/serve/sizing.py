"""How large a server's cache is, and how many texts run at once, where nobody says so.

The rule is in absolute numbers: 64 slots, and a cache of 512 tokens for each or of one whole
context, whichever is more. Where that does not fit beside the weights, the cache is halved until
it does, down to 4,096 tokens; what was chosen, and why, is told. What somebody asks for is never
changed: it fits, or it is refused with the nearest that does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from farthing.core import BLOCK_TOKENS, KVDtype
from farthing.plan.machine import available_memory
from farthing.plan.memory import MIB, plan_memory

if TYPE_CHECKING:
    from farthing.core import ActivationMode
    from farthing.models.load import Model
    from farthing.plan.memory import MemoryPlan

SLOTS = 64
TOKENS_PER_SLOT = 512
LEAST_CACHE_TOKENS = 4096

RULE = (
    f"{SLOTS} slots; a cache of {TOKENS_PER_SLOT} tokens a slot or of one whole context, whichever "
    f"is more, halved until it fits into memory, down to {LEAST_CACHE_TOKENS:,} tokens"
)


@dataclass(frozen=True)
class Sizes:
    """A plan and how its sizes came about, in a sentence. `room` is what memory there is for it."""

    plan: MemoryPlan
    why: str
    room: int

    @property
    def needed(self) -> int:
        """All bytes, the process itself included."""
        return self.plan.needed_bytes

    @property
    def fits(self) -> bool:
        """Whether there is room for it."""
        return self.needed <= self.room


def choose_sizes(
    model: Model,
    *,
    context_length: int | None = None,
    cache_tokens: int | None = None,
    slots: int | None = None,
    kv_dtype: KVDtype = KVDtype.BF16,
    activations: ActivationMode | None = None,
    threads: int | None = None,
    draft_rows: int = 0,
    draft: Model | None = None,
    lookup_tokens: int = 0,
    leviathan: bool = False,
    room: int | None = None,
) -> Sizes:
    """The plan for a server of `model`, by the rule where a size is None; with its `draft` if any.

    Whether it fits into `room` bytes (None: what the machine can give now) is not asked: see
    `Sizes.fits`, and `require_room` for the nearest that does. Raises `RequestError` as
    `plan_memory` does.
    """
    room = available_memory() if room is None else room
    chosen_slots = SLOTS if slots is None else slots

    def planned(tokens: int) -> MemoryPlan:
        return plan_memory(
            model,
            context_length=context_length,
            cache_tokens=tokens,
            slots=chosen_slots,
            kv_dtype=kv_dtype,
            activations=activations,
            threads=threads,
            draft_rows=draft_rows,
            draft=draft,
            lookup_tokens=lookup_tokens,
            leviathan=leviathan,
        )

    slots_why = f"{chosen_slots} slots {'by default' if slots is None else 'as asked'}"
    if cache_tokens is not None:
        return Sizes(planned(cache_tokens), f"{slots_why}, {cache_tokens:,} tokens as asked", room)
    context = model.config.context_length if context_length is None else context_length
    usual = max(context, TOKENS_PER_SLOT * chosen_slots)
    sizes = Sizes(planned(usual), "", room)
    base = sizes.needed - _cache_bytes(sizes.plan, usual)
    least = min(LEAST_CACHE_TOKENS, usual)
    tokens = usual
    while tokens // 2 >= least and base + _cache_bytes(sizes.plan, tokens) > room:
        tokens //= 2
    if tokens == usual:
        rule = "one whole context" if usual == context else f"{TOKENS_PER_SLOT} a slot"
        return Sizes(sizes.plan, f"{slots_why}, {usual:,} tokens: {rule}", room)
    return Sizes(
        planned(tokens),
        f"{slots_why}, {tokens:,} tokens: the usual {usual:,} would take "
        f"{_cache_bytes(sizes.plan, usual) / MIB:,.0f} MiB, and {(room - base) / MIB:,.0f} MiB are "
        "left for the cache",
        room,
    )


def _cache_bytes(plan: MemoryPlan, tokens: int) -> int:
    """Of so many tokens, in the draft's cache as well."""
    return -(-tokens // BLOCK_TOKENS) * plan.block_bytes_in_all
