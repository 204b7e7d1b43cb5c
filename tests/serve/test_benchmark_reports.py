"""What the benchmarks of the server conclude from what they found."""

from __future__ import annotations

import json
from typing import Any

import pytest

from generators import Found, Load, complaints, counted
from load_table import Target, compare, markdown, summarise
from overload import requests_of
from overload_report import ALONE, FULL, OVERLOAD, Report, Times
from points import FARTHING, FARTHING_SERVER, LLAMA, OPENVINO
from serving.crowd import Outcome
from serving.metrics import Metrics
from soak_report import MIB, Sample

MOST_WAIT = 2.0


def turn(engine: str, round_: int, wall: float) -> dict[str, Any]:
    return {
        "case": "q4_1",
        "point": "slots16",
        "round": round_,
        "engine": engine,
        "rates": {engine: 1000 / wall},
        "wall_seconds": wall,
        "latency_seconds": [wall / 2, wall],
        "first_token_seconds": [wall / 8, wall / 4],
        "others": 0.01,
    }


TURNS = [
    turn(engine, round_, wall * (1 + round_ / 10))
    for round_ in range(3)
    for engine, wall in ((FARTHING, 1.0), (FARTHING_SERVER, 1.25), (LLAMA, 10.0), (OPENVINO, 2.0))
]


def test_each_of_ours_is_held_against_each_peer_within_rounds() -> None:
    found = {(each.ours, each.peer): each for each in compare(TURNS)}
    assert set(found) == {
        (ours, peer) for ours in (FARTHING, FARTHING_SERVER) for peer in (LLAMA, OPENVINO)
    }
    served = found[FARTHING_SERVER, LLAMA]
    assert served.throughput.middle == pytest.approx(8.0)
    assert served.latency.middle == served.first_token.middle == pytest.approx(1 / 8)
    assert served.verdict(Target(6, 1 / 6, 1 / 4)) == (
        "6x: yes, latency 0.167x: yes, first token 0.25x: yes"
    )
    assert served.verdict(Target(9, 0.1, 0.1)) == "9x: no, latency 0.1x: no, first token 0.1x: no"
    assert [row.rounds for row in summarise(TURNS)] == [3] * 4


def test_a_round_that_only_one_has_is_not_compared() -> None:
    alone = [each for each in TURNS if (each["engine"], each["round"]) != (LLAMA, 1)]
    [compared] = [
        each for each in compare(alone) if (each.ours, each.peer) == (FARTHING_SERVER, LLAMA)
    ]
    assert compared.throughput.smallest == compared.throughput.largest == pytest.approx(8.0)


def test_the_tables_say_what_is_wanted_where_it_is() -> None:
    results = {
        "turns": TURNS,
        "missing": [],
        "ceilings": [{"ceilings": {"int8_macs_per_second": 1e12}}],
        "machine": {"cpu": "some", "cores": 2},
        "threads": 2,
        "version": "0",
    }
    text = markdown(results)
    assert "farthing serve to llama.cpp" in text
    assert "6x: yes, latency 0.167x: yes, first token 0.25x: yes" in text
    eight = markdown({**results, "turns": [{**each, "point": "slots8"} for each in TURNS]})
    assert "| 6x:" not in eight
    assert "| 7x:" in eight


def outcome(phase: str = OVERLOAD, **fields: Any) -> Outcome:
    return Outcome(phase, 20, **fields)


def answered(id_: str, phase: str = OVERLOAD, latency: float = 1.0, **fields: Any) -> Outcome:
    return outcome(phase, id=id_, latency=latency, first_token=latency / 2, ended=5.0, **fields)


def refusal(id_: str, told: float, seconds: float = 0.001) -> dict[str, Any]:
    return {"refusals": [id_], "told": [told], "refused": [seconds]}


def finished(
    obeying: list[Outcome] | None = None,
    good: list[Outcome] | None = None,
    flood: list[Outcome] | None = None,
    queue_seconds: float = 1.7,
    server_seconds: float = 0.0005,
) -> Report:
    """A report without faults, but for what is given."""
    report = Report(
        seconds=10,
        capacity=5,
        offered=20,
        answered=5,
        scrapes=[0.001],
        samples=[Sample(second, 100 * MIB, 0, 0) for second in range(100)],
    )
    outcomes = {
        "good": good or [answered(f"g{phase}", phase) for phase in (ALONE, FULL, OVERLOAD)],
        "obeying": obeying or [answered("o-1", **refusal("o-0", 4.0))],
        "flood": flood or [outcome(**refusal("f-0", 4.0))],
    }
    requests = {}
    for each in (one for own in outcomes.values() for one in own):
        for id_ in each.refusals:
            requests[id_] = {"seconds": server_seconds, "queue_seconds": None}
        if each.id is not None:
            requests[each.id] = {"seconds": each.latency, "queue_seconds": queue_seconds}
    report.finish(outcomes, requests, MOST_WAIT)
    return report


def test_an_overload_without_faults_is_not_complained_of() -> None:
    report = finished()
    assert report.complaints() == []
    assert (report.returned, report.at_first_return, report.right) == (1, 1, 1)
    assert report.spared.mean == pytest.approx(0.3 / 4)
    assert report.keys["flood"] == {
        "clients": 1,
        "answered": 0,
        "refused once": 1,
        "refusals": 1,
        "tokens": 0,
    }


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        (
            {"flood": [answered("f-1", fault="it breaks off"), outcome(**refusal("f-0", 4.0))]},
            "1 accepted requests were lost, the first: ['flood: it breaks off']",
        ),
        (
            {"flood": [outcome(fault="no"), outcome(**refusal("f-0", 4.0))]},
            "1 faults, the first: ['flood: no']",
        ),
        ({"server_seconds": 0.03}, "a refusal took the server 30.0 ms"),
        (
            {"flood": [outcome(**refusal("f-0", 4.0, seconds=0.05))] * 9},
            "one refusal in a hundred took 50.0 ms",
        ),
        (
            {"obeying": [answered("o-1", refusals=["a", "b"], told=[4, 1], refused=[0, 0])]},
            "only 0% of those who came back were told the right time",
        ),
        ({"queue_seconds": 0.1}, "only 0% of those who came back were told the right time"),
        ({"queue_seconds": 3.9}, "only 0% of those who came back were told the right time"),
        (
            {
                "good": [
                    answered("1", ALONE),
                    answered("2", FULL),
                    answered("3", latency=1.5),
                ]
            },
            "the good key's mean latency is 1.50 times that beside a full machine",
        ),
        (
            {
                "good": [
                    answered("1", ALONE),
                    answered("2", FULL),
                    answered("3", **refusal("4", 4.0)),
                ]
            },
            "the good key was refused 1 times",
        ),
    ],
)
def test_each_fault_of_an_overload_is_complained_of(found: Any, complaint: str) -> None:
    assert finished(**found).complaints() == [complaint]


def test_refusals_are_told_by_the_client_and_by_the_server() -> None:
    report = finished(flood=[outcome(**refusal(f"f-{n}", 4.0, n / 1000)) for n in range(1, 101)])
    assert report.refused_by_client.count == report.refused_by_server.count == 101
    assert report.refused_by_client.largest == pytest.approx(0.1)
    assert report.slow_refusals == 80
    assert Times.of([]).count == 0


def test_a_log_that_lost_lines_is_not_counted_by() -> None:
    entry = {"event": "request", "id": "a", "status": 429}
    assert requests_of(json.dumps(entry) + "\n" + json.dumps({"event": "ready"})) == {"a": entry}
    lost = {"event": "lines_lost", "message": "3 lines of the log were lost"}
    with pytest.raises(ValueError, match="3 lines"):
        requests_of(json.dumps(lost))


LOAD = Load(requests=10, concurrency=2, prompt=8, output=4)
WHOLE = Found(10, 0, 40, 1.0, 2.0, 0.5)


def test_a_generator_and_the_server_must_both_count_every_answer() -> None:
    assert complaints(LOAD, WHOLE, WHOLE) == []
    failed = Found(9, 1, 40, 1.0, 2.0, 0.5)
    assert complaints(LOAD, failed, WHOLE) == [
        "the generator counts 9 answers and 1 failures of 10 requests"
    ]
    short = Found(10, 0, 39, 1.0, 2.0, 0.5)
    assert complaints(LOAD, WHOLE, short) == ["the server counts 39 tokens where 40 were wanted"]


def test_what_a_server_counts_is_what_came_between_two_looks() -> None:
    def metrics(chats: int, seconds: float) -> Metrics:
        return Metrics(
            "# HELP farthing:requests_total Requests that ended.\n"
            f'farthing:requests_total{{endpoint="/v1/chat/completions",status="200"}} {chats}\n'
            'farthing:requests_total{endpoint="/v1/completions",status="200"} 7\n'
            f'vllm:generation_tokens_total{{engine="0"}} {4 * chats}\n'
            f'vllm:e2e_request_latency_seconds_count{{engine="0"}} {chats}\n'
            f'vllm:e2e_request_latency_seconds_sum{{engine="0"}} {seconds}\n'
        )

    found = counted(metrics(5, 1.0), metrics(15, 3.0))
    assert (found.answered, found.failed, found.output_tokens) == (10, 0, 40)
    assert found.latency == pytest.approx(200.0)
