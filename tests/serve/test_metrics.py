from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse

from engine.scripted import engine, engine_over, saying
from engine.threads import Held, eventually
from farthing.engine.lookup import LookupDrafter
from farthing.engine.prefix import Miss
from farthing.engine.speculate import Speculation
from farthing.serve.admission import Admission, Objective
from farthing.serve.errors import ApiError
from farthing.serve.keys import Key, KeyRing
from farthing.serve.metrics import Histogram, Metrics
from farthing.serve.state import RequestRecord
from farthing.serve.usage import Usage
from serve.server import serving

if TYPE_CHECKING:
    from pathlib import Path

    from farthing.serve.state import ServerState
    from serve.server import Served


def counted(state: ServerState) -> None:
    state.metrics = Metrics()


def scrape(served: Served, requests: int = 0) -> dict[str, float]:
    """Samples by name, labels that all have left out, when so many requests are counted.

    One is counted when its answer is sent, which its client may know before.
    """
    counts = served.state.metrics
    assert isinstance(counts, Metrics)
    assert eventually(lambda: sum(counts.requests.values()) >= requests)
    found = {}
    for family in parse(served.http.get("/metrics").text):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in ("model_name", "engine")}
            suffix = json.dumps(labels, sort_keys=True) if labels else ""
            found[sample.name + suffix] = sample.value
    return found


def test_dashboards_find_what_they_read_from_vllm() -> None:
    with serving(engine(saying("Hello")), prepare=counted) as served:
        usage = [
            served.complete("x" * 70 + ">", max_tokens=9).json()["usage"],
            served.complete("x" * 70 + ">", max_tokens=3).json()["usage"],
        ]
        served.complete("y>", max_tokens=9, stream=True)
        found = scrape(served, requests=3)
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert found[f"vllm:{name}"] == 0
    assert found["vllm:prompt_tokens_total"] == found["vllm:prefix_cache_queries_total"] == 147
    cached = [each["prompt_tokens_details"]["cached_tokens"] for each in usage]
    assert cached == [0, 64]
    assert found["vllm:prefix_cache_hits_total"] == 65  # of the third, how every prompt begins
    assert found["vllm:generation_tokens_total"] == 6 + 3 + 6
    assert found["vllm:num_preemptions_total"] == 0
    assert found['vllm:request_success_total{"finished_reason": "stop"}'] == 2
    assert found['vllm:request_success_total{"finished_reason": "length"}'] == 1
    for name in (
        "time_to_first_token_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_inference_time_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
    ):
        assert found[f"vllm:{name}_count"] == 3
        assert found[f'vllm:{name}_bucket{{"le": "+Inf"}}'] == 3
    assert found["vllm:request_generation_tokens_sum"] == 15
    assert found["vllm:time_to_first_token_seconds_sum"] > 0
    assert (
        found["vllm:e2e_request_latency_seconds_sum"]
        >= found["vllm:time_to_first_token_seconds_sum"]
    )
    assert found['vllm:request_prompt_tokens_bucket{"le": "2.0"}'] == 0
    assert found['vllm:request_prompt_tokens_bucket{"le": "5.0"}'] == 1
    assert found['vllm:request_prompt_tokens_bucket{"le": "100.0"}'] == 3
    # All tokens but the first of each answer came after another, whether somebody woke for them.
    assert found["vllm:inter_token_latency_seconds_count"] <= 12
    assert found["vllm:inter_token_latency_seconds_count"] >= 7


def test_paths_that_clients_make_up_are_one_series() -> None:
    with serving(prepare=counted) as served:
        for number in range(20):
            assert served.http.post(f"/v1/{number}/completions", json={}).status_code == 404
        found = scrape(served, requests=20)
    series = [name for name in found if name.startswith("farthing:requests_total")]
    assert series == ['farthing:requests_total{"endpoint": "other", "status": "404"}']


def test_every_series_of_vllms_has_the_labels_its_dashboards_ask_for() -> None:
    with serving(prepare=counted) as served:
        served.complete("x", max_tokens=2)
        text = served.http.get("/metrics").text
    for family in parse(text):
        for sample in family.samples:
            if sample.name.startswith("vllm:"):
                assert sample.labels["model_name"] == "scripted"
                assert sample.labels["engine"] == "0"


def test_our_own_are_told_beside_them(tmp_path: Path) -> None:
    def prepared(state: ServerState) -> None:
        assert state.engine is not None
        state.metrics = Metrics()
        state.admission = Admission(state.engine, (), Objective(5.0, 0.1), 1000)
        state.usage = usage

    usage = Usage(
        tmp_path / "usage.sqlite",
        "m",
        price_per_hour=1,
        flush_seconds=9,
        most_days=9,
        most_bytes=1 << 20,
    )
    with serving(prepare=prepared) as served:
        served.complete("x", max_tokens=2)
        served.complete("x", max_tokens=10**6)
        found = scrape(served, requests=2)
        steps = served.engine.stats()
    usage.close()
    assert found["farthing:step_seconds_count"] == steps.steps
    assert found["farthing:step_seconds_sum"] == pytest.approx(steps.native_seconds)
    assert found['farthing:rejected_requests_total{"reason": "never"}'] == 1
    assert found['farthing:prefix_misses_total{"reason": "new"}'] == 1
    assert found['farthing:requests_total{"endpoint": "/v1/completions", "status": "200"}'] == 1
    assert found['farthing:requests_total{"endpoint": "/v1/completions", "status": "400"}'] == 1
    assert found["farthing:queued_tokens"] == found["farthing:expected_wait_seconds"] == 0
    assert found["farthing:usage_write_failures_total"] == 0
    assert (
        sum(
            found[f'farthing:cache_blocks{{"state": "{each}"}}']
            for each in ("free", "cached", "held")
        )
        == steps.free_blocks + steps.cached_blocks
    )
    assert any(name.startswith("farthing:build_info") for name in found)
    assert found["process_resident_memory_bytes"] > 0


def test_guesses_are_counted_by_place_and_told_of_each_answer() -> None:
    speculation = Speculation(LookupDrafter(), 3, always=True)
    with serving(engine(saying("ab" * 20), speculation=speculation), prepare=counted) as served:
        usage = served.complete("x>", max_tokens=30).json()["usage"]
        plain = served.complete("x>", max_tokens=30, max_draft_tokens=0).json()["usage"]
        refused = served.complete("x>", max_draft_tokens=-1)
        found = scrape(served, requests=3)
        stats = served.http.get("/stats").json()
    assert "completion_tokens_details" not in plain
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "max_draft_tokens"
    details = usage["completion_tokens_details"]
    accepted, rejected = (details[f"{each}_prediction_tokens"] for each in ("accepted", "rejected"))
    assert accepted > 15
    assert found["vllm:spec_decode_num_accepted_tokens_total"] == accepted
    assert found["vllm:spec_decode_num_draft_tokens_total"] == accepted + rejected
    right = [
        found[f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{"position": "{place}"}}']
        for place in range(4)
    ]
    tested = [
        found[f'farthing:tested_guesses_total{{"position": "{place}"}}'] for place in range(4)
    ]
    assert sum(right) == accepted
    # A guess is tested where the one before it was right, if there is one.
    assert 0 < tested[1] <= right[0]
    assert 0 < tested[2] <= right[1]
    assert tested[3] == 0
    drafts = found["vllm:spec_decode_num_drafts_total"]
    assert tested[0] == drafts == found["farthing:draft_steps_total"]
    assert found["farthing:tokens_per_pass"] == pytest.approx(1 + accepted / drafts)
    assert stats["drafts"] == stats["draft_steps"] == drafts
    assert (stats["drafted_tokens"], stats["accepted_tokens"]) == (accepted + rejected, accepted)
    assert stats["steps"] > stats["draft_steps"]
    seconds = [
        found[f'farthing:decode_seconds_total{{"guesses": "{each}"}}']
        for each in ("tested", "none")
    ]
    assert min(seconds) > 0
    assert found["farthing:speculation_gain"] > 0


def test_what_runs_and_waits_is_seen_while_it_does() -> None:
    backend = Held(max_step_rows=1)
    with serving(engine_over(backend), prepare=counted) as served:
        streams = [served.engine.stream("abc") for _ in range(3)]
        backend.allow(4)
        backend.wait_entered(5)
        found = scrape(served)
        for stream in streams:
            stream.close()
        backend.allow(10)
        served.wait_idle()
    assert found["vllm:num_requests_running"] == 1
    assert found["vllm:num_requests_waiting"] == 2
    assert 0 < found["vllm:kv_cache_usage_perc"] < 1


def test_openmetrics_is_given_to_who_asks_for_it() -> None:
    with serving(prepare=counted) as served:
        served.complete("x", max_tokens=2)
        accept = "application/openmetrics-text; version=1.0.0"
        answer = served.http.get("/metrics", headers={"accept": accept})
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        names = {family.name for family in parse_openmetrics(answer.text)}
        assert {"vllm:prompt_tokens", "farthing:build"} <= names


def test_metrics_are_there_while_the_model_is_loaded() -> None:
    def loading(state: ServerState) -> None:
        counted(state)
        state.engine = state.card = None

    with serving(engine(), prepare=loading) as served:
        assert served.http.get("/metrics").status_code == 200


@pytest.mark.parametrize("opened", [False, True])
def test_where_keys_are_set_metrics_need_one_unless_they_are_opened(opened: bool) -> None:
    class Ring(KeyRing):
        def authenticate(self, authorization: str | None) -> Key:
            if authorization != "Bearer right":
                raise ApiError(401, "no")
            return Key("a")

    def keyed(state: ServerState) -> None:
        counted(state)
        state.keys = Ring()

    with serving(prepare=keyed, open_metrics=opened) as served:
        assert served.http.get("/metrics").status_code == (200 if opened else 401)
        headers = {"authorization": "Bearer right"}
        assert served.http.get("/metrics", headers=headers).status_code == 200


def test_without_metrics_there_are_none() -> None:
    with serving() as served:
        assert served.http.get("/metrics").status_code == 404


def test_a_histogram_counts_a_value_at_a_bound_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    histogram.observe(1.2, 3)
    assert histogram.counts == [2, 5, 1]
    assert histogram.sum == pytest.approx(14 + 3.6)


def record(**fields: Any) -> RequestRecord:
    return RequestRecord(**{"id": "1", "key": "", "endpoint": "/v1/completions", **fields})


def test_a_refused_request_is_counted_and_has_no_latency() -> None:
    metrics = Metrics()
    metrics.finished(record(status=429))
    assert metrics.requests == {("/v1/completions", 429): 1}
    assert all(sum(each.counts) == 0 for each in metrics.histograms.values())


def test_misses_are_counted_by_reason() -> None:
    metrics = Metrics()
    misses = [Miss(reason, 1, 2, None, 1, 1, 0) for reason in ("new", "differs", "new")]
    metrics.finished(record(misses=tuple(misses)))
    assert metrics.misses == {"new": 2, "differs": 1}


def test_several_tokens_at_once_share_the_time_since_the_last() -> None:
    metrics = Metrics()
    metrics.came(4, 0.1)
    metrics.came(0, 5.0)
    gaps = metrics.histograms["inter_token_latency_seconds"]
    assert (sum(gaps.counts), gaps.sum) == (4, pytest.approx(0.1))
    assert gaps.counts[gaps.bounds.index(0.025)] == 4
