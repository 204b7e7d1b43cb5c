"""Loading the variants and measuring them, as many at a time as memory holds."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

from farthing.core import DoesNotFitError
from farthing.lab.bench_ops import python_share
from farthing.lab.bench_steps import Steps
from farthing.lab.tune_cost import Overhead, overhead_of
from farthing.lab.tune_points import batches, probes
from farthing.lab.tune_rounds import Rounds, Samples, beaten
from farthing.lab.tune_variants import grouped
from farthing.plan.machine import processor
from farthing.plan.memory import require_room
from farthing.plan.profile import profile_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from farthing.backends.ceilings import Ceilings
    from farthing.core import ActivationMode
    from farthing.lab.bench_steps import MeasuredBackend
    from farthing.lab.tune_journal import Journal
    from farthing.lab.tune_points import Load, Step
    from farthing.lab.tune_variants import Variant
    from farthing.plan.memory import MemoryPlan
    from farthing.plan.profile import ProfileKey
    from farthing.text.tokenizer import Tokenizer

_FILLED_TOKENS = 512
_PYTHON_TOKENS = 16
_PYTHON_BATCH = 16


@dataclass
class Contender:
    """A variant on its way: what of it is measured, and for how many texts there is memory."""

    variant: Variant
    plan: MemoryPlan
    steps: tuple[Step, ...]
    key: ProfileKey
    slots: int
    samples: Samples = field(default_factory=Samples)

    @property
    def question(self) -> dict[str, object]:
        """All that its figures depend on."""
        return {"key": asdict(self.key), "steps": [asdict(step) for step in self.steps]}

    @property
    def complete(self) -> bool:
        """Whether all its steps were measured: one that another clearly beats has few."""
        return all(step in self.samples.seconds for step in self.steps)


def contenders(
    variants: Iterable[Variant], load: Load, ceilings: Mapping[int, Ceilings], room: int
) -> tuple[dict[str, Contender], list[str]]:
    """Those that there is memory for, by name, and why the others are left out.

    Raises `DoesNotFitError` where there is memory for none.
    """
    found: dict[str, Contender] = {}
    left_out: dict[str, DoesNotFitError] = {}
    for each in variants:
        try:
            plan, steps = each.fitted(load, batches(load.users), room)
            require_room(each.served(load, 1), room)
        except DoesNotFitError as error:
            left_out[each.name] = error
            continue
        limits = ceilings[each.threads]
        key = profile_key(
            each.model, plan, cpu=processor(), isa=limits.tier, kernels=limits.kernels
        )
        found[each.name] = Contender(each, plan, steps, key, each.most_slots(load, room))
    if not found:
        raise next(iter(left_out.values()))
    return found, [f"{name}: {error}" for name, error in left_out.items()]


class _Engine:
    """A loaded variant, as the rounds see it."""

    def __init__(
        self, backend: MeasuredBackend, ceilings: Ceilings, seed: int, filled: int
    ) -> None:
        self._steps = Steps(backend, seed)
        self._ceilings = ceilings
        self._steps.fill_cache(filled)

    def seconds(self, step: Step, times: int) -> float:
        """Of so many such steps together."""
        return self._steps.repeat(step.spans, times)

    def ceilings(self) -> tuple[float, Mapping[ActivationMode, float]]:
        """Bytes a second, and multiply-accumulates by mode."""
        return max(self._ceilings.read().values()), self._ceilings.multiply()


def measure(
    measured: Mapping[str, Contender],
    ceilings: Mapping[int, Ceilings],
    journal: Journal,
    tokenizer: Tokenizer,
    load: Load,
    *,
    kept: str | None,
    seconds: float,
    seed: int,
    room: int,
    progress: Callable[[str], None],
) -> tuple[bool, Overhead]:
    """Takes the samples of all, for about so many `seconds`, the journal's included.

    One that another clearly beats is not measured in full, unless it is the one called `kept`.
    Returns whether every median is known well that is wanted, and what Python takes of a step.
    """
    narrow, overhead = True, Overhead()
    groups = grouped([(name, each.plan.needed_bytes) for name, each in measured.items()], room)
    share = max(0.0, seconds - journal.seconds) / len(groups)
    common = set.intersection(*(set(each.steps) for each in measured.values()))
    first = probes(sorted(common), load.context)

    def told(what: str, left: float) -> None:
        progress(f"{what}; {max(0.0, left):.0f} s left at most")

    for number, names in enumerate(groups):
        with ExitStack() as stack:
            deadline = perf_counter() + share
            group = {name: measured[name] for name in names}
            engines = {
                name: _loaded(each, ceilings[each.plan.threads], seed, stack, progress)
                for name, each in group.items()
            }
            if number == 0:
                progress("Python's share of a step")
                backend = next(iter(engines.values()))[0]
                overhead = _overhead(backend, tokenizer, load, seed)
            rounds = Rounds(
                {name: engine for name, (_, engine) in engines.items()},
                {name: each.samples for name, each in group.items()},
                journal,
                deadline,
                told,
            )
            rounds.least(dict.fromkeys(names, first))
            slower = beaten(
                {name: each.samples for name, each in measured.items()},
                first,
                {name: each.slots for name, each in measured.items()},
            )
            wanted = {
                name: each.steps
                for name, each in group.items()
                if name == kept or name not in slower
            }
            rounds.least(wanted)
            narrow &= rounds.until_known(wanted)
    return narrow, overhead


def _loaded(
    contender: Contender,
    ceilings: Ceilings,
    seed: int,
    stack: ExitStack,
    progress: Callable[[str], None],
) -> tuple[MeasuredBackend, _Engine]:
    from farthing.backends.native import NativeBackend

    progress(f"load {contender.variant.name}")
    backend = NativeBackend(contender.variant.model, contender.plan)
    stack.callback(backend.close)
    filled = min(_FILLED_TOKENS, backend.context_length, contender.plan.cache_tokens)
    return backend, _Engine(backend, ceilings, seed, filled)


def _overhead(backend: MeasuredBackend, tokenizer: Tokenizer, load: Load, seed: int) -> Overhead:
    """Of one text and of some at once."""
    most = min(_PYTHON_BATCH, load.users, backend.total_blocks)
    counts: Sequence[int] = sorted({1, most})
    return overhead_of(
        {
            count: python_share(backend, tokenizer, count, seed, tokens=_PYTHON_TOKENS).seconds
            for count in counts
        }
    )
