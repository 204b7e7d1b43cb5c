"""What counts as in time, and what the benchmark of tune complains of."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from farthing.plan.objective import Objective
from goodput import Answered, Served, Users, ask_in_turns
from serve.server import serving
from serving.process import MODEL_NAME
from tune import DEFAULTS, TUNED, knee_of, ratio_of, together, verdicts

WANTED = Objective(1.0, 0.05)
GOOD = Answered(10, 1.0, ttft=0.5, tpot=0.04)
LATE = Answered(10, 2.0, ttft=1.5, tpot=0.04)
SLOW = Answered(20, 3.0, ttft=0.5, tpot=0.06)
REFUSED = Answered(40, 4.0, fault="refused")


def test_only_answers_that_keep_to_both_limits_are_goodput_and_refusals_are_not() -> None:
    served = Served([GOOD, LATE, SLOW, REFUSED], seconds=2.0)
    assert served.goodput(WANTED) == 5.0
    assert served.throughput == 20.0
    assert served.share(WANTED) == 0.25
    assert served.faults == {"refused": 1}
    assert served.quantiles("ttft") == [0.5, 1.5, 1.5]
    assert Served([], 1.0).quantiles("tpot") == []


def test_slices_add_up() -> None:
    served = Served([GOOD], 1.0)
    served.add(Served([SLOW], 3.0))
    assert (len(served.answers), served.seconds) == (2, 4.0)
    whole = together([served, Served([LATE], 1.0, others=0.5)])
    assert (whole.seconds, whole.others) == (5.0, 0.1)


def test_servers_are_compared_by_slices_that_follow_each_other() -> None:
    """A machine that slows down to a tenth slows both: the ratio stays, and is sure."""
    slices = {
        DEFAULTS: [Served([GOOD], seconds) for seconds in (1, 2, 4, 5, 8, 10)],
        TUNED: [Served([GOOD, GOOD], seconds) for seconds in (1, 2, 4, 5, 8, 10)],
    }
    assert ratio_of(slices, WANTED) == {"median": 2.0, "low": 2.0, "high": 2.0}


def test_the_knee_is_where_no_doubling_adds_a_quarter() -> None:
    assert knee_of({1: 100.0, 2: 190.0, 4: 300.0, 8: 350.0, 16: 360.0}) == 4
    assert knee_of({1: 100.0, 2: 190.0}) is None


@pytest.mark.parametrize(
    ("tuned", "usual", "in_time", "aiperf", "others", "complaints"),
    [
        (10.0, False, 1.0, 8, 0.0, []),
        (10.0, False, 0.995, 2, 0.09, []),
        (9.0, False, 1.0, 4, 0.0, ["server: the defaults give more in time"]),
        (9.0, True, 1.0, 4, 0.0, []),
        (9.7, False, 1.0, 4, 0.0, []),
        (10.0, False, 0.98, 4, 0.0, ["server: 98.0% of the requests were in time"]),
        (10.0, False, 1.0, 16, 0.0, ["the knee is at 4 by tune and at 16 by aiperf"]),
        (10.0, False, 1.0, 4, 0.3, ["server: others took 30% of the machine: run it again"]),
    ],
)
def test_the_benchmark_complains_of_what_is_not_as_it_should_be(
    tuned: float, usual: bool, in_time: float, aiperf: int, others: float, complaints: list[str]
) -> None:
    def facts(goodput: float) -> dict[str, Any]:
        return {"goodput": goodput, "in_time": in_time, "others": others}

    ratio = {"median": tuned / 10, "low": tuned / 10 - 0.05, "high": tuned / 10 + 0.05}
    measured = {"the defaults": facts(10.0), "tuned": facts(tuned), "ratio": ratio}
    knee = {"curves": {"tune": {1: 1.0, 32: 2.0}}, "knees": {"tune": 4, "aiperf": aiperf}}
    chosen = {"forecast": {"usual": usual}}
    results = [{"slo": "server", "tune": chosen, "measured": measured}, {"slo": "interactive"}]
    assert verdicts(results, knee) == complaints


def test_users_ask_in_turns_and_only_what_ends_after_the_beginning_counts() -> None:
    prompts = count()
    with serving(model_name=MODEL_NAME) as served:
        found = ask_in_turns(
            served.port,
            Users(
                3,
                [(4, 5), (4, 7)],
                lambda tokens: f"{next(prompts)}".rjust(tokens, "."),
                before=0.2,
                seconds=0.6,
            ),
        )
    assert found.seconds == 0.6
    assert found.faults == {}
    assert {each.tokens for each in found.answers} == {5, 7}
    assert all(each.ttft > 0 and each.tpot >= 0 for each in found.answers)
    ended = [each.ended for each in found.answers]
    assert max(ended) - min(ended) <= 0.6
    assert next(prompts) > len(found.answers) > 3


def test_what_goes_wrong_is_counted_and_no_throughput() -> None:
    with serving(model_name="other") as served:
        found = ask_in_turns(served.port, Users(1, [(4, 5)], lambda _: "a", 0.0, 0.5))
    [fault] = found.faults
    assert fault.startswith("status 404")
    assert found.throughput == 0.0
