"""What a teacher is asked to go on from, so that its answers become a student's text.

Shipped are openings of the kinds that people ask for (code, extraction, stories, talk, plain text),
each a template with one of many things put in, and pieces of the calibration text. The test text is
none of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import FarthingError, RequestError
from farthing.engine.prompts import encode
from farthing.quality.texts import calibration_text, held_out_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from farthing.engine.prompts import Prompt
    from farthing.quality.texts import Text
    from farthing.text.chat import ChatTemplate
    from farthing.text.tokenizer import Tokenizer

_STORIES = (
    "Write a short story about {}.",
    "Tell me a bedtime story with {} in it.",
    "Write the first page of a novel about {}.",
    "Write a poem about {}.",
    "Describe {} as a traveller would in a letter home.",
)
_CHARACTERS = (
    "a fox who collects buttons", "two sisters on a sailing boat", "an old train driver",
    "a garden that grows at night", "a baker who cannot taste", "the last day of summer",
    "a robot that learns to paint", "a village under the snow", "a stolen violin",
    "a doctor on a small island", "a boy who talks to whales", "the market in the harbour",
    "a queen without a country", "a map with one road missing", "a storm in the desert",
    "three friends and a broken car", "a teacher's first class", "a clock that runs backwards",
    "a dragon that is afraid of fire", "a house with thirteen doors",
)  # fmt: skip
_QUESTIONS = (
    "What is {}, and why does it matter?",
    "Explain {} to a ten-year-old.",
    "Give me five facts about {}.",
    "What do people often get wrong about {}?",
    "How would I learn more about {}?",
    "Write a short essay on {}.",
    "What are the advantages and disadvantages of {}?",
)
_TOPICS = (
    "photosynthesis", "compound interest", "the French Revolution", "black holes", "vaccination",
    "jazz", "baking bread", "volcanoes", "democracy", "the human heart", "electric cars",
    "ancient Rome", "healthy sleep", "chess", "the water cycle", "learning a language",
    "renewable energy", "the internet", "gravity", "working from home", "running a marathon",
    "growing tomatoes", "the stock market", "public libraries", "meditation", "recycling",
    "space travel", "cities without cars", "bees", "writing a good letter",
)  # fmt: skip
_PROGRAMS = (
    "Write a Python function that {}.",
    "Write a Python function that {}, with a docstring and an example.",
    "Show me how to write JavaScript that {}.",
    "How do I write a program that {}? Explain it step by step.",
)
_TASKS = (
    "reverses a string", "counts the words in a file", "finds the largest number in a list",
    "checks whether a word is a palindrome", "sorts a list of dictionaries by a key",
    "computes the factorial of a number", "reads a CSV file and sums a column",
    "removes duplicates from a list", "merges two sorted lists", "finds all primes below n",
    "converts Celsius to Fahrenheit", "downloads a page and prints its title",
    "counts how often each letter occurs", "flattens a nested list", "rolls two dice",
    "validates an e-mail address", "implements a stack", "searches a sorted list by halving",
    "formats a date", "draws a triangle of stars",
)  # fmt: skip
_READINGS = (
    "Summarise this text in two sentences:\n\n{}",
    "Copy the most important sentence of this text, word for word:\n\n{}",
    "List the key terms of this text:\n\n{}",
    "Rewrite this text in plain modern English:\n\n{}",
    "Repeat this text without changing a word:\n\n{}",
)

_PIECE_CHARACTERS = 500
_HELD_OUT_SHARE = 16
"""One opening of so many is kept from training, for the text that a student is measured on."""


@dataclass(frozen=True)
class Openings:
    """Prompts as token ids, in a shuffled order: those to train with, and others held out."""

    training: Sequence[tuple[int, ...]]
    held_out: Sequence[tuple[int, ...]]


def shipped_openings(
    tokenizer: Tokenizer, chat_template: ChatTemplate | None, most_tokens: int, seed: int
) -> Openings:
    """Those that come with farthing, of at most `most_tokens` tokens each: chats for a teacher with
    a chat template, plain text for one without.
    """
    pieces = list(_pieces(calibration_text().content))
    plain = [piece[: _PIECE_CHARACTERS // 4] for piece in pieces]
    if chat_template is None:
        texts: list[Prompt] = [*plain, *(f"{each[0].upper()}{each[1:]}" for each in _CHARACTERS)]
    else:
        asked = [*_filled(_STORIES, _CHARACTERS), *_filled(_QUESTIONS, _TOPICS)]
        asked += _filled(_PROGRAMS, _TASKS) * 2
        asked += [
            _READINGS[number % len(_READINGS)].format(piece) for number, piece in enumerate(pieces)
        ]
        texts = [[{"role": "user", "content": each}] for each in asked]
        texts += plain[:: len(_READINGS)]
    found = [_encoded(each, tokenizer, chat_template) for each in texts]
    return _divided([ids for ids in found if 0 < len(ids) <= most_tokens], seed)


def openings_of(
    texts: Sequence[Text],
    tokenizer: Tokenizer,
    chat_template: ChatTemplate | None,
    most_tokens: int,
    seed: int,
) -> Openings:
    """The lines of the texts that are not blank, each a prompt: a chat where there is a template.

    Raises `RequestError` for the test text, for fewer than two lines, and for a line of more than
    `most_tokens` tokens.
    """
    found: list[tuple[int, ...]] = []
    for text in texts:
        if text.sha256 == held_out_text().sha256:
            raise RequestError(
                f"{text.name} is the text that models are tested on, so none may be trained with "
                "it: give other prompts"
            )
        for number, line in enumerate(text.content.splitlines(), 1):
            if not line.strip():
                continue
            prompt: Prompt = line
            if chat_template is not None:
                prompt = [{"role": "user", "content": line}]
            ids = _encoded(prompt, tokenizer, chat_template)
            if len(ids) > most_tokens:
                raise RequestError(
                    f"line {number} of {text.name} has {len(ids):,} tokens, and a prompt may have "
                    f"{most_tokens:,} here: shorten it"
                )
            found.append(ids)
    if len(found) < 2:
        raise RequestError(
            f"there are {len(found)} prompts, and distilling takes at least two, better hundreds: "
            "give files with a prompt on each line (--prompts)"
        )
    return _divided(found, seed)


def _encoded(
    prompt: Prompt, tokenizer: Tokenizer, chat_template: ChatTemplate | None
) -> tuple[int, ...]:
    return tuple(encode(prompt, tokenizer, chat_template, 1 << 20))


def _filled(templates: Sequence[str], things: Sequence[str]) -> list[str]:
    return [template.format(thing) for template in templates for thing in things]


def _pieces(text: str) -> Iterator[str]:
    """Beginnings of paragraphs that are long enough to say something."""
    for paragraph in text.split("\n"):
        if len(paragraph) >= _PIECE_CHARACTERS // 2:
            yield paragraph[:_PIECE_CHARACTERS].rpartition(" ")[0]


def _divided(prompts: list[tuple[int, ...]], seed: int) -> Openings:
    if not prompts:
        raise FarthingError("no prompt is short enough for this teacher's context: give shorter")
    order = np.random.default_rng((seed, 0)).permutation(len(prompts))
    shuffled = [prompts[at] for at in order]
    kept = max(1, len(shuffled) // _HELD_OUT_SHARE)
    return Openings(shuffled[kept:], shuffled[:kept])
