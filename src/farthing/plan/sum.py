"""The sum: every byte that a model will take, by what it is for and how the figure is known.

Anonymous memory is what no file stands behind: it must fit. The page cache holds the model's file
while it is read; the system takes such pages back when it needs them, so they are told, not added.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farthing.core import KVDtype
    from farthing.models.program import CacheLayer, Program
    from farthing.plan.memory import MemoryPlan
    from farthing.plan.shapes import Shape

Basis = Literal["measured", "derived", "assumed"]
Kind = Literal["anonymous", "page cache", "disk"]


@dataclass(frozen=True)
class Part:
    """So many bytes for one purpose. `group` is the line of the short sum that it belongs to.

    `basis`: "derived" follows from the file's header alone, "measured" was measured where
    `detail` says, "assumed" is neither.
    """

    group: str
    name: str
    bytes: int
    basis: Basis
    detail: str
    kind: Kind = "anonymous"


@dataclass(frozen=True)
class MemorySum:
    """All parts. What `total` counts must fit into memory."""

    parts: tuple[Part, ...]

    @property
    def total(self) -> int:
        """Anonymous memory."""
        return sum(part.bytes for part in self.parts if part.kind == "anonymous")

    def group(self, name: str) -> int:
        """Bytes of one group."""
        return sum(part.bytes for part in self.parts if part.group == name)

    def groups(self) -> dict[str, int]:
        """Anonymous bytes by group, in order."""
        sums: dict[str, int] = {}
        for part in self.parts:
            if part.kind == "anonymous":
                sums[part.group] = sums.get(part.group, 0) + part.bytes
        return sums


def plan_sum(
    plan: MemoryPlan,
    program: Program,
    *,
    file_bytes: int = 0,
    reserve: int = 0,
    prefix_store: int = 0,
) -> MemorySum:
    """What `plan` allocates, part by part, and what comes on top of it.

    `file_bytes` is the size of the model's files; `reserve` is kept free on top; `prefix_store`
    are the most bytes of a store on disk.
    """
    parts = [*_weights(plan), *_cache(plan, program.cache), *_working(plan, program)]
    if plan.draft is not None:
        parts += _draft(plan.draft)
    parts.append(
        Part(
            "process",
            "Python, tokenizer, texts",
            plan.process_bytes,
            "measured",
            f"on Linux x86-64, for {_counted(plan.slots, 'slot')}, texts of {plan.cache_tokens:,} "
            f"tokens and a vocabulary of {program.vocabulary_size:,}",
        )
    )
    if reserve:
        parts.append(Part("reserve", "reserve", reserve, "assumed", "kept free, as asked"))
    if file_bytes:
        parts.append(
            Part(
                "file",
                "the model's file",
                file_bytes,
                "derived",
                "mapped while it is read, each matrix given back when it is packed",
                "page cache",
            )
        )
    if prefix_store:
        parts.append(
            Part(
                "store",
                "prefix store",
                min(prefix_store, plan.cache_bytes),
                "derived",
                "a file: the cache's blocks, saved at the end",
                "disk",
            )
        )
    return MemorySum(tuple(parts))


def shape_sum(
    shape: Shape, weights: str, bits: float, kv_dtype: KVDtype, tokens: int, reserve: int
) -> MemorySum:
    """The sum of textbooks for a model of which only sizes are known."""
    return MemorySum(
        (
            Part(
                "weights",
                f"weights {weights}",
                shape.weight_bytes(bits),
                "derived",
                f"{shape.parameters:,} parameters of {bits:g} bits",
            ),
            Part(
                "cache",
                f"cache of {tokens:,} tokens",
                -(-tokens // 32) * shape.block_bytes(kv_dtype),
                "derived",
                f"{shape.layers} layers of {shape.kv_heads} x {shape.head_dim}, {kv_dtype.value}, "
                "in blocks of 32",
            ),
            Part("reserve", "reserve", reserve, "assumed", "working memory, process, system"),
        )
    )


def _weights(plan: MemoryPlan) -> Iterator[Part]:
    """By stored format, what it is held as, and how many tensors."""
    sizes: Counter[tuple[str, str]] = Counter()
    tensors: Counter[tuple[str, str]] = Counter()
    ends = [*(place.offset for place in plan.weights.values()), plan.weight_bytes][1:]
    for place, end in zip(plan.weights.values(), ends, strict=True):
        packed = place.packed
        held = "vectors" if packed is None else f"{packed.name} x {packed.mode.value}"
        sizes[place.stored, held] += end - place.offset
        tensors[place.stored, held] += 1
    for (stored, held), size in sizes.items():
        count = tensors[stored, held]
        detail = f"{_counted(count, 'tensor')}, held as {held}"
        yield Part("weights", f"weights {stored}", size, "derived", detail)


def _cache(plan: MemoryPlan, layers: tuple[CacheLayer, ...]) -> Iterator[Part]:
    """By kind of layer: grouped heads, head sizes and windows may differ by layer."""
    sizes: Counter[CacheLayer] = Counter()
    for layer, place in zip(layers, plan.cache, strict=True):
        sizes[layer] += place.bytes * plan.total_blocks
    counts = Counter(layers)
    for layer, size in sizes.items():
        heads = f"{_counted(layer.kv_heads, 'KV head')} of {layer.head_dim}"
        window = (
            f", which attend to the latest {layer.window:,} and keep all" if layer.window else ""
        )
        yield Part(
            "cache",
            f"cache of {plan.cache_tokens:,} tokens",
            size,
            "derived",
            f"{_counted(counts[layer], 'layer')}, {heads}, {plan.kv_dtype.value}{window}",
        )


def _working(plan: MemoryPlan, program: Program) -> Iterator[Part]:
    """The arena, which is laid out in this order."""
    arena = plan.arena
    ends = {place.offset + place.bytes for place in arena.values.values()}
    rotation = min([*arena.ropes.values(), arena.shared_prepared[0]])
    sampling = plan.threads * (arena.thread.stride - arena.thread.sampling)
    logits = arena.values[program.output].bytes
    steps = f"steps of {plan.step_tokens:,} tokens, {_counted(plan.step_rows, 'row')} wanted"
    for name, size, detail in (
        ("activations", max(rotation, *ends), f"{steps}; logits take {logits / 2**20:,.1f} MiB"),
        ("rotation tables", arena.shared_prepared[0] - rotation, steps),
        ("prepared inputs", arena.partials - arena.shared_prepared[0], "codes, scales, sums"),
        ("attention's partials", arena.hidden - arena.partials, "chunks of 256 positions"),
        ("hidden states", arena.scratch - arena.hidden, "for embeddings"),
        (
            "scratch",
            arena.total_bytes - arena.scratch - sampling,
            _counted(plan.threads, "thread"),
        ),
        ("sampler", sampling, f"{program.vocabulary_size:,} logits a thread"),
    ):
        yield Part("working", name, size, "derived", detail)


def _draft(plan: MemoryPlan) -> Iterator[Part]:
    """A model that guesses; its cache is in proportion to its target's, and so of that group."""
    formats = {place.packed.name for place in plan.weights.values() if place.packed is not None}
    held = f"held as {', '.join(sorted(formats))}"
    yield Part("draft", "draft: weights", plan.weight_bytes, "derived", held)
    tokens = f"{plan.cache_tokens:,} tokens, {plan.kv_dtype.value}"
    yield Part("cache", "draft: cache", plan.cache_bytes, "derived", tokens)
    steps = f"steps of {plan.step_tokens:,} tokens, {_counted(plan.step_rows, 'row')} wanted"
    yield Part("draft", "draft: working memory", plan.arena.total_bytes, "derived", steps)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
