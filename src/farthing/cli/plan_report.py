"""What `farthing plan` found: tables for people, one JSON object for machines."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from farthing import __version__
from farthing.plan.grid import memory_of
from farthing.plan.objective import shown_time

if TYPE_CHECKING:
    from rich.table import Table

    from farthing.cli.plan import Answer
    from farthing.files.receipt import Receipt
    from farthing.plan.grid import Cell, Timing
    from farthing.plan.sum import MemorySum

_KIB = 1024.0
_KEYS = 4
"""The first columns, which tell what a row is about: weights, cache, context and users."""


def shown_size(size: float) -> str:
    """Bytes for people: three digits or more, in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1000 or unit == "TiB":
            return f"{size:,.0f} B" if unit == "B" else f"{size:,.1f} {unit}"
        size /= _KIB
    raise AssertionError("the last unit ends the loop")


def shown_count(number: int) -> str:
    """A large number for people, as of parameters: 134.5M, 13B; one below a million in full."""
    if number < 10**6:
        return f"{number:,}"
    return f"{number / 1e6:,.1f}M" if number < 10**9 else f"{number / 1e9:,.4g}B"


def counted(count: int, what: str) -> str:
    """A number of things."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def print_tables(answer: Answer) -> None:
    """Head, the sum of the first cell that fits, the grid, what to do."""
    from farthing.cli.terminal import write_table

    for line in _head(answer):
        print(line)
    print()
    shown = next((cell for cell in answer.cells if cell.fits), answer.cells[0])
    write_table(sum_table(_sum_of(answer, shown), f"memory: {_called(shown)}"))
    print()
    write_table(_grid_table(answer), keys=_KEYS)
    for line in _advice(answer):
        print(line)


def sum_table(memory: MemorySum, title: str) -> Table:
    """Every part with how its figure is known; the total is what must fit."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_footer=True)
    table.add_column("", "in all, anonymous", no_wrap=True)
    table.add_column("", shown_size(memory.total), justify="right", no_wrap=True)
    table.add_column("known", no_wrap=True)
    table.add_column("")
    for part in memory.parts:
        kind = "" if part.kind == "anonymous" else f" [{part.kind}, not counted]"
        table.add_row(part.name, shown_size(part.bytes), part.basis, f"{part.detail}{kind}")
    return table


def sum_facts(memory: MemorySum) -> dict[str, Any]:
    """The sum as JSON has it."""
    return {
        "total_bytes": memory.total,
        "groups": memory.groups(),
        "parts": [asdict(part) for part in memory.parts],
    }


def print_json(answer: Answer) -> None:
    """The object that scripts rely on: names are added, never changed."""
    print(json.dumps(as_json(answer), indent=2))


def as_json(answer: Answer) -> dict[str, Any]:
    """All figures: bytes, tokens, seconds, and money for a million tokens."""
    import msgspec

    from farthing.lab.facts import machine
    from farthing.plan.profile import model_digest

    asked, question = answer.asked, answer.question
    shown = next((cell for cell in answer.cells if cell.fits), answer.cells[0])
    ceilings = answer.machine.ceilings
    return {
        "version": __version__,
        "model": {
            "name": asked.name,
            "path": asked.path,
            "parameters": asked.parameters,
            "sha256": None if asked.model is None else model_digest(asked.model),
            "sha256_of": "operations, shapes and formats",
        },
        "receipt": None if asked.receipt is None else msgspec.to_builtins(asked.receipt),
        "machine": machine(),
        "threads": answer.machine.threads,
        "isa": answer.machine.isa,
        "seed": None,
        "memory_bytes": question.room,
        "memory_source": answer.room_source,
        "reserve_bytes": asked.reserve,
        "slo": None if question.objective is None else asdict(question.objective),
        "price_per_hour": question.price_per_hour,
        "speed": {
            "source": answer.machine.source,
            "bytes_per_second": None if ceilings is None else ceilings.bytes_per_second,
            "multiply_accumulates_per_second": None
            if ceilings is None
            else {mode.value: rate for mode, rate in ceilings.products_per_second.items()},
            "notes": list(answer.why_no_profile),
        },
        "sum": {"of": _called(shown), **sum_facts(_sum_of(answer, shown))},
        "remarks": list(answer.remarks),
        "cells": [cell_facts(cell) for cell in answer.cells],
        "fits": any(cell.answers for cell in answer.cells),
        "nearest": [asdict(each) for each in answer.nearest],
        "reachable": answer.reachable or None,
    }


def cell_facts(cell: Cell) -> dict[str, Any]:
    """A cell as JSON has it."""
    timing = cell.timing
    facts = {name: value for name, value in asdict(cell).items() if name != "timing"}
    return facts | {
        "fits": cell.fits,
        "tokens_left": cell.tokens_left,
        "time_to_first_token_seconds": timing and timing.first_token,
        "step_seconds": timing and timing.step,
        "tokens_per_second_per_user": timing and timing.per_user,
        "tokens_per_second": timing and timing.in_all,
        "price_per_million": timing and timing.prices and asdict(timing.prices),
        "speed_basis": timing and timing.basis,
    }


def _head(answer: Answer) -> list[str]:
    asked, question = answer.asked, answer.question
    where = f", {asked.path}" if asked.path and asked.path != asked.name else ""
    known = asked.context_length
    lines = [
        f"{asked.name}{where}: {shown_count(asked.parameters)} parameters, context {known:,}"
        if known
        else asked.name,
        f"memory {shown_size(question.room)}, {answer.room_source}",
    ]
    if asked.receipt is not None:
        lines.append(f"receipt {_receipt(asked.receipt)}")
    if question.objective is not None:
        lines.append(f"slo {question.objective}")
    ceilings = answer.machine.ceilings
    if ceilings is not None:
        rates = ", ".join(
            f"{mode.value} {rate / 1e9:,.0f}" for mode, rate in ceilings.products_per_second.items()
        )
        lines.append(
            f"speed by {answer.machine.source}: {ceilings.bytes_per_second / 1e9:,.1f} GB/s; "
            f"{rates} billion multiply-accumulates/s"
        )
    for _, speed in answer.subjects:
        if speed is not None and speed.profile is not None:
            lines.append(f"  corrected by {speed.basis}")
            break
    lines += [f"  {why}" for why in answer.why_no_profile[:1]]
    return [*lines, *answer.remarks]


def _receipt(receipt: Receipt | str) -> str:
    if isinstance(receipt, str):
        return f"refused: {receipt}"
    return f"{receipt.summary()}; not held against the weights, as run and serve do"


def _grid_table(answer: Answer) -> Table:
    from rich import box
    from rich.table import Table

    timed = any(cell.timing for cell in answer.cells)
    priced = answer.question.price_per_hour is not None and timed
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("weights", "cache"):
        table.add_column(name, no_wrap=True)
    for name in ("context", "users", "memory", "room for tokens", "left", "most users"):
        table.add_column(name, justify="right", no_wrap=True)
    if timed:
        for name in ("first token", "tokens/s each", "in all"):
            table.add_column(name, justify="right", no_wrap=True)
    if priced:
        table.add_column("a million: prompt / cached / written", justify="right")
    table.add_column("limit", no_wrap=True)
    if answer.question.objective is not None:
        table.add_column("slo", no_wrap=True)
    for cell in answer.cells:
        table.add_row(*_row(cell, timed, priced, answer.question.objective is not None))
    return table


def _row(cell: Cell, timed: bool, priced: bool, judged: bool) -> list[str]:
    if cell.short_bytes:
        left = f"misses by {shown_size(cell.short_bytes)} before any cache"
    elif cell.missing_bytes:
        left = f"misses by {shown_size(cell.missing_bytes)}"
    else:
        left = f"{cell.tokens_left:,}"
    row = [
        cell.weights,
        cell.kv_dtype,
        f"{cell.context:,}",
        f"{cell.users:,}",
        shown_size(cell.needed_bytes),
        f"{cell.tokens:,}",
        left,
        f"{cell.most_users:,}" if cell.most_users else "-",
    ]
    if timed:
        row += _times(cell.timing)
    if priced:
        prices = cell.timing and cell.timing.prices
        row.append(
            f"{prices.prompt:,.3g} / {prices.cached:,.3g} / {prices.generated:,.3g}"
            if prices
            else "-"
        )
    row.append(cell.binding)
    if judged:
        row.append({True: "kept", False: "missed", None: "-"}[cell.meets_objective])
    return row


def _times(timing: Timing | None) -> list[str]:
    if timing is None:
        return ["-", "-", "-"]
    return [shown_time(timing.first_token), f"{timing.per_user:,.3g}", f"{timing.in_all:,.4g}"]


def _advice(answer: Answer) -> list[str]:
    """How to serve it; or what would fit."""
    if answer.reachable:
        return [answer.reachable]
    best = [cell for cell in answer.cells if cell.answers]
    if not best:
        lines = ["it does not fit; what would:"]
        lines += [f"  {each.what} ({each.flags})" for each in answer.nearest]
        needed = min(cell.needed_bytes for cell in answer.cells)
        return [*lines, f"  {shown_size(needed)} of memory"]
    cell = max(best, key=lambda each: (each.users, each.context))
    if answer.asked.model is None or answer.question.users is None or cell.weights != "stored":
        return []
    words = ["farthing", "serve", answer.asked.name, "--context", str(cell.context)]
    words += ["--slots", str(cell.users), "--cache-tokens", str(cell.needed_tokens)]
    words += ["--kv-dtype", cell.kv_dtype, *answer.served_with]
    return [f"to serve that with {_called(cell)}:", f"  {shlex.join(words)}"]


def _called(cell: Cell) -> str:
    users = counted(cell.users, "user")
    return f"{cell.weights} weights, {cell.kv_dtype} cache, {users} of {cell.context:,} tokens"


def _sum_of(answer: Answer, cell: Cell) -> MemorySum:
    """The sum of one cell's plan."""
    subject = next(
        subject
        for subject, _ in answer.subjects
        if (subject.weights, subject.kv_dtype.value) == (cell.weights, cell.kv_dtype)
    )
    traffic = next(each for each in answer.question.traffics if each.context == cell.context)
    return memory_of(subject, traffic, cell.users)
