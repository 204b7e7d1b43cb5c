"""Which settings keep an objective for a load, by what the product's own scheduler does with it.

Combinations of an engine, a number of slots and a chunk are simulated over the measured costs:
users who each ask again as soon as they have an answer, as load generators do. What a combination
does depends on no objective; an objective only says which of them will do. So a looser one never
leads to a slower choice. Fewer slots are looked at for as long as they might be better.

What a server does that is told nothing is simulated too, and left only for what is faster by more
than measured costs are unsure, or where it does not keep the objective.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import inf
from statistics import fmean
from typing import TYPE_CHECKING

from farthing.engine.cost import StepShape
from farthing.engine.simulate import Clock, Job, simulate
from farthing.lab.tune_points import CHUNKS, Load
from farthing.lab.tune_rounds import SAMPLE_SECONDS
from farthing.plan.grid import largest
from farthing.plan.profile import ServerWork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from farthing.engine.simulate import CostOfStep, Served
    from farthing.plan.objective import Objective

QUANTILE = 0.99
"""Of all requests, so many must keep to the objective; of MLPerf Inference's servers too."""

_LEAST_JOBS = 40
"""Each user asks once at least, and all together so often. Once more before and once after that
does not count: they come one after the other first, and in the end leave the others alone."""

_MOST_STARTS, _STARTING_USERS = 3, 192
"""So many beginnings are simulated, fewer where many users make one alone say enough. Whose
requests meet decides how long the slowest wait, and users that begin evenly never meet."""

_ALIKE = 0.02
"""Costs and throughputs that differ by less are taken to be the same."""


@dataclass(frozen=True)
class Candidate:
    """An engine that may be chosen: what its steps cost, and for how many texts it has memory.

    A step takes its cost times what the machine made of it: `spread` are measured times over their
    median, in the order they were measured in. The `server` before it bears on its steps unless it
    has a `core_of_its_own`.
    """

    name: str
    cost: CostOfStep
    most_slots: int
    step_tokens: int = 512
    spread: tuple[float, ...] = (1.0,)
    server: ServerWork | None = None
    core_of_its_own: bool = False

    def varied(self, seed: int) -> CostOfStep:
        """The cost as a machine has it: slow for a while, not from step to step.

        The spread from any place on, the same for each seed; each share of it for as many steps as
        it was measured by.
        """
        place = random.Random(seed).random() * len(self.spread)
        work = 0.0

        def cost(shape: StepShape) -> float:
            nonlocal work
            seconds = self.cost(shape)
            at = int(place + work / SAMPLE_SECONDS) % len(self.spread)
            work += seconds
            return seconds * self.spread[at]

        return cost


@dataclass(frozen=True)
class Usual:
    """What a server does that is told nothing but the model, which is then run by `candidate`.

    Of the load, `texts` at most have room in its cache of `cache_tokens`.
    """

    candidate: str
    slots: int
    step_seconds: float
    texts: int
    cache_tokens: int


@dataclass(frozen=True)
class Setting:
    """What a server is told. While others write, a step takes at most `step_seconds`, which is
    what it takes when `chunk` tokens of a prompt join `slots` that write.

    `usual`: it is what the server does anyway, and `chunk` about what that comes to.
    """

    candidate: str
    slots: int
    chunk: int
    step_seconds: float
    usual: bool = False


@dataclass(frozen=True)
class Forecast:
    """What a setting does with a load. Seconds by which `QUANTILE` of the requests have their first
    token, and from token to token; generated tokens a second.
    """

    setting: Setting
    ttft: float
    tpot: float
    throughput: float

    def kept(self, objective: Objective, margin: float = 0.0) -> bool:
        """Whether it keeps to the objective, even if everything takes longer by `margin`."""
        return objective.met(self.ttft * (1 + margin), self.tpot * (1 + margin))

    def margin(self, objective: Objective) -> float:
        """By what share everything may take longer; infinite where nothing is asked."""
        pairs = ((objective.ttft, self.ttft), (objective.tpot, self.tpot))
        asked = [(limit, found) for limit, found in pairs if limit is not None and found > 0]
        return min((limit / found - 1 for limit, found in asked), default=inf)


@dataclass(frozen=True)
class Choice:
    """`best` is None where no setting keeps to the objective: then `nearest` comes closest, and
    `reachable_users` have it with the settings of `reachable`. Where not even one has it,
    `reachable` is None, and `alone` what comes closest for one.
    """

    best: Forecast | None
    nearest: Forecast
    tried: tuple[Forecast, ...]
    reachable_users: int
    reachable: Forecast | None
    alone: Forecast | None = None


def choose(
    candidates: Sequence[Candidate],
    load: Load,
    objective: Objective,
    *,
    margin: float = 0.0,
    unsure: float = 0.0,
    usual: Usual | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Choice:
    """The setting with the highest throughput of those that keep the objective with `margin`.

    It is the `usual` one where that keeps it and none is faster by more than 2 %, or by more than
    the share by which measured costs are `unsure`. Else it is one of the first candidate whose
    fastest is as near to the fastest of all; and of that candidate's settings whose throughput is
    the same to 2 %, the one with the largest margin. Raises `ValueError` without a candidate that
    has memory for a text.
    """
    tried = list(_as_usual(candidates, load, usual, progress))
    kept = [each for each in tried if each.kept(objective, margin)]
    soonest = inf
    levels = slot_numbers(min(load.users, max((each.most_slots for each in candidates), default=0)))
    for slots in reversed(levels):
        level = list(_level(candidates, load, slots, progress))
        tried += level
        fastest = max((each.throughput for each in kept), default=0.0)
        soonest, before = min(each.ttft for each in level), soonest
        too_late = objective.ttft is not None and soonest > max(objective.ttft, before)
        if too_late or fastest > max(each.throughput for each in level):
            break  # even fewer slots make everybody wait for longer
        kept += [each for each in level if each.kept(objective, margin)]
    if not tried:
        raise ValueError("no candidate has memory for a single text")
    nearest = max(tried, key=lambda each: (each.margin(objective), each.throughput))
    if kept:
        best = _best([each.name for each in candidates], kept, objective, max(_ALIKE, unsure))
        return Choice(best, nearest, tuple(tried), load.users, best)
    found: dict[int, Forecast] = {}

    def possible(users: int) -> bool:
        fewer = Load(users, load.lengths)
        for slots in sorted({users, min(users, nearest.setting.slots)}, reverse=True):
            for forecast in _level(candidates, fewer, slots, progress):
                if forecast.kept(objective, margin):
                    found[users] = forecast
                    return True
        return False

    users = largest(possible, load.users - 1) if load.users > 1 else 0
    if users:
        return Choice(None, nearest, tuple(tried), users, found[users])
    single = _level(candidates, Load(1, load.lengths), 1, progress)
    alone = max(single, key=lambda each: each.margin(objective))
    return Choice(None, nearest, tuple(tried), 0, None, alone)


def _as_usual(
    candidates: Sequence[Candidate],
    load: Load,
    usual: Usual | None,
    progress: Callable[[str], None],
) -> Iterator[Forecast]:
    """What the usual settings do, where its engine is among the candidates and they have room."""
    for candidate in candidates:
        if usual is None or usual.candidate != candidate.name or usual.texts < 1:
            continue
        running = min(load.users, usual.slots, usual.texts)
        progress(f"simulate {load.users:,} users, {candidate.name}, as it is by default")
        fitting = [
            chunk
            for chunk in CHUNKS
            if step_seconds(candidate, load, running, chunk) <= usual.step_seconds
        ]
        chunk = max(fitting, default=CHUNKS[0])
        setting = Setting(candidate.name, usual.slots, chunk, usual.step_seconds, usual=True)
        yield _simulated(candidate, load, setting, running)


def _best(
    names: Sequence[str], kept: Sequence[Forecast], objective: Objective, unsure: float
) -> Forecast:
    """The choice among those that keep the objective."""
    fastest: dict[str, float] = {}
    for each in kept:
        name = each.setting.candidate
        fastest[name] = max(fastest.get(name, 0.0), each.throughput)
    enough = max(fastest.values()) * (1 - unsure)
    for each in kept:
        if each.setting.usual and each.throughput >= enough:
            return each
    first = next(name for name in names if fastest.get(name, -inf) >= enough)
    return max(
        (
            each
            for each in kept
            if each.setting.candidate == first and each.throughput >= fastest[first] * (1 - _ALIKE)
        ),
        key=lambda each: (each.margin(objective), each.throughput),
    )


def _level(
    candidates: Sequence[Candidate], load: Load, slots: int, progress: Callable[[str], None]
) -> Iterator[Forecast]:
    """Every candidate that has memory for so many slots, with every chunk."""
    for candidate in candidates:
        if slots <= candidate.most_slots:
            progress(f"simulate {load.users:,} users in {slots:,} slots, {candidate.name}")
            for chunk in CHUNKS:
                yield forecast_of(candidate, load, slots, chunk)


def forecast_of(candidate: Candidate, load: Load, slots: int, chunk: int) -> Forecast:
    """What one combination does with the load."""
    seconds = step_seconds(candidate, load, slots, chunk)
    return _simulated(candidate, load, Setting(candidate.name, slots, chunk, seconds), slots)


def _simulated(candidate: Candidate, load: Load, setting: Setting, running: int) -> Forecast:
    """What a setting does with the load, of which `running` texts at most run at once."""
    users = load.users
    counted: list[Served] = []
    tokens = seconds = 0.0
    for seed in range(max(1, min(_MOST_STARTS, _STARTING_USERS // users))):
        outcome = simulate(
            _jobs(load, candidate, running, seed),
            candidate.varied(seed),
            slots=running,
            latency_target=setting.step_seconds,
            step_tokens=candidate.step_tokens,
            users=users,
            server=candidate.server,
            core_of_its_own=candidate.core_of_its_own,
        )
        served = outcome.served
        counted += served[users:-users]
        begin = min(each.job.arrival for each in served[users:-users])
        end = max(each.job.arrival for each in served)
        tokens += sum(_tokens_within(each, begin, end) for each in served)
        seconds += end - begin
    return Forecast(
        setting,
        quantile([each.latency(Clock.ARRIVAL_TO_FIRST_TOKEN) for each in counted]),
        quantile([_between_tokens(each) for each in counted]),
        tokens / seconds,
    )


def _jobs(load: Load, candidate: Candidate, slots: int, seed: int) -> list[Job]:
    """What the users ask for, in order; their first requests come within the time in which each
    has one: shorter, and all would meet more often than users do who begin at any moment.
    """
    users = load.users
    draw = random.Random(seed)
    count = max(users, _LEAST_JOBS) + 2 * users
    lengths = draw.choices(load.lengths, k=count)
    writing = min(users, slots)
    positions = writing * load.context
    shape = StepShape(writing, writing, positions, positions)
    step = candidate.cost(shape)
    chunk = max(1, min(load.prompt, candidate.step_tokens - writing))
    read = max(0.0, candidate.cost(shape.joined(load.prompt // 2, chunk, 1)) - step)
    turn = users * (load.answer * step / writing + load.prompt * read / chunk)
    arrivals = sorted(draw.uniform(0, turn) for _ in range(users))
    return [
        Job(prompt, answer, arrivals[number] if number < users else 0.0)
        for number, (prompt, answer) in enumerate(lengths)
    ]


def _tokens_within(served: Served, begin: float, end: float) -> float:
    """How many of a job's tokens came in that time, if they came evenly."""
    first, last, count = served.first_token, served.last_token, served.job.output
    if count == 1 or last == first:
        return count if begin <= first <= end else 0.0
    return count * max(0.0, min(last, end) - max(first, begin)) / (last - first)


def _between_tokens(served: Served) -> float:
    """Seconds from one token to the next, in the mean over an answer; 0 for one token."""
    return (served.last_token - served.first_token) / max(1, served.job.output - 1)


def step_seconds(candidate: Candidate, load: Load, slots: int, chunk: int) -> float:
    """Of a step in which `chunk` tokens of a prompt join `slots` that write, one of them its own.

    What the scheduler gives prompts is bounded by this time, so it admits that many and, where less
    is written beside them, some more.
    """
    writing = max(1, slots - 1)
    positions = writing * load.context
    shape = StepShape(writing, writing, positions, positions)
    chunk = min(chunk, candidate.step_tokens - writing)
    return candidate.cost(shape.joined(load.prompt // 2, max(chunk, 1), 1))


def slot_numbers(most: int) -> list[int]:
    """Powers of two, the numbers halfway between them, and `most` itself."""
    if most < 1:
        return []
    powers = [1 << power for power in range(most.bit_length())]
    between = [3 * power // 2 for power in powers]
    return sorted({most, *(each for each in (*powers, *between) if each < most)})


def undominated(
    candidates: Sequence[Candidate],
    shapes: Sequence[StepShape],
    unsure: float = 0.0,
    kept: str | None = None,
) -> list[Candidate]:
    """Those that no other beats at every step: one that is as fast everywhere, to 2 %, and faster
    in all, by more than that and than costs are `unsure`, and has memory for as many. The one
    called `kept` is among them however that is.
    """
    clearly = max(_ALIKE, unsure)

    def beaten(one: Candidate, other: Candidate) -> bool:
        pairs = [(one.cost(shape), other.cost(shape)) for shape in shapes]
        return (
            other.most_slots >= one.most_slots
            and all(theirs <= mine * (1 + _ALIKE) for mine, theirs in pairs)
            and fmean(theirs / mine for mine, theirs in pairs) < 1 - clearly
        )

    return [
        one
        for one in candidates
        if one.name == kept or not any(beaten(one, other) for other in candidates)
    ]


def quantile(values: Sequence[float]) -> float:
    """The least value that `QUANTILE` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * QUANTILE))]
