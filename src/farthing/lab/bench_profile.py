"""What a benchmark found, as the profile that predictions go by."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from farthing.plan.profile import Ceilings, Profile, ProfilePoint

if TYPE_CHECKING:
    from farthing.lab.bench import BenchResult
    from farthing.lab.bench_points import Measured
    from farthing.plan.profile import ProfileKey


def profile_of(result: BenchResult, key: ProfileKey, step_tokens: int) -> Profile:
    """The ceilings and every point, each place once: a decode point before the same of a batch."""
    points = [
        *(_point(each, 1, 0, each.point) for each in result.prefill),
        *(_point(each, each.point, result.batch_context - 1, 1) for each in result.batch),
        *(_point(each, 1, each.point - 1, 1) for each in result.decode),
        *(_point(each, each.point, context - 1, 1) for context, each in result.cross),
    ]
    return Profile(
        key=key,
        ceilings=Ceilings(result.ceilings.best_read, dict(result.ceilings.multiply)),
        step_tokens=step_tokens,
        points=tuple({each.place: each for each in points}.values()),
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _point(measured: Measured, sequences: int, first: int, tokens: int) -> ProfilePoint:
    return ProfilePoint(
        sequences,
        first,
        tokens,
        seconds=measured.step_seconds,
        least=min(measured.seconds),
        most=max(measured.seconds),
    )
