"""A table's plot as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farthing.lab.report import svg
from farthing.lab.report.bar_chart import bar_chart, stacked_chart
from farthing.lab.report.frame import WIDTH
from farthing.lab.report.series import series_of
from farthing.lab.report.xy_chart import xy_chart

if TYPE_CHECKING:
    from farthing.lab.table import Plot, Table


def draw(table: Table, plot: Plot, identity: str) -> str:
    """The picture of `plot`, whose ids begin with `identity`; empty where it has no point."""
    series = series_of(table, plot)
    if not any(each.points for each in series):
        return ""
    x = next(column for column in table.columns if column.name == plot.x)
    if plot.kind == "bars":
        height, drawn = bar_chart(plot, series)
    elif plot.kind == "stacked":
        height, drawn = stacked_chart(series)
    else:
        height, drawn = xy_chart(plot, x, series)
    title = f"{', '.join(plot.y)} over {plot.x}: {table.title}"
    description = f"{table.finding} All figures are in the table."
    return svg.picture(identity, title, description, WIDTH, height, drawn)
