"""What `farthing bench` found: tables for people, one JSON object for machines."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from farthing.lab.bench import DECODE_TOKENS
from farthing.lab.bench_guessing import TOKENS
from farthing.lab.bench_shapes import DEFINITION, knee_words, middle_gains, slowdowns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    from farthing.engine.load import LoadReport
    from farthing.lab.bench import BenchResult
    from farthing.lab.bench_guessing import GuessedText
    from farthing.lab.bench_ops import OpTime, PythonShare
    from farthing.lab.bench_points import Measured, Points
    from farthing.lab.bench_shapes import Knee
    from farthing.plan.price import Prices


@dataclass(frozen=True)
class Bench:
    """Everything there is to tell. `profile` is the file it was stored in; `prices` are those of
    tokens at each batch, where the machine's was given. `guessed` are the texts that were written
    with guesses as `speculate` has them, and without.
    """

    result: BenchResult
    load: LoadReport
    points: Points
    python: Sequence[PythonShare]
    repeats: int
    seed: int
    profile: str | None
    prices: Sequence[Prices] | None = None
    speculate: str = "off"
    guessed: Sequence[GuessedText] = ()


def print_json(bench: Bench) -> None:
    """The object that docs and scripts rely on: names are added, never changed."""
    import json

    print(json.dumps(as_json(bench), indent=2))


def as_json(bench: Bench) -> dict[str, Any]:
    """All figures. Seconds, bytes, and multiply-accumulates or tokens a second; shares from 0."""
    from farthing.lab.facts import facts

    result, load = bench.result, bench.load
    ceilings = result.ceilings
    slower = slowdowns(result.decode)
    return {
        **facts(load.model, load.path, load.threads, load.isa),
        "seed": bench.seed,
        "repeats": bench.repeats,
        "kv_dtype": load.kv_dtype,
        "weights": dict(load.computed),
        "load": {"seconds": load.seconds, "phases": dict(load.phases)},
        "ceilings": {
            "bytes_per_second": ceilings.best_read,
            "bytes_per_second_range": ceilings.best_read_spread,
            "read": dict(ceilings.read),
            "buffer_bytes": ceilings.buffer_bytes,
            "multiply_accumulates_per_second": {
                mode.value: rate for mode, rate in ceilings.multiply.items()
            },
        },
        "prefill": [{"tokens": each.point, **_point(each)} for each in result.prefill],
        "decode": [
            {
                "context": each.point,
                **_point(each),
                "slowdown": {"predicted": slow.predicted, "measured": slow.measured},
            }
            for each, slow in zip(result.decode, slower, strict=True)
        ],
        "batch": [
            {
                "sequences": each.point,
                **_point(each),
                "context": result.batch_context,
                "prices": None if price is None else asdict(price),
            }
            for each, price in zip(result.batch, _prices(bench), strict=True)
        ],
        "knee": None if result.knee is None else {**asdict(result.knee), "definition": DEFINITION},
        "ops": [asdict(each) for each in result.ops],
        "python": [asdict(each) for each in bench.python],
        "speculate": bench.speculate,
        "guesses": [_guesses(each) for each in bench.guessed],
        "skipped": list(bench.points.skipped),
        "profile": bench.profile,
    }


def print_tables(bench: Bench) -> None:
    """Head, a table for each sweep, the knee, time by kind, Python's share."""
    from farthing.cli.terminal import write_table

    result = bench.result
    print("\n".join(_head(bench)))
    if result.prefill:
        print("\nprefill: one prompt, from its first token to the token that follows")
        write_table(_sweep("tokens", result.prefill))
    if result.decode:
        print(f"\ndecode: {DECODE_TOKENS} tokens of one sequence at each context")
        slower = [f"{each.predicted:.1%} {each.measured:.1%}" for each in slowdowns(result.decode)]
        write_table(_sweep("context", result.decode, {"predicted and measured slowdown": slower}))
    if result.batch:
        print(
            f"\nbatch: sequences that decode together, each at a context of {result.batch_context}"
        )
        adds = [f"{gain:+.0%}" for gain in middle_gains(result.batch)]
        columns = {"the next doubling adds": [*adds, ""]}
        if bench.prices is not None:
            columns["a million: prompt / cached / written"] = [
                f"{each.prompt:,.3g} / {each.cached:,.3g} / {each.generated:,.3g}"
                for each in bench.prices
            ]
        write_table(_sweep("sequences", result.batch, columns))
    if result.knee is not None:
        print(_knee(result.knee, result.batch[-1].point))
    if result.ops:
        print(
            "\ntime by kind of operation: milliseconds, share of the step, share of the nearer "
            "ceiling (m memory, a arithmetic)"
        )
        write_table(_operations(result.ops))
    if bench.guessed:
        print(
            f"\nguesses ({bench.speculate}): {TOKENS} tokens of one text at a time, greedily, in "
            "turn with none"
        )
        write_table(_guessing(bench.guessed))
    print(f"\nPython's share of a step: {', '.join(map(_python, bench.python))}")
    for each in bench.points.skipped:
        print(f"skipped: {each}")
    if bench.profile is not None:
        print(f"stored as the profile that farthing plan predicts from: {bench.profile}")


def _prices(bench: Bench) -> Sequence[Prices | None]:
    return [None] * len(bench.result.batch) if bench.prices is None else bench.prices


def _point(measured: Measured) -> dict[str, Any]:
    return {
        "tokens_per_second": measured.tokens_per_second,
        "tokens_per_second_range": measured.spread,
        "step_ms": 1e3 * measured.step_seconds,
        "memory_share": measured.memory_share,
        "arithmetic_share": measured.arithmetic_share,
    }


def _guesses(text: GuessedText) -> dict[str, Any]:
    return {
        "text": text.text,
        "tokens_per_second": text.guessing,
        "tokens_per_second_without": text.plain,
        "gain": text.gain,
        "gain_range": text.gain_range,
        "drafted": text.drafted,
        "accepted": text.accepted,
    }


def _head(bench: Bench) -> list[str]:
    from farthing.lab.facts import machine

    load, ceilings = bench.load, bench.result.ceilings
    threads = f"{load.threads} thread{'s' if load.threads > 1 else ''}"
    weights = ", ".join(dict.fromkeys(load.computed.values()))
    phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in load.phases.items())
    low, high = ceilings.best_read_spread
    ways = ", ".join(
        f"{name.replace('_', ' ')} {rate / 1e9:.1f}" for name, rate in ceilings.read.items()
    )
    products = ", ".join(
        f"{mode.value} {rate / 1e9:,.0f}" for mode, rate in ceilings.multiply.items()
    )
    memory = (
        f"{ceilings.best_read / 1e9:.1f} GB/s ({low / 1e9:.1f} to {high / 1e9:.1f}; {ways}), "
        f"over {ceilings.buffer_bytes / (1 << 20):,.0f} MiB"
    )
    return [
        f"{load.model}: {load.architecture}, {load.parameters / 1e6:,.1f}M parameters, {weights}",
        f"  {machine()['processor']}, {load.isa}, {threads}, cache {load.kv_dtype}",
        f"  loaded in {load.seconds:.2f} s ({phases})",
        f"  memory ceiling {memory}",
        f"  arithmetic ceiling, 10^9 multiply-accumulates a second: {products}",
        f"  medians of {bench.repeats} round{'s' if bench.repeats > 1 else ''}; seed {bench.seed}",
    ]


def _sweep(
    name: str, points: Sequence[Measured], extra: Mapping[str, Sequence[str]] | None = None
) -> Table:
    table = _table(name, "tokens/s", "slowest to fastest", "ms", "of memory", "of arithmetic")
    extra = extra or {}
    for title in extra:
        table.add_column(title, justify="right")
    for index, each in enumerate(points):
        low, high = each.spread
        row = [
            f"{each.point:,}",
            f"{each.tokens_per_second:,.0f}",
            f"{low:,.0f} to {high:,.0f}",
            f"{1e3 * each.step_seconds:,.2f}",
            f"{each.memory_share:.0%}",
            f"{each.arithmetic_share:.0%}",
        ]
        table.add_row(*row, *(values[index] for values in extra.values()))
    return table


def _guessing(texts: Sequence[GuessedText]) -> Table:
    table = _table("text", "tokens/s", "without", "gain", "least to most", "guesses right")
    for each in texts:
        low, high = each.gain_range
        table.add_row(
            each.text,
            f"{each.guessing:,.0f}",
            f"{each.plain:,.0f}",
            f"{each.gain:.2f}",
            f"{low:.2f} to {high:.2f}",
            f"{each.accepted:,} of {each.drafted:,}",
        )
    return table


def _operations(ops: Sequence[OpTime]) -> Table:
    """A row for each kind, three columns for each phase."""
    phases = list(dict.fromkeys((each.phase, each.point) for each in ops))
    found = {(each.phase, each.kind): each for each in ops}
    table = _table()
    table.add_column("kind")
    for phase, point in phases:
        table.add_column(f"{phase} {point:,}", justify="right")
        table.add_column("", justify="right")
        table.add_column("", justify="right")
    for kind in dict.fromkeys(each.kind for each in ops):
        cells: list[str] = []
        for phase, _ in phases:
            cells += _operation(found.get((phase, kind)))
        table.add_row(kind, *cells)
    return table


def _operation(op: OpTime | None) -> tuple[str, str, str]:
    if op is None:
        return "", "", ""
    nearer = max(op.memory_share, op.arithmetic_share)
    letter = "m" if op.memory_share > op.arithmetic_share else "a"
    return f"{1e3 * op.seconds:,.3f}", f"{op.share:.0%}", f"{nearer:.0%} {letter}" if nearer else ""


def _knee(knee: Knee, last: int) -> str:
    predicted = (
        "the ceilings alone put it nowhere: the caches take longer to read than to multiply"
        if knee.predicted is None
        else f"the ceilings alone put it at {knee.predicted:.1f}"
    )
    return f"knee: {knee_words(knee, last)}; {predicted}\n  ({DEFINITION})"


def _python(share: PythonShare) -> str:
    sequences = f"{share.sequences} sequence{'s' if share.sequences > 1 else ''}"
    return f"{share.share:.1%} with {sequences} ({1e3 * share.step_seconds:.2f} ms a step)"


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right")
    return table
