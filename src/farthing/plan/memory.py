"""The byte layout of everything: the plan that the native backend's allocator executes.

`plan_memory` lays out three regions before anything is allocated: the packed weights, the cache's
block pool, and the arena (values between stages, prepared inputs, rotation tables, attention's
partials, each thread's scratch). The backend allocates exactly these and places everything at
the offsets given here, so what a plan says and what a process takes cannot drift apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from farthing.core import (
    BLOCK_TOKENS,
    CHUNK_TOKENS,
    ActivationMode,
    DoesNotFitError,
    KVDtype,
    RequestError,
)
from farthing.plan import packed
from farthing.plan.arena import Arena, lay_arena
from farthing.plan.machine import available_memory, usable_cores
from farthing.plan.packed import PackedFormat, packed_format, round_up
from farthing.plan.process import (
    LOOKUP_TOKEN_BYTES,
    SLOT_BYTES,
    TOKEN_BYTES,
    leviathan_bytes,
    process_bytes,
)
from farthing.plan.stages import Stage, fuse, require_stored

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from farthing.models.load import Model
    from farthing.models.program import Program

MIB = 1 << 20

USUAL_SLOTS = 32
USUAL_STEP_TOKENS = 512
DRAFT_ROWS = 16
"""The most guesses at tokens that a step of a server takes along, however many texts run."""

CATCH_UP_TOKENS = 64
"""The most tokens that a draft model reads in one go, all sequences together, before it guesses."""


@dataclass(frozen=True)
class WeightPlace:
    """Where one weight lies in the weights region. A vector is float32 and has no `packed`."""

    offset: int
    bytes: int
    stored: str
    packed: PackedFormat | None


@dataclass(frozen=True)
class CachePlace:
    """One layer's share of a block: its first KV head's offset, and its share in bytes."""

    offset: int
    bytes: int


@dataclass(frozen=True)
class MemoryPlan:
    """What the native backend allocates, in bytes, and where everything goes.

    `slots` texts run at once at most; a step feeds at most `step_tokens` tokens and wants at most
    `step_rows` rows. `taps` are the values that can be looked at after a step. `draft` is the plan
    of a model that guesses beside this one, in the same process.
    """

    stages: tuple[Stage, ...]
    weights: Mapping[str, WeightPlace]
    weight_bytes: int
    cache: tuple[CachePlace, ...]
    block_bytes: int
    total_blocks: int
    arena: Arena
    kv_dtype: KVDtype
    activations: ActivationMode | None
    threads: int
    context_length: int
    slots: int
    step_tokens: int
    step_rows: int
    process_bytes: int
    taps: frozenset[str]
    draft: MemoryPlan | None = None

    @property
    def cache_tokens(self) -> int:
        """Positions that the cache holds, all texts together."""
        return self.total_blocks * BLOCK_TOKENS

    @property
    def cache_bytes(self) -> int:
        """The block pool."""
        return self.total_blocks * self.block_bytes

    @property
    def total_bytes(self) -> int:
        """All that the backend allocates; draft and process (`process_bytes`) come on top."""
        return self.weight_bytes + self.cache_bytes + self.arena.total_bytes

    @property
    def draft_bytes(self) -> int:
        """All that the draft's backend allocates."""
        return 0 if self.draft is None else self.draft.total_bytes

    @property
    def needed_bytes(self) -> int:
        """All anonymous memory that there must be room for."""
        return self.total_bytes + self.draft_bytes + self.process_bytes

    @property
    def block_bytes_in_all(self) -> int:
        """What a block more takes: in this cache, in the draft's, and as texts on their way."""
        draft = 0 if self.draft is None else self.draft.block_bytes
        return self.block_bytes + draft + BLOCK_TOKENS * TOKEN_BYTES


def plan_memory(
    model: Model,
    *,
    context_length: int | None = None,
    sequences: int = 1,
    cache_tokens: int | None = None,
    slots: int | None = None,
    kv_dtype: KVDtype = KVDtype.BF16,
    activations: ActivationMode | None = None,
    threads: int | None = None,
    step_tokens: int | None = None,
    step_rows: int | None = None,
    taps: Collection[str] = (),
    draft_rows: int = 0,
    draft: Model | None = None,
    lookup_tokens: int = 0,
    leviathan: bool = False,
) -> MemoryPlan:
    """Lays out the memory of `model` for texts of up to `context_length` positions each.

    The cache holds `cache_tokens` positions in all, rounded up to whole blocks of 32: room for
    `sequences` texts of the whole context unless given. It may be smaller than one context: a text
    that can never fit is refused when it is asked for. `slots` is the most texts that run at once.

    `taps` names values of the Program that are kept, each in memory of its own, until the next
    step. A value that exists only within a stage cannot be. `draft` is a model that guesses: it has
    a cache of as many positions, and feeds a step of one token a slot and some more. `leviathan`:
    guesses are taken by that rule, which needs logits.

    None means: the model's own context length, all usable cores, 32 slots or one for each of
    `sequences`, one wanted row a slot and `draft_rows` for guesses, and 512 tokens a step or one a
    slot. Raises `RequestError` when the context is longer than the model's own, a count is not
    positive, the cache cannot hold the model's heads, or a tap is no stored value. Does not ask
    whether the machine has the room: `require_room` does.
    """
    most = model.config.context_length
    context_length = most if context_length is None else context_length
    if not 1 <= context_length <= most:
        raise RequestError(
            f"the context must be from 1 to the {most} positions that {model.name} was made for, "
            f"not {context_length}"
        )
    threads = usable_cores() if threads is None else threads
    slots = max(USUAL_SLOTS, sequences) if slots is None else slots
    for name, value in (
        ("threads", threads),
        ("sequences", sequences),
        ("cache_tokens", cache_tokens),
        ("slots", slots),
    ):
        if value is not None and value < 1:
            raise RequestError(f"{name} must be at least 1, not {value}")
    if cache_tokens is None:
        total_blocks = sequences * -(-context_length // BLOCK_TOKENS)
    else:
        total_blocks = -(-cache_tokens // BLOCK_TOKENS)
    step_tokens = max(USUAL_STEP_TOKENS, slots) if step_tokens is None else step_tokens
    step_rows = slots + draft_rows if step_rows is None else step_rows
    stages = fuse(model.program)
    require_stored(model.program, stages, taps)
    weights, weight_bytes = _lay_weights(model.program, model.formats, activations)
    cache, block_bytes = _lay_block(model.program, kv_dtype)
    formats = {name: place.packed for name, place in weights.items()}
    arena = lay_arena(
        model.program,
        stages,
        formats,
        threads=threads,
        step_tokens=step_tokens,
        step_rows=step_rows,
        chunks=-(-context_length // CHUNK_TOKENS),
        taps=taps,
    )
    drafted = (0, 0) if draft is None else (slots, draft_rows)
    deciding = model.config.vocabulary_size, step_rows, *drafted
    plan = MemoryPlan(
        stages,
        weights,
        weight_bytes,
        cache,
        block_bytes,
        total_blocks,
        arena,
        kv_dtype,
        activations,
        threads,
        context_length,
        slots,
        step_tokens,
        step_rows,
        process_bytes(
            model.config.vocabulary_size, model.merges, slots, total_blocks * BLOCK_TOKENS
        )
        + lookup_tokens * LOOKUP_TOKEN_BYTES
        + (leviathan_bytes(*deciding) if leviathan else 0),
        frozenset(taps),
    )
    return plan if draft is None else replace(plan, draft=_draft_plan(draft, plan))


def _draft_plan(draft: Model, target: MemoryPlan) -> MemoryPlan:
    """The process is the target's."""
    plan = plan_memory(
        draft,
        context_length=min(draft.config.context_length, target.context_length),
        cache_tokens=target.cache_tokens,
        slots=target.slots,
        kv_dtype=target.kv_dtype,
        activations=target.activations,
        threads=target.threads,
        step_tokens=max(CATCH_UP_TOKENS, 2 * target.slots),
    )
    return replace(plan, process_bytes=0)


def require_room(plan: MemoryPlan, room: int | None = None) -> None:
    """Raises `DoesNotFitError`, saying what would fit, unless `room` bytes hold the plan.

    None means what this machine, or the container it runs in, can give now.
    """
    room = available_memory() if room is None else room
    needed = plan.needed_bytes
    if needed <= room:
        return
    draft = f"draft {plan.draft_bytes / MIB:,.0f}, " if plan.draft else ""
    raise DoesNotFitError(
        f"the model needs {needed / MIB:,.0f} MiB (weights {plan.weight_bytes / MIB:,.0f}, cache "
        f"of {plan.cache_tokens:,} tokens {plan.cache_bytes / MIB:,.0f}, working memory of "
        f"{plan.slots:,} slots {plan.arena.total_bytes / MIB:,.0f}, {draft}process "
        f"{plan.process_bytes / MIB:,.0f}), but {room / MIB:,.0f} MiB are available: "
        f"{_way_out(plan, room - needed)}"
    )


def _way_out(plan: MemoryPlan, left: int) -> str:
    """What to ask for instead, where `left` bytes, a negative number, remain of the room."""
    left += plan.total_blocks * plan.block_bytes_in_all
    tokens = left // plan.block_bytes_in_all * BLOCK_TOKENS
    if tokens > 0:
        flag = f"--cache-tokens {tokens}"
        if tokens < plan.context_length <= plan.cache_tokens < plan.context_length + BLOCK_TOKENS:
            flag = f"--context {tokens}, or {flag} where many texts share it"
        advice = f"a cache of {tokens} tokens fits ({flag})"
        if plan.kv_dtype not in (KVDtype.INT8, KVDtype.INT4_KEYS):
            advice += "; an int8 cache (--kv-dtype int8) halves one of 16 bits"
        return advice
    smaller = "a smaller or more strongly quantised model"
    if plan.draft is not None:
        smaller += ", or no draft (--speculate ngram)"
    arenas = sum(each.arena.total_bytes for each in (plan, plan.draft) if each is not None)
    if plan.slots > 1 and left + arenas + (plan.slots - 1) * SLOT_BYTES >= plan.block_bytes_in_all:
        return f"no cache fits: use fewer slots (--slots), or {smaller}"
    return f"no cache fits: use {smaller}"


def bytes_per_token(program: Program, kv_dtype: KVDtype) -> int:
    """Bytes of cache that one token of context takes, over all layers, by the formula."""
    return sum(
        packed.token_bytes(kv_dtype, layer.kv_heads, layer.head_dim) for layer in program.cache
    )


def kv_dtypes(program: Program) -> tuple[KVDtype, ...]:
    """The caches that can hold the heads of this model."""
    return packed.holding([layer.head_dim for layer in program.cache])


def _lay_weights(
    program: Program, formats: Mapping[str, str], activations: ActivationMode | None
) -> tuple[dict[str, WeightPlace], int]:
    places: dict[str, WeightPlace] = {}
    offset = 0
    for name, weight in program.weights.items():
        stored = formats[name]
        if len(weight.shape) == 1:
            chosen, size = None, weight.shape[0] * 4
        else:
            chosen = packed_format(stored, activations, inputs=weight.shape[1])
            size = packed.matrix_bytes(chosen, *weight.shape)
        places[name] = WeightPlace(offset, size, stored, chosen)
        offset += round_up(size, 64)
    return places, offset


def _lay_block(program: Program, kv_dtype: KVDtype) -> tuple[tuple[CachePlace, ...], int]:
    """A block holds 32 positions of every layer, one layer after another, head by head."""
    packed.refuse_heads(kv_dtype, [layer.head_dim for layer in program.cache])
    places: list[CachePlace] = []
    offset = 0
    for layer in program.cache:
        size = layer.kv_heads * packed.head_block_bytes(kv_dtype, layer.head_dim)
        places.append(CachePlace(offset, size))
        offset += size
    return tuple(places), offset
