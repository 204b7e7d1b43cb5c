"""What a server tells of itself at /metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from serving.client import get

if TYPE_CHECKING:
    from collections.abc import Mapping

    from serving.client import Connections


class Metrics:
    """The samples of one scrape, by name and labels as they are written; `seconds` it took."""

    def __init__(self, text: str, seconds: float = 0.0) -> None:
        self.seconds = seconds
        lines = (line for line in text.splitlines() if line and not line.startswith("#"))
        self._samples = {
            name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)
        }

    def total(self, name: str, *labels: str) -> float:
        """The sum of all samples of that name with such labels (`status="200"`); 0 without any."""
        return sum(
            value
            for sample, value in self._samples.items()
            if sample.partition("{")[0] == name and all(label in sample for label in labels)
        )


async def scrape(connections: Connections, headers: Mapping[str, str] | None = None) -> Metrics:
    """Asks a server; raises `RuntimeError` when it does not tell."""
    answer = await connections.ask(get("/metrics", headers))
    if answer.status != 200:
        raise RuntimeError(f"/metrics answers {answer.status}: {answer.body[:200]!r}")
    return Metrics(answer.body.decode(), answer.seconds)
