"""What a step multiplies and what it must read, stage by stage: counted, not measured.

These are what the engine's own algorithm needs at least: each stage reads its weights once a step,
and each sequence's visible keys and values once. Divided by what the machine delivers, they say how
long a step must take.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from farthing.core import ActivationMode, KVDtype
from farthing.plan import packed
from farthing.plan.stages import AttendStage, EmbedStage, Stage, stage_weights

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from farthing.models.program import CacheLayer, Program
    from farthing.plan.memory import MemoryPlan

    Span = tuple[int, int]
    """A sequence's share of a step: its first position, and how many tokens from there on."""


@dataclass(frozen=True)
class Cost:
    """Multiply-accumulates by the mode they run in, and bytes of weights and of cache read.

    Attention counts as query times key, and weight times value: in bf16 for a cache of bf16, in
    fp32 for every other.
    """

    products: Mapping[ActivationMode, int] = field(default_factory=dict)
    weight_bytes: int = 0
    cache_bytes: int = 0

    def __add__(self, other: Cost) -> Cost:
        products = Counter(self.products)
        products.update(other.products)
        return Cost(
            products, self.weight_bytes + other.weight_bytes, self.cache_bytes + other.cache_bytes
        )

    def __sub__(self, other: Cost) -> Cost:
        products = Counter(self.products)
        products.subtract(other.products)
        return Cost(
            products, self.weight_bytes - other.weight_bytes, self.cache_bytes - other.cache_bytes
        )

    def __mul__(self, times: int) -> Cost:
        return Cost(
            {mode: times * count for mode, count in self.products.items()},
            times * self.weight_bytes,
            times * self.cache_bytes,
        )

    @property
    def total_products(self) -> int:
        """Multiply-accumulates of all modes."""
        return sum(self.products.values())

    def memory_seconds(self, bytes_per_second: float) -> float:
        """How long reading takes at that speed."""
        return (self.weight_bytes + self.cache_bytes) / bytes_per_second

    def arithmetic_seconds(self, products_per_second: Mapping[ActivationMode, float]) -> float:
        """How long multiplying takes at these speeds, one mode after the other."""
        return sum(count / products_per_second[mode] for mode, count in self.products.items())


def total(costs: Iterable[Cost]) -> Cost:
    """The sum."""
    return sum(costs, Cost())


@dataclass(frozen=True)
class Work:
    """A step's cost, apart by what it grows with.

    That is of the stages that see every token fed, of those that see the `wanted` rows alone (the
    head), and of attention.
    """

    tokens: Cost
    rows: Cost
    attention: Cost
    wanted: int

    def __add__(self, other: Work) -> Work:
        return Work(
            self.tokens + other.tokens,
            self.rows + other.rows,
            self.attention + other.attention,
            self.wanted + other.wanted,
        )

    def __sub__(self, other: Work) -> Work:
        return Work(
            self.tokens - other.tokens,
            self.rows - other.rows,
            self.attention - other.attention,
            self.wanted - other.wanted,
        )

    def __mul__(self, times: int) -> Work:
        return Work(
            self.tokens * times, self.rows * times, self.attention * times, self.wanted * times
        )

    @property
    def total(self) -> Cost:
        """All of it."""
        return self.tokens + self.rows + self.attention


def stage_costs(
    program: Program, plan: MemoryPlan, spans: Sequence[Span], rows: int
) -> tuple[Cost, ...]:
    """One cost for each of `plan.stages`, for a step of these `spans` that wants `rows` rows."""
    tokens = sum(count for _, count in spans)
    return tuple(_cost(stage, program, plan, spans, tokens, rows) for stage in plan.stages)


def step_work(program: Program, plan: MemoryPlan, spans: Sequence[Span], rows: int) -> Work:
    """What `stage_costs` gives, summed."""
    tokens: list[Cost] = []
    wanted: list[Cost] = []
    attention: list[Cost] = []
    for stage, cost in zip(plan.stages, stage_costs(program, plan, spans, rows), strict=True):
        if isinstance(stage, AttendStage):
            attention.append(cost)
        else:
            (wanted if program.values[stage.output].wanted else tokens).append(cost)
    return Work(total(tokens), total(wanted), total(attention), rows)


def prompt_costs(program: Program, plan: MemoryPlan, tokens: int) -> tuple[Cost, ...]:
    """One cost a stage for a prompt up to its last token's logits, in steps as long as allowed."""
    costs: list[tuple[Cost, ...]] = []
    for start in range(0, tokens, plan.step_tokens):
        count = min(plan.step_tokens, tokens - start)
        wanted = int(start + count == tokens)
        costs.append(stage_costs(program, plan, [(start, count)], wanted))
    return tuple(total(each) for each in zip(*costs, strict=True))


def decode_costs(program: Program, plan: MemoryPlan, contexts: Sequence[int]) -> tuple[Cost, ...]:
    """One cost a stage for a token of each sequence, which is the last of its context."""
    return stage_costs(program, plan, [(context - 1, 1) for context in contexts], len(contexts))


def _cost(
    stage: Stage,
    program: Program,
    plan: MemoryPlan,
    spans: Sequence[Span],
    tokens: int,
    rows: int,
) -> Cost:
    if isinstance(stage, AttendStage):
        attributes = stage.ops[0].attributes
        layer = program.cache[attributes["layer"]]
        pairs = sum(_visible_pairs(layer, span) for span in spans)
        multiplied = 2 * attributes["heads"] * layer.head_dim * pairs
        token_bytes = packed.token_bytes(plan.kv_dtype, layer.kv_heads, layer.head_dim)
        positions = sum(_visible_positions(layer, span) for span in spans)
        mode = ActivationMode.BF16 if plan.kv_dtype is KVDtype.BF16 else ActivationMode.FP32
        return Cost({mode: multiplied}, 0, token_bytes * positions)
    count = rows if program.values[stage.output].wanted else tokens
    if isinstance(stage, EmbedStage):
        vocabulary = program.weights[stage.table].shape[0]
        return Cost({}, plan.weights[stage.table].bytes // vocabulary * min(count, vocabulary))
    if count == 0:
        return Cost()
    products: Counter[ActivationMode] = Counter()
    read = 0
    for name in stage_weights(stage):
        place = plan.weights[name]
        read += place.bytes
        if place.packed is not None:  # a matrix
            outputs, inputs = program.weights[name].shape
            products[place.packed.mode] += count * outputs * inputs
    return Cost(products, read)


def _visible_pairs(layer: CacheLayer, span: Span) -> int:
    """Pairs of a token of the span and a position it attends to."""
    first, count = span
    most = layer.window or first + count
    # Up to `most` positions are seen by a rising number of tokens, and by each after that.
    rising = min(max(most - first, 0), count)
    return rising * first + rising * (rising + 1) // 2 + (count - rising) * most


def _visible_positions(layer: CacheLayer, span: Span) -> int:
    """Positions that any token of the span attends to."""
    first, count = span
    oldest = max(0, first + 1 - layer.window) if layer.window else 0
    return first + count - oldest
