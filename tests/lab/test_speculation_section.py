"""The laboratory's section on speculation: its parts by hand, and all of it on a small model."""

from __future__ import annotations

import json
import time
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing.cli import main
from farthing.cli.lab_prompts import MOST_PROMPTS, read_prompts
from farthing.core import RequestError, SamplingParams
from farthing.engine.draft_copy import stored_again
from farthing.engine.prompts import encode
from farthing.engine.verification import DraftCounts
from farthing.lab.drift import Drift
from farthing.lab.samples import Samples
from farthing.lab.sections import measure_section
from farthing.lab.speculation import (
    TOKENS,
    formula_table,
    gains_table,
    measure,
    references_table,
)
from farthing.lab.speculation_copies import Acceptances, drawn_table, softmax
from farthing.lab.speculation_formula import speed_up
from farthing.lab.speculation_gains import TURNS, Outcome, Seen, outcomes, predicted_gain
from farthing.lab.speculation_passes import (
    acceptance_by_place,
    counted_tokens,
    looked_up_runs,
    right_runs,
)
from farthing.lab.speculation_prompts import own_tasks
from farthing.lab.speculation_turns import Decoded, Turns, at, step_seconds
from farthing.lab.table import Skipped, Table
from lab_subject import subject_at

if TYPE_CHECKING:
    from pathlib import Path

    from farthing.core import StepPlan
    from farthing.lab.speculation_prompts import Task


def test_the_quoted_figures_are_in_the_table_exactly() -> None:
    table = references_table()
    assert [round(row[5], 2) for row in table.rows] == [3.40, 0.79, 0.79]  # type: ignore[arg-type]
    assert round(table.rows[2][3], 1) == 1.4  # type: ignore[arg-type]
    assert table.rows[2][4] == pytest.approx(1.8)
    assert table.expectation is not None
    assert table.expectation.met


def test_the_table_of_the_formula_holds_what_the_formula_gives() -> None:
    table = formula_table()
    lengths = [int(column.name.split()[1]) for column in table.columns[2:-1]]
    for acceptance, cost, *gains, _ in table.rows:
        assert gains == [speed_up(acceptance, length, cost) for length in lengths]  # type: ignore[arg-type]


@pytest.mark.parametrize(("variation", "met"), [(0.9996, True), (0.5, False)])
def test_a_copy_that_is_never_right_contradicts_only_a_bound_that_it_would_have_met(
    variation: float, met: bool
) -> None:
    """504 draws say nothing of a chance of one in 5,000."""
    shape = (8, 63)
    never = Acceptances(
        np.zeros(shape, np.bool_),
        np.zeros(shape, np.bool_),
        np.full(shape, 1 - variation),
        np.full(shape, variation),
    )
    expectation = drawn_table({"INT4_TENSOR": never}).expectation
    assert expectation is not None
    assert expectation.met is met


# --- runs of right guesses


def test_runs_are_counted_from_every_position_that_has_room() -> None:
    agrees = [np.array([True, True, False, True, True, True])]
    assert right_runs(agrees, 2).tolist() == [2, 1, 0, 2, 2]
    assert right_runs(agrees, 7).tolist() == []


@given(
    st.lists(st.lists(st.booleans(), min_size=3, max_size=30), min_size=1, max_size=4),
    st.integers(1, 3),
)
def test_rates_by_place_multiply_to_the_tokens_counted(
    agrees: list[list[bool]], guesses: int
) -> None:
    runs = right_runs([np.array(each) for each in agrees], 3)
    places = acceptance_by_place(runs, 3)
    product, tokens = 1.0, 1.0
    for rate in places[:guesses]:
        product *= rate or 0.0
        tokens += product
    assert counted_tokens(runs, guesses) == pytest.approx(tokens)
    assert all(rate is None or 0 <= rate <= 1 for rate in places)


def test_what_is_looked_up_in_a_text_that_repeats_itself_is_right() -> None:
    runs, share = looked_up_runs([([1, 2, 3, 4, 5] * 8, 10)])
    assert share == 1.0
    assert set(runs.tolist()) == {8}
    runs, share = looked_up_runs([(list(range(40)), 10)])
    assert (len(runs), share) == (0, 0.0)


# --- the prediction


def seen(share: float, right: tuple[float, ...], length: float = 4, cost: float = 0.0) -> Seen:
    return Seen(share, length, right, cost)


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("cost", [0.0, 0.2])
def test_the_prediction_is_the_formula_where_every_step_guesses_and_costs_the_same(
    acceptance: float, cost: float
) -> None:
    steps = {1: 0.01, 5: 0.013}
    found = predicted_gain(seen(1.0, (acceptance,) * 4, cost=cost * 0.01), steps, 0.0, 0.0)
    assert found == pytest.approx(speed_up(acceptance, 4, cost, 1.3))


def test_steps_without_guesses_gain_nothing_and_the_host_is_counted() -> None:
    steps = {1: 0.01, 5: 0.013}
    assert predicted_gain(seen(0.0, ()), steps, 0.001, 0.002) == pytest.approx(1.0)
    always = predicted_gain(seen(1.0, (0.9,) * 4), steps, 0.0, 0.0)
    half = predicted_gain(seen(0.5, (0.9,) * 4), steps, 0.0, 0.0)
    slow = predicted_gain(seen(1.0, (0.9,) * 4), steps, 0.0, 0.005)
    assert 1.0 < half < always
    assert slow == pytest.approx(always * 0.013 / 0.018)


def test_what_a_run_showed_is_the_difference_of_its_counts() -> None:
    before, after = DraftCounts(), DraftCounts()
    for counts in (before, after):
        counts.add(4, 4)
        counts.proposed += 4
    after.add(4, 2)
    after.add(1, 0)
    after.proposed += 8
    found = Seen.of(before, after, tokens=10, seconds=0.4)
    assert found.length == 4
    assert found.right[:3] == (0.5, 1.0, 0.0)
    assert found.share == pytest.approx(2 / (2 + 6))  # ten tokens: 2 passes, 2 guesses, 6 steps
    assert found.pass_seconds == pytest.approx(0.05)
    assert found.tokens_a_pass == pytest.approx(1 + 0.5 + 0.5)
    assert Seen.of(after, after, 5, 0.0).share == 0.0


def test_probabilities_at_a_temperature_are_those_of_the_softmax() -> None:
    logits = np.random.default_rng(1).normal(0, 3, (4, 30)).astype(np.float32)
    exact = np.exp(logits.astype(np.float64) / 0.7)
    exact /= exact.sum(axis=1, keepdims=True)
    assert np.abs(softmax(logits, 0.7) - exact).max() < 1e-6


# --- passes that are counted, and what they should take


def test_a_text_takes_what_its_passes_take_and_the_host_before_each() -> None:
    counts = DraftCounts()
    decoded = Decoded(
        (1, 2, 3), 0.0, Counter({1: 10, 3: 2, 5: 4}), 0.0, Counter({1: 7}), 0.0, 1e-3, 5e-3,
        counts, counts,
    )  # fmt: skip
    steps, guesses = {1: 0.01, 3: 0.013, 5: 0.02}, {1: 0.002}
    in_steps = 10 * 0.01 + 2 * 0.013 + 4 * 0.02 + 7 * 0.002
    assert decoded.foretold(steps, guesses) == pytest.approx(in_steps + 10 * 1e-3 + 6 * 5e-3)


def test_a_size_that_was_not_timed_lies_between_those_that_were() -> None:
    steps = {1: 1.0, 3: 2.0, 5: 4.0}
    assert [at(steps, size) for size in (1, 2, 4, 5, 6)] == [1.0, 1.5, 3.0, 4.0, 5.0]
    assert at({1: 1.0}, 4) == 1.0


class Paced:
    """A backend that takes so long for a step of each number of tokens, and gives nothing."""

    context_length = 64

    def __init__(self, seconds: dict[int, float]) -> None:
        self.seconds = seconds

    def run(self, plan: StepPlan) -> None:
        time.sleep(self.seconds[len(plan.token_ids)])


def test_steps_apart_are_timed_by_their_tokens() -> None:
    backend = Paced({1: 0.002, 3: 0.006})
    found = step_seconds(backend, (1, 3), 10, SamplingParams())  # type: ignore[arg-type]
    assert found[1] >= 0.002
    assert found[3] >= 0.006


@pytest.mark.parametrize("draft", [None, "a copy"])
def test_every_token_is_of_a_pass_that_is_counted(draft: str | None) -> None:
    subject = subject_at("float")
    copy = None if draft is None else stored_again(subject.model, "INT8_ROW")
    [task, *_] = own_tasks(None, 40)
    with Turns(subject, None, 400, copy) as turns:
        plain, always = turns.plain.decode(task), turns.always.decode(task)
        again = turns.always.decode(task)
    assert plain.tokens == always.tokens
    assert plain.passes == {1: 39}  # the first token is the prompt's
    assert not plain.guesses
    assert always.passes == again.passes
    assert always.guesses == again.guesses
    assert bool(always.guesses) is (draft is not None)
    # Each pass gives a token, and each guess that is right one more.
    right = always.after.accepted - always.before.accepted
    assert always.passes.total() + right == 39
    proposed = always.after.proposed - always.before.proposed
    assert sum(size * count for size, count in always.passes.items()) == (
        always.passes.total() + proposed
    )
    for each in (plain, always):
        host = each.passes[1] * each.plain_host
        host += (each.passes.total() - each.passes[1]) * each.guess_host
        accounted = each.in_passes + each.in_guesses + host
        assert 0 < each.in_passes < accounted
        assert accounted <= each.seconds + 0.5  # what the thread stands still for is no pass's


def test_no_guess_is_left_out_because_the_cache_is_as_small_as_the_text() -> None:
    subject = subject_at("float")
    [task, *_] = own_tasks(None, 64)
    found = []
    for room in (len(encode(task.prompt, subject.tokenizer, None, 512)) + 64, 512):
        with Turns(subject, None, room) as turns:
            found.append(turns.always.decode(task))
    assert found[0].tokens == found[1].tokens
    assert found[0].passes == found[1].passes


# --- a person's prompts


def test_prompts_are_a_line_each_or_a_batch(tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_text("one\n\n  two \n")
    assert [prompt for prompt, _ in read_prompts(path)] == ["one", "two"]
    lines: list[dict[str, Any]] = [
        {"prompt": "a", "temperature": 0.5},
        {"messages": [{"role": "user", "content": "b"}]},
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    (first, sampling), (second, _) = read_prompts(path)
    assert (first, sampling.temperature) == ("a", 0.5)
    assert second == [{"role": "user", "content": "b"}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has 0 prompts"),
        (b"\n \n", "has 0 prompts"),
        (b"x\n" * (MOST_PROMPTS + 1), f"from 1 to {MOST_PROMPTS}"),
        (b'{"prompt": "a"}\n{"prompt": 3}', "line 2: prompt must be"),
        (b'{"prompt": "a", "temperature": -1}', "line 1: temperature"),
        (b"\xff\xfe", "UTF-8"),
    ],
)
def test_a_file_that_holds_no_prompts_is_refused(
    content: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "prompts"
    path.write_bytes(content)
    with pytest.raises(RequestError, match=message):
        read_prompts(path)


STEADY = Drift(9, 0.0, 0.0, 0.0, 0.0)


def test_where_the_machine_moves_as_far_nothing_is_contradicted() -> None:
    """The interval that is shown is the one that is judged."""
    outcome = gained((1.5, 1.5, 1.5), (1.2, 1.22, 1.24))
    table = gains_table([outcome], Drift(9, 0.1, 0.1, 0.1, 0.1))
    assert table.expectation is not None
    assert table.expectation.met is None
    assert "0 are further off by all of their interval" in table.finding


def gained(predicted: tuple[float, ...], measured: tuple[float, ...]) -> Outcome:
    one = Samples((1.0,) * 3)
    ratio = [Samples(each, paired=True) for each in (predicted, measured)]
    return Outcome("w", "t", one, 9, seen(1.0, (0.5,)), *[one] * 6, *ratio, one)


@pytest.mark.parametrize(
    ("measured", "met"),
    [
        ((1.45, 1.55, 1.4), True),
        ((1.2, 1.25, 1.55), None),  # the median is beyond, not all of the interval
        ((1.2, 1.22, 1.24), False),
    ],
)
def test_a_prediction_that_is_off_by_all_of_its_interval_is_contradicted(
    measured: tuple[float, ...], met: bool | None
) -> None:
    table = gains_table([gained((1.5, 1.5, 1.5), measured)], STEADY)
    assert table.expectation is not None
    assert table.expectation.met is met


class Scripted:
    """Ways to decode that take a second, but in one turn of each round ten."""

    def __init__(self) -> None:
        self.decoded = 0
        self.turn = 0

    def decode(self, task: Task) -> Decoded:
        self.decoded += 1
        counts = DraftCounts()
        slow = 10.0 if self.turn % TURNS == 2 and self.decoded % 3 == 2 else 1.0
        passes = Counter({1: 9})
        return Decoded((1,) * 10, slow, passes, 0.9, Counter(), 0.0, 0.01, 0.0, counts, counts)

    @property
    def turns(self) -> Any:
        return SimpleNamespace(
            plain=SimpleNamespace(
                decode=self.decode, engine=SimpleNamespace(encode=lambda prompt: [1])
            ),
            always=SimpleNamespace(decode=self.decode),
            auto=SimpleNamespace(decode=self.decode),
            step_seconds=lambda *_: {1: 0.1},
            guess_seconds=lambda *_: {},
        )

    def look(self) -> None:
        self.turn += 1


def test_what_slows_one_turn_spoils_no_round() -> None:
    scripted = Scripted()
    [task, *_] = own_tasks(None, 8)
    said: list[str] = []
    [found] = outcomes(scripted.turns, "w", [task], 3, said.append, scripted.look)
    assert found.always.values == found.auto.values == (1.0,) * 3
    assert scripted.turn == 3 * TURNS
    assert said[-1].endswith("turn 3 of round 3 of 3")


# --- all of it


@pytest.fixture(scope="module")
def tables() -> dict[str, Table]:
    section = measure_section("speculation", subject_at("float", rounds=1), "command")
    assert [each.what for each in section.skipped if isinstance(each, Skipped)] == []
    return {table.key: table for table in section.tables}


def column(table: Table, name: str) -> list[Any]:
    at = [each.name for each in table.columns].index(name)
    return [row[at] for row in table.rows]


def test_copies_of_a_float_model_are_ranked_by_their_error(tables: dict[str, Table]) -> None:
    copies = tables["copies"]
    names, found = column(copies, "copy in"), column(copies, "acceptance")
    assert names[0] == "INT8_ROW"
    assert names[-1] == "INT4_TENSOR"
    assert all(one.middle >= other.middle for one, other in pairwise(found))
    assert found[0].middle > 0.95
    assert all(each.low <= each.middle <= each.high for each in found)
    assert "504 positions" in copies.title  # more than 144


def test_acceptance_with_shared_noise_lies_between_its_bounds(tables: dict[str, Table]) -> None:
    drawn = tables["drawn"]
    assert drawn.expectation is not None
    assert drawn.expectation.met
    least, most = column(drawn, "(1 - TV) / (1 + TV)"), column(drawn, "1 - TV")
    variation = column(drawn, "total variation")
    assert all(low < high for low, high in zip(least, most, strict=True))
    assert [1 - each for each in variation] == pytest.approx(most)


def test_every_way_to_guess_is_predicted_and_measured_on_every_text(
    tables: dict[str, Table],
) -> None:
    gains = tables["gains"]
    ways = dict.fromkeys(column(gains, "guessed by"))
    assert list(ways) == ["looked up", "a copy in INT8_ROW", "a copy in NF4_B64"]
    assert len(gains.rows) == 3 * 4
    assert all(each.low > 0 for each in column(gains, "predicted gain"))
    assert all(each.low > 0 for each in column(gains, "gain by the formula"))
    steps = column(gains, "its steps")
    assert all(0 < each <= TOKENS - 1 for each in steps)
    # A guess is looked up, or is a copy's, which takes its own time.
    assert [each.high > 0 for each in column(gains, "time of a guess over it")] == [False] * 4 + [
        True
    ] * 8
    assert all(each.median > 0 for each in column(gains, "measured gain"))


def test_ones_own_prompts_and_draft_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("One day\nThe cat\n")
    command = ["lab", "speculation", "float", "--rounds", "1", "--prompts", str(prompts)]
    assert main([*command, "--draft", "float", "--json", "--threads", "1"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert f"--prompts {prompts} --draft float" in told["command"]
    [gains] = [table for table in told["tables"] if table["key"] == "gains"]
    assert [row[1] for row in gains["rows"][:2]] == ["prompt 1", "prompt 2"]
    assert gains["rows"][2][0] == "float"
    right = [row[5] for row in gains["rows"][2:4]]
    assert right == [1.0, 1.0]  # it is the model itself


def test_a_draft_of_another_tokenizer_is_refused(smollm2_path: Path) -> None:
    subject = subject_at(smollm2_path, rounds=1, draft="float")
    with pytest.raises(RequestError, match="another tokenizer than its target: token"):
        next(iter(measure(subject)))


def test_prompts_sample_as_they_say_with_a_seed_of_their_own() -> None:
    from farthing.lab.speculation_prompts import given_tasks

    given = [("x", SamplingParams(temperature=0.9)), ("y", SamplingParams(max_tokens=5, seed=4))]
    first, second = given_tasks(None, given, 96)
    assert (first.sampling.max_tokens, first.sampling.seed) == (96, 0)
    assert (second.sampling.max_tokens, second.sampling.seed) == (5, 4)
