"""What all tests of the command line share."""

from __future__ import annotations

import pytest

from farthing.cli import progress, stages


@pytest.fixture(autouse=True)
def no_line_of_progress_because_the_machine_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test finds on stderr does not depend on how long it took."""
    for module in (progress, stages):
        monkeypatch.setattr(module, "LINE_SECONDS", 3600.0)
