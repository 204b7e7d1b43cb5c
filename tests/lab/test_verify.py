from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from farthing.core import BLOCK_TOKENS, CHUNK_TOKENS, KVDtype, RequestError, StepPlan, StepResult
from farthing.lab.verify import Check, prompt_of, verify

if TYPE_CHECKING:
    from numpy.typing import NDArray

VOCABULARY = 50
CONTEXT = 640
PROMPT = prompt_of([token * 7 % VOCABULARY for token in range(101)])
NAMES = [
    "cached against recomputed each step",
    "prompt in odd chunks against whole",
    "among neighbours against alone",
    "prompt from cache against computed",
    "preempted against undisturbed",
    "speculated against plain",
    "threads: 1 against 2",
    "fault: one cached bit flipped",
    "fault: chunks merged in reverse",
]
TYPES = {
    KVDtype.FP32: np.float32,
    KVDtype.FP16: np.float16,
    KVDtype.BF16: np.float16,
    KVDtype.INT8: np.int8,
    KVDtype.INT4_KEYS: np.float16,
}


class ToyBackend:
    """A cache of one number a position and a sum over chunks, exact unless a `defect` says else."""

    samples = False
    vocabulary_size = VOCABULARY
    context_length = CONTEXT
    total_blocks = 4 * CONTEXT // BLOCK_TOKENS
    max_step_tokens = 512
    max_step_rows = 8

    def __init__(self, kv_dtype: KVDtype, threads: int, defect: str) -> None:
        self.threads = threads
        self.defect = defect
        self.reversed = False
        self.steps = 0
        # Of int4 keys there are scales: fp16 of keys, then fp32 of values.
        numbers = BLOCK_TOKENS * (3 if kv_dtype is KVDtype.INT4_KEYS else 1)
        self.pool = np.zeros((self.total_blocks, numbers), TYPES[kv_dtype])
        self.cache = self.pool[:, :BLOCK_TOKENS]
        self.weights = np.random.default_rng(0).normal(0, 1, (CONTEXT, VOCABULARY)).astype("f")

    def run(self, plan: StepPlan, want_logits: bool = False) -> StepResult:
        self.steps += 1
        for source, target in [] if self.defect == "no copies" else plan.copies.tolist():
            self.cache[target] = self.cache[source]
        for index in range(len(plan.starts) - 1):
            span = slice(plan.starts[index], plan.starts[index + 1])
            positions = plan.positions[span]
            blocks = plan.block_tables[index][positions // BLOCK_TOKENS]
            values = (plan.token_ids[span] * 13 + positions) % 101 + 1
            if self.defect == "chunking" and len(positions) < 100:
                values[0] += 1
            if self.defect == "drafts" and 1 < len(positions) < 100:
                values[0] += 1
            if self.defect == "placement":
                values[-1] += blocks[-1] % 2
            self.cache[blocks, positions % BLOCK_TOKENS] = values
        owners = np.repeat(np.arange(len(plan.starts) - 1), np.diff(plan.starts))
        logits = np.zeros((len(plan.rows), VOCABULARY), np.float32)
        for row, token in enumerate(plan.rows.tolist()):
            logits[row] = self.scores(plan.block_tables[owners[token]], plan.positions[token] + 1)
            if self.defect == "neighbours":
                logits[row, 3] += len(plan.starts) > 2
            if self.defect == "threads":
                end = np.float32(np.inf if self.threads > 1 else -np.inf)
                logits[row, 3] = np.nextafter(logits[row, 3], end)
            if self.defect == "time":
                logits[row, 3] += self.steps * 1e-3
        empty = np.empty((0, 0))
        return StepResult(
            np.empty(0, np.int32), np.empty(0, np.float32), empty.astype(np.int32), empty, logits
        )

    def scores(self, table: NDArray[np.int32], length: int) -> NDArray[np.float32]:
        if self.defect == "deaf to the cache":
            return self.weights[length]
        values = self.cache[table[: -(-length // BLOCK_TOKENS)]].reshape(-1)[:length].astype("f")
        starts = range(0, length, CHUNK_TOKENS)
        parts = [
            values[start : start + CHUNK_TOKENS]
            @ self.weights[start : min(start + CHUNK_TOKENS, length)]
            for start in starts
        ]
        if self.reversed and self.defect != "deaf to order":
            parts.reverse()
        total = np.zeros(VOCABULARY, np.float32)
        for part in parts:
            total = total + part
        return total / np.float32(50)

    @property
    def identity(self) -> dict[str, str]:
        return {}

    def cache_bytes(self) -> NDArray[np.uint8]:
        return self.pool.view(np.uint8)

    def set_fault(self, name: str, on: bool) -> None:
        assert name == "reverse_merge"
        self.reversed = on

    def close(self) -> None:
        del self.cache, self.pool


def checks(defect: str = "", tokens: int = 4) -> list[Check]:
    return list(verify(lambda kv, threads: ToyBackend(kv, threads, defect), PROMPT, tokens, 2))


def failed(found: list[Check]) -> set[str]:
    return {check.name for check in found if not check.passed}


def test_an_exact_backend_passes_every_check_for_every_type_of_cache() -> None:
    found = checks()
    assert [check.name for check in found] == NAMES * len(KVDtype)
    assert [check.kv_dtype for check in found[:: len(NAMES)]] == list(KVDtype)
    assert failed(found) == set()
    assert {check.detail for check in found if not check.fault} == {"identical"}
    assert all(check.detail.startswith("token ") for check in found if check.fault)
    assert all(check.seconds > 0 and check.reference_seconds > 0 for check in found)


@pytest.mark.parametrize(
    ("defect", "noticed"),
    [
        ("chunking", {NAMES[0], NAMES[1], NAMES[2]}),
        ("placement", {NAMES[0], NAMES[2]}),
        ("neighbours", {NAMES[2]}),
        ("no copies", {NAMES[3]}),
        ("drafts", {NAMES[5]}),
        ("threads", {NAMES[6]}),
        ("time", set(NAMES[:7])),
        ("deaf to the cache", {NAMES[7], NAMES[8]}),
        ("deaf to order", {NAMES[8]}),
    ],
)
def test_a_backend_with_a_defect_fails_the_checks_that_concern_it(
    defect: str, noticed: set[str]
) -> None:
    assert failed(checks(defect)) >= noticed


def test_what_differs_is_told() -> None:
    found = next(check for check in checks("threads") if check.name == NAMES[6])
    assert found.detail.startswith("token 1: 1 of 50 logits differ, by up to ")


def test_a_text_too_short_for_three_chunks_is_refused() -> None:
    backend = ToyBackend(KVDtype.FP32, 1, "")
    with pytest.raises(RequestError, match="do not reach the third chunk"):
        next(verify(lambda kv, threads: backend, PROMPT[:500], 4, 2))


def test_a_prompt_is_repeated_to_600_tokens() -> None:
    assert prompt_of([1, 2, 3])[:4] == (1, 2, 3, 1)
    assert len(prompt_of([1])) == len(prompt_of(range(9000))) == 600
    with pytest.raises(RequestError, match="has no tokens"):
        prompt_of([])
