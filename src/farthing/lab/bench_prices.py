"""What tokens cost on a machine at each batch that was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farthing.plan.price import prices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from farthing.lab.bench_points import Measured
    from farthing.plan.price import Prices
    from farthing.plan.speed import Speed

_PROMPT_TOKENS = 512


def batch_prices(
    speed: Speed, batch: Sequence[Measured], per_hour: float, context_length: int
) -> tuple[Prices, ...]:
    """Of each batch; `speed` is by the profile of the same measurements.

    A generated token is its share of a measured step. A prompt of 512 tokens, or half a context
    where that is less, is read by itself; what half of it costs more where the other half is in the
    cache, to which it attends, is what those tokens cost.
    """
    tokens = max(2, min(_PROMPT_TOKENS, context_length // 2))
    half = tokens // 2
    prompt = speed.prompt_seconds(tokens) / tokens
    attending = speed.prompt_seconds(half, first=half) - speed.prompt_seconds(half)
    cached = max(0.0, attending) / half
    return tuple(
        prices(per_hour, prompt, cached, each.step_seconds / each.tokens) for each in batch
    )
