"""What users ask for: how long their texts are, and how much of the cache these keep busy."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import ceil, sqrt
from typing import TYPE_CHECKING

from farthing.core import BLOCK_TOKENS, RequestError
from farthing.files.text_files import read_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

USUAL_ANSWER = 256
"""Tokens of an answer where nobody says, at most a quarter of the context; assumed."""

_MOST_FILE_BYTES = 64 << 20
_MOST_TOKENS = 1 << 31
_DEVIATIONS = 3.0
"""Of the sum of the texts' lengths, kept room for. Of many texts it is exceeded about once in 700
times, of a few that are very unlike in up to one in 40: then the youngest waits."""


@dataclass(frozen=True)
class Traffic:
    """Texts of one kind. Tokens: `context` is a text's most, prompt and answer together.

    `prompt` and `answer` are means; the first `shared` tokens of every prompt are the same, and
    stand in the cache once. `resident` and `deviation` are mean and standard deviation, over time,
    of the tokens in whole blocks that a running text holds besides these.
    """

    name: str
    context: int
    prompt: int
    answer: int
    shared: int
    resident: float
    deviation: float = 0.0

    def tokens(self, users: int) -> int:
        """Of cache, in whole blocks, for so many texts at once."""
        most = users * _own_tokens(self.context, self.shared)
        likely = users * self.resident + _DEVIATIONS * self.deviation * sqrt(users)
        own = most if self.deviation == 0 else min(most, ceil(likely / BLOCK_TOKENS) * BLOCK_TOKENS)
        return max(own, _own_tokens(self.context, self.shared)) + _shared_tokens(self.shared)


def fixed_traffic(context: int, answer: int | None = None, shared: int = 0) -> Traffic:
    """Texts that all have `context` tokens when they end.

    Raises `RequestError` where the parts are more than the whole.
    """
    answer = max(1, min(USUAL_ANSWER, context // 4)) if answer is None else answer
    if answer + shared >= context > 1:
        raise RequestError(
            f"an answer of {answer:,} tokens and a shared prefix of {shared:,} leave nothing of a "
            f"context of {context:,} for a prompt: give a longer --context, or less of these"
        )
    resident = _own_tokens(context, shared)
    return Traffic(f"{context:,}", context, max(1, context - answer), answer, shared, resident)


def traffic_of(lengths: Sequence[tuple[int, int]], name: str, shared: int = 0) -> Traffic:
    """Texts of such lengths (prompt, answer), as they stand in the cache over time.

    A text is there for as many steps as its answer has tokens, and has half of these on average:
    so longer answers weigh more. Raises `RequestError` where a prompt is shorter than the prefix
    that all share.
    """
    for prompt, _ in lengths:
        if prompt <= shared:
            raise RequestError(
                f"{name} has a prompt of {prompt:,} tokens, which cannot begin with a shared "
                f"prefix of {shared:,}: lower --shared-prefix"
            )
    steps = sum(answer for _, answer in lengths)
    mean = square = 0.0
    for prompt, answer in lengths:
        first, last = _own_tokens(prompt, shared), _own_tokens(prompt + answer, shared)
        share = answer / steps
        mean += share * (first + last) / 2
        # The mean square of a length that rises evenly from the first to the last.
        square += share * (first * first + first * last + last * last) / 3
    return Traffic(
        name,
        max(prompt + answer for prompt, answer in lengths),
        round(sum(prompt for prompt, _ in lengths) / len(lengths)),
        max(1, round(steps / len(lengths))),
        shared,
        mean,
        sqrt(max(0.0, square - mean * mean)),
    )


def read_lengths(path: Path) -> list[tuple[int, int]]:
    """Tokens of prompt and answer of real requests, one request a line.

    A line has two numbers, with a comma or space between, or is a JSON object with `prompt_tokens`
    and `completion_tokens` (a usage entry of OpenAI's API); `#` begins a comment. Raises
    `RequestError` naming the line that is neither.
    """
    text = read_text(path, _MOST_FILE_BYTES, f"--lengths {path}")
    found: list[tuple[int, int]] = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if line:
            found.append(_length(line, f"--lengths {path}, line {number}"))
    if not found:
        raise RequestError(f"--lengths {path} has no request: give one a line, as in 512 128")
    return found


def _length(line: str, where: str) -> tuple[int, int]:
    parts: list[object]
    try:
        if line.startswith("{"):
            entry = json.loads(line)
            parts = [entry["prompt_tokens"], entry["completion_tokens"]]
        else:
            parts = [int(word) for word in line.replace(",", " ").split()]
        prompt, answer = parts
    except (KeyError, ValueError, RecursionError):
        prompt = answer = None
    if not (_is_count(prompt) and _is_count(answer)):
        raise RequestError(
            f"{where}: {line!r:.60} is not two counts of tokens, prompt and answer, from 1 on: "
            '512 128, or {"prompt_tokens": 512, "completion_tokens": 128}'
        )
    return prompt, answer  # type: ignore[return-value]


def _is_count(value: object) -> bool:
    return type(value) is int and 1 <= value <= _MOST_TOKENS


def _own_tokens(tokens: int, shared: int) -> int:
    """In whole blocks, besides the blocks that hold nothing but shared tokens."""
    return -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS - _shared_tokens(shared)


def _shared_tokens(shared: int) -> int:
    """Only whole blocks can be shared."""
    return shared // BLOCK_TOKENS * BLOCK_TOKENS
