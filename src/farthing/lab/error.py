"""What each storage format loses of the weights: relative error, bits, and why formats differ.

The error of a matrix is ||W - W'|| / ||W||, W' being what is read back of W. Two things are told
apart: how many weights share a scale, and where the levels lie.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import FarthingError, StoredTensor
from farthing.files.formats import STORAGE_FORMATS, stored_bytes
from farthing.lab.matrix import Statistics
from farthing.lab.projections import native_precision, precision_warning, projections
from farthing.lab.table import Column, Expectation, Plot, Row, Table
from farthing.quant.formats import FORMATS, decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from farthing.lab.subject import Subject
    from farthing.models.program import Program

SIGMAS = (1, 2, 3)
"""Weights within so many standard deviations of zero: of a normal distribution 68, 95 and 99.7 %.

Those within one are the ordinary ones."""

ONE_SCALE = {"INT8_TENSOR": 8, "INT4_TENSOR": 4}
"""Formats with one scale a matrix, and their bits: whose levels are counted."""

_UNSCALED = ("F32", "F16", "BF16")


@dataclass
class FormatError:
    """What a format did to the matrices so far. `matrices` are relative errors by weight name."""

    name: str
    matrices: dict[str, float] = field(default_factory=dict)
    bytes: int = 0
    weights: int = 0

    @property
    def bits(self) -> float:
        """A weight, scales and all."""
        return 8 * self.bytes / self.weights

    @property
    def mean(self) -> float:
        """Over the matrices, each counting once."""
        return fmean(self.matrices.values())

    @property
    def worst(self) -> str:
        """The matrix with the largest error."""
        return max(self.matrices, key=lambda name: self.matrices[name])


@dataclass(frozen=True)
class Levels:
    """Distinct levels that a matrix's weights land on with one scale, within each of `SIGMAS`.

    `shares` are those weights' shares of all, from 0 to 1; `all` is the levels of all weights.
    """

    within: tuple[int, ...]
    shares: tuple[float, ...]
    all: int

    @staticmethod
    def of(weights: NDArray[np.float32], read_back: NDArray[np.float32], bits: int) -> Levels:
        """`read_back` is what a format of so many bits makes of `weights`."""
        largest = float(np.abs(read_back).max())
        step = largest / (2 ** (bits - 1) - 1) if largest else 1.0
        codes = np.rint(read_back / step).astype(np.int64)
        magnitudes, deviation = np.abs(weights), float(weights.std(dtype=np.float64))
        inside = [magnitudes <= sigmas * deviation for sigmas in SIGMAS]
        return Levels(
            tuple(len(np.unique(codes[each])) for each in inside),
            tuple(float(each.mean()) for each in inside),
            len(np.unique(codes)),
        )


def measure(subject: Subject) -> Iterator[Table]:
    """Sizes at plain widths, every format's error, and the levels that one scale leaves."""
    yield sizes(subject.model.program)
    shapes = projections(subject.model.program)
    formats, skipped = applicable(shapes)
    errors = {name: FormatError(name) for name in formats}
    levels: dict[str, list[Levels]] = {name: [] for name in ONE_SCALE}
    reaches = []
    for number, name in enumerate(shapes, 1):
        subject.progress.phase(f"matrix {number} of {len(shapes)}, in {len(formats)} formats")
        weights = decode(subject.model.tensors[name])
        reaches.append(Statistics.of(name, weights).reach)
        for format_name, each in errors.items():
            read_back = add_error(each, name, weights)
            if format_name in levels:
                levels[format_name].append(Levels.of(weights, read_back, ONE_SCALE[format_name]))
    notes = precision_warning(subject.model)
    yield errors_table(errors, native_precision(subject.model), (*skipped, *notes))
    yield levels_table(levels, reaches)


def sizes(program: Program) -> Table:
    """All parameters of the model at 4, 2 and 1 bytes each."""
    parameters = sum(int(np.prod(weight.shape)) for weight in program.weights.values())
    shapes = projections(program)
    projected = sum(outputs * inputs for outputs, inputs in shapes.values())
    rows = tuple((width, parameters * width / 1e9, projected * width / 1e9) for width in (4, 2, 1))
    return Table(
        "sizes",
        f"{parameters:,} parameters, of which {projected:,} in {len(shapes)} projection matrices",
        (
            Column("bytes a weight"),
            Column("all parameters", "GB", ".3g"),
            Column("projections", "GB", ".3g"),
        ),
        rows,
        f"All parameters take {rows[0][1]:.3g} GB in fp32, {rows[1][1]:.3g} in 16 bits and "
        f"{rows[2][1]:.3g} in 8 (decimal GB); {projected / parameters:.0%} of them are in "
        "projections.",
    )


def applicable(shapes: dict[str, tuple[int, int]]) -> tuple[list[str], tuple[str, ...]]:
    """The formats that all matrices can be stored in, and a note on those that some cannot."""
    formats, refused = [], []
    for name in FORMATS:
        if name in _UNSCALED:
            continue
        try:
            for shape in shapes.values():
                stored_bytes(name, shape)
        except FarthingError:
            refused.append(name)
        else:
            formats.append(name)
    if not refused:
        return formats, ()
    inputs = sorted({inputs for _, inputs in shapes.values()})
    listed = ", ".join(map(str, inputs))
    return formats, (
        f"skipped: {', '.join(refused)}: their blocks of 256 do not divide all rows ({listed})",
    )


def add_error(error: FormatError, name: str, weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Adds what the format makes of one matrix, and gives what is read back of it."""
    data = encode(weights, error.name)
    read_back = decode(StoredTensor(name, error.name, weights.shape, data))
    error.matrices[name] = relative_error(weights, read_back)
    error.bytes += data.nbytes
    error.weights += weights.size
    return read_back


def relative_error(weights: NDArray[np.float32], read_back: NDArray[np.float32]) -> float:
    """||W - W'|| / ||W||; 0 where W is all zeros and W' too."""
    lost = _square(weights - read_back)
    return float(np.sqrt(lost / _square(weights))) if lost else 0.0


def errors_table(errors: dict[str, FormatError], stored: str, notes: tuple[str, ...]) -> Table:
    """Every format, from the smallest error up."""
    ranked = sorted(errors.values(), key=lambda each: each.mean)
    rows: tuple[Row, ...] = tuple(
        (
            each.name,
            _grouping(each.name),
            each.bits,
            each.mean,
            each.matrices[each.worst],
            each.worst.removesuffix(".weight"),
        )
        for each in ranked
    )
    mean = {name: each.mean for name, each in errors.items()}
    return Table(
        "formats",
        f"What each format loses of {len(ranked[0].matrices)} matrices stored as {stored}",
        (
            Column("format"),
            Column("one scale for"),
            Column("bits a weight", spec=".4g"),
            Column("relative error, mean", spec=".4f"),
            Column("relative error, worst", spec=".4f"),
            Column("worst matrix"),
        ),
        rows,
        f"INT4 with one scale a matrix loses {mean['INT4_TENSOR']:.2f} of the weights' norm, a row "
        f"{mean['INT4_ROW']:.3f}, a group of 128 {mean['INT4_G128']:.4f}. Block size: groups of 64 "
        f"lose {_less(mean['INT4_G64'], mean['INT4_G128'])} than groups of 128. Level placement: "
        f"NF4 in blocks of 64 loses {_less(mean['NF4_B64'], mean['INT4_G64'])} than INT4 in groups "
        f"of 64, and in blocks of 128 {_less(mean['NF4_B128'], mean['INT4_G128'])} than INT4 in "
        "groups of 128.",
        Expectation(
            "INT8 loses least; INT4 per tensor loses most, then per row, then in groups of 128, "
            "then NF4 in blocks of 64",
            mean["INT8_ROW"]
            < mean["NF4_B64"]
            < mean["INT4_G128"]
            < mean["INT4_ROW"]
            < mean["INT4_TENSOR"],
        ),
        notes=notes,
        plots=(
            Plot(
                "points",
                "bits a weight",
                ("relative error, mean",),
                y_scale="log",
                labels="format",
            ),
        ),
    )


def levels_table(levels: dict[str, list[Levels]], reaches: list[float]) -> Table:
    """Levels that weights land on, over the matrices, by how far from zero the weights are.

    `reaches` are how many standard deviations out the largest weight of each matrix lies.
    """
    rows: list[Row] = []
    for name, found in levels.items():
        for at, sigmas in enumerate(SIGMAS):
            used = [each.within[at] for each in found]
            share = 100 * fmean(each.shares[at] for each in found)
            within = f"{sigmas} standard deviation{'s' * (sigmas > 1)}"
            rows.append((name, within, share, min(used), float(median(used)), max(used)))
        used = [each.all for each in found]
        rows.append((name, "all", 100.0, min(used), float(median(used)), max(used)))
    of_four = levels["INT4_TENSOR"]
    ordinary, most = (median(each.within[at] for each in of_four) for at in (0, -1))
    reach, furthest = median(reaches), int(np.argmax(reaches))
    extreme = of_four[furthest]
    return Table(
        "levels",
        "Levels that weights land on with one scale for a whole matrix",
        (
            Column("format"),
            Column("weights within"),
            Column("of all", "%", ".1f"),
            Column("least used"),
            Column("used, median of matrices", spec=",.0f"),
            Column("most used"),
        ),
        tuple(rows),
        f"Of INT4's 16 levels weights within one standard deviation land on {ordinary:.0f} and "
        f"those within three on {most:.0f}: the largest weight, {reach:.1f} standard deviations "
        f"out at the median, sets a step of {reach / 7:.2f} for all. In the matrix whose largest "
        f"weight is {reaches[furthest]:.1f} out, they are {extreme.within[0]} and "
        f"{extreme.within[-1]}.",
        Expectation(
            "ordinary weights, within one standard deviation, land on at most three levels of INT4",
            ordinary <= 3,
        ),
        notes=(
            (
                "a weight n standard deviations out lands on level round(7 n / r) of INT4, where "
                "the largest is r out: where r is 14 or more, all weights within three land on "
                "three levels"
            ),
        ),
    )


def _grouping(name: str) -> str:
    storage = STORAGE_FORMATS[name]
    group = getattr(storage, "group", None)
    if group is None:
        return f"blocks of {storage.run_length(0)}"
    if group:
        return f"{group} weights"
    return "the matrix" if name.endswith("_TENSOR") else "a row"


def _less(one: float, other: float) -> str:
    change = 1 - one / other
    return f"{change:.0%} less" if change >= 0 else f"{-change:.0%} MORE"


def _square(numbers: NDArray[np.float32]) -> float:
    """The sum of squares, in float64 over rows of float32."""
    return float(np.einsum("ij,ij->i", numbers, numbers).sum(dtype=np.float64))
