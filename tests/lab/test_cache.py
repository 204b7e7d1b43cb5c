"""What the cache saves: counts against the plan's, bytes by hand, and identity before all."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import half_billion
import tiny
from farthing.lab import cache
from farthing.lab.cache_counts import count_products, score_bytes
from farthing.lab.peak_memory import KEYS, LOGITS, SCORES, PeakMemory, generation_peak
from farthing.lab.samples import Samples
from farthing.lab.verify import Text
from farthing.models.load import Model
from farthing.plan.cost import decode_costs, stage_costs, total
from farthing.plan.memory import plan_memory
from lab_subject import subject_at
from native_steps import model_at


@pytest.mark.parametrize("family", ["llama", "llama3", "mistral", "qwen2", "gemma3"])
def test_multiply_accumulates_are_those_of_the_plan_step_by_step(family: str) -> None:
    model = model_at(tiny.shared(family, "gguf", "F32"))
    plan = plan_memory(model)
    tokens = 20
    cached = [
        total(decode_costs(model.program, plan, [t])).total_products for t in range(1, tokens + 1)
    ]
    again = [
        total(stage_costs(model.program, plan, [(0, t)], 1)).total_products
        for t in range(1, tokens + 1)
    ]
    found = count_products(model.program, tokens)
    assert (found.cached_step, found.recomputed_step) == (cached[-1], again[-1])
    assert (found.cached, found.recomputed) == (sum(cached), sum(again))


def test_all_steps_grow_with_the_square_cached_and_with_the_cube_recomputed() -> None:
    program = half_billion.model().program
    # Where attention outweighs the matrices: 2 * 24 layers * 896 a pair, 494M a token.
    few, many = count_products(program, 1 << 20), count_products(program, 1 << 21)
    assert many.cached / few.cached == pytest.approx(4, rel=0.02)
    assert many.recomputed / few.recomputed == pytest.approx(8, rel=0.02)
    ratios = [count_products(program, tokens).ratio for tokens in (16, 64, 256, 1024, 4096)]
    assert ratios == sorted(ratios)
    assert ratios[-1] > 1000


def test_one_head_at_4096_holds_67_megabytes_of_scores_recomputed_and_16_kilobytes_cached() -> None:
    assert score_bytes(4096, recomputed=True) == 67_108_864
    assert score_bytes(4096, recomputed=False) == 16_384 == 16 * 1024


def test_cached_and_recomputed_texts_are_the_same_bits() -> None:
    table = cache.text_both_ways(subject_at(tiny.shared("llama", "gguf", "Q4_0")))
    assert table.expectation is not None
    assert table.rows[1][4] == "the same tokens and the same bits of logits"
    assert isinstance(table.rows[1][3], Samples)
    assert table.rows[1][3].count == 2


def test_a_cache_that_changes_one_logit_is_told_as_a_contradiction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = cache.made

    def wrong(*arguments: object, **settings: object) -> list[Text]:
        text = honest(*arguments, **settings)[0]  # type: ignore[arg-type]
        text.logits[3, 7] = np.nextafter(text.logits[3, 7], np.float32(np.inf))
        return [text]

    monkeypatch.setattr(cache, "made", wrong)
    table = cache.text_both_ways(subject_at(tiny.shared("llama", "gguf", "Q4_0")))
    assert table.expectation is not None
    assert table.expectation.met is False
    assert "NOT the same: token 4: 1 of 262 logits differ" in table.finding


def test_one_head_gives_the_same_row_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "HEAD_CONTEXTS", (16, 64))
    table = cache.head_both_ways(subject_at(tiny.shared("llama", "gguf", "Q4_0")))
    assert [row[4:] for row in table.rows] == [(1024, 64), (16_384, 256)]
    assert "64 tokens" in table.finding


def test_what_an_operation_makes_counts_until_it_is_gone() -> None:
    start = torch.zeros(100)
    with PeakMemory(lambda shape: f"of {shape[0]}") as memory:
        double = torch.cat((start, start))
        view = double[:50]
        del double
        half = view + 1
        del view
        last = half[:10] * 2
    assert memory.peak.bytes == 4 * 250
    assert memory.peak.parts == {"of 200": 800, "of 50": 200}
    assert memory.peak.most == {"of 200": 800, "of 50": 200, "of 10": 40}
    assert last.shape == (10,)


@pytest.fixture
def model() -> Model:
    return model_at(tiny.shared("llama3", "gguf", "F32"))


def test_recomputing_holds_logits_of_every_row_and_scores_of_every_pair(model: Model) -> None:
    tokens = 200
    anew = generation_peak(model, [1, 2, 3], tokens, recompute=True)
    assert anew.most[LOGITS] == 4 * tokens * tiny.VOCABULARY
    # At least the scores, then what softmax makes of them: six heads.
    assert anew.most[SCORES] >= 2 * 4 * 6 * tokens * tokens
    cached = generation_peak(model, [1, 2, 3], tokens, recompute=False)
    assert cached.most[LOGITS] == 4 * tiny.VOCABULARY
    assert cached.most[SCORES] <= 4 * 4 * 6 * tokens
    # Three layers, keys and values of two heads of 16, and one layer twice while a token is added.
    layer = 2 * 4 * 2 * 16
    assert 3 * layer * tokens <= cached.most[KEYS] <= 4 * layer * (tokens + 32)
    assert anew.bytes > 3 * cached.bytes
    assert anew.bytes == sum(anew.parts.values())
