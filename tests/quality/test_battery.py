"""The battery: its questions, what counts as right, and that decoding is truly greedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import tiny
from engine.scripted import engine as scripted_engine
from farthing.core import RequestError
from farthing.engine.engine import Engine
from farthing.quality import battery
from farthing.quality.battery import (
    TABLE_QUESTIONS,
    Answers,
    Question,
    ask,
    flips,
    is_right,
    questions,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_there_are_two_hundred_different_questions_each_with_its_answers() -> None:
    asked = questions()
    assert len(asked) == 200
    assert len({each.question for each in asked}) == 200
    for each in asked:
        assert each.question.endswith("?")
        assert each.answers
        assert all(answer and len(answer) < 25 and "\n" not in answer for answer in each.answers)


def test_the_table_battery_has_a_question_of_every_kind() -> None:
    table = " ".join(each.question for each in questions()[:TABLE_QUESTIONS])
    for words in ("capital", "chemical symbol", "year", "plus", "times", "How many", "opposite"):
        assert words in table


def test_no_example_of_the_prompt_is_asked() -> None:
    asked = {each.question for each in questions()}
    examples = [line for line in battery._EXAMPLES.splitlines() if line.startswith("Question: ")]
    assert len(examples) == 3
    assert asked.isdisjoint(line.removeprefix("Question: ") for line in examples)


@pytest.mark.parametrize("text", ["Au", " au ", "AU.", "the Au", "the  au."])
def test_an_answer_is_right_whatever_its_case_article_and_full_stop(text: str) -> None:
    assert is_right(text, Question("Gold?", ("Au",)))


@pytest.mark.parametrize("text", ["", "Au!", "Aurum", "Au is gold", "It is Au", "Ag", "."])
def test_anything_else_is_wrong(text: str) -> None:
    assert not is_right(text, Question("Gold?", ("Au", "gold")))


def test_the_rest_of_the_line_is_the_answer() -> None:
    from engine.scripted import saying

    with scripted_engine(saying(" 12\nQuestion: more", after=":")) as engine:
        answers = ask(engine, [Question("What is 7 plus 5?", ("12", "twelve"))])
    assert answers == Answers(("12",), (True,))
    assert answers.correct == 1


def test_answers_are_those_of_greedy_decoding_whatever_the_model_ships(tmp_path: Path) -> None:
    """A generation_config.json that asks for sampling and a penalty changes nothing."""
    import json
    import shutil

    asked = questions()[:4]
    folder = tmp_path / "model"
    shutil.copytree(tiny.shared("llama", "safetensors", "BF16"), folder)
    found = []
    for settings in ({}, {"do_sample": True, "temperature": 2.0, "repetition_penalty": 1.9}):
        (folder / "generation_config.json").write_text(json.dumps(settings))
        with Engine.load(folder, threads=2) as engine:
            found.append(ask(engine, asked))
            penalised = ask(engine, asked, repetition_penalty=1.9)
    assert found[0] == found[1]
    assert found[0] != penalised


def test_a_question_is_answered_as_it_would_be_alone() -> None:
    asked = questions()[:5]
    with Engine.load(tiny.shared("llama"), threads=2) as engine:
        together = ask(engine, asked)
        alone = [ask(engine, [each]).texts[0] for each in asked]
    assert list(together.texts) == alone


def test_flips_are_counted_in_both_directions() -> None:
    first = Answers(("",) * 6, (True, True, True, False, False, True))
    second = Answers(("",) * 6, (True, False, False, True, False, False))
    found = flips(first, second)
    assert (found.lost, found.gained) == (3, 1)
    assert found.p_value == pytest.approx(0.625)
    assert flips(first, first).p_value == 1.0


def test_a_battery_without_questions_is_refused() -> None:
    with scripted_engine() as engine, pytest.raises(RequestError, match="no questions"):
        ask(engine, [])
