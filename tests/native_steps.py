"""Drives a backend step by step, without an engine: token ids in, every position's logits out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from farthing.backends.native import NativeBackend
from farthing.core import BLOCK_TOKENS, StepPlan
from farthing.files.checkpoint import open_checkpoint
from farthing.models.load import Model, load_model
from farthing.plan.memory import plan_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from farthing.backends import Backend


def model_at(path: Path) -> Model:
    return load_model(open_checkpoint(path))


def native(model: Model, **settings: Any) -> NativeBackend:
    """The native backend with room for every position's logits."""
    settings = {
        "context_length": min(1024, model.config.context_length),
        "threads": 2,
        "step_rows": 512,
        **settings,
    }
    return NativeBackend(model, plan_memory(model, **settings))


def step(
    spans: Sequence[tuple[Sequence[int], int, Sequence[int]]], wanted: Iterable[int] | None = None
) -> StepPlan:
    """One step of several sequences, each (token ids, first position, blocks); wants all rows."""
    token_ids = [token for ids, _, _ in spans for token in ids]
    positions = [p for ids, first, _ in spans for p in range(first, first + len(ids))]
    starts = np.cumsum([0, *(len(ids) for ids, _, _ in spans)])
    width = max(len(blocks) for _, _, blocks in spans)
    tables = [[*blocks, *[-1] * (width - len(blocks))] for _, _, blocks in spans]
    return StepPlan(
        np.array(token_ids, np.int32),
        np.array(positions, np.int32),
        starts.astype(np.int32),
        np.array(tables, np.int32),
        np.array(range(len(token_ids)) if wanted is None else list(wanted), np.int32),
    )


def logits_of(
    backend: Backend,
    token_ids: Sequence[int],
    chunks: Iterable[int] | None = None,
    blocks: Sequence[int] | None = None,
) -> NDArray[np.float32]:
    """Logits (T, vocabulary) of one sequence, fed in `chunks` (cycled; all at once when None)."""
    if blocks is None:
        blocks = range(-(-len(token_ids) // BLOCK_TOKENS))
    sizes = list(chunks or [len(token_ids)])
    parts: list[NDArray[np.float32]] = []
    first = 0
    while first < len(token_ids):
        size = min(sizes[len(parts) % len(sizes)], backend.max_step_tokens)
        ids = token_ids[first : first + size]
        result = backend.run(step([(ids, first, blocks)]), want_logits=True)
        assert result.logits is not None
        parts.append(result.logits)
        first += len(ids)
    return np.concatenate(parts)


def relative_error(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
