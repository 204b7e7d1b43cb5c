"""Limits on time as people write them."""

from __future__ import annotations

import pytest

from farthing.core import RequestError
from farthing.plan.objective import Objective, objective


@pytest.mark.parametrize(
    ("text", "ttft", "tpot"),
    [
        ("ttft=2s,tpot=100ms", 2.0, 0.1),
        ("tpot=30ms", None, 0.03),
        ("ttft=0.5s", 0.5, None),
        ("tpot=1s, ttft=1500ms", 1.5, 1.0),
        ("server", 2.0, 0.1),
        ("interactive", 0.5, 0.03),
        ("patient", 30.0, 0.1),
    ],
)
def test_limits_are_read(text: str, ttft: float | None, tpot: float | None) -> None:
    assert objective(text) == Objective(ttft, tpot)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fast",
        "ttft=2",
        "ttft=2s,ttft=3s",
        "ttft=-2s",
        "ttft=0s",
        "ttft=1e9s",
        "tpot=2d",
        "ttft=2s;tpot=1s",
        "ttft=nans",
        "ttft=2s,",
        "ttft=999999s",
    ],
)
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="--slo") as refusal:
        objective(text)
    if "no limit" in str(refusal.value):
        assert "in s or ms), one of these, patient, server or interactive" in str(refusal.value)


def test_both_limits_must_be_kept() -> None:
    wanted = objective("ttft=2s,tpot=100ms")
    assert wanted.met(2.0, 0.1)
    assert not wanted.met(2.1, 0.1)
    assert not wanted.met(2.0, 0.11)
    assert objective("tpot=100ms").met(1e9, 0.1)
    assert str(wanted) == "ttft=2s,tpot=100ms"
