"""The metrics as Prometheus reads them: names that dashboards for vLLM know, and our own.

Imported when somebody looks for the first time: the server starts without the library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from farthing import __version__
from farthing.serve.admission import Admission
from farthing.serve.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from farthing.engine.completion import EngineStats
    from farthing.serve.metrics import Metrics
    from farthing.serve.state import ServerState

_ENGINE = "0"
"""vLLM numbers its engines, and dashboards ask for the number."""

_HELP = {
    "time_to_first_token_seconds": "From the arrival of a request to its first token.",
    "inter_token_latency_seconds": "Between two tokens of one answer.",
    "request_time_per_output_token_seconds": "The mean of that over a request.",
    "e2e_request_latency_seconds": "From the arrival of a request to its end.",
    "request_queue_time_seconds": "Before the first step that held some of a request.",
    "request_prefill_time_seconds": "From that step to the first token.",
    "request_decode_time_seconds": "From the first token to the last.",
    "request_inference_time_seconds": "Both together.",
    "request_prompt_tokens": "Tokens of the prompts of a request.",
    "request_generation_tokens": "Tokens of the answers to a request.",
    "request_params_max_tokens": "max_tokens of a request.",
    "request_params_n": "Answers to a request.",
}

_ABORTED = {"cancelled": "abort", "timeout": "abort"}
"""Finish reasons that vLLM has another name for."""


class Exposition:
    """Writes down what a server's metrics, engine, admission and usage count."""

    def __init__(self, state: ServerState, metrics: Metrics) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Everything(state, metrics))
        ProcessCollector(registry=self._registry)

    def write(self, accept: str) -> tuple[bytes, str]:
        """The text and its type: the one of those that `accept` names."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _Everything(Collector):
    def __init__(self, state: ServerState, metrics: Metrics) -> None:
        self._state = state
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        state, metrics = self._state, self._metrics
        labels = {"model_name": state.card.id if state.card else "", "engine": _ENGINE}
        if state.engine is not None:
            yield from _of_engine(state.engine.stats(), labels)
        ended: dict[str, int] = {}
        for reason, count in metrics.ended.items():
            name = _ABORTED.get(reason, reason)
            ended[name] = ended.get(name, 0) + count
        yield _counters(
            "vllm:request_success",
            "Answers that ended, by reason.",
            "finished_reason",
            ended,
            labels,
        )
        for name, histogram in metrics.histograms.items():
            family = HistogramMetricFamily(f"vllm:{name}", _HELP[name], labels=list(labels))
            total, buckets = 0, []
            for bound, count in zip(
                (*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True
            ):
                total += count
                buckets.append((bound, float(total)))
            family.add_metric(list(labels.values()), buckets, histogram.sum)
            yield family
        yield _counters(
            "farthing:prefix_misses",
            "Answers whose prompt was not found whole in the cache, by reason.",
            "reason",
            metrics.misses,
            {},
        )
        requests = CounterMetricFamily(
            "farthing:requests", "Requests that ended.", labels=["endpoint", "status"]
        )
        for (endpoint, status), count in metrics.requests.items():
            requests.add_metric([endpoint, str(status)], count)
        yield requests
        yield from _of_parts(state)
        yield _build(state)


def _of_engine(stats: EngineStats, labels: Mapping[str, str]) -> Iterator[Metric]:
    total = stats.free_blocks + stats.cached_blocks + stats.held_blocks
    gauges = (
        ("vllm:num_requests_running", "Answers that hold blocks.", stats.running),
        ("vllm:num_requests_waiting", "Answers that wait.", stats.waiting),
        (
            "vllm:kv_cache_usage_perc",
            "The part of the cache that answers hold, from 0 to 1.",
            stats.held_blocks / total,
        ),
    )
    for name, text, value in gauges:
        yield _single(GaugeMetricFamily(name, text, labels=list(labels)), labels, value)
    counters = stats.counters
    for name, text, value in (
        ("vllm:prompt_tokens", "Tokens of prompts.", counters.prompt_tokens),
        ("vllm:generation_tokens", "Tokens generated.", counters.generated_tokens),
        (
            "vllm:prefix_cache_queries",
            "Tokens of prompts that were looked up in the cache.",
            counters.prompt_tokens,
        ),
        (
            "vllm:prefix_cache_hits",
            "Tokens of prompts that were found in the cache.",
            counters.reused_tokens,
        ),
        (
            "vllm:num_preemptions",
            "Answers that lost their blocks to others.",
            counters.preemptions,
        ),
        (
            "vllm:spec_decode_num_drafts",
            "Runs of tokens guessed ahead for one answer in one step.",
            counters.drafts.drafts,
        ),
        (
            "vllm:spec_decode_num_draft_tokens",
            "Tokens guessed ahead and computed.",
            counters.drafts.proposed,
        ),
        (
            "vllm:spec_decode_num_accepted_tokens",
            "Tokens guessed ahead that proved right.",
            counters.drafts.accepted,
        ),
    ):
        yield _single(CounterMetricFamily(name, text, labels=list(labels)), labels, value)
    yield _counters(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "Tokens guessed ahead that proved right, by place in their run.",
        "position",
        {str(place): count for place, count in enumerate(counters.drafts.right)},
        labels,
    )
    yield _counters(
        "farthing:tested_guesses",
        "Tokens guessed ahead of which all before them proved right, by place in their run.",
        "position",
        {str(place): count for place, count in enumerate(counters.drafts.tested)},
        {},
    )
    yield CounterMetricFamily(
        "farthing:draft_steps",
        "Steps that tested tokens guessed ahead, of those that farthing:step_seconds counts.",
        counters.drafts.steps,
    )
    yield GaugeMetricFamily(
        "farthing:tokens_per_pass",
        "Tokens that an answer gained in a step that tested a guess for it, on average.",
        counters.drafts.tokens_per_pass,
    )
    yield _counters(
        "farthing:decode_seconds",
        "Seconds of steps that only decoded, by whether they tested tokens guessed ahead.",
        "guesses",
        {"tested": counters.drafts.seconds_with, "none": counters.drafts.seconds_without},
        {},
    )
    yield GaugeMetricFamily(
        "farthing:speculation_gain",
        "Decoded tokens a second over those without guesses, as far as can be estimated.",
        counters.drafts.gain,
    )
    yield CounterMetricFamily(
        "farthing:recomputed_tokens",
        "Tokens computed again after a preemption.",
        counters.recomputed_tokens,
    )
    yield GaugeMetricFamily(
        "farthing:engine_queued_tokens",
        "Tokens of prompts whose answers have not begun.",
        stats.queued_tokens,
    )
    blocks = GaugeMetricFamily("farthing:cache_blocks", "Blocks of cache.", labels=["state"])
    for name, value in (
        ("free", stats.free_blocks),
        ("cached", stats.cached_blocks),
        ("held", stats.held_blocks),
    ):
        blocks.add_metric([name], value)
    yield blocks
    yield SummaryMetricFamily(
        "farthing:step_seconds",
        "The time that steps took in the backend.",
        count_value=stats.steps,
        sum_value=stats.native_seconds,
    )


def _of_parts(state: ServerState) -> Iterator[Metric]:
    if isinstance(state.admission, Admission):
        yield _counters(
            "farthing:rejected_requests",
            "Requests that were refused before any work, by reason.",
            "reason",
            state.admission.refused,
            {},
        )
        yield GaugeMetricFamily(
            "farthing:queued_tokens",
            "Tokens of accepted prompts that wait, at most.",
            state.admission.queued_tokens,
        )
        yield GaugeMetricFamily(
            "farthing:expected_wait_seconds",
            "How long a newcomer would wait.",
            state.admission.wait_seconds(),
        )
    if isinstance(state.usage, Usage):
        yield CounterMetricFamily(
            "farthing:usage_write_failures",
            "Times that usage could not be written; it is tried again.",
            state.usage.failures,
        )
        yield CounterMetricFamily(
            "farthing:usage_files_set_aside",
            "Files of usage that were damaged, and begun anew.",
            state.usage.set_aside,
        )


def _build(state: ServerState) -> Metric:
    report = state.engine.report if state.engine is not None else None
    facts = {"version": __version__}
    if report is not None:
        facts |= {
            "model": report.model,
            "architecture": report.architecture,
            "kv_dtype": report.kv_dtype,
            "isa": report.isa,
            "threads": str(report.threads),
        }
    return InfoMetricFamily("farthing:build", "What runs here.", value=facts)


def _single(
    family: GaugeMetricFamily | CounterMetricFamily, labels: Mapping[str, str], value: float
) -> Metric:
    family.add_metric(list(labels.values()), value)
    return family


def _counters(
    name: str, text: str, label: str, counts: Mapping[str, float], labels: Mapping[str, str]
) -> Metric:
    family = CounterMetricFamily(name, text, labels=[*labels, label])
    for value, count in counts.items():
        family.add_metric([*labels.values(), value], count)
    return family
