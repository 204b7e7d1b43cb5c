"""farthing plan --examples: usual models in usual memories, by the formula."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from farthing import __version__
from farthing.cli.plan_report import shown_size
from farthing.cli.terminal import write_table
from farthing.plan.precision import precision
from farthing.plan.shapes import (
    DEFAULT_RESERVE,
    EXAMPLE_MEMORIES,
    EXAMPLE_WEIGHTS,
    EXAMPLES,
    formula,
)

if TYPE_CHECKING:
    from farthing.core import KVDtype


def print_examples(kv_dtype: KVDtype, *, as_json: bool) -> None:
    """What is left for the cache of usual models in usual memories, by the formula."""
    weights = [precision(name) for name in EXAMPLE_WEIGHTS]
    found = [
        formula(shape, each, kv_dtype, memory, DEFAULT_RESERVE)
        for memory in EXAMPLE_MEMORIES
        for shape in EXAMPLES
        for each in weights
    ]
    if as_json:
        print(json.dumps({"version": __version__, "cells": [asdict(f) for f in found]}, indent=2))
        return
    print(
        f"tokens of cache ({kv_dtype.value}) beside the weights and a reserve of "
        f"{shown_size(DEFAULT_RESERVE)}; or what the weights lack"
    )
    for memory in EXAMPLE_MEMORIES:
        table = Table(title=shown_size(memory), title_justify="left", box=box.SIMPLE_HEAD)
        table.add_column("model")
        table.add_column("bytes a token", justify="right")
        for each in weights:
            table.add_column(f"{each.name}, {each.bits:g} bits", justify="right")
        for shape in EXAMPLES:
            cells = [f for f in found if (f.memory_bytes, f.model) == (memory, shape.name)]
            table.add_row(
                shape.name,
                f"{shape.bytes_per_token(kv_dtype):,}",
                *(
                    f"misses by {shown_size(f.missing_bytes)}"
                    if f.missing_bytes
                    else f"{f.tokens:,}"
                    for f in cells
                ),
            )
        write_table(table)
