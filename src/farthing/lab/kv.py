"""Bytes of the key-value cache: the formula, what is allocated, and what is reserved in vain.

Bytes per token of context = 2 * layers * KV heads * head dimensions * bytes per element. Only the
total of resident tokens counts: not how many users they belong to.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import BLOCK_TOKENS, KVDtype
from farthing.engine.kv import blocks_for
from farthing.engine.simulate import skewed_lengths
from farthing.lab.table import Column, Expectation, Plot, Row, Table
from farthing.plan.memory import bytes_per_token, kv_dtypes
from farthing.plan.packed import token_bytes
from farthing.plan.shapes import Shape

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from farthing.lab.subject import Subject
    from farthing.models.load import Model
    from farthing.models.program import CacheLayer

GIB, MIB = 1 << 30, 1 << 20

SOME_TOKENS = 295
"""No whole number of blocks: so contiguous tensors and blocks take different amounts."""

SAME_TOKENS = ((32, 2048), (64, 1024), (128, 512))
"""Users and the context of each: 65,536 resident tokens every time."""

LARGE_CONTEXTS = (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000)
PROMPT_TOKENS = 64

_USUAL_CONTEXT = 2048
"""What is often reserved for each text; of a model that has more."""


_SMALL, _LARGE, _LARGER = 494_000_000, 7_000_000_000, 13_000_000_000
LARGE = Shape("7B, 32 query heads share 8", _LARGE, layers=32, kv_heads=8, head_dim=128, heads=32)
LARGE_UNSHARED = Shape("7B, a KV head for each of 32", _LARGE, layers=32, kv_heads=32, head_dim=128)
SHAPES = (
    Shape("0.5B, 14 query heads share 2", _SMALL, layers=24, kv_heads=2, head_dim=64, heads=14),
    Shape("0.5B, a KV head for each of 14", _SMALL, layers=24, kv_heads=14, head_dim=64),
    LARGE,
    LARGE_UNSHARED,
    Shape("13B, a KV head for each of 40", _LARGER, layers=40, kv_heads=40, head_dim=128),
)
"""Published shapes, beside which this model's stands."""


def measure(subject: Subject) -> Iterator[Table]:
    """What this model's cache takes, other layouts, a large model's cache, and waste."""
    yield allocated(subject)
    yield layouts(subject.model.program.cache)
    yield large_model()
    own = bytes_per_token(subject.model.program, subject.kv_dtype)
    yield waste(subject.model.config.context_length, own, subject.seed)


def allocated(subject: Subject) -> Table:
    """Allocates this model's cache for real, in every type that holds its heads.

    Around the cache stands only the model's first operation: nothing but its weight is packed.
    """
    program = subject.model.program
    tokens = min(SOME_TOKENS, subject.model.config.context_length)
    rows = []
    exact = True
    model = cache_alone(subject.model)
    held_types = kv_dtypes(program)
    for kv_dtype in held_types:
        subject.progress.phase(f"allocate a cache of {kv_dtype.value}")
        formula = bytes_per_token(program, kv_dtype)
        with subject.native(tokens, kv_dtype=kv_dtype, model=model) as backend:
            paged = backend.cache_bytes().nbytes
        held = blocks_for(tokens) * BLOCK_TOKENS
        exact &= paged == held * formula
        rows.append(
            (
                kv_dtype.value,
                formula,
                tokens * formula,
                contiguous_bytes(program.cache, kv_dtype, tokens),
                held * formula,
                paged,
            )
        )
    return Table(
        "allocated",
        f"{tokens} tokens of context: the formula beside what is allocated",
        (
            Column("cache"),
            Column("a token", "bytes"),
            Column("by the formula", "bytes"),
            Column("contiguous tensors", "bytes"),
            Column(f"whole blocks of {BLOCK_TOKENS}, by the formula", "bytes"),
            Column("allocated in blocks", "bytes"),
        ),
        tuple(rows),
        f"A token of context takes {bytes_per_token(program, subject.kv_dtype):,} bytes in "
        f"{subject.kv_dtype.value}; blocks allocate what {blocks_for(tokens) * BLOCK_TOKENS} "
        + (
            "tokens need, to the byte."
            if exact
            else "tokens need and some bytes of alignment more."
        ),
        Expectation("the allocator takes what the formula says", exact),
        notes=(
            (
                "contiguous tensors are what a plain implementation grows; a quantised cache has "
                "no such form here"
            ),
            *(
                f"skipped: {each.value}, which cannot hold heads of this size"
                for each in KVDtype
                if each not in held_types
            ),
        ),
    )


def cache_alone(model: Model) -> Model:
    """The model's cache around no more than its first operation, which embeds tokens."""
    program = model.program
    first = program.ops[0]
    weights = {name: program.weights[name] for name in first.weights}
    return replace(
        model, program=replace(program, ops=(first,), weights=weights, output=first.output)
    )


def contiguous_bytes(cache: Sequence[CacheLayer], kv_dtype: KVDtype, tokens: int) -> int | None:
    """Of one array of keys and one of values a layer, made for real; None for a quantised cache."""
    sizes = {KVDtype.FP32: np.float32, KVDtype.FP16: np.float16, KVDtype.BF16: np.uint16}
    if kv_dtype not in sizes:
        return None
    return sum(
        np.empty((tokens, layer.kv_heads * layer.head_dim), sizes[kv_dtype]).nbytes
        for layer in cache
        for _ in ("keys", "values")
    )


def layouts(cache: Sequence[CacheLayer]) -> Table:
    """Several published shapes and this model's, in fp16, at the same number of resident tokens."""
    kv_dtype = KVDtype.FP16
    resident = [users * context for users, context in SAME_TOKENS]
    own = sum(token_bytes(kv_dtype, layer.kv_heads, layer.head_dim) for layer in cache)
    named = [
        ("this model", own),
        *((shape.name, shape.bytes_per_token(kv_dtype)) for shape in SHAPES),
    ]
    totals = [[users * context * each / MIB for users, context in SAME_TOKENS] for _, each in named]
    rows: list[Row] = [
        (name, each, *total) for (name, each), total in zip(named, totals, strict=True)
    ]
    grouped, full = named[1][1], named[2][1]
    return Table(
        "layouts",
        "Bytes of cache by head layout, in fp16, and what many users take together",
        (
            Column("model"),
            Column("a token", "bytes"),
            *(
                Column(f"{users} users of {context:,}", "MiB", ",g")
                for users, context in SAME_TOKENS
            ),
        ),
        tuple(rows),
        f"Sharing KV heads divides the cache by an integer: {full:,} bytes a token become "
        f"{grouped:,}, {full / grouped:g} times less. However many users {resident[0]:,} "
        f"resident tokens belong to, they take {totals[1][0]:,.0f} MiB of the "
        "small grouped model's.",
        Expectation(
            "only the total of resident tokens counts",
            len(set(resident)) == 1 and all(len(set(total)) == 1 for total in totals),
        ),
    )


def large_model() -> Table:
    """The cache of one user of a 7B model against its context, beside the weights in fp16."""
    kv_dtype = KVDtype.FP16
    weights = LARGE.weight_bytes(16) / GIB
    rows = tuple(
        (
            tokens,
            tokens * LARGE.bytes_per_token(kv_dtype) / GIB,
            tokens * LARGE_UNSHARED.bytes_per_token(kv_dtype) / GIB,
            weights,
        )
        for tokens in LARGE_CONTEXTS
    )
    last = rows[-1]
    return Table(
        "large",
        "One user's cache of a 7B model (32 layers, heads of 128) in fp16, beside its weights",
        (
            Column("context", "tokens"),
            Column("8 KV heads", "GiB", ",.2f"),
            Column("32 KV heads", "GiB", ",.2f"),
            Column("weights", "GiB", ",.1f"),
        ),
        rows,
        f"At {last[0]:,} tokens one user's cache takes {last[1]:.1f} GiB, more than the "
        f"{weights:.1f} GiB of the weights.",
        Expectation("a long context outgrows the weights", last[1] > weights),
        plots=(Plot("lines", "context", ("8 KV heads", "32 KV heads", "weights"), "log", "log"),),
    )


def waste(context_length: int, bytes_of_token: int, seed: int) -> Table:
    """A load of 64 texts: reserving the longest context for each against blocks."""
    texts = [PROMPT_TOKENS + length for length in skewed_lengths(seed)]
    used = sum(texts)
    reservations = [("blocks", sum(blocks_for(text) for text in texts) * BLOCK_TOKENS)]
    contexts = [("the longest text of this load", max(texts))]
    if context_length > _USUAL_CONTEXT:
        contexts.append((f"{_USUAL_CONTEXT:,} tokens", _USUAL_CONTEXT))
    contexts.append(("the model's context", context_length))
    reservations += [(name, len(texts) * context) for name, context in contexts]
    rows = tuple(
        (
            name,
            tokens,
            tokens * bytes_of_token / MIB,
            (tokens - used) * bytes_of_token / MIB,
            100 * used / tokens,
        )
        for name, tokens in reservations
    )
    return Table(
        "waste",
        f"Reserving for {len(texts)} texts of {min(texts)} to {max(texts)} tokens: what is used",
        (
            Column("reserved for each"),
            Column("reserved", "tokens"),
            Column("room", "MiB", ",.1f"),
            Column("never used", "MiB", ",.1f"),
            Column("used", "%", ".1f"),
        ),
        rows,
        f"Blocks use {rows[0][4]:.0f} % of what they reserve; reserving the model's whole context "
        f"uses {rows[-1][4]:.1f} % and wastes {rows[-1][3]:,.0f} MiB.",
        Expectation(
            "blocks waste less than a block for each text, reservations most of what they take",
            reservations[0][1] - used < len(texts) * BLOCK_TOKENS and rows[-1][4] < 50,
        ),
        notes=(
            (
                f"outputs of 1,874 tokens in all, median 18, longest 231, after prompts of "
                f"{PROMPT_TOKENS}; seed {seed}"
            ),
        ),
        plots=(Plot("bars", "reserved for each", ("room", "never used"), "names", "log"),),
    )
