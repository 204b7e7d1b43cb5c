"""The working memory of a step: where each value lives between stages, and all scratch.

Values share memory when their lifetimes do not meet; an element-wise stage writes over the operand
that ends with it. Sizes follow from the most tokens and the most wanted rows of a step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from farthing.core import ActivationMode
from farthing.plan import packed
from farthing.plan.packed import TILE, PackedFormat, round_up
from farthing.plan.stages import (
    AttendStage,
    GateStage,
    HeadProduct,
    HeadsStage,
    LinearStage,
    RowStage,
    Stage,
    head_source,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from farthing.models.program import Program

# The native core's constants of the same names (program.h, stages.cpp, kernels.h).
ROW_BLOCK = 128
PRIVATE_ROWS = 4
SPLIT_ITEMS = 4
QUERY_TILE = 8
UNIT_COLUMNS = 64

_MODES = (ActivationMode.FP32, ActivationMode.BF16, ActivationMode.INT8)


@dataclass(frozen=True)
class ValuePlace:
    """Where a value lives: rows of `stride` floats, or prepared rows where `mode` is set.

    `input_scale` is the one scale of all its prepared rows, where they share one.
    """

    offset: int
    bytes: int
    width: int
    stride: int
    wanted: bool
    mode: ActivationMode | None
    input_scale: float | None


@dataclass(frozen=True)
class Scratch:
    """One thread's scratch: offsets of its parts, and the bytes of the whole."""

    row: int
    tiles: tuple[int, int]
    state: int
    prepared: tuple[int, int, int]
    sampling: int
    stride: int


@dataclass(frozen=True)
class Arena:
    """Offsets in the arena. `ropes` maps each distinct table of frequencies to its tables.

    `hidden` has room for the hidden states of a step's tokens, `hidden_width` floats each; where
    the width is 0, the model gives none.
    """

    values: Mapping[str, ValuePlace]
    ropes: Mapping[tuple[float, ...], int]
    shared_prepared: tuple[int, int, int]
    partials: int
    partial_rows: int
    hidden: int
    hidden_width: int
    scratch: int
    thread: Scratch
    max_inputs: int
    unit_columns: int
    max_group: int
    max_head_dim: int
    total_bytes: int


class _Cursor:
    """Hands out consecutive regions, each starting on 64 bytes."""

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset

    def take(self, size: int) -> int:
        start = self.offset
        self.offset += round_up(size, 64)
        return start


def lay_arena(
    program: Program,
    stages: tuple[Stage, ...],
    formats: Mapping[str, PackedFormat | None],
    *,
    threads: int,
    step_tokens: int,
    step_rows: int,
    chunks: int,
    taps: Collection[str] = (),
) -> Arena:
    """Lays out the arena for steps of at most `step_tokens` tokens and `step_rows` wanted rows.

    `formats` are the packed formats of matrices; `chunks` is how many chunks of attention a full
    context has. The values `taps` are kept, in float32, to the end of a step.
    """
    values, end = _lay_values(program, stages, formats, step_tokens, step_rows, taps)
    cursor = _Cursor(end)
    ropes: dict[tuple[float, ...], int] = {}
    for frequencies in _frequencies(stages):
        if frequencies not in ropes:
            ropes[frequencies] = cursor.take(2 * 4 * step_tokens * len(frequencies))

    inputs = [width for width, _ in _product_inputs(program, stages, formats)]
    max_inputs = max([*inputs, *(value.width for value in program.values.values())])
    modes = {mode for _, mode in _product_inputs(program, stages, formats)}
    rows = max(step_tokens, step_rows)

    def prepared(into: _Cursor, count: int) -> tuple[int, int, int]:
        sizes = (packed.prepared_bytes(m, count, max(inputs)) if m in modes else 0 for m in _MODES)
        first, second, third = (into.take(size) for size in sizes)
        return first, second, third

    shared = prepared(cursor, rows)
    max_group = max(_groups(stages), default=1)
    max_head_dim = max((layer.head_dim for layer in program.cache), default=TILE)
    row_bytes = 4 * packed.partial_floats(max_head_dim)
    partial_rows = SPLIT_ITEMS * threads * chunks * max_group if threads > 1 else 0
    partials = cursor.take(partial_rows * row_bytes)

    source = head_source(stages)
    hidden_width = 0 if source is None else program.values[source.value].width
    hidden = cursor.take(4 * step_tokens * hidden_width)

    unit_columns = max([UNIT_COLUMNS, *(_head_columns(layer.head_dim) for layer in program.cache)])
    inner = _Cursor()
    thread = Scratch(
        row=inner.take(4 * round_up(max_inputs, TILE)),
        tiles=(
            inner.take(4 * ROW_BLOCK * unit_columns),
            inner.take(4 * ROW_BLOCK * unit_columns),
        ),
        state=inner.take(2 * QUERY_TILE * max_group * row_bytes),
        prepared=prepared(inner, PRIVATE_ROWS),
        sampling=inner.take(packed.sampling_scratch_bytes(program.vocabulary_size)),
        stride=round_up(inner.offset, 4096),
    )
    scratch = cursor.take(threads * thread.stride)
    return Arena(
        values,
        ropes,
        shared,
        partials,
        partial_rows,
        hidden,
        hidden_width,
        scratch,
        thread,
        max_inputs,
        unit_columns,
        max_group,
        max_head_dim,
        cursor.offset,
    )


def _head_columns(head_dim: int) -> int:
    """Columns of the smallest run of whole heads that is whole tiles and at least 64 wide."""
    columns = head_dim
    while columns % TILE or columns < UNIT_COLUMNS:
        columns += head_dim
    return columns


def _products(stage: Stage) -> tuple[str, ...]:
    """The matrices that a stage multiplies its source with."""
    if isinstance(stage, LinearStage):
        return (stage.product.weight,)
    if isinstance(stage, GateStage):
        return (stage.gate.weight, stage.up.weight)
    if isinstance(stage, HeadsStage):
        return tuple(head.product.weight for head in (stage.query, stage.key, stage.value))
    return ()


def _product_inputs(
    program: Program, stages: tuple[Stage, ...], formats: Mapping[str, PackedFormat | None]
) -> Iterator[tuple[int, ActivationMode]]:
    """Widths and modes of what products read."""
    for stage in stages:
        for name in _products(stage):
            chosen = formats[name]
            assert chosen is not None, f"{name} is a matrix"
            yield program.weights[name].shape[1], chosen.mode


def _groups(stages: tuple[Stage, ...]) -> Iterator[int]:
    for stage in stages:
        if isinstance(stage, AttendStage):
            attributes = stage.ops[0].attributes
            yield attributes["heads"] // attributes["kv_heads"]


def _frequencies(stages: tuple[Stage, ...]) -> Iterator[tuple[float, ...]]:
    for stage in stages:
        heads: tuple[HeadProduct, ...] = ()
        if isinstance(stage, HeadsStage):
            heads = (stage.query, stage.key, stage.value)
        for head in heads:
            if head.rope is not None:
                yield head.rope
        if isinstance(stage, RowStage) and stage.kind == "rope":
            yield stage.ops[0].attributes["frequencies"]


def _lay_values(
    program: Program,
    stages: tuple[Stage, ...],
    formats: Mapping[str, PackedFormat | None],
    step_tokens: int,
    step_rows: int,
    taps: Collection[str],
) -> tuple[dict[str, ValuePlace], int]:
    """Places values first-fit, the largest first, and returns the end of the last."""
    born: dict[str, int] = {}
    dies: dict[str, int] = {}
    for index, stage in enumerate(stages):
        for name in stage.reads:
            dies[name] = index
        born[stage.output] = index
        dies[stage.output] = index
    for name in (program.output, *taps):
        dies[name] = len(stages)

    # A value that is written over another's memory joins that one's buffer.
    buffer = {name: name for name in born}
    for index, stage in enumerate(stages):
        over = _written_over(stage)
        if over is not None and dies[over] == index:
            buffer[stage.output] = buffer[over]

    unprepared = (None, None)
    prepared = {
        name: unprepared if name in taps else _prepared_as(name, stages, formats) for name in born
    }
    shapes: dict[str, ValuePlace] = {}
    for name in born:
        value = program.values[name]
        rows = step_rows if value.wanted else step_tokens
        stride = round_up(value.width, TILE)
        mode, scale = prepared[name]
        size = 4 * rows * stride if mode is None else packed.prepared_bytes(mode, rows, value.width)
        shapes[name] = ValuePlace(
            0, round_up(size, 64), value.width, stride, value.wanted, mode, scale
        )

    spans: dict[str, tuple[int, int, int]] = {}  # buffer -> (first stage, last stage, bytes)
    for name, owner in buffer.items():
        first, last, size = spans.get(owner, (born[name], dies[name], 0))
        spans[owner] = (
            min(first, born[name]),
            max(last, dies[name]),
            max(size, shapes[name].bytes),
        )
    offsets: dict[str, int] = {}
    for owner in sorted(spans, key=lambda name: (-spans[name][2], spans[name][0])):
        first, last, size = spans[owner]
        taken = sorted(
            (offsets[other], offsets[other] + spans[other][2])
            for other in offsets
            if spans[other][0] <= last and first <= spans[other][1]
        )
        offset = 0
        for start, end in taken:
            if offset + size <= start:
                break
            offset = max(offset, end)
        offsets[owner] = offset
    places = {name: replace(shape, offset=offsets[buffer[name]]) for name, shape in shapes.items()}
    return places, max(offsets[owner] + spans[owner][2] for owner in spans)


def _written_over(stage: Stage) -> str | None:
    """The value whose memory the stage's output may take: read only where it is written.

    A product's source is no such value, since each thread may still be reading all of it.
    """
    if isinstance(stage, LinearStage) and stage.residual != stage.source.value:
        return stage.residual
    if isinstance(stage, RowStage) and stage.kind in ("add", "norm_add", "scale", "zero_columns"):
        return stage.inputs[0]
    return None


def _prepared_as(
    name: str, stages: tuple[Stage, ...], formats: Mapping[str, PackedFormat | None]
) -> tuple[ActivationMode | None, float | None]:
    """The mode and scale in which a gate's output is stored prepared, where its readers agree."""
    found: set[tuple[ActivationMode | None, float | None]] = set()
    for stage in stages:
        if stage.output == name and not isinstance(stage, GateStage):
            return None, None
        if name not in stage.reads:
            continue
        if not isinstance(stage, LinearStage) or stage.source.gain is not None:
            return None, None
        if stage.residual == name:
            return None, None
        chosen = formats[stage.product.weight]
        found.add((None if chosen is None else chosen.mode, stage.source.input_scale))
    return found.pop() if len(found) == 1 else (None, None)
