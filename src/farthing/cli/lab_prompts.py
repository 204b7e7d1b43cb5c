"""A person's own prompts for the laboratory: a line each, or a batch as `farthing run` takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farthing.cli.batch_requests import Defaults, LineErrors, read_requests
from farthing.core import RequestError, SamplingParams
from farthing.files.text_files import read_text

if TYPE_CHECKING:
    from pathlib import Path

MOST_PROMPTS = 64
"""Each is decoded some ten times over."""

_MOST_BYTES = 16 << 20


def read_prompts(path: Path) -> tuple[tuple[Any, SamplingParams], ...]:
    """The prompts of a file, each with how it is sampled: greedily where nothing else is said.

    A file whose first line begins with "{" is a batch (JSON, one object a line); of any other each
    line that is not empty is a prompt. Raises `RequestError` for a file that cannot be read, that
    has no prompt or more than `MOST_PROMPTS`, and for a line that is wrong.
    """
    text = read_text(path, _MOST_BYTES, f"--prompts {path}")
    found: list[tuple[Any, SamplingParams]]
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        errors = LineErrors()
        requests = list(read_requests(path, Defaults(SamplingParams()), errors))
        if errors.count:
            raise RequestError(f"{path} is no batch of requests:{errors}")
        found = [(request.prompt, request.sampling) for request in requests]
    else:
        lines = (line.strip() for line in text.removeprefix("\ufeff").splitlines())
        found = [(line, SamplingParams()) for line in lines if line]
    if not 1 <= len(found) <= MOST_PROMPTS:
        raise RequestError(
            f"--prompts {path} has {len(found):,} prompts: give from 1 to {MOST_PROMPTS}"
        )
    return tuple(found)
