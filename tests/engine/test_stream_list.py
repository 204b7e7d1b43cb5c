from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from engine.scripted import VOCABULARY, engine, engine_over, rambling, saying
from engine.threads import eventually
from farthing.backends.null import NullBackend
from farthing.core import FarthingError, RequestError

if TYPE_CHECKING:
    from farthing.core import StepPlan, StepResult


def test_the_deltas_of_a_list_are_numbered_and_end_once_each() -> None:
    one = engine(saying("yes"))
    texts, ends = ["", "", ""], [0, 0, 0]
    for index, delta in one.stream(["a>", "bb>", "ccc>"]):
        texts[index] += delta.text
        ends[index] += delta.finish_reason is not None
    assert texts == ["yes"] * 3
    assert ends == [1, 1, 1]
    assert one.idle


def test_a_list_of_prompts_is_streamed_as_the_queue_has_room() -> None:
    prompts = [f"{number:02}" * 20 + ">" for number in range(12)]
    one = engine(saying("yes"), queue_tokens=100, max_step_rows=3)
    texts = [""] * 12
    for index, delta in one.stream(prompts):
        assert one.stats().queued_tokens <= 100
        texts[index] += delta.text
    assert texts == ["yes"] * 12


@pytest.mark.parametrize("begun", [False, True])
def test_leaving_a_stream_of_a_list_frees_the_blocks_of_all(begun: bool) -> None:
    one = engine()
    deltas = one.stream(["a", "b", "c"])
    if begun:
        next(deltas)
    del deltas
    gc.collect()
    assert eventually(lambda: one.idle)


def test_a_bad_prompt_of_a_list_is_told_before_any_is_run() -> None:
    one = engine()
    with pytest.raises(RequestError, match="2001 tokens"):
        one.stream(["fine", "x" * 2000])
    assert one.steps == 0


class Failing(NullBackend):
    def run(self, plan: StepPlan, want_logits: bool = False) -> StepResult:
        if self.steps == 2:
            raise FarthingError("this step was made to fail")
        return super().run(plan, want_logits)


@pytest.mark.parametrize("ask", ["generate", "stream"])
def test_a_text_of_a_list_that_failed_ends_the_list_with_its_error(ask: str) -> None:
    one = engine_over(Failing(rambling, VOCABULARY))
    with pytest.raises(FarthingError, match="made to fail"):
        list(getattr(one, ask)(["a", "b"]))
    assert eventually(lambda: one.idle)
