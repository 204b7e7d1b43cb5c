"""A batch's two files, some requests of every kind, and what a command says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import tiny

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

CHAT = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
MIXED: list[dict[str, Any]] = [
    {"prompt": "hello", "id": "plain"},
    {"prompt": [5, 6, 7, 8], "max_tokens": 3},
    {"messages": CHAT, "id": 17, "temperature": 1.0, "seed": 3},
    {"prompt": "some more words " * 20, "temperature": 1.0, "top_p": 0.9, "seed": 11},
    {"prompt": "hello", "logprobs": 2, "max_tokens": 4},
    {"prompt": "ab", "stop": ["a", "b", "c", "d", "e"], "max_tokens": 40},
    {"prompt": "ab", "logit_bias": {str(tiny.EOS): 1000}, "max_tokens": 40},
    {"prompt": "some more words " * 20 + "and an end", "repetition_penalty": 1.2},
]


class Files:
    """A file of requests and one for the answers."""

    def __init__(self, folder: Path) -> None:
        self.requests = folder / "prompts.jsonl"
        self.out = folder / "answers.jsonl"

    def write(self, lines: list[dict[str, Any]]) -> None:
        self.requests.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")

    def command(self, model: str, *flags: str) -> list[str]:
        return ["run", model, "--file", str(self.requests), "--out", str(self.out), *flags]

    def answers(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.read_text("utf-8").splitlines()]

    def by_index(self) -> dict[int, dict[str, Any]]:
        answers = {answer["index"]: answer for answer in self.answers()}
        assert len(answers) == len(self.answers()), "an answer is there twice"
        return answers


def says(capsys: pytest.CaptureFixture[str]) -> str:
    """What stands on stderr, which must be a message and no traceback."""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err
