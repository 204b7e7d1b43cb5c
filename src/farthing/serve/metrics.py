"""What is counted while requests pass, for `/metrics`.

Gauges and counters of the engine are read when somebody looks. What is counted here is told once a
request, or once a wake-up of a stream, and costs well under a microsecond: a histogram is a list of
numbers. Nothing else touches them than the event loop. `exposition.py` writes them down.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farthing.serve.exposition import Exposition
    from farthing.serve.state import RequestRecord, ServerState

_FIRST_TOKEN: tuple[float, ...] = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75)
_FIRST_TOKEN += (1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
_TOKEN: tuple[float, ...] = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
)
_TOKEN += (10.0, 20.0, 40.0, 80.0)
_REQUEST: tuple[float, ...] = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
)
_REQUEST += (120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)
_TOKENS = tuple(float(each * 10**power) for power in range(6) for each in (1, 2, 5))
_COUNT = (1.0, 2.0, 5.0, 10.0, 20.0)
"""The bounds are vLLM's, so that its dashboards show what they show there."""


class Histogram:
    """How often values were up to each of `bounds`, and their sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """The value was seen so often."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


class Metrics:
    """Counts what is told of requests.

    `requests` are by endpoint and status, `ended` answers by finish reason, `misses` answers by why
    no more of their prompt was in the cache.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.ended: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()
        self.histograms = {
            "time_to_first_token_seconds": Histogram(_FIRST_TOKEN),
            "inter_token_latency_seconds": Histogram(_TOKEN),
            "request_time_per_output_token_seconds": Histogram(_TOKEN),
            "e2e_request_latency_seconds": Histogram(_REQUEST),
            "request_queue_time_seconds": Histogram(_REQUEST),
            "request_prefill_time_seconds": Histogram(_REQUEST),
            "request_decode_time_seconds": Histogram(_REQUEST),
            "request_inference_time_seconds": Histogram(_REQUEST),
            "request_prompt_tokens": Histogram(_TOKENS),
            "request_generation_tokens": Histogram(_TOKENS),
            "request_params_max_tokens": Histogram(_TOKENS),
            "request_params_n": Histogram(_COUNT),
        }
        self._exposition: Exposition | None = None
        self._gap = self.histograms["inter_token_latency_seconds"].observe

    def write(self, state: ServerState, accept: str) -> tuple[bytes, str]:
        """All that a server counts, and the type of that text: of those that `accept` names."""
        if self._exposition is None:
            from farthing.serve.exposition import Exposition

            self._exposition = Exposition(state, self)
        return self._exposition.write(accept)

    def came(self, tokens: int, seconds: float) -> None:
        """A stream that had tokens before was given so many more, so long after the last one."""
        if tokens > 0:
            self._gap(seconds / tokens, tokens)

    def finished(self, record: RequestRecord) -> None:
        """A request has ended: answered, refused, failed or left by its client."""
        self.requests[record.endpoint if record.known else "other", record.status] += 1
        self.ended.update(record.finish_reasons)
        self.misses.update(miss.reason for miss in record.misses)
        first = record.first_token_seconds
        if first is None:
            return
        observe = {name: each.observe for name, each in self.histograms.items()}
        queue, decode = record.queue_seconds or 0.0, record.decode_seconds or 0.0
        observe["time_to_first_token_seconds"](first)
        observe["e2e_request_latency_seconds"](record.seconds)
        observe["request_queue_time_seconds"](queue)
        observe["request_prefill_time_seconds"](max(0.0, first - queue))
        observe["request_decode_time_seconds"](decode)
        observe["request_inference_time_seconds"](max(0.0, first - queue) + decode)
        observe["request_prompt_tokens"](record.prompt_tokens)
        observe["request_generation_tokens"](record.completion_tokens)
        observe["request_params_n"](record.answers)
        if record.max_tokens is not None:
            observe["request_params_max_tokens"](record.max_tokens)
        more = record.completion_tokens / max(1, record.answers) - 1
        if not record.streamed:
            # Nobody woke for its tokens: the mean stands for each.
            self.came(record.completion_tokens - record.answers, decode)
        if more > 0:
            observe["request_time_per_output_token_seconds"](decode / more)
