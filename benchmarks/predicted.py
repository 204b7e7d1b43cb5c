"""Predicted step times against measured ones, with a profile and without.

    python benchmarks/predicted.py [--models smollm2-135m,model.gguf] [--rounds 5] [--json now.json]
    python benchmarks/predicted.py --profile earlier.json       # the profile of an earlier run

Every round measures the machine's ceilings and then every place, the models in turn at each: steps
of B texts with C tokens each, and prompts. The places that `farthing bench` measures make up the
profile; the others are held out, and foretold twice: from the ceilings alone, and by the profile.
An error is what is foretold over what is measured, less one. Ends with 1 where the median of their
sizes is 10 % or more with the profile, or 25 % or more without, on any model.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from farthing.backends.ceilings import Ceilings as Measurement
from farthing.backends.native import NativeBackend
from farthing.core import ActivationMode, KVDtype
from farthing.files.catalog import resolve
from farthing.files.checkpoint import open_checkpoint
from farthing.lab.bench import buffer_bytes
from farthing.lab.bench_points import BATCH_CONTEXT, choose_points
from farthing.lab.bench_steps import Steps
from farthing.lab.facts import facts
from farthing.models.load import Model, load_model
from farthing.plan.machine import available_memory, processor, usable_cores
from farthing.plan.memory import plan_memory
from farthing.plan.precision import AS_STORED
from farthing.plan.profile import Ceilings, Profile, ProfilePoint, profile_key
from farthing.plan.speed import Speed
from farthing.plan.subject import ModelSubject
from neighbours import Neighbours

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
CONTEXTS = (64, 256, 512, 1024, 2048, 4096)
PROMPTS = (48, 200, 700, 1500, 3000)
WITH_PROFILE, WITHOUT = 0.10, 0.25
"""What the median error must stay under."""

STEPS = 32
FILLED = 512
TRIES, DISTURBED = 4, 0.05
"""So often a place is measured in a round until others take less than this of the machine."""

Place = tuple[int, int, int]
"""As in `ProfilePoint`: texts, first position, tokens of each."""


@dataclass
class Subject:
    """A model, its seconds by place, one a round, and how many of them were `disturbed`."""

    name: str
    path: Path
    model: Model
    backend: NativeBackend
    steps: Steps
    seconds: dict[Place, list[float]] = field(default_factory=dict)
    disturbed: int = 0

    def measure(self, place: Place) -> None:
        """One entry more: of some tries the one that others disturbed least."""
        tries = []
        while len(tries) < TRIES and not (tries and tries[-1][0] < DISTURBED):
            neighbours = Neighbours()
            seconds = self._once(place)
            tries.append((neighbours.share(), seconds))
        share, seconds = min(tries)
        self.disturbed += share >= DISTURBED
        self.seconds.setdefault(place, []).append(seconds)

    def _once(self, place: Place) -> float:
        count, first, tokens = place
        if tokens > 1:
            return self.steps.prefill(tokens)
        times = max(4, STEPS // count)
        return self.steps.decode([first + 1] * count, times) / times


def profile_places(context: int, positions: int) -> list[Place]:
    """What `farthing bench` measures, as far as there is room."""
    points = choose_points(context)
    places = [(1, 0, tokens) for tokens in points.prefill]
    places += [(1, each - 1, 1) for each in points.decode]
    places += [(count, BATCH_CONTEXT - 1, 1) for count in points.batch]
    places += [(count, each - 1, 1) for count, each in points.cross]
    return [place for place in dict.fromkeys(places) if _positions(place) <= positions]


def held_out_places(context: int, positions: int) -> list[Place]:
    """B x C, and prompts; without those of the profile."""
    places = [(count, each - 1, 1) for count in BATCHES for each in CONTEXTS if each <= context]
    places += [(1, 0, tokens) for tokens in PROMPTS if tokens <= context]
    known = set(profile_places(context, positions))
    return [place for place in places if place not in known and _positions(place) <= positions]


def _positions(place: Place) -> int:
    count, first, tokens = place
    return count * (first + tokens)


def opened(name: str, arguments: argparse.Namespace) -> Subject:
    path = resolve(name)
    model = load_model(open_checkpoint(path))
    context = min(model.config.context_length, 8192)
    plan = plan_memory(
        model,
        context_length=context,
        cache_tokens=arguments.positions,
        slots=max(BATCHES),
        kv_dtype=KVDtype(arguments.kv_dtype),
        threads=arguments.threads,
    )
    backend = NativeBackend(model, plan)
    steps = Steps(backend, seed=0)
    steps.fill_cache(FILLED)
    return Subject(name, path, model, backend, steps)


def errors_of(speed: Speed, seconds: dict[Place, float]) -> dict[Place, float]:
    """Signed, as parts of what was measured."""
    found = {}
    for place, measured in seconds.items():
        count, first, tokens = place
        if tokens > 1:
            foretold = speed.prompt_seconds(tokens, first=first)
        else:
            foretold = speed.decode_seconds(first + 1, count)
        found[place] = foretold / measured - 1
    return found


def size_of(errors: dict[Place, float]) -> float:
    return median(map(abs, errors.values()))


def judge(
    subject: Subject, ceilings: Ceilings, earlier: dict[str, Any] | None, tier: tuple[str, str]
) -> dict[str, Any]:
    """Errors with and without the profile, of one model."""
    plan = subject.backend.plan
    held = held_out_places(plan.context_length, plan.cache_tokens)
    known = profile_places(plan.context_length, plan.cache_tokens)
    source, known_ceilings = subject.seconds, ceilings
    if earlier is not None:
        source = {
            (count, first, tokens): seconds
            for count, first, tokens, seconds in earlier["models"][subject.name]["seconds"]
        }
        known_ceilings = ceilings_from(earlier["ceilings"])
    points = tuple(
        ProfilePoint(*place, median(source[place]), min(source[place]), max(source[place]))
        for place in known
        if place in source
    )
    key = profile_key(subject.model, plan, cpu=processor(), isa=tier[0], kernels=tier[1])
    profile = Profile(key, known_ceilings, plan.step_tokens, points, "this run")
    planned = ModelSubject(subject.model, AS_STORED, plan.kv_dtype, threads=plan.threads)
    with_profile = Speed(planned, known_ceilings, profile)
    measured = {place: median(subject.seconds[place]) for place in held}
    every = {place: median(values) for place, values in subject.seconds.items()}
    found = {
        "with": errors_of(with_profile, measured),
        "without": errors_of(Speed(planned, ceilings), every),
    }
    return {
        **{f"median_{name}": size_of(errors) for name, errors in found.items()},
        **{
            f"errors_{name}": [[*place, error] for place, error in errors.items()]
            for name, errors in found.items()
        },
        "law": with_profile.law._asdict(),
        "seconds": [[*place, values] for place, values in subject.seconds.items()],
        "profile_points": len(points),
        "disturbed": subject.disturbed,
    }


def ceilings_from(stored: dict[str, Any]) -> Ceilings:
    rates = {ActivationMode(mode): rate for mode, rate in stored["products"].items()}
    return Ceilings(stored["read"], rates)


def show(name: str, judged: dict[str, Any], console: Console) -> None:
    """A table of batches by contexts, and a line of prompts."""
    title = (
        f"{name}: predicted over measured, less one; median of sizes "
        f"{judged['median_with']:.1%} with a profile of {judged['profile_points']} points "
        f"(held-out places), {judged['median_without']:.1%} without (all places)"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("texts", justify="right")
    errors = {
        kind: {(c, f, t): error for c, f, t, error in judged[f"errors_{kind}"]}
        for kind in ("with", "without")
    }
    for context in CONTEXTS:
        table.add_column(f"{context:,}: with, without", justify="right")
    for count in BATCHES:
        places = [(count, context - 1, 1) for context in CONTEXTS]
        table.add_row(str(count), *(_shown(errors, place) for place in places))
    console.print(table)
    prompts = sorted({place for place in errors["without"] if place[2] > 1})
    if judged["disturbed"]:
        console.print(f"{judged['disturbed']} measurements were disturbed by other programs")
    shown = (f"{place[2]} {_shown(errors, place)}" for place in prompts)
    console.print(f"prompts: {'; '.join(shown)}")


def _shown(errors: dict[str, dict[Place, float]], place: Place) -> str:
    if place not in errors["without"]:
        return ""
    known = errors["with"].get(place)
    return f"{'  known' if known is None else f'{known:+7.1%}'} {errors['without'][place]:+7.1%}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--models", default="smollm2-135m,gemma3-270m")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--kv-dtype", default=KVDtype.BF16.value, choices=list(KVDtype))
    parser.add_argument(
        "--positions", type=int, default=1 << 16, help="of cache: the most that B x C may be"
    )
    parser.add_argument("--profile", type=Path, help="the JSON of an earlier run")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    earlier = None if arguments.profile is None else json.loads(arguments.profile.read_text())
    subjects = [opened(name, arguments) for name in arguments.models.split(",")]
    measurement = Measurement(arguments.threads, buffer_bytes(available_memory()))
    reads: list[float] = []
    products: list[dict[ActivationMode, float]] = []
    for number in range(1, arguments.rounds + 1):
        print(f"round {number} of {arguments.rounds}", file=sys.stderr)
        places = {
            place
            for subject in subjects
            for of in (profile_places, held_out_places)
            for place in of(subject.backend.context_length, arguments.positions)
        }
        # Mixed, so that a machine that slows down slows both down.
        for place in sorted(places):
            reads.append(max(measurement.read().values()))
            products.append(measurement.multiply())
            for subject in subjects:
                if place[1] + place[2] <= subject.backend.context_length:
                    subject.measure(place)
    ceilings = Ceilings(
        median(reads), {mode: median(each[mode] for each in products) for mode in products[0]}
    )
    tier = measurement.tier, measurement.kernels
    measurement.close()
    console = Console(width=200)
    judged = {each.name: judge(each, ceilings, earlier, tier) for each in subjects}
    for name, each in judged.items():
        show(name, each, console)
    if arguments.json is not None:
        told = {
            **facts(subjects[0].name, subjects[0].path, arguments.threads, tier[0]),
            "rounds": arguments.rounds,
            "kv_dtype": arguments.kv_dtype,
            "ceilings": {
                "read": ceilings.bytes_per_second,
                "products": {m.value: rate for m, rate in ceilings.products_per_second.items()},
            },
            "models": judged,
        }
        arguments.json.write_text(json.dumps(told, indent=1))
    good = all(
        each["median_with"] < WITH_PROFILE and each["median_without"] < WITHOUT
        for each in judged.values()
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
