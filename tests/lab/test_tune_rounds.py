"""Rounds on machines of known speed, which move the clock themselves."""

from __future__ import annotations

from itertools import count
from math import comb
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing.core import ActivationMode, FarthingError
from farthing.lab import tune_rounds
from farthing.lab.tune_journal import MOST_AGE, Journal
from farthing.lab.tune_points import Step, probes
from farthing.lab.tune_rounds import (
    LEAST_ROUNDS,
    Rounds,
    Samples,
    beaten,
    half_width,
    median_interval,
    spread,
    uncertainty,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

RATES = dict.fromkeys(ActivationMode, 1e11)
SMALL, LARGE = Step(1, 100), Step(8, 100, 50, 32)


class Clock:
    """Stands still but for what the machine does."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Machine:
    """A step takes 10 ms a token, times what `noise` gives."""

    def __init__(self, clock: Clock, noise: Callable[[], float] = lambda: 1.0) -> None:
        self.clock = clock
        self.noise = noise
        self.log: list[tuple[Step, int]] = []

    def seconds(self, step: Step, times: int) -> float:
        self.log.append((step, times))
        taken = 0.01 * step.shape.tokens * times * self.noise()
        self.clock.now += taken
        return taken

    def ceilings(self) -> tuple[float, Mapping[ActivationMode, float]]:
        self.clock.now += 0.1
        return 2e10, RATES


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(tune_rounds, "perf_counter", clock)
    return clock


@pytest.fixture
def journal(tmp_path: Path, clock: Clock) -> Journal:
    return Journal(tmp_path, {"what": "test"}, clock)


def run(
    machines: dict[str, Machine], journal: Journal, clock: Clock, seconds: float = 1e6
) -> tuple[bool, dict[str, Samples]]:
    samples = {name: journal.samples.get(name, Samples()) for name in machines}
    steps = dict.fromkeys(machines, (SMALL, LARGE))
    deadline = clock.now + seconds
    rounds = Rounds(machines, samples, journal, deadline, lambda _what, _left: None)
    rounds.least(steps)
    return rounds.until_known(steps), samples


def test_steps_are_measured_until_their_medians_are_known_and_no_longer(
    clock: Clock, journal: Journal
) -> None:
    narrow, samples = run({"one": Machine(clock)}, journal, clock)
    assert narrow
    # Six values are the least that an interval of 95 % can be had of.
    assert samples["one"].seconds == {
        SMALL: pytest.approx([0.01] * 6),
        LARGE: pytest.approx([0.4] * 6),
    }
    assert samples["one"].reads == [2e10] * 6


def test_a_step_that_is_known_is_left_alone_while_the_others_go_on(
    clock: Clock, journal: Journal
) -> None:
    random = Random(1)
    machine = Machine(clock)
    machine.noise = lambda: random.uniform(0.8, 1.2) if machine.log[-1][0] == LARGE else 1.0
    narrow, samples = run({"one": machine}, journal, clock)
    assert narrow
    assert len(samples["one"].seconds[SMALL]) == 6
    assert len(samples["one"].seconds[LARGE]) > 6
    assert half_width(samples["one"].seconds[LARGE]) <= 0.03


def test_engines_take_turns_at_each_step(clock: Clock, journal: Journal) -> None:
    order: list[str] = []
    machines = {}
    for name in ("one", "two"):
        machine = Machine(clock)
        machine.noise = lambda name=name: float(order.append(name) is None)  # type: ignore[misc]
        machines[name] = machine
    run(machines, journal, clock)
    # After the first round, in which each is warmed up, one measurement each.
    assert order[-8:] == ["one", "two"] * 4


def test_short_steps_are_measured_in_larger_numbers(clock: Clock, journal: Journal) -> None:
    machine = Machine(clock)
    run({"one": machine}, journal, clock)
    assert [times for step, times in machine.log if step == SMALL] == [1, *[4] * 6]
    assert {times for step, times in machine.log if step == LARGE} == {1}


def test_a_long_step_is_not_run_in_vain_to_warm_up(clock: Clock, journal: Journal) -> None:
    machine = Machine(clock)
    run({"one": machine}, journal, clock)
    assert len([step for step, _ in machine.log if step == LARGE]) == 6


def test_an_engine_that_another_clearly_beats_is_told_unless_it_holds_more_texts() -> None:
    def of(small: float, large: float) -> Samples:
        return Samples({SMALL: [small] * 3, LARGE: [large] * 3})

    samples = {"fast": of(1.0, 1.0), "alike": of(1.05, 1.05), "slow": of(1.2, 1.1)}
    samples["mixed"] = of(0.9, 3.0)
    samples["unknown"] = Samples({SMALL: [9.0]})
    even = dict.fromkeys(samples, 4)
    assert beaten(samples, (SMALL, LARGE), even) == {"slow"}
    assert beaten(samples, (SMALL, LARGE), {**even, "slow": 5}) == set()


def test_what_slows_some_samples_does_not_beat_an_engine() -> None:
    fast = Samples({SMALL: [1.0, 1.0, 1.0]})
    disturbed = Samples({SMALL: [1.02, 5.0, 9.0]})
    samples = {"fast": fast, "disturbed": disturbed}
    assert beaten(samples, (SMALL,), dict.fromkeys(samples, 1)) == set()


def test_uncertainty_is_half_the_interval_in_the_mean() -> None:
    samples = Samples({SMALL: [1.0, 1.0, 1.0], LARGE: [8.0, 10.0, 12.0]})
    assert uncertainty(samples) == pytest.approx((0.0 + 0.2) / 2)


def test_what_a_machine_makes_of_equal_steps_is_told_in_the_order_it_was_measured_in() -> None:
    samples = Samples({SMALL: [1.0, 2.0, 1.0], LARGE: [10.0, 20.0, 8.0, 10.0]})
    assert spread(samples) == (1.0, 1.0, 2.0, 2.0, 1.0, 0.8, 1.0)


def test_probes_are_the_smallest_and_largest_batch_and_the_longest_chunk() -> None:
    steps = [Step(1, 50), Step(4, 50), Step(8, 50), Step(8, 90), Step(0, 0, 0, 32)]
    steps += [Step(0, 0, 0, 256), Step(4, 50, 0, 512)]
    assert probes(steps, 50) == (Step(0, 0, 0, 256), Step(1, 50), Step(8, 50))


def test_where_time_is_short_every_step_is_measured_the_least_number_of_times(
    clock: Clock, journal: Journal
) -> None:
    narrow, samples = run({"one": Machine(clock)}, journal, clock, seconds=0.0)
    assert not narrow
    assert {len(each) for each in samples["one"].seconds.values()} == {LEAST_ROUNDS}


def test_who_is_stopped_goes_on_with_what_is_in_the_journal(
    clock: Clock, journal: Journal, tmp_path: Path
) -> None:
    machine = Machine(clock)
    calls = count()

    def stopped() -> float:
        if next(calls) == 9:
            raise KeyboardInterrupt
        return 1.0

    machine.noise = stopped
    with pytest.raises(KeyboardInterrupt):
        run({"one": machine}, journal, clock)
    journal.close()
    known = sum(map(len, journal.samples.get("one", Samples()).seconds.values()))
    again = Journal(tmp_path, {"what": "test"}, clock)
    assert known == 0
    assert again.figures == 8  # the small step was run once before, to warm up
    assert again.seconds > 0
    _, samples = run({"one": Machine(clock)}, again, clock)
    assert {len(each) for each in samples["one"].seconds.values()} == {6}
    again.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_journal_of_something_else_or_of_long_ago_is_begun_anew(
    clock: Clock, journal: Journal, tmp_path: Path
) -> None:
    journal.add_step("one", SMALL, 0.5)
    journal.add_ceilings("one", 1e10, RATES)
    journal.close()
    assert Journal(tmp_path, {"what": "other"}, clock).figures == 0
    kept = Journal(tmp_path, {"what": "test"}, clock)
    kept.close()
    assert kept.samples == {"one": Samples({SMALL: [0.5]}, [1e10], {m: [1e11] for m in RATES})}
    clock.now += MOST_AGE + 1
    assert Journal(tmp_path, {"what": "test"}, clock).figures == 0


def test_two_at_once_do_not_share_a_journal(clock: Clock, journal: Journal, tmp_path: Path) -> None:
    journal.add_step("one", SMALL, 0.5)
    with pytest.raises(FarthingError, match="another farthing tune is measuring the same"):
        Journal(tmp_path, {"what": "test"}, clock)
    Journal(tmp_path, {"what": "other"}, clock).close()
    journal.add_step("one", LARGE, 0.7)
    journal.close()
    assert Journal(tmp_path, {"what": "test"}, clock).figures == 2


def test_a_journal_that_is_no_file_of_ones_own_is_refused(
    clock: Clock, journal: Journal, tmp_path: Path
) -> None:
    journal.remove()
    journal.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FarthingError, match="cannot be written"):
        Journal(tmp_path, {"what": "test"}, clock)
    assert not (tmp_path / "elsewhere").exists()


@given(st.binary(max_size=200), st.booleans())
def test_whatever_a_journal_holds_what_is_sound_before_it_is_read_and_no_more(
    junk: bytes, behind: bool
) -> None:
    clock = Clock()
    with TemporaryDirectory() as folder:
        journal = Journal(Path(folder), {"what": "test"}, clock)
        journal.add_step("one", SMALL, 0.5)
        journal.add_step("one", LARGE, 0.7)
        journal.close()
        whole = journal.path.read_bytes()
        cut = whole[: len(whole) - 20] + junk if behind else junk + whole
        journal.path.write_bytes(cut)
        again = Journal(Path(folder), {"what": "test"}, clock)
        assert again.figures <= 2
        if behind:
            assert again.samples["one"].seconds[SMALL] == [0.5]
        again.add_step("one", SMALL, 0.6)
        again.close()
        last = Journal(Path(folder), {"what": "test"}, clock)
        assert last.figures == again.figures + 1


def test_a_folder_that_cannot_be_written_to_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FarthingError, match="there is no folder .*tuning for .*: make it"):
        Journal(tmp_path / "file" / "tuning", {})


@pytest.mark.parametrize("number", [3, 6, 9, 20, 101])
def test_the_interval_is_the_narrowest_pair_of_order_statistics_that_is_sure_enough(
    number: int,
) -> None:
    low, high = median_interval([float(each) for each in range(number)])
    rank = int(low)
    assert high == number - 1 - rank

    def missed(rank: int) -> float:
        return 2 * sum(comb(number, each) for each in range(rank + 1)) / 2**number

    if number >= 6:
        assert missed(rank) <= 0.05
        assert missed(rank + 1) > 0.05
    else:
        assert rank == 0


@given(st.lists(st.floats(0.001, 1e3), min_size=1, max_size=40))
def test_the_interval_holds_the_median_of_what_was_measured(values: list[float]) -> None:
    low, high = median_interval(values)
    assert min(values) <= low <= median(values) <= high <= max(values)
