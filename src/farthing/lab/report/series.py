"""What of a table a plot shows: for each of its columns a series of points with their intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from farthing.lab.samples import Interval, Samples

if TYPE_CHECKING:
    from farthing.lab.table import Cell, Column, Plot, Table


@dataclass(frozen=True)
class Point:
    """`x` is the middle of a cell, or the row's number where x are names.

    For people: `figure` is y alone, `shown` is everything.
    """

    x: float
    y: float
    low: float
    high: float
    name: str
    figure: str
    shown: str


@dataclass(frozen=True)
class Series:
    """One column's points, in the order of the table's rows; a row without a figure has none."""

    column: Column
    points: tuple[Point, ...]


def middle(cell: Cell) -> float | None:
    """The figure of a cell; None for a text and for none."""
    if cell is None or isinstance(cell, str):
        return None
    if isinstance(cell, Samples):
        return cell.median
    return cell.middle if isinstance(cell, Interval) else float(cell)


def series_of(table: Table, plot: Plot) -> list[Series]:
    """The series of a plot, one for each `y`."""
    places = {column.name: at for at, column in enumerate(table.columns)}
    x_at = places[plot.x]
    x_column = table.columns[x_at]
    label_at = places[plot.labels] if plot.labels else x_at
    found = []
    for name in plot.y:
        y_at = places[name]
        column = table.columns[y_at]
        points = []
        for number, row in enumerate(table.rows):
            x = float(number) if plot.x_scale == "names" else middle(row[x_at])
            y = middle(row[y_at])
            if x is None or y is None:
                continue
            cell = row[y_at]
            spread = cell if isinstance(cell, Samples | Interval) else None
            label = table.columns[label_at].shown(row[label_at])
            at = "" if plot.labels else f"{_with_unit(x_column, row[x_at])}: "
            points.append(
                Point(
                    x,
                    y,
                    y if spread is None else spread.low,
                    y if spread is None else spread.high,
                    label,
                    column.parts(cell)[0],
                    f"{label}: " * bool(plot.labels) + f"{at}{name} {_with_unit(column, cell)}",
                )
            )
        found.append(Series(column, tuple(points)))
    return found


def _with_unit(column: Column, cell: Cell) -> str:
    return f"{column.shown(cell)} {column.unit}".rstrip()
