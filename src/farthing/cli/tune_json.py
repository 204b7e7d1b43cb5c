"""What `farthing tune` found as one JSON object, for machines."""

from __future__ import annotations

from dataclasses import asdict
from math import isinf
from statistics import median
from typing import TYPE_CHECKING, Any

from farthing.cli.tune_report import settings_of, shown_forecast
from farthing.lab.bench_shapes import DEFINITION
from farthing.lab.tune_choose import QUANTILE
from farthing.lab.tune_rounds import median_interval

if TYPE_CHECKING:
    from farthing.cli.tune_report import Report
    from farthing.lab.tune import Tuning
    from farthing.lab.tune_choose import Forecast


def print_json(report: Report) -> None:
    """The object that scripts rely on: names are added, never changed."""
    import json

    print(json.dumps(as_json(report), indent=2))


def as_json(report: Report) -> dict[str, Any]:
    """All figures, in seconds and tokens; shares from 0."""
    from farthing.lab.facts import facts

    tuning, wish = report.tuning, report.wish
    choice, best = tuning.choice, shown_forecast(tuning)
    return {
        **facts(report.model, report.path, tuning.chosen.threads, tuning.isa),
        "command": report.command,
        "seed": wish.seed,
        "slo": {"ttft": wish.objective.ttft, "tpot": wish.objective.tpot},
        "quantile": QUANTILE,
        "margin_wanted": wish.margin,
        "users": wish.load.users,
        "prompt_tokens": wish.load.prompt,
        "output_tokens": wish.load.answer,
        "kept": choice.best is not None,
        "reachable_users": choice.reachable_users,
        "settings": settings_of(report) if choice.reachable else None,
        "chunk": best.setting.chunk,
        "forecast": _forecast_facts(best, report),
        "nearest": _forecast_facts(choice.nearest, report),
        "alone": None if choice.alone is None else _forecast_facts(choice.alone, report),
        "tried": [_forecast_facts(each, report) for each in choice.tried],
        "curve": {
            "context": tuning.curve.context,
            "points": [
                {**asdict(each), "tokens_per_second": each.tokens_per_second}
                for each in tuning.curve.points
            ],
            "contradictions": tuning.curve.contradictions,
        },
        "knee": {
            "sequences": tuning.curve.knee,
            "cause": tuning.curve.cause,
            "within": tuning.curve.knee_within,
            "definition": DEFINITION,
        },
        "overhead": asdict(tuning.overhead),
        "server": asdict(tuning.server),
        "engines": {name: _engine_facts(tuning, name) for name in tuning.samples},
        "well_known": tuning.narrow,
        "resumed_figures": tuning.resumed,
        "left_out": report.left_out,
        "profiles": report.profiles,
        "written": report.written,
    }


def _forecast_facts(forecast: Forecast, report: Report) -> dict[str, Any]:
    margin = forecast.margin(report.wish.objective)
    return {
        **asdict(forecast.setting),
        "ttft": forecast.ttft,
        "tpot": forecast.tpot,
        "tokens_per_second": forecast.throughput,
        "margin": None if isinf(margin) else margin,
        "kept": forecast.kept(report.wish.objective, report.wish.margin),
    }


def _engine_facts(tuning: Tuning, name: str) -> dict[str, Any]:
    steps = []
    for step, values in sorted(tuning.samples[name].seconds.items()):
        low, high = median_interval(values)
        steps.append(
            {
                **asdict(step),
                "seconds": median(values),
                "interval": [low, high],
                "samples": len(values),
            }
        )
    cost = tuning.costs.get(name)
    return {
        "steps": steps,
        "most_slots": tuning.slots[name],
        "measured_in_full": cost is not None,
        "largest_correction": None if cost is None else cost.largest_correction,
    }
