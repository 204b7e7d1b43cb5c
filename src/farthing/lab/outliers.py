"""Activations: a few dimensions stand far above all others, in the same place layer after layer.

One scale for a whole tensor must reach them, and leaves a handful of levels for the rest. The first
token is told apart: its massive activations are few and depend little on what is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from farthing.forge.calibrate import input_sources
from farthing.lab.outlier_counts import TOP, Int8, Standing, histogram, without_top
from farthing.lab.table import Column, Expectation, Plot, Row, Table
from farthing.lab.taps import residual_values, tapped
from farthing.quant.formats import decode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from farthing.lab.subject import Subject
    from farthing.models.load import Model
    from farthing.models.program import Program
    from farthing.plan.stages import Source

    Values = NDArray[np.float32]

TOKENS = 84
_FAR = 10
"""A dimension that reaches so many times the median stands out."""


def measure(subject: Subject) -> Iterator[Table]:
    """The residual stream layer by layer, a histogram, INT8's levels, and inputs of products."""
    ids = subject.tokens(TOKENS)
    subject.progress.phase("read the text")
    stream = residual_values(subject.model.program)
    readers: dict[Source, list[str]] = {}
    for name, source in input_sources(subject.model.program).items():
        readers.setdefault(source, []).append(name)
    names = {*stream, *(source.value for source in readers)}
    values = tapped(subject, names, ids)
    chosen = max(stream, key=lambda name: Standing.of(values[name][1:]).ratio)
    notes = (f"{len(ids)} tokens of text, read in full precision",)
    yield layers_table({name: values[name] for name in stream}, notes)
    yield histogram_table(chosen, values[chosen], notes)
    yield levels_table(chosen, values[chosen], notes)
    subject.progress.phase("inputs of products")
    parts: dict[str, list[Values]] = {}
    for source, matrices in readers.items():
        part = ", ".join(_part(subject.model.program, name) for name in matrices)
        parts.setdefault(part, []).append(input_of(subject.model, source, values))
    yield inputs_table(parts, notes)


def layers_table(stream: Mapping[str, Values], notes: tuple[str, ...]) -> Table:
    """The residual stream wherever it changes."""
    rows: list[Row] = []
    tops: list[set[int]] = []
    ratios = []
    for name, values in stream.items():
        rest = Standing.of(values[1:])
        shared = len(tops[-1] & set(rest.top)) if tops else None
        tops.append(set(rest.top))
        ratios.append(rest.ratio)
        rows.append(
            (
                name,
                float(np.abs(values[0]).max()),
                rest.largest,
                rest.median,
                rest.ratio,
                ", ".join(map(str, rest.top)),
                shared,
            )
        )
    shares = [row[6] for row in rows if isinstance(row[6], int)]
    kept = sum(shares) / (TOP * len(shares)) if shares else 0.0
    furthest = int(np.argmax(ratios))
    most = max(set().union(*tops), key=lambda each: sum(each in top for top in tops))
    times = sum(most in top for top in tops)
    far = sum(ratio >= _FAR for ratio in ratios)
    return Table(
        "layers",
        "The residual stream: the largest magnitude that each dimension reaches",
        (
            Column("value"),
            Column("largest of the first token", spec=",.2f"),
            Column("largest of the others", spec=",.2f"),
            Column("median dimension", spec=",.3f"),
            Column("largest by median", "times", ",.1f"),
            Column("dimensions that reach furthest"),
            Column("of these the same as before"),
        ),
        tuple(rows),
        f"At {rows[furthest][0]} one dimension reaches {ratios[furthest]:,.0f} times the median "
        f"one; dimension {most} is among the {TOP} furthest at {times} of {len(rows)} places, and "
        f"from one place to the next {kept:.0%} of them stay the same. The first token alone "
        f"reaches {max(float(np.abs(v[0]).max()) for v in stream.values()):,.1f}.",
        Expectation(
            f"a few dimensions reach over {_FAR} times the median, in the same place layer after "
            "layer",
            2 * far > len(rows) and kept > 0.5,
        ),
        notes=(
            *notes,
            "the first token is told apart from the others",
            f"at {far} of {len(rows)} places a dimension reaches {_FAR} times the median",
        ),
        plots=(
            Plot(
                "lines",
                "value",
                ("largest of the first token", "largest of the others", "median dimension"),
                "names",
                "log",
            ),
        ),
    )


def histogram_table(name: str, values: Values, notes: tuple[str, ...]) -> Table:
    """How many dimensions reach how far, where they differ most."""
    peaks, rest = Standing.of(values).peaks, Standing.of(values[1:]).peaks
    rows: list[Row] = []
    for low, high in histogram(np.concatenate((peaks, rest))):
        counts = [int(((each >= low) & (each < high)).sum()) for each in (rest, peaks)]
        rows.append((f"{_edge(low)} to {_edge(high)}", *counts))
    beyond = int((rest >= _FAR * np.median(rest)).sum())
    return Table(
        "histogram",
        f"{name}: dimensions by the largest magnitude that they reach",
        (
            Column("largest magnitude"),
            Column("dimensions"),
            Column("dimensions, first token included"),
        ),
        tuple(rows),
        f"{beyond} of {len(rest)} dimensions reach {_FAR} times the median or more.",
        Expectation("few dimensions stand far out", 0 < beyond <= max(1, len(rest) // 20)),
        notes=notes,
        plots=(
            Plot(
                "bars",
                "largest magnitude",
                ("dimensions", "dimensions, first token included"),
                "names",
                "log",
            ),
        ),
    )


def levels_table(name: str, values: Values, notes: tuple[str, ...]) -> Table:
    """That value in INT8: with one scale, and what leaving out a few things does to it."""
    magnitudes = np.abs(values)
    cases = {
        "one scale": Int8.of(values),
        "one scale, without the first token": Int8.of(values[1:]),
        f"one scale, without the {TOP} furthest dimensions": Int8.of(without_top(values)),
        "a scale for each token": Int8.of(values, axis=1),
        "a scale for each dimension": Int8.of(values, axis=0),
    }
    one, fewer = cases["one scale"], list(cases.values())[2]
    rows = tuple(
        (
            case,
            each.scale,
            each.levels,
            each.levels_per_dimension,
            100 * each.zero_share,
            100 * each.error,
        )
        for case, each in cases.items()
    )
    return Table(
        "levels",
        f"{name} in INT8, of whose 256 levels so many are used",
        (
            Column("scales"),
            Column("scale", spec=",.4f"),
            Column("levels used"),
            Column("levels of the median dimension", spec=",.0f"),
            Column("rounded to zero", "%", ".1f"),
            Column("relative error", "%", ".2f"),
        ),
        rows,
        f"With one scale of {one.scale:.3g} {one.levels} of 256 levels are used, "
        f"{one.levels_per_dimension:.0f} by the median dimension, where the median magnitude is "
        f"{np.median(magnitudes):.2f} and the 99th percentile {np.percentile(magnitudes, 99):.2f}. "
        f"Without the {TOP} furthest dimensions the scale is {fewer.scale:.3g}, "
        f"{one.scale / fewer.scale:.0f} times smaller.",
        Expectation(
            "one scale leaves most of the 256 levels unused, and a few dimensions are the cause",
            one.levels < 128 and one.scale > 4 * fewer.scale,
        ),
        notes=notes,
        plots=(Plot("bars", "scales", ("levels used",), "names"),),
    )


def input_of(model: Model, source: Source, values: Mapping[str, Values]) -> Values:
    """What a product reads: the value, normalised where it is read through a norm."""
    x = values[source.value]
    if source.gain is None:
        return x
    square = np.square(x, dtype=np.float64).mean(axis=1, keepdims=True)
    normed = x / np.sqrt(square + source.epsilon) * decode(model.tensors[source.gain])
    return np.asarray(normed, np.float32)


def inputs_table(parts: Mapping[str, Sequence[Values]], notes: tuple[str, ...]) -> Table:
    """Inputs of products in INT8, with one scale and with one for each token.

    `parts` are the inputs, (tokens, width) each, by the products that read them.
    """
    rows: list[Row] = []
    worst: dict[str, float] = {}
    for part, found in parts.items():
        whole, by_token = [Int8.of(x) for x in found], [Int8.of(x, axis=1) for x in found]
        worst[part] = max(each.zero_share for each in whole)
        rows.append(
            (
                part,
                len(found),
                max(float(np.abs(x).max()) for x in found),
                _middle([float(np.percentile(np.abs(x), 99.9)) for x in found]),
                _middle([each.levels for each in whole]),
                100 * _middle([each.zero_share for each in whole]),
                100 * _middle([each.error for each in whole]),
                100 * _middle([each.zero_share for each in by_token]),
                100 * _middle([each.error for each in by_token]),
            )
        )
    part = max(worst, key=lambda each: worst[each])
    return Table(
        "inputs",
        "Inputs of products in INT8: one scale a tensor, and one a token; medians over the layers",
        (
            Column("read by"),
            Column("inputs"),
            Column("largest", spec=",.1f"),
            Column("99.9th percentile", spec=",.2f"),
            Column("levels used"),
            Column("to zero, a tensor", "%", ".1f"),
            Column("error, a tensor", "%", ".2f"),
            Column("to zero, a token", "%", ".1f"),
            Column("error, a token", "%", ".2f"),
        ),
        tuple(rows),
        f"With one scale for a tensor the input of {part} loses most: up to "
        f"{worst[part]:.1%} of its numbers become zero.",
        Expectation(
            "a scale for each token loses less than one for the tensor",
            all(_number(row[8]) <= _number(row[6]) for row in rows),
        ),
        notes=notes,
        plots=(Plot("bars", "read by", ("error, a tensor", "error, a token"), "names"),),
    )


def _edge(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _part(program: Program, weight: str) -> str:
    """`query` for `layers.3.query.weight`; a head is called so, even where it is the embedding."""
    if any(op.kind == "logits" and op.weights[0] == weight for op in program.ops):
        return "head"
    return weight.removesuffix(".weight").split(".")[-1]


def _middle(values: Sequence[float]) -> float:
    return float(np.median(values))


def _number(cell: object) -> float:
    if not isinstance(cell, float):
        raise TypeError(f"{cell!r} is no number")
    return cell
