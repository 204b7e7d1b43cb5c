"""SamplingRows for tests: plain rows, of which a test changes what it is about."""

from __future__ import annotations

from typing import Any

import numpy as np

from farthing.core import SamplingRows, StepResult

_PLAIN: dict[str, tuple[float, type]] = {
    "temperature": (1.0, np.float32),
    "top_k": (0, np.int32),
    "top_p": (1.0, np.float32),
    "min_p": (0.0, np.float32),
    "repetition_penalty": (1.0, np.float32),
    "presence_penalty": (0.0, np.float32),
    "frequency_penalty": (0.0, np.float32),
    "seed": (0, np.uint64),
    "choice": (0, np.uint32),
    "position": (0, np.uint32),
    "logprobs": (-1, np.int32),
    "target": (-1, np.int32),
}


def sampling_rows(
    count: int,
    adjusted: list[list[tuple[int, float, int, int]]] | None = None,
    allowed: list[np.ndarray | None] | None = None,
    **fields: Any,
) -> SamplingRows:
    """`count` rows; a field is one value for all of them or a list. Unless said otherwise they are
    unfiltered at temperature 1. `adjusted` lists each row's (id, bias, seen, count), `allowed` each
    row's mask as a boolean for each token, None for all."""
    columns = {
        name: np.broadcast_to(np.array(fields.pop(name, plain), dtype), count).copy()
        for name, (plain, dtype) in _PLAIN.items()
    }
    assert not fields
    spans = adjusted or [[]] * count
    entries = [entry for span in spans for entry in span]
    return SamplingRows(
        **columns,
        adjusted_starts=np.cumsum([0, *map(len, spans)], dtype=np.int32),
        adjusted_ids=np.array([entry[0] for entry in entries], np.int32),
        adjusted_bias=np.array([entry[1] for entry in entries], np.float32),
        adjusted_seen=np.array([entry[2] for entry in entries], np.uint8),
        adjusted_count=np.array([entry[3] for entry in entries], np.int32),
        **_masks(allowed or []),
    )


def _masks(allowed: list[np.ndarray | None]) -> dict[str, np.ndarray]:
    given = [mask for mask in allowed if mask is not None]
    if not given:
        return {}
    numbers = iter(range(len(given)))
    return {
        "mask_rows": np.array([-1 if m is None else next(numbers) for m in allowed], np.int32),
        "masks": np.stack([words(mask) for mask in given]),
    }


def words(allowed: np.ndarray) -> np.ndarray:
    """Bit t % 32 of word t // 32 for each token t that is allowed; those past the last are 0."""
    padded = np.zeros(-(-len(allowed) // 32) * 32, np.uint8)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view("<u4").astype(np.uint32)


def native_sample(kernels: Any, tier: str, logits: np.ndarray, rows: SamplingRows) -> StepResult:
    """`engine.sampler.sample`, by one tier's native kernels; outputs start as garbage."""
    count, width = len(logits), max(0, int(rows.logprobs.max(initial=0)))
    result = StepResult(
        np.full(count, -7, np.int32),
        np.full(count, 7, np.float32),
        np.full((count, width), -7, np.int32),
        np.full((count, width), 7, np.float32),
    )
    kernels.sample(
        tier, logits, rows, result.tokens, result.logprob, result.top_ids, result.top_logprobs
    )
    return result
