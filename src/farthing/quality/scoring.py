"""Two models over the same windows in lock-step: what each gives every scored token.

A step of both gives some rows of logits, these are compared, and the next step's take their place:
nothing is written to a file, and nothing is rounded on the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import BLOCK_TOKENS, FarthingError, StepPlan
from farthing.quality.windows import scored_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from farthing.backends import Backend
    from farthing.quality.windows import Windows

_BLOCK_FLOATS = 1 << 18
"""Logits that are worked on at a time: they stay in the processor's cache."""


@dataclass(frozen=True)
class Scores:
    """What was found at every scored token; each array is (windows, scored tokens a window).

    `nll` are negative log-probabilities of the text's own tokens, in nats, `reference_nll` the
    reference's. `kl` is the divergence of the reference's distribution from the other one's, in
    nats, and `agrees` whether both have the same most likely token, lowest id on ties.
    """

    nll: NDArray[np.float64]
    reference_nll: NDArray[np.float64]
    kl: NDArray[np.float64]
    agrees: NDArray[np.bool_]


@dataclass(frozen=True)
class _Piece:
    """Rows of one step: of which window, from which of its scored tokens on, and these tokens."""

    window: int
    first: int
    targets: NDArray[np.int32]


def compare(
    backend: Backend,
    reference: Backend,
    windows: Windows,
    progress: Callable[[float], None] | None = None,
) -> Scores:
    """Runs both over all windows; `progress` is told the share that is done.

    Both have room for steps of the same size. Raises `FarthingError` where logits are not finite.
    """
    return compare_all([backend], reference, windows, progress)[0]


def compare_all(
    backends: Sequence[Backend],
    reference: Backend,
    windows: Windows,
    progress: Callable[[float], None] | None = None,
) -> list[Scores]:
    """`compare` for several, beside which the reference runs once. Each finds what it would alone.

    All have room for steps of the same size. Raises `FarthingError` as `compare` does.
    """
    shape = windows.count, scored_in(windows.length)
    numbers = np.empty((len(backends), 3, *shape))
    agrees = np.empty((len(backends), *shape), np.bool_)
    for plan, piece in _steps(windows, reference):
        # An engine's lowest blocks and a fresh cache's are the same to a backend.
        wanted = reference.run(plan, want_logits=piece is not None).logits
        for at, backend in enumerate(backends):
            logits = backend.run(plan, want_logits=piece is not None).logits
            if piece is None or logits is None or wanted is None:
                continue
            place = (piece.window, slice(piece.first, piece.first + len(piece.targets)))
            # What is compared is written over, and the last one may have the reference's own.
            theirs = wanted if at == len(backends) - 1 else wanted.copy()
            numbers[(at, slice(None), *place)], agrees[(at, *place)] = compare_rows(
                logits, theirs, piece.targets
            )
        if piece is not None and progress is not None:
            progress((piece.window + 1) / windows.count)
    return [
        Scores(nll, reference_nll, kl, same)
        for (nll, reference_nll, kl), same in zip(numbers, agrees, strict=True)
    ]


def score(
    backend: Backend, windows: Windows, progress: Callable[[float], None] | None = None
) -> NDArray[np.float64]:
    """One model alone: `Scores.nll`."""
    nll = np.empty((windows.count, scored_in(windows.length)))
    for plan, piece in _steps(windows, backend):
        logits = backend.run(plan, want_logits=piece is not None).logits
        if piece is None or logits is None:
            continue
        nll[piece.window, piece.first : piece.first + len(piece.targets)] = nll_of_rows(
            logits, piece.targets
        )
        if progress is not None:
            progress((piece.window + 1) / windows.count)
    return nll


def compare_rows(
    logits: NDArray[np.float32], reference: NDArray[np.float32], targets: NDArray[np.int32]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(nll, reference's nll, kl) (3, R) and whether the argmax agrees (R,), for rows of logits.

    Logits are (R, vocabulary) and are written over. Exponentials are taken in float32 and summed
    in float64: a divergence is right to about 1e-7.
    """
    agrees = logits.argmax(axis=1) == reference.argmax(axis=1)
    found = np.empty((3, len(targets)))
    for rows in _row_blocks(logits):
        ours, theirs = logits[rows], reference[rows]
        at_target = np.arange(len(ours)), targets[rows]
        exponentials, log_total = _softmax(ours)
        found[0, rows] = log_total - ours[at_target]
        weights, reference_log_total = _softmax(theirs, exponentials)
        found[1, rows] = reference_log_total - theirs[at_target]
        # KL = sum of p (log p - log q), p the reference's: both logarithms less their constants.
        np.subtract(theirs, ours, out=ours)
        ours *= weights
        total = ours.sum(axis=1, dtype=np.float64) / np.exp(reference_log_total)
        found[2, rows] = np.maximum(total + log_total - reference_log_total, 0)
    return found, agrees


def nll_of_rows(logits: NDArray[np.float32], targets: NDArray[np.int32]) -> NDArray[np.float64]:
    """Negative log-probabilities (R,) of the targets; logits (R, vocabulary) are written over."""
    found = np.empty(len(targets))
    for rows in _row_blocks(logits):
        ours = logits[rows]
        log_total = _softmax(ours)[1]
        found[rows] = log_total - ours[np.arange(len(ours)), targets[rows]]
    return found


def _softmax(
    rows: NDArray[np.float32], out: NDArray[np.float32] | None = None
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Takes each row's maximum off, in place; exponentials, and the logarithm of their sum."""
    with np.errstate(invalid="ignore"):  # told below
        rows -= rows.max(axis=1, keepdims=True)
    exponentials = np.exp(rows, out=out)
    log_total = np.log(exponentials.sum(axis=1, dtype=np.float64))
    _require_finite(log_total)
    return exponentials, log_total


def _row_blocks(logits: NDArray[np.float32]) -> Iterator[slice]:
    step = max(1, _BLOCK_FLOATS // logits.shape[1])
    for first in range(0, len(logits), step):
        yield slice(first, min(first + step, len(logits)))


def _require_finite(found: NDArray[np.float64]) -> None:
    if not np.isfinite(found).all():
        raise FarthingError(
            "the model gives logits that are not finite, so nothing can be measured: its weights "
            "are damaged, or too large for what they are multiplied in"
        )


def _steps(windows: Windows, backend: Backend) -> Iterator[tuple[StepPlan, _Piece | None]]:
    """Steps over all windows, and which scored tokens their rows are for; None: no rows.

    First halves are read side by side, as many as a step takes; then each second half, in steps of
    as many rows as the backend gives. A window's last token is predicted and never read.
    """
    first_row = windows.first_scored - 1
    together = max(1, backend.max_step_tokens // first_row)
    blocks = -(-windows.length // BLOCK_TOKENS)
    rows = min(backend.max_step_rows, backend.max_step_tokens)
    for first_window in range(0, windows.count, together):
        ids = windows.token_ids[first_window : first_window + together]
        tables = np.arange(len(ids) * blocks, dtype=np.int32).reshape(-1, blocks)
        for start in range(0, first_row, backend.max_step_tokens):
            end = min(start + backend.max_step_tokens, first_row)
            yield _step(ids[:, start:end], start, tables, wanted=False), None
        for number in range(len(ids)):
            one = slice(number, number + 1)
            for start in range(first_row, windows.length - 1, rows):
                end = min(start + rows, windows.length - 1)
                targets = ids[number, start + 1 : end + 1]
                piece = _Piece(first_window + number, start - first_row, targets)
                yield _step(ids[one, start:end], start, tables[one], wanted=True), piece


def _step(
    ids: NDArray[np.int32], start: int, tables: NDArray[np.int32], *, wanted: bool
) -> StepPlan:
    """One step of sequences of equal length, all at the same position."""
    count, length = ids.shape
    return StepPlan(
        token_ids=np.ascontiguousarray(ids.reshape(-1)),
        positions=np.tile(np.arange(start, start + length, dtype=np.int32), count),
        starts=np.arange(0, count * length + 1, length, dtype=np.int32),
        block_tables=np.ascontiguousarray(tables),
        rows=np.arange(count * length if wanted else 0, dtype=np.int32),
    )
