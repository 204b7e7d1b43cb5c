"""The bounds within which a hostile file must be refused."""

from __future__ import annotations

import time
import tracemalloc
from contextlib import suppress
from typing import TYPE_CHECKING

from farthing.core import FarthingError

if TYPE_CHECKING:
    from collections.abc import Callable

MEMORY = 200_000_000
SECONDS = 2


def within_bounds(call: Callable[[], object]) -> None:
    """Runs a call twice, for its time and for its memory, which cannot be measured at once.

    The second run's error, if any, is the caller's.
    """
    began = time.process_time()
    with suppress(FarthingError):
        call()
    took = time.process_time() - began
    assert took < SECONDS
    tracemalloc.start()
    try:
        call()
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < MEMORY
