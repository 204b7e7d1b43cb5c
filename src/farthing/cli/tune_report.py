"""What `farthing tune` found: tables for people, settings for serve and their evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import isinf
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from farthing.lab.bench_shapes import DEFINITION, knee_place
from farthing.lab.tune_choose import QUANTILE
from farthing.lab.tune_points import batches, probes
from farthing.lab.tune_rounds import NARROW
from farthing.plan.objective import shown_time

if TYPE_CHECKING:
    from rich.table import Table

    from farthing.lab.tune import Tuning, Wish
    from farthing.lab.tune_choose import Forecast
    from farthing.lab.tune_curve import BatchPoint
    from farthing.plan.price import Prices


_USUAL = "as it is by default: nothing is faster by more than measured times are unsure"


@dataclass
class Report:
    """Everything there is to tell. `left_out` says what was not chosen among, and why; `written`
    is the file of settings.
    """

    tuning: Tuning
    wish: Wish
    model: str
    path: Path
    command: str
    left_out: list[str]
    profiles: list[str] = field(default_factory=list)
    written: str | None = None


def settings_of(report: Report) -> dict[str, object]:
    """What `farthing serve` is told, by its keys in farthing.toml."""
    variant, setting = report.tuning.chosen, shown_forecast(report.tuning).setting
    return settings_as(
        model=variant.label,
        slots=setting.slots,
        cache_tokens=report.tuning.cache_tokens,
        kv_dtype=variant.kv_dtype.value,
        threads=variant.threads,
        step_seconds=float(f"{setting.step_seconds:.4g}"),
        activations=None if variant.activations is None else variant.activations.value,
        most_wait_seconds=report.wish.objective.ttft,
    )


def settings_as(*, model: str, **settings: object) -> dict[str, object]:
    """Settings by their keys, without those that are None.

    A path has to lead to the model from wherever the server is started.
    """
    path = Path(model)
    given = {"model": str(path.resolve()) if path.exists() else model, **settings}
    return {name.replace("_", "-"): value for name, value in given.items() if value is not None}


def evidence(report: Report) -> list[str]:
    """What was measured, in lines for comments."""
    from farthing.lab.facts import machine

    tuning, facts = report.tuning, machine()
    best = shown_forecast(tuning)
    found = datetime.now(UTC).isoformat(timespec="seconds")
    curve = ", ".join(f"{each.batch}: {1e3 * each.seconds:.2f}" for each in tuning.curve.points)
    return [
        f"{found}, {facts['processor']}, {facts['cores']} cores, {facts['system']}, {tuning.isa}",
        report.command,
        f"for {_wanted(report)}",
        f"foretold: {_forecast(best)}; {_margin(report)}",
        *_warning(report),
        f"measured ms a step by batch, at {tuning.curve.context:,} tokens: {curve}",
        _known(tuning),
        _knee(report),
        f"step-seconds lets prompts join with about {best.setting.chunk} tokens a step",
        *([_USUAL] if best.setting.usual else []),
    ]


def print_tables(report: Report) -> None:
    """Head, engines, the curve with its knee, the choice or what is reachable."""
    from farthing.cli.terminal import write_table
    from farthing.lab.facts import machine

    tuning = report.tuning
    figures = sum(len(each.seconds) for each in tuning.samples.values())
    print(f"{report.model} for {_wanted(report)}")
    head = f"{machine()['processor']}, {tuning.isa}; {figures} kinds of steps measured"
    print(f"  {head}, {_known(tuning)}")
    if tuning.resumed:
        print(f"  {tuning.resumed} figures are of a run that was stopped")
    for each in report.left_out:
        print(f"  {each}")
    work = tuning.server
    print(
        f"  the server takes {1e3 * work.before(report.wish.load.prompt):.2f} ms for a request, "
        f"{1e3 * work.token:.3f} for a token that it streams"
    )
    print("\nengines: milliseconds a step, Python included")
    write_table(_engines(tuning, report.wish.load.users))
    print(f"\nbatches at {tuning.curve.context:,} tokens")
    write_table(_curve(report))
    print(_knee(report))
    print()
    print("\n".join([*_warning(report), *_verdict(report)]))


def _verdict(report: Report) -> list[str]:
    tuning, choice = report.tuning, report.tuning.choice
    if choice.best is None:
        asked = f"--slo {report.wish.objective} is out of reach for"
        spare = f"{_users(report.wish.load.users)} with {report.wish.margin:.0%} to spare"
        lines = [f"{asked} {spare}: at the nearest, {_forecast(choice.nearest)}"]
        if choice.reachable is not None:
            reached = choice.reachable
            lines.append(
                f"{_users(choice.reachable_users)} can have it (--users {choice.reachable_users}): "
                f"{_forecast(reached)}"
            )
        elif choice.alone is not None:
            lines.append(f"not even one user can have it: alone, {_forecast(choice.alone)}")
            lines.append("ask for less (--slo, --margin), shorter texts or other --candidates")
        return lines
    lines = [f"chosen: {tuning.chosen.name}"]
    if choice.best.setting.usual:
        lines.append(f"  {_USUAL}")
    lines += [f"  {key} = {value}" for key, value in settings_of(report).items()]
    lines.append(f"foretold: {_forecast(choice.best)}; {_margin(report)}")
    if report.written is not None:
        lines.append(f"written to {report.written}, which farthing serve reads")
    if report.profiles:
        lines.append(f"profiles: {', '.join(report.profiles)}")
    return lines


def shown_forecast(tuning: Tuning) -> Forecast:
    """What was chosen; else what is reachable, or nearest."""
    return tuning.choice.best or tuning.choice.reachable or tuning.choice.nearest


def _known(tuning: Tuning) -> str:
    return f"{'all' if tuning.narrow else 'not all'} medians are known to {NARROW:.0%}"


def _users(count: int) -> str:
    return f"{count:,} user{'' if count == 1 else 's'}"


def _wanted(report: Report) -> str:
    load, wish = report.wish.load, report.wish
    few = len(load.lengths) == 1
    return (
        f"{_users(load.users)}, prompts of {load.prompt:,} and answers of {load.answer:,} tokens"
        f"{'' if few else ' in the mean'}, slo {wish.objective} with {wish.margin:.0%} to spare"
    )


def _forecast(forecast: Forecast) -> str:
    return (
        f"{QUANTILE:.0%} have their first token within {shown_time(forecast.ttft)} and the others "
        f"every {shown_time(forecast.tpot)}, {forecast.throughput:,.4g} tokens/s in all"
    )


def _margin(report: Report) -> str:
    margin = shown_forecast(report.tuning).margin(report.wish.objective)
    if isinf(margin):
        return "no time is asked for"
    if margin >= 1:
        return f"everything may take {1 + margin:,.3g} times as long"
    return f"everything may take {margin:.0%} longer"


def _warning(report: Report) -> list[str]:
    """Of figures that cannot all be right: everything else rests on them."""
    wrong = report.tuning.curve.contradictions
    if not wrong:
        return []
    why = "something else was running, or the processor's caches hold most of the model"
    what = "what is foretold and chosen rests on them: measure again on a quiet machine"
    return [f"warning: times that do not fit together: {'; '.join(wrong)}; {why}; {what}"]


def _engines(tuning: Tuning, users: int) -> Table:
    """A row for each, with the steps that all of them have."""
    shared = set.intersection(*(set(each.seconds) for each in tuning.samples.values()))
    shown = probes(sorted(shared), tuning.curve.context)
    table = _table("engine", *(step.label for step in shown), "memory for texts", "")
    for name, samples in tuning.samples.items():
        cells = []
        for step in shown:
            seconds = median(samples.seconds[step]) + tuning.overhead.seconds(step.shape.rows)
            cells.append(f"{1e3 * seconds:,.2f}")
        rest = "" if name in tuning.costs else "slower at its fastest: no further steps measured"
        texts = f"{tuning.slots[name]:,} of {users:,}"
        table.add_row(name, *cells, texts, rest)
    return table


def _curve(report: Report) -> Table:
    priced = report.wish.price_per_hour is not None
    columns = ["ms a step", "interval", "tokens/s", "the next doubling adds"]
    columns += ["of memory", "of arithmetic", "Python"]
    if priced:
        columns.append("a million: prompt / cached / written")
    table = _table("batch", *columns)
    for each in report.tuning.curve.points:
        table.add_row(*_point(each), *([_prices(each.prices)] if priced else []))
    return table


def _point(point: BatchPoint) -> list[str]:
    return [
        f"{point.batch:,}",
        f"{1e3 * point.seconds:,.2f}",
        f"{1e3 * point.low:,.2f} to {1e3 * point.high:,.2f}",
        f"{point.tokens_per_second:,.4g}",
        "" if point.gain is None else f"{point.gain:+.0%}",
        f"{point.memory_share:.0%}",
        f"{point.arithmetic_share:.0%}",
        f"{point.overhead_share:.1%}",
    ]


def _prices(prices: Prices | None) -> str:
    if prices is None:
        return "-"
    return f"{prices.prompt:,.3g} / {prices.cached:,.3g} / {prices.generated:,.3g}"


def _knee(report: Report) -> str:
    curve = report.tuning.curve
    last = curve.points[-1].batch
    short = last < batches(report.wish.load.users)[-1]
    memory = "; there is no memory to measure larger ones" if short else ""
    if curve.contradictions:
        return f"knee: not known, nor its cause, by times that do not fit together{memory}"
    found = knee_place(curve.knee_within, last)
    if curve.knee is not None:
        found += f", because of {curve.cause}"
    elif curve.cause is not None:
        return f"knee: {found}; {curve.cause} is the most of a step{memory}"
    return f"knee: {found} ({DEFINITION}){memory}"


def _table(first: str, *others: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right")
    return table
