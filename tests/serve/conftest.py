from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from farthing.engine.engine import Engine
from serve.server import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from serve.server import Served


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """A server over an engine that rambles: every text differs, and none ends by itself."""
    with serving() as served:
        yield served


@pytest.fixture(scope="session")
def real_server(smollm2_path: Path) -> Iterator[Served]:
    """A server over the default model, with two threads and room for a few texts."""
    engine = Engine.load(smollm2_path, threads=2, context_length=1024, sequences=8)
    with serving(engine, model_name="smollm2-135m") as served:
        yield served
