from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _checked_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every engine of these tests checks the ownership of its blocks after every step."""
    monkeypatch.setenv("FARTHING_CHECK", "1")
