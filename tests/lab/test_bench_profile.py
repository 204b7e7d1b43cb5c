"""What a benchmark stores for those who predict."""

from __future__ import annotations

from farthing.core import ActivationMode
from farthing.lab.bench import BenchResult, CeilingFigures
from farthing.lab.bench_points import Measured
from farthing.lab.bench_profile import profile_of
from farthing.plan.cost import Cost
from farthing.plan.profile import ProfileKey

KEY = ProfileKey("A processor", "avx512", "k1", 2, "0123", "Q4_1 as Q4_1", "bf16", "default")
RATES = dict.fromkeys(ActivationMode, 1e11)


def measured(point: int, *seconds: float) -> Measured:
    nothing = (1.0,) * len(seconds)
    return Measured(point, point, Cost(), seconds, nothing, nothing)


def test_every_point_is_stored_once_with_its_median_and_range() -> None:
    ceilings = CeilingFigures(2e10, (1e10, 3e10), {"plain": 2e10}, RATES, 1 << 20)
    result = BenchResult(
        ceilings,
        prefill=(measured(512, 0.4, 0.5, 0.7),),
        decode=(measured(128, 0.01, 0.012, 0.02), measured(1024, 0.03)),
        batch=(measured(1, 0.9), measured(8, 0.05)),
        cross=((2048, measured(16, 0.2)),),
        batch_context=128,
        knee=None,
        ops=(),
    )
    profile = profile_of(result, KEY, step_tokens=512)
    assert profile.key == KEY
    assert profile.ceilings.bytes_per_second == 2e10
    found = {point.place: (point.least, point.seconds, point.most) for point in profile.points}
    assert found == {
        (1, 0, 512): (0.4, 0.5, 0.7),
        (1, 127, 1): (0.01, 0.012, 0.02),
        (1, 1023, 1): (0.03, 0.03, 0.03),
        (8, 127, 1): (0.05, 0.05, 0.05),
        (16, 2047, 1): (0.2, 0.2, 0.2),
    }
    assert profile.measured.endswith("+00:00")
