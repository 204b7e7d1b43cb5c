from __future__ import annotations

import csv
import io
import json
import stat
from contextlib import contextmanager
from datetime import UTC, date, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.threads import eventually
from farthing.serve.admission import Admission, Objective
from farthing.serve.keys import Key, KeyRing
from farthing.serve.settings import Settings
from farthing.serve.state import RequestRecord
from farthing.serve.usage import Usage, open_usage, total
from farthing.serve.usage_file import Used
from serve.server import MODEL, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from farthing.serve.state import ServerState
    from serve.server import Served

DAY = date(2026, 3, 5)
EVER = (date(2000, 1, 1), date(2100, 1, 1))


def at(day: date, hour: int = 12) -> float:
    return datetime(day.year, day.month, day.day, hour, tzinfo=UTC).timestamp()


def record(key: str = "a", day: date = DAY, **fields: Any) -> RequestRecord:
    usual = {
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "completion_tokens": 5,
        "machine_seconds": 9.0,
    }
    return RequestRecord("1", key, "/v1/completions", received=at(day), **{**usual, **fields})


@contextmanager
def kept(path: Path, **settings: Any) -> Iterator[Usage]:
    usual = {"price_per_hour": 2.0, "flush_seconds": 60.0, "most_days": 400, "most_bytes": 1 << 20}
    usage = Usage(path, "model", clock=lambda: at(DAY), **{**usual, **settings})
    try:
        yield usage
    finally:
        usage.close(patience=0.3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "usage.sqlite"


def test_usage_is_added_up_by_day_key_and_model(path: Path) -> None:
    with kept(path) as usage:
        for key, day in (("a", DAY), ("a", DAY), ("b", DAY), ("a", date(2026, 3, 6))):
            usage.finished(record(key, day))
        rows = dict(usage.report(*EVER))
        assert rows[("2026-03-05", "a", "model")] == Used(2, 20, 8, 10, 18.0, 18.0 * 2 / 3600)
        assert len(rows) == 3
        assert [row for row, _ in usage.report(*EVER, "b")] == [("2026-03-05", "b", "model")]
        assert len(usage.report(DAY, DAY)) == 2
        assert total(usage.report(*EVER)).requests == 4


def test_it_is_there_again_after_a_restart_at_the_price_of_its_time(path: Path) -> None:
    with kept(path, price_per_hour=3600.0) as usage:
        usage.finished(record())
    with kept(path, price_per_hour=0.0) as usage:
        usage.finished(record())
        [(_, used)] = usage.report(*EVER)
        assert (used.requests, used.cost) == (2, 9.0)


def test_only_its_owner_can_read_it(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"")
    path.chmod(0o644)
    with kept(path) as usage:
        usage.finished(record())
        assert usage.flush()
        files = list(path.parent.iterdir())
        assert len(files) == 3  # the log of writes among them
        assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)


def test_a_day_begins_at_midnight_in_utc(path: Path) -> None:
    with kept(path) as usage:
        for hour in (0, 23):
            usage.finished(RequestRecord("1", "", "/", received=at(DAY, hour), prompt_tokens=1))
        [((day, _, _), used)] = usage.report(*EVER)
        assert (day, used.requests) == (str(DAY), 2)


def test_refused_requests_are_no_usage(path: Path) -> None:
    with kept(path) as usage:
        usage.finished(record(prompt_tokens=0, status=429))
        assert usage.report(*EVER) == []


@pytest.mark.parametrize(
    ("path_of_api", "body"),
    [
        ("/v1/completions", {"prompt": "x" * 9000}),
        ("/v1/completions", {"prompt": ["x", "x" * 9000]}),
        ("/v1/completions", {"prompt": "x" * 200}),
        ("/v1/completions", {"prompt": "x", "logit_bias": {"999": 1}}),
        ("/v1/completions", {"prompt": [65, 999]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 9000}]}),
        ("/v1/responses", {"input": "x" * 9000}),
        ("/v1/embeddings", {"input": ["x", "x" * 9000]}),
    ],
    ids=range(8),
)
def test_what_is_refused_when_it_is_known_is_no_usage(
    path: Path, path_of_api: str, body: dict[str, Any]
) -> None:
    with kept(path) as usage:

        def prepared(state: ServerState) -> None:
            state.usage = usage
            key = Key("a", sha256(b"secret").digest(), tokens_per_minute=100)
            state.keys = KeyRing([key])
            state.admission = Admission(state.engine, [key], Objective(5.0, 0.1), 1 << 18)

        with serving(prepare=prepared) as server:
            server.http.headers["authorization"] = "Bearer secret"
            answer = server.http.post(path_of_api, json={"model": MODEL, **body})
            assert answer.status_code == 400
            server.wait_idle()
            assert usage.report(*EVER) == []


def test_what_was_added_is_on_disk_after_the_time_it_has(path: Path) -> None:
    with kept(path, flush_seconds=0.05) as usage, kept(path) as other:
        usage.finished(record())
        assert eventually(lambda: total(other.report(*EVER)).requests == 1)


def test_two_servers_share_a_file(path: Path) -> None:
    with kept(path) as one, kept(path) as other:
        for _ in range(3):
            one.finished(record())
            other.finished(record())
            assert one.flush()
            assert other.flush()
        assert total(one.report(*EVER)).requests == 6


def test_days_that_are_too_old_are_deleted(path: Path) -> None:
    with kept(path, most_days=30) as usage:
        for day in (date(2026, 1, 1), date(2026, 2, 2), date(2026, 2, 3), DAY):
            usage.finished(record(day=day))
        assert [row[0] for row, _ in usage.report(*EVER)] == ["2026-02-03", "2026-03-05"]


def test_the_file_does_not_outgrow_its_bound_and_the_oldest_days_go_first(path: Path) -> None:
    bound = 1 << 18
    with kept(path, most_bytes=bound, most_days=100_000) as usage:
        for number in range(40):
            day = date.fromordinal(DAY.toordinal() - 40 + number)
            for key in range(200):
                usage.finished(record(f"key-number-{key}", day))
            assert usage.flush()
        days = {row[0] for row, _ in usage.report(*EVER)}
        assert max(days) == "2026-03-04"
        assert 2 < len(days) < 40
        assert days == set(sorted(days)[-len(days) :])
    assert path.stat().st_size <= bound


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "a", "b"]),
            st.integers(1, 10**9),
            st.integers(0, 10**9),
            st.floats(0, 1e6),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_no_request_is_counted_twice_or_forgotten(
    tmp_path_factory: pytest.TempPathFactory, requests: list[tuple[str, int, int, float, bool]]
) -> None:
    path = tmp_path_factory.mktemp("usage") / "usage.sqlite"
    with kept(path) as usage:
        for key, prompt, made, seconds, flushed in requests:
            fields = {"prompt_tokens": prompt, "completion_tokens": made}
            usage.finished(record(key, machine_seconds=seconds, **fields))
            if flushed:
                usage.flush()
    with kept(path) as usage:
        for name in ("", "a", "b"):
            mine = [each for each in requests if each[0] == name]
            used = total(usage.report(*EVER, name))
            assert used.requests == len(mine)
            assert used.prompt_tokens == sum(each[1] for each in mine)
            assert used.generated_tokens == sum(each[2] for each in mine)
            assert used.machine_seconds == pytest.approx(sum(each[3] for each in mine))


def test_it_can_be_switched_off_and_costs_no_file(tmp_path: Path) -> None:
    assert open_usage(Settings(usage_store=None), "m") is None
    path = tmp_path / "usage.sqlite"
    usage = open_usage(Settings(usage_store=str(path)), "m")
    assert usage is not None
    usage.close()
    assert path.exists()  # else nobody would know at the start that it cannot be


KEYS = {"alice": Key("alice"), "root": Key("root", admin=True)}


class Ring(KeyRing):
    """A key's secret is its name."""

    def authenticate(self, authorization: str | None) -> Key:
        return KEYS[(authorization or "").removeprefix("Bearer ")]


@pytest.fixture
def served(path: Path) -> Iterator[Served]:
    with kept(path) as usage:

        def prepared(state: ServerState) -> None:
            state.usage = usage
            state.keys = Ring()

        usage.finished(record("alice"))
        usage.finished(record("bob"))
        with serving(prepare=prepared, price_per_hour=2.0, currency="EUR") as server:
            yield server


SPAN = {"since": "2026-03-01", "until": "2026-03-31"}


def test_a_key_sees_its_own_usage_and_an_admins_all(served: Served) -> None:
    served.http.headers["authorization"] = "Bearer alice"
    report = served.http.get("/usage", params=SPAN).json()
    assert [each["key"] for each in report["data"]] == ["alice"]
    assert (report["currency"], report["price_per_hour"]) == ("EUR", 2.0)
    assert report["data"][0]["cost"] == report["total"]["cost"] == pytest.approx(9 * 2 / 3600)
    assert report["data"][0]["day"] == "2026-03-05"
    served.http.headers["authorization"] = "Bearer root"
    report = served.http.get("/usage", params=SPAN).json()
    assert [each["key"] for each in report["data"]] == ["alice", "bob"]
    assert report["total"]["requests"] == 2
    report = served.http.get("/usage", params={**SPAN, "key": "bob"}).json()
    assert [each["key"] for each in report["data"]] == ["bob"]


def test_a_key_does_not_see_anothers(served: Served) -> None:
    served.http.headers["authorization"] = "Bearer alice"
    answer = served.http.get("/usage", params={**SPAN, "key": "bob"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_admin")


def test_usage_is_a_table_for_who_wants_one(served: Served) -> None:
    served.http.headers["authorization"] = "Bearer root"
    for answer in (
        served.http.get("/usage", params={**SPAN, "format": "csv"}),
        served.http.get("/usage", params=SPAN, headers={"accept": "text/csv"}),
    ):
        assert answer.headers["content-type"].startswith("text/csv")
        rows = list(csv.DictReader(io.StringIO(answer.text)))
        assert [row["key"] for row in rows] == ["alice", "bob"]
        assert rows[0]["prompt_tokens"] == "10"


@pytest.mark.parametrize(
    "query",
    [
        {"since": "yesterday"},
        {"until": "2026-13-01"},
        {"since": "2026-03-02", "until": "2026-03-01"},
        {"format": "xml"},
    ],
)
def test_a_query_that_cannot_be_meant_is_400(served: Served, query: dict[str, str]) -> None:
    served.http.headers["authorization"] = "Bearer root"
    answer = served.http.get("/usage", params=query)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] in query


@pytest.mark.parametrize(
    "query",
    [
        {"until": "0001-01-01"},
        {"until": "0001-01-20"},
        {"since": "0001-01-01"},
        {"since": "0001-01-01", "until": "9999-12-31"},
        {"since": "9999-12-31", "until": "9999-12-31"},
    ],
)
def test_the_first_and_the_last_day_that_there_is_can_be_asked_for(
    served: Served, query: dict[str, str]
) -> None:
    served.http.headers["authorization"] = "Bearer root"
    answer = served.http.get("/usage", params=query)
    assert answer.status_code == 200
    assert answer.json()["since"] <= answer.json()["until"]


def test_without_a_store_there_is_no_usage() -> None:
    with serving() as server:
        assert server.http.get("/usage").status_code == 404


def test_what_requests_cost_is_all_that_the_machine_did(path: Path) -> None:
    with kept(path) as usage:

        def prepared(state: ServerState) -> None:
            state.usage = usage

        with serving(prepare=prepared) as server:
            server.chat(max_tokens=5)
            server.chat("Hello again", max_tokens=5, n=3)
            server.chat(max_tokens=5, stream=True)
            assert eventually(lambda: total(usage.report(*EVER)).requests == 3)
            used = total(usage.report(*EVER))
            assert used.machine_seconds == pytest.approx(server.engine.native_seconds)
            assert used.generated_tokens == 25
            report = json.loads(server.http.get("/usage").text)
            assert report["total"]["machine_seconds"] == pytest.approx(used.machine_seconds)
