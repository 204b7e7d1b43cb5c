from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from farthing.engine.engine import Engine
from serve.server import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from serve.server import Served

ROOM = Path(__file__).parent
AGAINST_THE_CLOCK = {"test_connections.py", "test_shutdown.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # A browser, and connections and servers that have seconds to live, go by the machine's clock,
    # which may jump by one: a second try tells that from a fault. Nothing else has one.
    for item in items:
        if ROOM in item.path.parents and (
            item.path.name in AGAINST_THE_CLOCK or "browser" in getattr(item, "fixturenames", ())
        ):
            item.add_marker(pytest.mark.flaky(reruns=1))


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
