"""The settings that serve a load within an objective on this machine, found by measuring.

Engines (a model, a kind of cache, a number of threads) are loaded once, as many at a time as memory
holds, and their steps measured in rounds; the product's own scheduler is then simulated over these
costs. What is measured goes into a journal as it comes, and in the end into profiles.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING

from farthing.engine.cost import windows_of
from farthing.lab.bench import buffer_bytes
from farthing.lab.tune_choose import Candidate, Choice, Usual, choose, undominated
from farthing.lab.tune_cost import MeasuredCost, Overhead
from farthing.lab.tune_curve import Curve, make_curve
from farthing.lab.tune_engines import Contender, contenders, measure
from farthing.lab.tune_journal import Journal
from farthing.lab.tune_rounds import spread, uncertainty
from farthing.plan.machine import usable_cores
from farthing.plan.profile import (
    Ceilings,
    Profile,
    ProfilePoint,
    ServerWork,
    profiles_folder,
    store_profile,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from farthing.lab.tune_points import Load
    from farthing.lab.tune_rounds import Samples
    from farthing.lab.tune_variants import Variant
    from farthing.plan.objective import Objective
    from farthing.text.tokenizer import Tokenizer

    Progress = Callable[[str], None]


@dataclass(frozen=True)
class Wish:
    """What is asked for. Measuring takes about `seconds`; `margin` is a share of all times.

    `usual` is what a server does that is told nothing, None where it cannot serve the load.
    """

    load: Load
    objective: Objective
    margin: float
    seconds: float
    seed: int
    price_per_hour: float | None = None
    usual: Usual | None = None


@dataclass(frozen=True)
class Tuning:
    """What was found. `samples` and `slots`, for how many texts there is memory, and of those who
    were measured in full `profiles` and `costs`, are by the variant's name; `narrow` says whether
    all medians are known well, `resumed` how many figures were of a run that was stopped.
    """

    choice: Choice
    chosen: Variant
    cache_tokens: int
    curve: Curve
    overhead: Overhead
    samples: Mapping[str, Samples]
    slots: Mapping[str, int]
    profiles: Mapping[str, Profile]
    costs: Mapping[str, MeasuredCost]
    left_out: tuple[str, ...]
    server: ServerWork
    isa: str
    narrow: bool
    resumed: int


def tune(
    variants: Sequence[Variant],
    tokenizer: Tokenizer,
    wish: Wish,
    *,
    server: Callable[[Tokenizer, Load], ServerWork],
    room: int,
    progress: Progress,
) -> Tuning:
    """Measures all variants in `room` bytes and chooses among them; `server` measures what a server
    of such a load takes beside the steps.

    Raises `DoesNotFitError` where there is memory for none, else leaves out those without. The
    journal stays where this is interrupted.
    """
    from farthing.backends.ceilings import Ceilings as MeasuredCeilings

    with ExitStack() as stack:
        ceilings = {}
        for threads in sorted({each.threads for each in variants}):
            ceilings[threads] = MeasuredCeilings(threads, buffer_bytes(room // len(variants)))
            stack.callback(ceilings[threads].close)
        isa = next(iter(ceilings.values())).tier
        held = sum(2 * each.buffer_bytes for each in ceilings.values())
        measured, left_out = contenders(variants, wish.load, ceilings, room - held)
        journal = Journal(
            profiles_folder().parent / "tuning",
            {"engines": {name: each.question for name, each in measured.items()}},
        )
        stack.callback(journal.close)
        resumed = journal.figures
        for name, samples in journal.samples.items():
            if name in measured:
                measured[name].samples = samples
        narrow, overhead = measure(
            measured,
            ceilings,
            journal,
            tokenizer,
            wish.load,
            kept=_usual_name(wish),
            seconds=wish.seconds,
            seed=wish.seed,
            room=room - held,
            progress=progress,
        )
    progress("the server's work for requests and tokens")
    work = server(tokenizer, wish.load)
    complete = {name: each for name, each in measured.items() if each.complete}
    costs = {name: _cost(each, overhead) for name, each in complete.items()}
    choice = _choice(complete, costs, work, wish, progress)
    shown = choice.best or choice.reachable or choice.nearest
    name = shown.setting.candidate
    chosen = complete[name]
    curve = make_curve(
        chosen.samples,
        overhead,
        costs[name],
        chosen.variant.model.program,
        chosen.plan,
        wish.load,
        wish.price_per_hour,
    )
    journal.remove()
    return Tuning(
        choice,
        chosen.variant,
        wish.usual.cache_tokens
        if wish.usual is not None and shown.setting.usual
        else chosen.variant.cache_tokens(wish.load, shown.setting.slots, room),
        curve,
        overhead,
        {name: each.samples for name, each in measured.items()},
        {name: each.slots for name, each in measured.items()},
        {name: _profile(each, work) for name, each in complete.items()},
        costs,
        tuple(left_out),
        work,
        isa,
        narrow,
        resumed,
    )


def store_profiles(tuning: Tuning) -> list[str]:
    """Stores what was measured of every variant; gives the files. Raises as `store_profile`."""
    return [str(store_profile(profile)) for profile in tuning.profiles.values()]


def _usual_name(wish: Wish) -> str | None:
    return None if wish.usual is None else wish.usual.candidate


def _cost(measured: Contender, overhead: Overhead) -> MeasuredCost:
    medians = {step.shape: median(v) for step, v in measured.samples.seconds.items()}
    return MeasuredCost(medians, overhead, windows_of(measured.variant.model.program.cache))


def _choice(
    measured: Mapping[str, Contender],
    costs: Mapping[str, MeasuredCost],
    work: ServerWork,
    wish: Wish,
    progress: Progress,
) -> Choice:
    cores = usable_cores()
    candidates = [
        Candidate(
            name,
            costs[name],
            each.slots,
            each.plan.step_tokens,
            spread(each.samples),
            work,
            each.plan.threads < cores,
        )
        for name, each in measured.items()
    ]
    common = set.intersection(*(set(each.steps) for each in measured.values()))
    unsure = max(uncertainty(each.samples) for each in measured.values())
    shapes = [step.shape for step in sorted(common)]
    return choose(
        undominated(candidates, shapes, unsure, _usual_name(wish)),
        wish.load,
        wish.objective,
        margin=wish.margin,
        unsure=unsure,
        usual=wish.usual,
        progress=progress,
    )


def _profile(measured: Contender, work: ServerWork) -> Profile:
    """What a profile holds of what was measured: steps of one kind each."""
    samples = measured.samples
    points = [
        ProfilePoint(*step.place, median(values), min(values), max(values))
        for step, values in sorted(samples.seconds.items())
        if step.place is not None
    ]
    return Profile(
        key=measured.key,
        ceilings=Ceilings(
            median(samples.reads), {mode: median(r) for mode, r in samples.products.items()}
        ),
        step_tokens=measured.plan.step_tokens,
        points=tuple(points),
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
        server=work,
    )
