"""What a stream of Server-Sent Events holds, read strictly."""

from __future__ import annotations

import json
from typing import Any


def events(text: str) -> list[str]:
    """The data of each event; fails for anything that is not an event or a comment."""
    assert text.endswith("\n\n")
    blocks = text.removesuffix("\n\n").split("\n\n")
    for block in blocks:
        assert block.startswith(("data: ", ": "))
        assert "\n" not in block
    return [block.removeprefix("data: ") for block in blocks if block.startswith("data: ")]


def chunks(text: str) -> list[dict[str, Any]]:
    """The chunks of a stream, which ends with exactly one [DONE]."""
    *data, done = events(text)
    assert done == "[DONE]"
    assert "[DONE]" not in data
    return [json.loads(each) for each in data]


def choices(text: str) -> list[dict[str, Any]]:
    return [choice for chunk in chunks(text) for choice in chunk["choices"]]
