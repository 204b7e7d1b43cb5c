"""A stored profile tells an engine, and a simulation, what steps cost before any has run."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import pytest

import tiny
from farthing.backends.native import NativeBackend
from farthing.core import ActivationMode
from farthing.engine.cost import StepShape
from farthing.engine.engine import Engine
from farthing.engine.foretold import foretell
from farthing.engine.simulate import Job, simulate
from farthing.plan.law import Law, terms_of
from farthing.plan.machine import processor
from farthing.plan.memory import plan_memory
from farthing.plan.precision import AS_STORED
from farthing.plan.profile import Ceilings, Profile, ProfilePoint, profile_key, store_profile
from farthing.plan.subject import ModelSubject
from native_steps import model_at

if TYPE_CHECKING:
    from pathlib import Path

    from farthing.engine.cost import StepCost
    from farthing.plan.memory import MemoryPlan

ISA, KERNELS = "avx512", "k1"
CEILINGS = Ceilings(2e10, dict.fromkeys(ActivationMode, 1e11))
SLOW = Law(2.0, 3.0, 2.0, 2.0, 2e-4, 2e-3)
"""A machine whose steps are much slower than a tiny model's own."""
MEASURED = "2030-01-02T03:04:05+00:00"


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FARTHING_CACHE", str(tmp_path))


def plan_of(path: Path, cache_tokens: int = 8192) -> MemoryPlan:
    return plan_memory(model_at(path), slots=16, cache_tokens=cache_tokens, threads=1)


def actual(subject: ModelSubject, first: int, tokens: int, others: int, context: int) -> float:
    """What a step takes on that machine."""
    work = subject.step(first, tokens, 1)
    if others:
        work += subject.joining(context) * others
    return SLOW.seconds(terms_of(work, CEILINGS))


def store(path: Path, isa: str = ISA, kernels: str = KERNELS) -> ModelSubject:
    model, plan = model_at(path), plan_of(path)
    subject = ModelSubject(model, AS_STORED, plan.kv_dtype, threads=1)
    decode = [(count, context) for count in (1, 4, 16) for context in (16, 128, 1024)]
    seconds = {(n, c - 1, 1): actual(subject, c - 1, 1, n - 1, c) for n, c in decode}
    seconds |= {(1, 0, tokens): actual(subject, 0, tokens, 0, 1) for tokens in (16, 64, 256, 512)}
    points = tuple(ProfilePoint(*place, x, x, x) for place, x in seconds.items())
    key = profile_key(model, plan, cpu=processor(), isa=isa, kernels=kernels)
    store_profile(Profile(key, CEILINGS, 512, points, MEASURED))
    return subject


@pytest.fixture(scope="module")
def path() -> Path:
    return tiny.shared("llama", "gguf", "Q4_0")


def test_without_a_profile_nothing_is_foretold_and_why_is_told(path: Path) -> None:
    found, why = foretell(model_at(path), plan_of(path), isa=ISA, kernels=KERNELS)
    assert found is None
    assert "no profile of it is stored" in why


def test_a_profile_of_other_kernels_is_refused_with_what_differs(path: Path) -> None:
    store(path, kernels="k0")
    found, why = foretell(model_at(path), plan_of(path), isa=ISA, kernels=KERNELS)
    assert found is None
    assert f"its profile of {MEASURED} does not apply (measured with kernels k0, not k1)" in why


def test_steps_that_were_never_run_cost_what_the_profile_says(path: Path) -> None:
    subject = store(path)
    found, why = foretell(model_at(path), plan_of(path), isa=ISA, kernels=KERNELS)
    assert found is not None
    assert (found.measured, why) == (MEASURED, "")
    cost = found.cost()
    errors = []
    for count in (1, 3, 12, 16):
        for context in (50, 400):
            shape = StepShape(count, count, count * context, count * context)
            expected = actual(subject, context - 1, 1, count - 1, context)
            errors.append(abs(cost.seconds(shape) / expected - 1))
    for others, tokens in ((0, 100), (4, 100), (15, 400)):
        shape = StepShape(others, others, others * 256, others * 256).joined(0, tokens, 1)
        expected = actual(subject, 0, tokens, others, 256)
        errors.append(abs(cost.seconds(shape) / expected - 1))
    assert median(errors) < 0.05
    assert max(errors) < 0.25


def test_far_into_a_text_layers_with_windows_cost_what_they_see(gemma3_path: Path) -> None:
    """Of this model's header alone, on a machine where attention is most of a step."""
    subject = store(gemma3_path)
    plan = plan_of(gemma3_path, 1 << 16)
    found, _ = foretell(model_at(gemma3_path), plan, isa=ISA, kernels=KERNELS)
    assert found is not None
    assert [window for window, _ in found.windows] == [512]
    with_windows, without = found.cost(), found._replace(windows=()).cost()

    def errors(cost: StepCost) -> list[float]:
        places = [(count, context) for count in (1, 4, 16) for context in (64, 512, 4096)]
        return [
            abs(
                cost.seconds(StepShape(count, count, count * context, count * context))
                / actual(subject, context - 1, 1, count - 1, context)
                - 1
            )
            for count, context in places
        ]

    assert max(errors(with_windows)) < 0.15
    assert max(errors(without)) > 1.5 * max(errors(with_windows))


def test_no_step_is_foretold_that_could_not_run(path: Path) -> None:
    store(path)
    plan = plan_of(path)
    found, _ = foretell(model_at(path), plan, isa=ISA, kernels=KERNELS)
    assert found is not None
    for shape, seconds in found.steps:
        assert seconds > 0
        assert shape.tokens <= plan.step_tokens
        assert shape.rows <= plan.step_rows
        assert shape.reads <= plan.cache_tokens + plan.slots * 256
    assert {shape.rows for shape, _ in found.steps} >= {1, 2, 4, 8, 16}


def test_an_engine_that_expects_steps_knows_its_pace_before_the_first(path: Path) -> None:
    with Engine.load(path, slots=16, cache_tokens=8192, threads=1) as engine:
        assert engine.report is not None
        subject = store(path, engine.report.isa, NativeBackend.kernel_version)
        assert engine.pace(4, 400).step_seconds == 0
        found, _ = foretell(
            model_at(path),
            plan_of(path),
            isa=engine.report.isa,
            kernels=NativeBackend.kernel_version,
        )
        assert found is not None
        engine.expect(found.steps)
        pace = engine.pace(4, 400)
        assert pace.step_seconds == pytest.approx(actual(subject, 99, 1, 3, 100), rel=0.1)
        assert pace.prompt_seconds > 0
        # What runs is believed: this machine is much faster than that profile.
        for seed in range(8):
            engine.generate([[seed + 1, 7, 9]] * 4, None)
        assert engine.pace(4, 400).step_seconds < 0.5 * pace.step_seconds


def test_a_simulation_by_a_profile_takes_what_the_machine_would(path: Path) -> None:
    subject = store(path)
    found, _ = foretell(model_at(path), plan_of(path), isa=ISA, kernels=KERNELS)
    assert found is not None
    jobs = [Job(60, 20, 0.05 * number) for number in range(24)]

    def machine(shape: StepShape) -> float:
        decoding = shape.rows if shape.tokens == shape.rows else shape.rows - 1
        chunk = shape.tokens - decoding
        context = max(1, shape.reads // max(1, shape.rows))
        if not chunk:
            return actual(subject, context - 1, 1, decoding - 1, context)
        return actual(subject, 0, chunk, max(0, decoding), context)

    supposed = simulate(jobs, found.cost().seconds, slots=8)
    real = simulate(jobs, machine, slots=8)
    assert supposed.seconds == pytest.approx(real.seconds, rel=0.1)
