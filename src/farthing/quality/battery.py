"""The battery: short factual questions, answered under true greedy decoding.

The prompt shows the form of an answer by three examples; the answer is the rest of its line, and is
right when it is one of those that the question lists. No setting of the model's own is applied: a
shipped repetition penalty would forbid the words of the question, and what decodes with one is not
greedy. What such a penalty does to a ranking can be shown by asking with one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

import msgspec

from farthing.core import RequestError, SamplingParams
from farthing.quality.significance import mcnemar_test

if TYPE_CHECKING:
    from collections.abc import Sequence

    from farthing.engine.engine import Engine

TABLE_QUESTIONS = 16
"""The first so many questions are those of the table."""

_ANSWER_TOKENS = 16

_EXAMPLES = (
    "Question: What is the capital of France?\nAnswer: Paris\n\n"
    "Question: What is 3 plus 6?\nAnswer: 9\n\n"
    "Question: Which animal barks?\nAnswer: dog\n\n"
)


class Question(msgspec.Struct, frozen=True):
    """A question, and every answer that counts as right."""

    question: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Answers:
    """What a model answered to each question, and which of it is right."""

    texts: tuple[str, ...]
    right: tuple[bool, ...]

    @property
    def correct(self) -> int:
        """How many are right."""
        return sum(self.right)


@dataclass(frozen=True)
class Flips:
    """Answers that changed from the first model to the second.

    `lost` were right and are wrong now, `gained` the other way round; `p_value` is McNemar's.
    """

    lost: int
    gained: int
    p_value: float


@cache
def questions() -> tuple[Question, ...]:
    """All 200 questions."""
    data = files("farthing.quality").joinpath("data", "battery.json").read_bytes()
    return msgspec.json.decode(data, type=tuple[Question, ...])


def ask(engine: Engine, asked: Sequence[Question], *, repetition_penalty: float = 1.0) -> Answers:
    """What the model answers, each question by itself, with the likeliest token at each step."""
    if not asked:
        raise RequestError("the battery has no questions to ask: give at least one")
    sampling = SamplingParams(
        max_tokens=_ANSWER_TOKENS,
        temperature=0.0,
        stop=("\n",),
        repetition_penalty=repetition_penalty,
    )
    prompts = [f"{_EXAMPLES}Question: {each.question}\nAnswer:" for each in asked]
    texts = tuple(each.text.strip() for each in engine.generate(prompts, sampling))
    right = tuple(is_right(text, each) for text, each in zip(texts, asked, strict=True))
    return Answers(texts, right)


def is_right(text: str, question: Question) -> bool:
    """Whether a text is one of the answers, whatever its case, its article and its full stop."""
    return _plain(text) in {_plain(answer) for answer in question.answers}


def flips(first: Answers, second: Answers) -> Flips:
    """What changed from one model's answers to another's, to the same questions."""
    pairs = list(zip(first.right, second.right, strict=True))
    lost, gained = pairs.count((True, False)), pairs.count((False, True))
    return Flips(lost, gained, mcnemar_test(lost, gained))


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).removeprefix("the ").rstrip(" .")
